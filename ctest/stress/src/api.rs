//! The C functions of the library under test, opened at run time.

#![allow(non_snake_case)]

use std::ffi::c_int;
use std::path::Path;
use std::sync::OnceLock;

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use vipl_abi::*;

macro_rules! functions {
    ($($name:ident($($type:ty),* $(,)?);)*) => {
        /// The C functions, by their names in the header.
        pub(crate) struct Functions {
            $(pub(crate) $name: unsafe extern "C" fn($($type),*) -> c_int,)*
        }

        impl Functions {
            /// # Safety
            /// `library` is a VIPL: its functions have the types of the header.
            unsafe fn load(library: &Library) -> Result<Self, libloading::Error> {
                Ok(Self {
                    $($name: {
                        let name = concat!(stringify!($name), "\0").as_bytes();
                        // SAFETY: the caller's promise.
                        *unsafe {
                            library.get::<unsafe extern "C" fn($($type),*) -> c_int>(name)
                        }?
                    },)*
                })
            }
        }
    };
}

functions! {
    VipOpenNic(*const VIP_CHAR, *mut VIP_NIC_HANDLE);
    VipCloseNic(VIP_NIC_HANDLE);
    VipQueryNic(VIP_NIC_HANDLE, *mut VIP_NIC_ATTRIBUTES);
    VipErrorCallback(VIP_NIC_HANDLE, VIP_PVOID, ErrorHandler);
    VipCreatePtag(VIP_NIC_HANDLE, *mut VIP_PROTECTION_HANDLE);
    VipDestroyPtag(VIP_NIC_HANDLE, VIP_PROTECTION_HANDLE);
    VipRegisterMem(
        VIP_NIC_HANDLE, VIP_PVOID, VIP_ULONG, *mut VIP_MEM_ATTRIBUTES, *mut VIP_MEM_HANDLE
    );
    VipDeregisterMem(VIP_NIC_HANDLE, VIP_PVOID, VIP_MEM_HANDLE);
    VipCreateVi(
        VIP_NIC_HANDLE, *mut VIP_VI_ATTRIBUTES, VIP_CQ_HANDLE, VIP_CQ_HANDLE, *mut VIP_VI_HANDLE
    );
    VipDestroyVi(VIP_VI_HANDLE);
    VipQueryVi(
        VIP_VI_HANDLE, *mut c_int, *mut VIP_VI_ATTRIBUTES, *mut VIP_BOOLEAN, *mut VIP_BOOLEAN
    );
    VipConnectWait(
        VIP_NIC_HANDLE, *mut VIP_NET_ADDRESS, VIP_ULONG, *mut VIP_NET_ADDRESS,
        *mut VIP_VI_ATTRIBUTES, *mut VIP_CONN_HANDLE,
    );
    VipConnectAccept(VIP_CONN_HANDLE, VIP_VI_HANDLE);
    VipConnectRequest(
        VIP_VI_HANDLE, *mut VIP_NET_ADDRESS, *mut VIP_NET_ADDRESS, VIP_ULONG,
        *mut VIP_VI_ATTRIBUTES,
    );
    VipDisconnect(VIP_VI_HANDLE);
    VipPostSend(VIP_VI_HANDLE, *mut VIP_DESCRIPTOR, VIP_MEM_HANDLE);
    VipPostRecv(VIP_VI_HANDLE, *mut VIP_DESCRIPTOR, VIP_MEM_HANDLE);
    VipSendDone(VIP_VI_HANDLE, *mut *mut VIP_DESCRIPTOR);
    VipRecvDone(VIP_VI_HANDLE, *mut *mut VIP_DESCRIPTOR);
    VipRecvWait(VIP_VI_HANDLE, VIP_ULONG, *mut *mut VIP_DESCRIPTOR);
    VipCreateCQ(VIP_NIC_HANDLE, VIP_ULONG, *mut VIP_CQ_HANDLE);
    VipDestroyCQ(VIP_CQ_HANDLE);
    VipCQDone(VIP_CQ_HANDLE, *mut VIP_VI_HANDLE, *mut VIP_BOOLEAN);
    VipCQWait(VIP_CQ_HANDLE, VIP_ULONG, *mut VIP_VI_HANDLE, *mut VIP_BOOLEAN);
}

pub(crate) const SUCCESS: c_int = VIP_RETURN::VIP_SUCCESS as c_int;
pub(crate) const NOT_DONE: c_int = VIP_RETURN::VIP_NOT_DONE as c_int;
pub(crate) const TIMEOUT: c_int = VIP_RETURN::VIP_TIMEOUT as c_int;
pub(crate) const REJECT: c_int = VIP_RETURN::VIP_REJECT as c_int;
pub(crate) const RESOURCE: c_int = VIP_RETURN::VIP_ERROR_RESOURCE as c_int;
pub(crate) const NO_MATCH: c_int = VIP_RETURN::VIP_NO_MATCH as c_int;
pub(crate) const NOT_REACHABLE: c_int = VIP_RETURN::VIP_NOT_REACHABLE as c_int;
pub(crate) const DESCRIPTOR_ERROR: c_int = VIP_RETURN::VIP_DESCRIPTOR_ERROR as c_int;

static FUNCTIONS: OnceLock<Functions> = OnceLock::new();

/// Opens the library; once, before anything else here.
pub(crate) fn open(path: &Path) -> Result<(), String> {
    // SAFETY: the library under test has no constructors.
    let library = unsafe { Library::open(Some(path), RTLD_NOW | RTLD_LOCAL) };
    let library = library.map_err(|error| format!("{}: {error}", path.display()))?;
    // SAFETY: it is a VIPL.
    let functions = unsafe { Functions::load(&library) };
    let functions = functions.map_err(|error| format!("{}: {error}", path.display()))?;
    // Its threads run until the process ends.
    std::mem::forget(library);
    FUNCTIONS.set(functions).map_err(|_| "opened twice".into())
}

/// The functions.
pub(crate) fn vip() -> &'static Functions {
    FUNCTIONS.get().expect("an opened library")
}
