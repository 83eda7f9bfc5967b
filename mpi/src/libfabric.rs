//! What the provider uses of the libfabric that has loaded it: its version, its settings, its log. The functions are
//! looked up at run time, so that one binary serves every version; without them the provider works all the same.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use crate::fi::{FI_LOG_EP_CTRL, FI_LOG_INFO, FI_LOG_WARN, fi_provider};

type Version = unsafe extern "C" fn() -> u32;
type Define =
    unsafe extern "C" fn(*const fi_provider, *const c_char, c_int, *const c_char, ...) -> c_int;
type Enabled = unsafe extern "C" fn(*const fi_provider, c_int, c_int) -> c_int;
type Log = unsafe extern "C" fn(
    *const fi_provider,
    c_int,
    c_int,
    *const c_char,
    c_int,
    *const c_char,
    ...
);

struct Libfabric {
    version: Option<Version>,
    define: Option<Define>,
    log: Option<(Enabled, Log)>,
}

/// The provider's name.
pub(crate) const NAME: &CStr = c"vipl";
/// The provider's version, as FI_VERSION(0, 1).
pub(crate) const VERSION: u32 = 1;

/// What libfabric knows the provider by.
static PROVIDER: AtomicPtr<fi_provider> = AtomicPtr::new(std::ptr::null_mut());

/// From now on settings and log are those of this provider.
pub(crate) fn introduce(provider: *mut fi_provider) {
    PROVIDER.store(provider, Ordering::Release);
}

/// The version to claim when libfabric's own is not known.
const OLDEST: u32 = 1 << 16 | 17;

fn provider() -> *const fi_provider {
    PROVIDER.load(Ordering::Acquire)
}

fn find(name: &CStr) -> Option<*mut c_void> {
    static LIBRARY: OnceLock<usize> = OnceLock::new();
    let library = *LIBRARY.get_or_init(|| {
        let flags = libc::RTLD_NOLOAD | libc::RTLD_NOW;
        // SAFETY: opens nothing that is not there already.
        unsafe { libc::dlopen(c"libfabric.so.1".as_ptr(), flags) as usize }
    }) as *mut c_void;
    let place = match library.is_null() {
        true => libc::RTLD_DEFAULT,
        false => library,
    };
    // SAFETY: a handle that is never closed, or the default one.
    let found = unsafe { libc::dlsym(place, name.as_ptr()) };
    (!found.is_null()).then_some(found)
}

fn libfabric() -> &'static Libfabric {
    static FOUND: OnceLock<Libfabric> = OnceLock::new();
    FOUND.get_or_init(|| {
        // SAFETY: libfabric gives its functions these types in every version from 1.0 on.
        unsafe {
            Libfabric {
                version: find(c"fi_version")
                    .map(|f| std::mem::transmute::<*mut c_void, Version>(f)),
                define: find(c"fi_param_define")
                    .map(|f| std::mem::transmute::<*mut c_void, Define>(f)),
                log: find(c"fi_log_enabled")
                    .zip(find(c"fi_log"))
                    .map(|(enabled, log)| {
                        (
                            std::mem::transmute::<*mut c_void, Enabled>(enabled),
                            std::mem::transmute::<*mut c_void, Log>(log),
                        )
                    }),
            }
        }
    })
}

/// The version of libfabric. A provider that claims another one is refused, or what it offers is misread.
pub(crate) fn version() -> u32 {
    // SAFETY: a function without arguments.
    libfabric()
        .version
        .map_or(OLDEST, |version| unsafe { version() })
}

/// Declares a setting, so that `fi_info -e` shows it.
pub(crate) fn define(name: &CStr, kind: c_int, help: &CStr) {
    if let Some(define) = libfabric().define {
        // SAFETY: NUL-terminated strings; the text stands for its own `%s`.
        unsafe {
            define(
                provider(),
                name.as_ptr(),
                kind,
                c"%s".as_ptr(),
                help.as_ptr(),
            )
        };
    }
}

fn write(level: c_int, text: impl FnOnce() -> String) {
    let Some((enabled, log)) = libfabric().log else {
        return;
    };
    let provider = provider();
    // SAFETY: the provider is a static.
    if provider.is_null() || unsafe { enabled(provider, level, FI_LOG_EP_CTRL) } == 0 {
        return;
    }
    if let Ok(text) = CString::new(text()) {
        // SAFETY: NUL-terminated strings; the text stands for the `%s`.
        unsafe {
            log(
                provider,
                level,
                FI_LOG_EP_CTRL,
                c"vipl".as_ptr(),
                0,
                c"%s\n".as_ptr(),
                text.as_ptr(),
            );
        }
    }
}

/// To the user, on standard error, each text once: libfabric's log shows nothing unless FI_LOG_LEVEL is set, and what keeps a
/// job from running, or changes how it runs, is always reported.
pub(crate) fn say(text: &str) {
    static SAID: Mutex<Vec<String>> = Mutex::new(Vec::new());
    let mut said = SAID.lock().unwrap_or_else(PoisonError::into_inner);
    if said.len() < SAID_MAX && !said.iter().any(|before| before == text) {
        said.push(text.to_owned());
        let (text, process) = (vipl_sys::text::one_line(text), std::process::id());
        vipl_sys::stderr::write(format!("vipl-fi[{process}] warn {text}\n").as_bytes());
    }
}

/// Texts that a process may report.
const SAID_MAX: usize = 50;

/// To libfabric's log, at level `warn`.
pub(crate) fn warn(text: impl FnOnce() -> String) {
    write(FI_LOG_WARN, text);
}

/// To libfabric's log, at level `info`.
pub(crate) fn info(text: impl FnOnce() -> String) {
    write(FI_LOG_INFO, text);
}
