//! The library, opened at run time: where it is looked for and its functions.
//!
//! Called once, at the start of a tool. The library is never closed. Return codes are plain integers
//! here: another VIPL may return codes that this one does not know.

#![allow(non_snake_case)]

use std::ffi::{CStr, CString, c_char, c_int, c_ulong, c_void};
use std::path::{Path, PathBuf};

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use serde_json::Value;
use vipl_abi::*;

use crate::error::return_name;
use crate::{Error, Result};

/// The library's file, under the names it may have.
const FILES: [&str; 2] = ["libvipl.so.1", "libvipl.so"];

macro_rules! functions {
    ($($name:ident($($type:ty),* $(,)?);)*) => {
        /// The C functions, by their names in the header.
        pub(crate) struct Functions {
            $(pub(crate) $name: unsafe extern "C" fn($($type),*) -> c_int,)*
        }

        impl Functions {
            /// # Safety
            /// `library` is a VIPL: its functions have the types of the header.
            unsafe fn load(library: &Library) -> std::result::Result<Self, libloading::Error> {
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
    VipConnectWait(
        VIP_NIC_HANDLE, *mut VIP_NET_ADDRESS, VIP_ULONG, *mut VIP_NET_ADDRESS,
        *mut VIP_VI_ATTRIBUTES, *mut VIP_CONN_HANDLE,
    );
    VipConnectAccept(VIP_CONN_HANDLE, VIP_VI_HANDLE);
    VipConnectReject(VIP_CONN_HANDLE);
    VipConnectRequest(
        VIP_VI_HANDLE, *mut VIP_NET_ADDRESS, *mut VIP_NET_ADDRESS, VIP_ULONG,
        *mut VIP_VI_ATTRIBUTES,
    );
    VipConnectPeerRequest(
        VIP_VI_HANDLE, *mut VIP_NET_ADDRESS, *mut VIP_NET_ADDRESS, VIP_ULONG,
    );
    VipConnectPeerWait(VIP_VI_HANDLE, *mut VIP_VI_ATTRIBUTES);
    VipDisconnect(VIP_VI_HANDLE);
    VipPostSend(VIP_VI_HANDLE, *mut VIP_DESCRIPTOR, VIP_MEM_HANDLE);
    VipPostRecv(VIP_VI_HANDLE, *mut VIP_DESCRIPTOR, VIP_MEM_HANDLE);
    VipSendDone(VIP_VI_HANDLE, *mut *mut VIP_DESCRIPTOR);
    VipRecvDone(VIP_VI_HANDLE, *mut *mut VIP_DESCRIPTOR);
    VipSendWait(VIP_VI_HANDLE, VIP_ULONG, *mut *mut VIP_DESCRIPTOR);
    VipRecvWait(VIP_VI_HANDLE, VIP_ULONG, *mut *mut VIP_DESCRIPTOR);
    VipCreateCQ(VIP_NIC_HANDLE, VIP_ULONG, *mut VIP_CQ_HANDLE);
    VipDestroyCQ(VIP_CQ_HANDLE);
    VipCQDone(VIP_CQ_HANDLE, *mut VIP_VI_HANDLE, *mut VIP_BOOLEAN);
    VipCQWait(VIP_CQ_HANDLE, c_ulong, *mut VIP_VI_HANDLE, *mut VIP_BOOLEAN);
    VipNSInit(VIP_NIC_HANDLE, VIP_PVOID);
    VipNSGetHostByName(VIP_NIC_HANDLE, *mut VIP_CHAR, *mut VIP_NET_ADDRESS, VIP_ULONG);
    VipNSShutdown(VIP_NIC_HANDLE);
}

type Describe = unsafe extern "C" fn(*const c_char, *mut c_char, *mut c_ulong) -> c_int;

/// An opened library.
pub struct Vipl {
    pub(crate) functions: Functions,
    describe: Option<Describe>,
    path: PathBuf,
}

impl Vipl {
    /// Opens the library: `VIPL_LIBRARY`, else beside the program, else in the `lib` folder beside the
    /// program's folder, else where the system's loader looks.
    ///
    /// # Errors
    /// No candidate could be opened, or one was opened and is not a VIPL.
    pub fn open() -> Result<&'static Self> {
        let mut tried = String::new();
        for path in candidates() {
            match Self::open_at(&path) {
                Ok(library) => return Ok(Box::leak(Box::new(library))),
                Err(reason) => {
                    tried.push_str(&format!("  tried {}: {reason}\n", path.display()));
                }
            }
        }
        tried.push_str("set VIPL_LIBRARY to the path of the library");
        Err(Error::Load(tried))
    }

    /// Opens this library.
    ///
    /// # Errors
    /// It is none; the text says why.
    pub fn open_at(path: &Path) -> std::result::Result<Self, String> {
        if path.is_absolute() && !path.exists() {
            return Err("no such file".to_owned());
        }
        // A name without a folder is looked for by the system's loader.
        if path.is_absolute() {
            vipl_sys::elf::check(path).map_err(|unfit| unfit.to_string())?;
        }
        // SAFETY: the file is a library the user named or installed; a VIPL's constructors do nothing
        // that the tool depends on.
        let library = unsafe { Library::open(Some(path), RTLD_NOW | RTLD_LOCAL) };
        let library = library.map_err(|error| reason(&error))?;
        // SAFETY: a file of this name that has all these functions is a VIPL.
        let functions = unsafe { Functions::load(&library) }.map_err(|error| reason(&error))?;
        // SAFETY: the extension has this type wherever it exists.
        let describe = unsafe { library.get::<Describe>(b"vipl_describe\0") }
            .map(|f| *f)
            .ok();
        let path = file_of(functions.VipOpenNic as *const c_void).unwrap_or_else(|| path.into());
        std::mem::forget(library); // Threads of the library may run until the process ends.
        Ok(Self {
            functions,
            describe,
            path,
        })
    }

    /// The file the functions came from.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What the library says about a topic, or None when it has no such extension or topic.
    #[must_use]
    pub fn describe(&self, topic: &str) -> Option<Value> {
        let describe = self.describe?;
        let topic = CString::new(topic).ok()?;
        let mut room: c_ulong = 0;
        let mut buffer: Vec<u8> = Vec::new();
        loop {
            buffer.resize(usize::try_from(room).ok()?, 0);
            let offered = room;
            let target = if offered == 0 {
                std::ptr::null_mut()
            } else {
                buffer.as_mut_ptr().cast()
            };
            // SAFETY: `topic` is NUL-terminated, `target` has room for `room` bytes.
            let code = unsafe { describe(topic.as_ptr(), target, &raw mut room) };
            match return_name(code).as_str() {
                "VIP_SUCCESS" => break,
                "VIP_ERROR_RESOURCE" if room > offered => {}
                _ => return None,
            }
        }
        let text = CStr::from_bytes_until_nul(&buffer).ok()?;
        serde_json::from_slice(text.to_bytes()).ok()
    }

    /// The library's own version, if it tells.
    #[must_use]
    pub fn version(&self) -> Option<String> {
        Some(
            self.describe("version")?
                .get("library")?
                .as_str()?
                .to_owned(),
        )
    }
}

/// What the system's loader says.
fn reason(error: &libloading::Error) -> String {
    use std::error::Error;
    error
        .source()
        .map_or_else(|| error.to_string(), ToString::to_string)
}

/// Where to look, in order.
fn candidates() -> Vec<PathBuf> {
    if let Some(path) = std::env::var_os("VIPL_LIBRARY") {
        return vec![PathBuf::from(path)];
    }
    let mut folders = Vec::new();
    let program = std::env::current_exe().ok();
    if let Some(folder) = program.as_deref().and_then(Path::parent) {
        folders.push(folder.to_owned());
        if let Some(prefix) = folder.parent() {
            folders.extend(library_folders(&prefix.join("lib")));
        }
    }
    let beside = folders
        .iter()
        .flat_map(|folder| FILES.map(|file| folder.join(file)));
    beside.chain(FILES.map(PathBuf::from)).collect()
}

/// `lib` itself and its folders of a machine's triplet.
fn library_folders(lib: &Path) -> Vec<PathBuf> {
    let mut folders = vec![lib.to_owned()];
    let entries = std::fs::read_dir(lib).into_iter().flatten().flatten();
    let triplets = entries.filter(|e| e.file_name().to_string_lossy().ends_with("-linux-gnu"));
    let mut triplets: Vec<PathBuf> = triplets.map(|entry| entry.path()).collect();
    triplets.sort();
    folders.append(&mut triplets);
    folders
}

/// The file that holds an address of code.
fn file_of(address: *const c_void) -> Option<PathBuf> {
    let mut info = std::mem::MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: any address may be asked for; `info` has room.
    if unsafe { libc::dladdr(address, info.as_mut_ptr()) } == 0 {
        return None;
    }
    // SAFETY: dladdr succeeded and filled it.
    let info = unsafe { info.assume_init() };
    if info.dli_fname.is_null() {
        return None;
    }
    // SAFETY: a NUL-terminated string that lives as long as the library.
    let name = unsafe { CStr::from_ptr(info.dli_fname) };
    let path = PathBuf::from(name.to_str().ok()?);
    Some(path.canonicalize().unwrap_or(path))
}
