//! The device: handles, limits, and calls of the library that need nothing else.

use std::collections::HashMap;
use std::ffi::{CString, c_int, c_void};
use std::sync::OnceLock;

use vipl_abi::*;
use vipl_client::Search;
use vipl_client::raw::Functions;

use crate::address::NIC_BYTES;
use crate::libfabric;
use crate::settings::{Level, Settings};
use crate::slab::Id;

const SUCCESS: c_int = VIP_RETURN::VIP_SUCCESS as c_int;

/// A handle of the library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Handle(usize);

impl Handle {
    pub(crate) const NONE: Handle = Handle(0);

    pub(crate) fn from_raw(raw: *mut c_void) -> Handle {
        Handle(raw as usize)
    }

    #[inline]
    pub(crate) fn raw(self) -> *mut c_void {
        self.0 as *mut c_void
    }

    /// A number with which handles are spread over a table.
    #[inline]
    pub(crate) fn hash(self) -> usize {
        ((self.0 as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 48) as usize
    }
}

/// What the NIC can do.
#[derive(Clone, Debug)]
pub(crate) struct Limits {
    pub name: CString,
    pub address: [u8; NIC_BYTES],
    pub address_bytes: usize,
    /// Bytes of one descriptor.
    pub transfer: usize,
    pub vis: usize,
    pub regions: usize,
    /// Mask of the levels.
    pub levels: VIP_RELIABILITY_LEVEL,
    /// The device reads remote memory at the level that connections use.
    pub reads: bool,
    /// The level that connections use.
    pub level: VIP_RELIABILITY_LEVEL,
    /// The same, of connections for messages with tags, which carry no RDMA of the program's.
    pub tagged_level: VIP_RELIABILITY_LEVEL,
}

/// The functions of the library, opened at the first call: no program loads it that has not requested the provider. A library
/// that the process has loaded already is taken first, so that a program that uses VIPL itself has one library, not two.
fn functions() -> Result<&'static Functions, String> {
    static OPENED: OnceLock<Result<&'static Functions, String>> = OnceLock::new();
    let open = || {
        let library = Search::module("FI_VIPL_LIBRARY").open();
        let library = library.map_err(|error| error.to_string())?;
        Ok(library.functions())
    };
    OPENED.get_or_init(open).clone()
}

/// Handles and limits: what calls of the library need.
pub(crate) struct Device {
    pub functions: &'static Functions,
    user_data: UserData,
    notify: Notify,
    pub nic: Handle,
    pub tag: Handle,
    pub cq: Handle,
    pub limits: Limits,
}

/// The functions that store a pointer with a VI.
struct UserData {
    set: unsafe extern "C" fn(VIP_VI_HANDLE, VIP_PVOID),
    get: unsafe extern "C" fn(VIP_VI_HANDLE) -> VIP_PVOID,
}

/// VipCQNotify.
type Notify = unsafe extern "C" fn(VIP_CQ_HANDLE, VIP_PVOID, CqHandler) -> c_int;

/// What peers may do with a region.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Access {
    pub write: bool,
    pub read: bool,
}

impl Device {
    /// Opens the device. `on_error` is called for asynchronous errors.
    pub(crate) fn open(settings: &Settings, on_error: ErrorHandler) -> Result<Device, String> {
        let functions = functions()?;
        let missing = || "the library lacks VipCQNotify, VipSetUserData or VipGetUserData";
        let set = functions.VipSetUserData.ok_or_else(missing)?;
        let get = functions.VipGetUserData.ok_or_else(missing)?;
        let notify = functions.VipCQNotify.ok_or_else(missing)?;
        let name = CString::new(settings.device.as_str())
            .map_err(|_| "a device name with a NUL".to_owned())?;
        let mut nic = std::ptr::null_mut();
        // SAFETY: a NUL-terminated name and room for a handle.
        let code = unsafe { (functions.VipOpenNic)(name.as_ptr(), &raw mut nic) };
        if code != SUCCESS {
            return Err(format!("VipOpenNic({}): {code}", settings.device));
        }
        let mut device = Device {
            functions,
            user_data: UserData { set, get },
            notify,
            nic: Handle::from_raw(nic),
            tag: Handle::NONE,
            cq: Handle::NONE,
            limits: Limits {
                name,
                address: [0; NIC_BYTES],
                address_bytes: 0,
                transfer: 0,
                vis: 0,
                regions: 0,
                levels: 0,
                reads: false,
                level: 0,
                tagged_level: 0,
            },
        };
        // From here on Drop closes what is open.
        let entries = device.query(settings)?;
        let (mut tag, mut cq) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: an open NIC and room for handles.
        let codes = unsafe {
            (
                (functions.VipCreatePtag)(nic, &raw mut tag),
                (functions.VipCreateCQ)(nic, entries, &raw mut cq),
            )
        };
        if codes.0 == SUCCESS {
            device.tag = Handle::from_raw(tag);
        }
        if codes.1 == SUCCESS {
            device.cq = Handle::from_raw(cq);
        }
        // SAFETY: an open NIC; the handler searches for the NIC by its handle.
        let code = unsafe { (functions.VipErrorCallback)(nic, std::ptr::null_mut(), on_error) };
        if codes != (SUCCESS, SUCCESS) || code != SUCCESS {
            return Err(format!(
                "{}: no protection tag, completion queue or error handler",
                settings.device
            ));
        }
        Ok(device)
    }

