//! Ends a process whose application has ended its last thread.
//!
//! A process ends with its last thread. If `main` has called pthread_exit and the other threads have returned
//! while a NIC is still open, only threads of the library remain: the process would run for ever, and could
//! not even be interrupted, since these block all signals. Therefore the reading thread checks every two seconds.
//! If only such threads remain, it ends the process as the C library does after the last thread, by
//! `exit(0)`. If a handler thread is among them, the application may continue in its handlers: then the
//! process stays, and the reading thread accepts its signals.

use std::ffi::c_int;
use std::time::Duration;

use vipl_sys::{clock, left, thread};

/// Time between the two checks that must agree: the list of threads is not read atomically.
const CONFIRM_AFTER: Duration = Duration::from_millis(250);

/// Whether the process has been found to have none.
#[derive(Default)]
pub(super) struct LastThread {
    takes_signals: bool,
}

impl LastThread {
    /// Checks whether the application has a thread left. If it has none, the next check follows before this returns.
    pub(super) fn look(&mut self) {
        if self.takes_signals {
            return;
        }
        let Some(seen) = left::by_program() else {
            return;
        };
        clock::sleep(CONFIRM_AFTER);
        if left::by_program().as_ref() != Some(&seen) {
            return;
        }
        if seen.handlers {
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
}
