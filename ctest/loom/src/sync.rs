//! Atomics, fences and futexes of the model checker.

use loom::sync::atomic::{AtomicU32, Ordering};
use loom::sync::{Condvar, Mutex};

pub(crate) use loom::sync::atomic;

/// The compiler's fence stands for the processor's: loom knows no other, and the heavy side pays for both.
pub(crate) fn compiler_fence(order: Ordering) {
    atomic::fence(order);
}

/// The system call is a full fence here, and works.
pub(crate) mod membarrier {
    use super::{Ordering, atomic};

    pub(crate) enum Scope {
        Global,
    }

    pub(crate) fn register(_scope: Scope) -> bool {
        true
    }

    pub(crate) fn barrier(_scope: Scope) -> bool {
        atomic::fence(Ordering::SeqCst);
        true
    }

    pub(crate) fn slow_barrier() {
        atomic::fence(Ordering::SeqCst);
    }
}

loom::lazy_static! {
    static ref SLEEPERS: (Mutex<()>, Condvar) = (Mutex::new(()), Condvar::new());
}

/// Sleeping on a word.
pub(crate) mod futex {
    use super::{AtomicU32, Ordering, SLEEPERS};

    /// Compares and sleeps in one step, as the kernel does. No wait times out: a wake that is lost is a
    /// deadlock, which loom reports.
    pub(crate) fn wait(word: &AtomicU32, expected: u32, _timeout_ns: u64) {
        let mut guard = SLEEPERS.0.lock().expect("no panic");
        while word.load(Ordering::SeqCst) == expected {
            guard = SLEEPERS.1.wait(guard).expect("no panic");
        }
    }

    /// Wakes all sleepers.
    pub(crate) fn wake(_word: &AtomicU32) {
        let _guard = SLEEPERS.0.lock().expect("no panic");
        SLEEPERS.1.notify_all();
    }
}