    /// Fills the limits; returns the entries for the completion queue.
    fn query(&mut self, settings: &Settings) -> Result<VIP_ULONG, String> {
        let mut attributes = std::mem::MaybeUninit::<VIP_NIC_ATTRIBUTES>::zeroed();
        // SAFETY: an open NIC and room for its attributes.
        let code = unsafe { (self.functions.VipQueryNic)(self.nic.raw(), attributes.as_mut_ptr()) };
        if code != SUCCESS {
            return Err(format!("VipQueryNic: {code}"));
        }
        // SAFETY: zeroes are valid, and the call has filled them.
        let attributes = unsafe { attributes.assume_init() };
        let limits = &mut self.limits;
        limits.address_bytes = usize::from(attributes.NicAddressLen);
        if limits.address_bytes > NIC_BYTES {
            return Err(format!(
                "{}: addresses of {} bytes do not fit",
                settings.device, limits.address_bytes
            ));
        }
        for (at, byte) in limits
            .address
            .iter_mut()
            .enumerate()
            .take(limits.address_bytes)
        {
            // SAFETY: the library gives this many bytes.
            *byte = unsafe { attributes.LocalNicAddress.add(at).read() };
        }
        limits.transfer = attributes.MaxTransferSize as usize;
        limits.vis = attributes.MaxVI as usize;
        limits.regions = attributes.MaxRegisterRegions as usize;
        limits.levels = attributes.ReliabilityLevelSupport;
        let wanted = match settings.level {
            Some(Level::Reception) | None => VIP_SERVICE_RELIABLE_RECEPTION,
            Some(Level::Delivery) => VIP_SERVICE_RELIABLE_DELIVERY,
        };
        limits.level = wanted;
        if limits.levels & wanted == 0 {
            return Err(format!(
                "{}: lacks the reliability level {wanted}",
                settings.device
            ));
        }
        limits.reads = attributes.RDMAReadSupport & wanted != 0;
        // On Reliable Reception the end of a read waits for the peer to take the answers before it.
        let delivery = VIP_SERVICE_RELIABLE_DELIVERY;
        let is_as_good = limits.levels & delivery != 0
            && limits.reads == (attributes.RDMAReadSupport & delivery != 0);
        limits.tagged_level = match settings.level {
            None if is_as_good => delivery,
            _ => wanted,
        };
        Ok(attributes.MaxCQEntries.min(65536))
    }

    /// Registers memory.
    pub(crate) fn register(
        &self,
        address: *mut c_void,
        length: usize,
        access: Access,
    ) -> Option<u32> {
        let mut attributes = VIP_MEM_ATTRIBUTES {
            Ptag: self.tag.raw(),
            EnableRdmaWrite: access.write.into(),
            EnableRdmaRead: (access.read && self.limits.reads).into(),
        };
        let mut handle = 0;
        let _off = vipl_sys::cancel::Off::new();
        // SAFETY: the library checks the range; its attributes and the room for the handle live through the call.
        let code = unsafe {
            (self.functions.VipRegisterMem)(
                self.nic.raw(),
                address,
                length as VIP_ULONG,
                &raw mut attributes,
                &raw mut handle,
            )
        };
        if code != SUCCESS {
            libfabric::warn(|| format!("VipRegisterMem of {length} bytes: {code}"));
        }
        (code == SUCCESS).then_some(handle)
    }

    /// Ends a registration.
    pub(crate) fn deregister(&self, address: *mut c_void, handle: u32) {
        let _off = vipl_sys::cancel::Off::new();
        // SAFETY: the library checks its arguments.
        unsafe { (self.functions.VipDeregisterMem)(self.nic.raw(), address, handle) };
    }

