//! The part of a NIC visible to plug-ins, at a fixed address.

use std::cell::UnsafeCell;
use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use vipl_plugin_abi::*;

use crate::memory::table::free_region;
use crate::sync::OnceLock;

/// `vipl_nic` is its first field, so that both have the same address.
#[repr(C)]
pub(crate) struct Shared {
    nic: UnsafeCell<vipl_nic>,
    /// Whether the plug-in has reported that the device has failed.
    failed: AtomicBool,
    /// The table of regions, unless the plug-in provides one.
    regions: OnceLock<Box<[vipl_region]>>,
}
// SAFETY: written during open only, the host's word atomically; afterwards only read.
unsafe impl Sync for Shared {}
// SAFETY: as above; its pointers belong to the plug-in and the host.
unsafe impl Send for Shared {}

impl Shared {
    /// For a device that is about to be opened.
    pub(crate) fn new(options: u32) -> Arc<Shared> {
        Arc::new(Shared {
            nic: UnsafeCell::new(vipl_nic {
                context: std::ptr::null_mut(),
                host: std::ptr::null_mut(),
                regions: std::ptr::null(),
                region_count: 0,
                options,
                segments_max: 0,
                reserved: 0,
            }),
            failed: AtomicBool::new(false),
            regions: OnceLock::new(),
        })
    }

    /// The pointer passed to plug-ins. It is valid for all of `Shared`.
    pub(crate) fn abi(this: &Arc<Shared>) -> *mut vipl_nic {
        Arc::as_ptr(this).cast_mut().cast()
    }

    /// Stores the plug-in's description of the device, and allocates a table of regions if it has none.
    pub(crate) fn describe(this: &Arc<Shared>, info: &mut vipl_nic_info) {
        if info.regions.is_null() {
            let make = || (0..info.regions_max).map(|_| free_region()).collect();
            info.regions = this.regions.get_or_init(make).as_ptr().cast_mut();
        }
        let nic = Shared::abi(this);
        // SAFETY: the device is being opened: only the host's word is read by others meanwhile.
        unsafe {
            (&raw mut (*nic).regions).write(info.regions);
            (&raw mut (*nic).region_count).write(info.regions_max);
            (&raw mut (*nic).segments_max).write(info.segments_max);
        }
    }

    /// The device has failed.
    pub(super) fn has_failed(&self) -> bool {
        self.failed.load(Ordering::SeqCst)
    }

    /// Stores the NIC in the host's word of the plug-in's part.
    pub(super) fn set_host(&self, nic: *const c_void) {
        // SAFETY: the cell is valid as long as `self`.
        let host = unsafe { host_of(self.nic.get()) };
        host.store(nic.cast_mut(), Ordering::SeqCst);
    }

    /// Closes the device, once.
    pub(crate) fn close(self: &Arc<Shared>, ops: &vipl_provider) {
        if let Some(nic_close) = ops.nic_close {
            // SAFETY: opened by `nic_open`.
            unsafe { nic_close(Shared::abi(self)) };
        }
    }
}

/// The host's word in a NIC. A thread of the plug-in may read it while the NIC is being opened.
///
/// # Safety
/// `nic` is within a [`Shared`] that lives as long as the result is used.
unsafe fn host_of<'a>(nic: *const vipl_nic) -> &'a AtomicPtr<c_void> {
    // SAFETY: guaranteed by the caller; aligned, and accessed atomically wherever threads share it.
    unsafe { AtomicPtr::from_ptr(&raw mut (*nic.cast_mut()).host) }
}

/// The host's word of a NIC: NULL while it is being opened.
///
/// # Safety
/// `nic` was made by [`Shared::abi`] and is open or being opened.
pub(super) unsafe fn host(nic: *const vipl_nic) -> *const c_void {
    // Acquire: a thread of the plug-in, which is not otherwise ordered after the end of opening, sees the
    // complete NIC. SAFETY: guaranteed by the caller.
    unsafe { host_of(nic) }.load(Ordering::Acquire)
}

/// Records that a device has failed; returns the host's word, which is NULL while the NIC is being opened.
///
/// # Safety
/// `nic` was made by [`Shared::abi`] and is open or being opened.
pub(super) unsafe fn fail(nic: *const vipl_nic) -> *const c_void {
    // SAFETY: guaranteed by the caller.
    let shared = unsafe { &*nic.cast::<Shared>() };
    shared.failed.store(true, Ordering::SeqCst);
    // Of this and the end of opening, the later one sees the store of the earlier one. SAFETY: as above.
    unsafe { host_of(nic) }.load(Ordering::SeqCst)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vi::tests::device;

    #[test]
    fn a_device_without_a_table_of_regions_gets_one() {
        let shared = Shared::new(VIPL_OPTION_CHECK_DESCRIPTOR);
        let mut info = device::plugin(false).blank_info();
        info.regions_max = 8;
        info.segments_max = 5;
        Shared::describe(&shared, &mut info);
        // SAFETY: the NIC lives as long as `shared`.
        let nic = unsafe { &*Shared::abi(&shared) };
        assert!(!nic.regions.is_null() && std::ptr::eq(nic.regions, info.regions));
        assert_eq!((nic.region_count, nic.segments_max), (8, 5));
        assert_eq!(nic.options, VIPL_OPTION_CHECK_DESCRIPTOR);
    }

    #[test]
    fn a_failure_before_the_nic_is_known_is_seen_afterwards() {
        let shared = Shared::new(0);
        let nic = Shared::abi(&shared);
        // SAFETY: made by `Shared::abi`, and alive.
        assert!(unsafe { fail(nic) }.is_null());
        let host = (&raw const shared).cast();
        shared.set_host(host);
        assert!(shared.has_failed());
        // SAFETY: as above.
        assert_eq!(unsafe { fail(nic) }, host);
    }
}
