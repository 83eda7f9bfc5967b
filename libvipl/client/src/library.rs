//! The library: opened at run time, or linked.

use std::ffi::{CStr, CString, OsStr, OsString, c_ulong, c_void};
use std::path::{Path, PathBuf};
use std::time::Duration;

use libloading::os::unix::{Library as Object, RTLD_LOCAL, RTLD_NOW};
use vipl_abi::{VIP_INFINITE, VIP_RETURN, VIP_ULONG};

use crate::error::{Error, Result};
use crate::raw::Functions;

/// The library's file, under the names that it may have.
const FILES: [&str; 2] = ["libvipl.so.1", "libvipl.so"];

/// An opened library. It is never closed: its threads may run until the process ends.
pub struct Library {
    functions: Functions,
    path: PathBuf,
}

/// Where a library is searched for.
#[derive(Clone, Debug)]
pub struct Search {
    variable: &'static str,
    loaded: bool,
    folders: Vec<PathBuf>,
}

impl Library {
    /// Opens the library: [`Search::program`].
    ///
    /// # Errors
    /// [`Error::NotFound`]: no file could be opened, or none is a VIPL.
    pub fn open() -> Result<&'static Self> {
        Search::program().open()
    }

    /// Opens this file.
    ///
    /// # Errors
    /// [`Error::NotFound`]: it cannot be opened, or it is no VIPL.
    pub fn open_at(path: impl AsRef<Path>) -> Result<&'static Self> {
        let path = path.as_ref();
        match load(path, 0) {
            Ok(library) => Ok(Box::leak(Box::new(library))),
            Err(reason) => Err(Error::NotFound(format!(
                "  tried {}: {reason}",
                path.display()
            ))),
        }
    }

    /// The library that the program is linked with.
    #[cfg(feature = "link")]
    pub fn linked() -> &'static Self {
        static LINKED: std::sync::OnceLock<Library> = std::sync::OnceLock::new();
        LINKED.get_or_init(|| {
            let functions = Functions::linked();
            let path = file_of(functions.address()).unwrap_or_default();
            Self { functions, path }
        })
    }

    /// The C functions.
    #[must_use]
    pub fn functions(&self) -> &Functions {
        &self.functions
    }

    /// The file that has the functions.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What the library reports about a topic, as one JSON document: `version`, `settings`, `plugins`, `layers`, `devices`,
    /// `counters`, `budgets` or `map NAME`. None if it has no such extension or topic.
    #[must_use]
    pub fn describe(&self, topic: &str) -> Option<String> {
        let describe = self.functions.vipl_describe?;
        let topic = CString::new(topic).ok()?;
        let mut room: c_ulong = 0;
        let mut buffer: Vec<u8> = Vec::new();
        loop {
            buffer.resize(usize::try_from(room).ok()?, 0);
            let offered = room;
            let target = match offered {
                0 => std::ptr::null_mut(),
                _ => buffer.as_mut_ptr().cast(),
            };
            // SAFETY: `topic` is NUL-terminated, `target` has room for `room` bytes.
            let code = unsafe { describe(topic.as_ptr(), target, &raw mut room) };
            match code {
                0 => break,
                code if code == VIP_RETURN::VIP_ERROR_RESOURCE as i32 && room > offered => {}
                _ => return None,
            }
        }
        let text = CStr::from_bytes_until_nul(&buffer).ok()?;
        text.to_str().ok().map(str::to_owned)
    }
}

impl std::fmt::Debug for Library {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Library").field(&self.path).finish()
    }
}

impl Search {
    /// For a program: `VIPL_LIBRARY`, else beside the program, else in the `lib` folder beside the program's folder,
    /// else where the system's loader looks.
    #[must_use]
    pub fn program() -> Self {
        let mut folders = Vec::new();
        let program = std::env::current_exe().ok();
        if let Some(folder) = program.as_deref().and_then(Path::parent) {
            folders.push(folder.to_owned());
            if let Some(prefix) = folder.parent() {
                folders.extend(library_folders(&prefix.join("lib")));
            }
        }
        Self {
            variable: "VIPL_LIBRARY",
            loaded: false,
            folders,
        }
    }