    /// Makes a VI whose queues report to the NIC's completion queue.
    pub(crate) fn create_vi(&self, level: VIP_RELIABILITY_LEVEL) -> Option<Handle> {
        let mut attributes = VIP_VI_ATTRIBUTES {
            ReliabilityLevel: level,
            MaxTransferSize: self.limits.transfer as VIP_ULONG,
            QoS: std::ptr::null_mut(),
            Ptag: self.tag.raw(),
            EnableRdmaWrite: 1,
            EnableRdmaRead: self.limits.reads.into(),
        };
        let mut vi = std::ptr::null_mut();
        // SAFETY: live handles, and room for the new one.
        let code = unsafe {
            (self.functions.VipCreateVi)(
                self.nic.raw(),
                &raw mut attributes,
                self.cq.raw(),
                self.cq.raw(),
                &raw mut vi,
            )
        };
        if code != SUCCESS {
            libfabric::warn(|| format!("VipCreateVi: {code}"));
        }
        (code == SUCCESS).then_some(Handle::from_raw(vi))
    }

    /// Takes the oldest entry of the completion queue.
    #[inline]
    pub(crate) fn next_entry(&self) -> Option<(Handle, bool)> {
        let (mut vi, mut receive) = (std::ptr::null_mut(), 0);
        // SAFETY: a live handle and room for the results.
        let code =
            unsafe { (self.functions.VipCQDone)(self.cq.raw(), &raw mut vi, &raw mut receive) };
        (code == SUCCESS).then_some((Handle::from_raw(vi), receive != 0))
    }

    /// Whether empty polls of this thread may give the processor away; returns what held before.
    pub(crate) fn may_yield(&self, may: bool) -> bool {
        self.functions
            .vipl_may_yield
            // SAFETY: accepts any value.
            .is_none_or(|set| unsafe { set(may.into()) } != 0)
    }

    /// Makes [`Self::id_of`] return this id for a VI.
    pub(crate) fn set_id(&self, vi: Handle, id: Id) {
        // SAFETY: accepts any handle and any pointer.
        unsafe { (self.user_data.set)(vi.raw(), id.to_bits() as *mut _) };
    }

    /// The number that was given to a VI.
    #[inline]
    pub(crate) fn id_of(&self, vi: Handle) -> Id {
        // SAFETY: takes any handle.
        Id::from_bits(unsafe { (self.user_data.get)(vi.raw()) } as usize)
    }

    /// A connection ends. Waits a second at most, when the network is dead.
    pub(crate) fn disconnect(&self, vi: Handle) {
        // This is a cancellation point of the library, and data-path calls that end a connection come here.
        let _off = vipl_sys::cancel::Off::new();
        // SAFETY: the library checks the handle.
        unsafe { (self.functions.VipDisconnect)(vi.raw()) };
    }

    /// Makes the library call for the next entry of the completion queue.
    pub(crate) fn notify(&self, handler: CqHandler) -> bool {
        // A cancellation point of the library, too.
        let _off = vipl_sys::cancel::Off::new();
        // SAFETY: a live handle; the handler searches for the NIC by its handle.
        let code = unsafe { (self.notify)(self.cq.raw(), std::ptr::null_mut(), handler) };
        code == SUCCESS
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        let functions = self.functions;
        // SAFETY: handles of this device, in the order that the library wants. What is still in use, because the
        // program has not closed it, makes the first two fail; the last ends everything.
        unsafe {
            if self.cq != Handle::NONE {
                (functions.VipDestroyCQ)(self.cq.raw());
            }
            if self.tag != Handle::NONE {
                (functions.VipDestroyPtag)(self.nic.raw(), self.tag.raw());
            }
            (functions.VipCloseNic)(self.nic.raw());
        }
    }
}

/// What the memory handles of this process stand for; only for devices that cannot read remote memory.
pub(crate) type Regions = HashMap<u32, Region>;

/// One registration.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Region {
    pub address: u64,
    pub length: u64,
    pub access: Access,
}

impl Region {
    /// Whether the peer may read these bytes.
    pub(crate) fn may_read(&self, address: u64, length: u64) -> bool {
        let end = self.address + self.length;
        let inside = address >= self.address && address <= end && length <= end - address;
        inside && self.access.read
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_reads_inside_a_region_only() {
        let mut region = Region {
            address: 1000,
            length: 100,
            access: Access {
                read: true,
                write: false,
            },
        };
        for (address, length, allowed) in [
            (1000, 100, true),
            (1099, 1, true),
            (1100, 0, true),
            (1100, 1, false),
            (999, 2, false),
            (1000, 101, false),
            (1050, u64::MAX, false),
            (u64::MAX, 2, false),
        ] {
            assert_eq!(
                region.may_read(address, length),
                allowed,
                "{address} {length}"
            );
        }
        region.access.read = false;
        assert!(!region.may_read(1000, 1));
    }
}
