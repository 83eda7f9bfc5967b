//! The end of a process whose program has ended its last thread.
//!
//! A process ends with its last thread. One whose `main` has called pthread_exit, and whose other threads have returned
//! with a NIC still open, has threads of the library left: it would go on for ever, and as these block all signals it
//! could not even be interrupted. So the reading thread looks once a second, and if only such threads are left it ends
//! the process, as the C library does after the last thread: by `exit(0)`. If a handler thread is among them, the program
//! may go on in its handlers: then the process stays, and the reading thread takes its signals.

use std::ffi::c_int;

use vipl_sys::left::{self, Left};
use vipl_sys::thread;

/// What the last look has shown.
#[derive(Default)]
pub(super) struct LastThread {
    seen: Option<Left>,
    takes_signals: bool,
}

impl LastThread {
    /// Looks whether the program has a thread left. Two looks must agree: the list of threads is not read at one instant.
    pub(super) fn look(&mut self) {
        if self.takes_signals {
            return;
        }
        let seen = left::by_program();
        if seen.is_some() && seen == self.seen {
            if seen.is_some_and(|left| left.handlers) {
                log::info!(
                    target: "core",
                    "the last thread of the program has ended; the process goes on for its handlers"
                );
                thread::take_signals();
                self.takes_signals = true;
                return;
            }
            log::info!(
                target: "core",
                "the last thread of the program has ended, and the process ends with it; NICs were open"
            );
            let success: c_int = 0;
            // SAFETY: as the C library does when the last thread ends.
            unsafe { libc::exit(success) }
        }
        self.seen = seen;
    }
}
