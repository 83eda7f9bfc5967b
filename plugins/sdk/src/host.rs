//! The host's services that are not about one VI.

use std::ffi::{CStr, CString, c_int};
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use vipl_plugin_abi::*;

static HOST: AtomicPtr<vipl_host> = AtomicPtr::new(std::ptr::null_mut());

/// The host, as given to `init`.
#[derive(Clone, Copy)]
pub struct Host(&'static vipl_host);

/// What [`Host::poll`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Poll {
    /// Nothing completed.
    Nothing,
    /// Some descriptor completed.
    Progress,
    /// The program is at work on the VI itself.
    Busy,
}

impl Host {
    /// Remembers the host's table and tells it about the guarded routines of this file.
    ///
    /// # Safety
    /// `host` is the table given to `init`; it lives as long as the process.
    pub(crate) unsafe fn set(host: *const vipl_host) -> c_int {
        HOST.store(host.cast_mut(), Ordering::Release);
        let range = vipl_guard::range();
        // SAFETY: as asked of the caller.
        unsafe { ((*host).guard)(range.start, range.end, range.fixup) }
    }

    /// The host of this process.
    #[inline(always)]
    pub fn get() -> Host {
        // SAFETY: set by `init`, before any operation.
        Host(unsafe { &*HOST.load(Ordering::Relaxed) })
    }

    #[inline(always)]
    pub(crate) fn table(self) -> &'static vipl_host {
        self.0
    }

    /// Writes a line to the log; `level` is a `VIPL_LOG_*`.
    pub fn log(self, level: c_int, text: &str) {
        if let Ok(text) = CString::new(text) {
            // SAFETY: a NUL-terminated text.
            unsafe { (self.0.log)(level, text.as_ptr()) };
        }
    }

    /// A setting of this plug-in, or of the library.
    pub fn setting(self, plugin: &CStr, key: &CStr) -> Option<String> {
        // SAFETY: NUL-terminated texts; the answer is NULL or lives for ever.
        unsafe {
            let value = (self.0.setting)(plugin.as_ptr(), key.as_ptr());
            (!value.is_null()).then(|| CStr::from_ptr(value).to_string_lossy().into_owned())
        }
    }

    /// A counter that `vipinfo` shows.
    pub fn counter(self, plugin: &CStr, name: &CStr) -> &'static AtomicU64 {
        // SAFETY: the host's counters are atomic words that live for ever.
        unsafe { AtomicU64::from_ptr((self.0.counter)(plugin.as_ptr(), name.as_ptr())) }
    }

    /// Lets one VI of a NIC make progress, from a thread of the plug-in.
    ///
    /// # Safety
    /// The NIC is open, and the calling thread is inside no operation.
    pub unsafe fn poll(self, nic: *const vipl_nic, index: u32) -> Poll {
        // SAFETY: as asked of the caller.
        match unsafe { (self.0.poll)(nic, index) } {
            VIPL_POLL_PROGRESS => Poll::Progress,
            VIPL_POLL_BUSY => Poll::Busy,
            _ => Poll::Nothing,
        }
    }

    /// Monotonic time in nanoseconds.
    pub fn now_ns(self) -> u64 {
        // SAFETY: no arguments.
        unsafe { (self.0.now)() }
    }
}
