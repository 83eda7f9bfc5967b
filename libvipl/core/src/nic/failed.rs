//! The end of a device: a plug-in says that it has failed for good (spec §6.4 E18, §11).

use std::sync::atomic::{AtomicPtr, Ordering};

use vipl_abi::*;
use vipl_plugin_abi::*;

use super::{Nic, Shared};

/// The host's own word in a NIC. A thread of the plug-in may read it while the NIC is being opened.
///
/// # Safety
/// `nic` is within a [`Shared`] that lives as long as the result is used.
pub(super) unsafe fn host_of<'a>(nic: *const vipl_nic) -> &'a AtomicPtr<std::ffi::c_void> {
    // SAFETY: as asked of the caller; aligned, and from now on accessed atomically wherever it matters.
    unsafe { AtomicPtr::from_ptr(&raw mut (*nic.cast_mut()).host) }
}

/// `vipl_host.catastrophe`.
///
/// # Safety
/// The NIC is open or being opened, and the calling thread is inside no operation.
pub(crate) unsafe fn device_failed(nic: *const vipl_nic) {
    // SAFETY: the host made it as the first part of a `Shared`.
    let shared = unsafe { &*nic.cast::<Shared>() };
    shared.failed.store(true, Ordering::SeqCst);
    // SAFETY: as above. Whoever comes second, this or the end of opening, sees what the first one wrote.
    let host = unsafe { host_of(nic) }.load(Ordering::SeqCst);
    // SAFETY: NULL, or the NIC around it, which lives while it is open.
    if let Some(nic) = unsafe { host.cast::<Nic>().as_ref() } {
        nic.mourn();
    }
}

impl Nic {
    /// Whether the device has failed: nothing can be connected any more.
    pub(crate) fn has_failed(&self) -> bool {
        self.shared.failed.load(Ordering::SeqCst)
    }

    /// The device has failed (E18): every connected VI dies, and the program is told once. A VI that is
    /// being connected at this moment sees that the device has failed when it has the VI's lock.
    pub(super) fn mourn(&self) {
        if self.mourned.swap(true, Ordering::SeqCst) {
            return;
        }
        log::error!(target: "nic", "the device of NIC {:?} has failed", self.handle);
        self.each_vi(|slot| {
            if let Some(mut vi) = slot.lock_any()
                && std::ptr::eq(vi.abi.nic, self.abi())
            {
                vi.fail(VIPL_CAUSE_TOLD, 0, std::ptr::null_mut());
            }
        });
        self.events.raise(
            VIP_ERROR_DESCRIPTOR {
                NicHandle: self.handle,
                ViHandle: std::ptr::null_mut(),
                CQHandle: std::ptr::null_mut(),
                DescriptorPtr: std::ptr::null_mut(),
                OpCode: 0,
                ResourceCode: VIP_RESOURCE_CODE::VIP_RESOURCE_NIC,
                ErrorCode: VIP_ERROR_CODE::VIP_ERROR_CATASTROPHIC,
            },
            self,
        );
        // Threads that sleep on this NIC have something to see.
        self.wake();
    }
}
