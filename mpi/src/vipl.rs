//! The functions of `libvipl.so.1`, opened at run time: no program loads the library that did not ask for the provider.
//!
//! A program that uses VIPL itself and the provider besides has one library, not two: a library that is loaded already is
//! taken first.

#![allow(non_snake_case)]

use std::ffi::{CStr, CString, OsStr, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use vipl_abi::*;

type MayYield = extern "C" fn(VIP_BOOLEAN) -> VIP_BOOLEAN;

const FILE: &CStr = c"libvipl.so.1";

macro_rules! functions {
    ($($name:ident($($type:ty),* $(,)?) $(-> $result:ty)?;)*) => {
        /// The C functions, by their names in the header. Return codes are integers: a library of another version may
        /// return codes that this one does not know.
        pub(crate) struct Functions {
            $(pub $name: unsafe extern "C" fn($($type),*) $(-> $result)?,)*
            /// Libraries before this function lack it.
            pub vipl_may_yield: Option<MayYield>,
        }

        impl Functions {
            /// # Safety
            /// `library` is a handle of dlopen, of a VIPL.
            unsafe fn load(library: *mut c_void) -> Result<Functions, String> {
                Ok(Functions {
                    // SAFETY: a NUL-terminated name; the function has the type of the header.
                    vipl_may_yield: unsafe {
                        let found = libc::dlsym(library, c"vipl_may_yield".as_ptr());
                        std::mem::transmute::<*mut c_void, Option<MayYield>>(found)
                    },
                $(
                    $name: {
                        let name = concat!(stringify!($name), "\0");
                        // SAFETY: a NUL-terminated name.
                        let found = unsafe { libc::dlsym(library, name.as_ptr().cast()) };
                        if found.is_null() {
                            return Err(format!("it has no {}", stringify!($name)));
                        }
                        // SAFETY: the function has the type of the header.
                        unsafe {
                            std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($type),*) $(-> $result)?>(found)
                        }
                    },
                )*})
            }
        }
    };
}

functions! {
    VipOpenNic(*const VIP_CHAR, *mut VIP_NIC_HANDLE) -> c_int;
    VipCloseNic(VIP_NIC_HANDLE) -> c_int;
    VipQueryNic(VIP_NIC_HANDLE, *mut VIP_NIC_ATTRIBUTES) -> c_int;
    VipErrorCallback(VIP_NIC_HANDLE, VIP_PVOID, ErrorHandler) -> c_int;
    VipCreatePtag(VIP_NIC_HANDLE, *mut VIP_PROTECTION_HANDLE) -> c_int;
    VipDestroyPtag(VIP_NIC_HANDLE, VIP_PROTECTION_HANDLE) -> c_int;
    VipRegisterMem(
        VIP_NIC_HANDLE, VIP_PVOID, VIP_ULONG, *mut VIP_MEM_ATTRIBUTES, *mut VIP_MEM_HANDLE,
    ) -> c_int;
    VipDeregisterMem(VIP_NIC_HANDLE, VIP_PVOID, VIP_MEM_HANDLE) -> c_int;
    VipCreateVi(
        VIP_NIC_HANDLE, *mut VIP_VI_ATTRIBUTES, VIP_CQ_HANDLE, VIP_CQ_HANDLE, *mut VIP_VI_HANDLE,
    ) -> c_int;
    VipDestroyVi(VIP_VI_HANDLE) -> c_int;
    VipConnectWait(
        VIP_NIC_HANDLE, *mut VIP_NET_ADDRESS, VIP_ULONG, *mut VIP_NET_ADDRESS, *mut VIP_VI_ATTRIBUTES,
        *mut VIP_CONN_HANDLE,
    ) -> c_int;
    VipConnectAccept(VIP_CONN_HANDLE, VIP_VI_HANDLE) -> c_int;
    VipConnectReject(VIP_CONN_HANDLE) -> c_int;
    VipConnectRequest(
        VIP_VI_HANDLE, *mut VIP_NET_ADDRESS, *mut VIP_NET_ADDRESS, VIP_ULONG, *mut VIP_VI_ATTRIBUTES,
    ) -> c_int;
    VipDisconnect(VIP_VI_HANDLE) -> c_int;
    VipPostSend(VIP_VI_HANDLE, *mut VIP_DESCRIPTOR, VIP_MEM_HANDLE) -> c_int;
    VipPostRecv(VIP_VI_HANDLE, *mut VIP_DESCRIPTOR, VIP_MEM_HANDLE) -> c_int;
    VipSendDone(VIP_VI_HANDLE, *mut *mut VIP_DESCRIPTOR) -> c_int;
    VipRecvDone(VIP_VI_HANDLE, *mut *mut VIP_DESCRIPTOR) -> c_int;
    VipCreateCQ(VIP_NIC_HANDLE, VIP_ULONG, *mut VIP_CQ_HANDLE) -> c_int;
    VipDestroyCQ(VIP_CQ_HANDLE) -> c_int;
    VipCQDone(VIP_CQ_HANDLE, *mut VIP_VI_HANDLE, *mut VIP_BOOLEAN) -> c_int;
    VipCQNotify(VIP_CQ_HANDLE, VIP_PVOID, CqHandler) -> c_int;
    VipSetUserData(VIP_VI_HANDLE, VIP_PVOID);
    VipGetUserData(VIP_VI_HANDLE) -> VIP_PVOID;
}