    /// For a shared library, such as a provider or a module: the path in this environment variable, else the
    /// library that the process has loaded already, else beside the file that this very function is in, else in the
    /// folder above, else where the system's loader looks.
    #[must_use]
    pub fn module(variable: &'static str) -> Self {
        let own = file_of(Self::module as *const c_void);
        let folders = own.iter().flat_map(|file| file.ancestors().skip(1).take(2));
        Self {
            variable,
            loaded: true,
            folders: folders.map(Path::to_owned).collect(),
        }
    }

    /// Opens the first that is a VIPL.
    ///
    /// # Errors
    /// [`Error::NotFound`]: there is none.
    pub fn open(&self) -> Result<&'static Library> {
        if self.loaded
            && self.named().is_none()
            && let Ok(library) = load(Path::new(FILES[0]), libc::RTLD_NOLOAD)
        {
            return Ok(Box::leak(Box::new(library)));
        }
        let mut tried = String::new();
        for path in self.candidates() {
            match load(&path, 0) {
                Ok(library) => return Ok(Box::leak(Box::new(library))),
                Err(reason) => {
                    tried.push_str(&format!("  tried {}: {reason}\n", path.display()));
                }
            }
        }
        let variable = self.variable;
        tried.push_str(&format!("set {variable} to the path of the library"));
        Err(Error::NotFound(tried))
    }

    fn named(&self) -> Option<OsString> {
        std::env::var_os(self.variable)
    }

    fn candidates(&self) -> Vec<PathBuf> {
        if let Some(path) = self.named() {
            return vec![PathBuf::from(path)];
        }
        let folders = self.folders.iter();
        let beside = folders.flat_map(|folder| FILES.map(|file| folder.join(file)));
        beside.chain(FILES.map(PathBuf::from)).collect()
    }
}

fn load(path: &Path, flags: i32) -> std::result::Result<Library, String> {
    if path.is_absolute() && !path.exists() {
        return Err("no such file".to_owned());
    }
    // A name without a folder is searched for by the system's loader.
    if path.is_absolute() {
        vipl_sys::elf::check(path).map_err(|unfit| unfit.to_string())?;
    }
    // SAFETY: the file is a library that the user named or installed; the constructors of a VIPL do nothing that a
    // program depends on.
    let object = unsafe { Object::open(Some(path), RTLD_NOW | RTLD_LOCAL | flags) };
    let object = object.map_err(|error| reason(&error))?;
    // SAFETY: a file of this name that has all these functions is a VIPL.
    let functions = unsafe { Functions::load(&object) }.map_err(|error| reason(&error))?;
    let path = file_of(functions.address()).unwrap_or_else(|| path.into());
    // Threads of the library may run until the process ends.
    std::mem::forget(object);
    Ok(Library { functions, path })
}

/// What the system's loader says.
fn reason(error: &libloading::Error) -> String {
    use std::error::Error;
    error
        .source()
        .map_or_else(|| error.to_string(), ToString::to_string)
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

/// The file that has an address of code.
fn file_of(address: *const c_void) -> Option<PathBuf> {
    use std::os::unix::ffi::OsStrExt;
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
    let path = PathBuf::from(OsStr::from_bytes(name.to_bytes()));
    Some(path.canonicalize().unwrap_or(path))
}

/// A time limit as the C functions take it: milliseconds, rounded up, and below VIP_INFINITE.
pub(crate) fn milliseconds(timeout: Option<Duration>) -> VIP_ULONG {
    let Some(timeout) = timeout else {
        return VIP_INFINITE;
    };
    let rounded = timeout.as_nanos().div_ceil(1_000_000);
    VIP_ULONG::try_from(rounded).map_or(VIP_INFINITE - 1, |time| time.min(VIP_INFINITE - 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_never_rounded_down_and_never_becomes_none() {
        assert_eq!(milliseconds(None), VIP_INFINITE);
        assert_eq!(milliseconds(Some(Duration::ZERO)), 0);
        assert_eq!(milliseconds(Some(Duration::from_micros(1))), 1);
        assert_eq!(milliseconds(Some(Duration::from_millis(1500))), 1500);
        assert_eq!(milliseconds(Some(Duration::MAX)), VIP_INFINITE - 1);
    }

    #[test]
    fn a_file_that_is_no_library_is_named_with_the_reason() {
        let error = Library::open_at("/proc/self/status")
            .unwrap_err()
            .to_string();
        assert!(error.contains("tried /proc/self/status: "), "{error}");
        let error = Library::open_at("/no/such/libvipl.so")
            .unwrap_err()
            .to_string();
        assert!(error.ends_with("no such file"), "{error}");
    }
}
