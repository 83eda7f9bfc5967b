//! Threads of the library: named, detached, and deaf to the program's signals.

use std::io;

/// Starts a thread that never takes a signal from the program.
pub(crate) fn thread(name: &str, body: impl FnOnce() + Send + 'static) -> io::Result<()> {
    // SAFETY: both sets are valid; a new thread inherits the mask of the one that makes it.
    unsafe {
        let mut all: libc::sigset_t = std::mem::zeroed();
        let mut before: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&raw mut all);
        // A fault of a guarded copy must reach its handler.
        libc::sigdelset(&raw mut all, libc::SIGSEGV);
        libc::sigdelset(&raw mut all, libc::SIGBUS);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
        let started = std::thread::Builder::new()
            .name(name.to_owned())
            .spawn(body);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, std::ptr::null_mut());
        started.map(drop)
    }
}

/// Logs the first use of a leniency of the compatible mode (spec §17), once per place.
#[macro_export]
#[doc(hidden)]
macro_rules! log_leniency {
    ($($text:tt)*) => {{
        static ONCE: std::sync::Once = std::sync::Once::new();
        ONCE.call_once(|| log::info!(target: "compat", $($text)*));
    }};
}