/// Opens the library at the first call.
pub(crate) fn functions() -> Result<&'static Functions, String> {
    static OPENED: OnceLock<Result<Functions, String>> = OnceLock::new();
    OPENED.get_or_init(open).as_ref().map_err(Clone::clone)
}

fn open() -> Result<Functions, String> {
    let mut tried = String::new();
    for candidate in candidates() {
        let flags = libc::RTLD_NOW
            | libc::RTLD_LOCAL
            | if candidate.loaded {
                libc::RTLD_NOLOAD
            } else {
                0
            };
        // SAFETY: a NUL-terminated path; the constructors of a VIPL do nothing.
        let library = unsafe { libc::dlopen(candidate.path.as_ptr(), flags) };
        if library.is_null() {
            if !candidate.loaded {
                // SAFETY: after a failure there is a message, valid until the next call of this thread.
                let why = unsafe { libc::dlerror() };
                if !why.is_null() {
                    // SAFETY: NUL-terminated.
                    tried += &format!("; {}", unsafe { CStr::from_ptr(why) }.to_string_lossy());
                }
            }
            continue;
        }
        // The library stays open: its threads may run until the process ends.
        // SAFETY: a file of this name that has all these functions is a VIPL.
        match unsafe { Functions::load(library) } {
            Ok(functions) => return Ok(functions),
            Err(why) => tried += &format!("; {}: {why}", candidate.path.to_string_lossy()),
        }
    }
    Err(format!("cannot open libvipl.so.1{tried}"))
}

struct Candidate {
    path: CString,
    /// Only if it is loaded already.
    loaded: bool,
}

/// Where to look, in order.
fn candidates() -> Vec<Candidate> {
    let file = |path: &OsStr, loaded| {
        CString::new(path.as_bytes())
            .ok()
            .map(|path| Candidate { path, loaded })
    };
    if let Some(path) = std::env::var_os("FI_VIPL_LIBRARY") {
        return file(&path, false).into_iter().collect();
    }
    let name = OsStr::from_bytes(FILE.to_bytes());
    let mut found = vec![file(name, true)];
    // Beside the provider; or it is in `lib/libfabric` and the library in `lib`.
    for folder in own_folder().iter().flat_map(|own| own.ancestors().take(2)) {
        let path = folder.join(name);
        if path.exists() {
            found.push(file(path.as_os_str(), false));
        }
    }
    found.push(file(name, false));
    found.into_iter().flatten().collect()
}

/// The folder of this very library.
fn own_folder() -> Option<PathBuf> {
    let mut info = std::mem::MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: any address may be asked for; `info` has room.
    if unsafe { libc::dladdr(open as *const c_void, info.as_mut_ptr()) } == 0 {
        return None;
    }
    // SAFETY: dladdr succeeded and filled it.
    let name = unsafe { info.assume_init() }.dli_fname;
    if name.is_null() {
        return None;
    }
    // SAFETY: a NUL-terminated string that lives as long as the library.
    let name = Path::new(OsStr::from_bytes(
        unsafe { CStr::from_ptr(name) }.to_bytes(),
    ))
    .canonicalize()
    .ok()?;
    name.parent().map(Path::to_owned)
}
