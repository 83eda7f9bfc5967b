//! The watch thread's state, as other threads see it, and how they wake it.

pub(crate) mod thread;

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use vipl_plugin_sdk::futex;
use vipl_sys::mutex::Mutex;
use vipl_sys::thread::Thread;

use crate::bell::Bell;

/// Shortest of the short sleeps while the application is active, in nanoseconds. A deadline that is missed by less wakes
/// no thread.
const SHORT_SLEEP_MIN: u64 = 1_000_000;

thread_local! {
    static ON_WATCH: Cell<bool> = const { Cell::new(false) };
}

/// Marks the calling thread as a watch thread.
pub(crate) fn enter() {
    ON_WATCH.set(true);
}

/// The state.
#[derive(Default)]
pub(crate) struct Watch {
    /// Counts kicks; the thread's short sleeps are on this futex.
    kicks: AtomicU32,
    /// When the thread polls next at the latest, in nanoseconds; 0 while it polls.
    until: AtomicU64,
    /// The last kick was for a deadline.
    hurried: AtomicBool,
    /// It sleeps on the bell instead of `kicks`.
    on_bell: AtomicBool,
    /// It sleeps because a thread of the application leads, which kicks it after waking up.
    trusting: AtomicBool,
    /// The application has called into the NIC since this was last reset.
    active: AtomicBool,
    /// The watch thread has taken frames, whether or not they have completed anything.
    arrived: AtomicBool,
    /// One more than the number of the VI that the thread serves; 0: none.
    serving: AtomicU32,
    stop: AtomicBool,
    thread: Mutex<Option<Thread>>,
}

impl Watch {
    /// Notes that the thread serves the VI during the call of `serve`, which polls it.
    pub(crate) fn serve<T>(&self, index: u32, serve: impl FnOnce() -> T) -> T {
        self.serving.store(index + 1, Ordering::Relaxed);
        let served = serve();
        self.serving.store(0, Ordering::Relaxed);
        served
    }

    /// Whether the watch thread serves the VI: the calling thread is, or may be, the watch thread.
    #[inline(always)]
    pub(crate) fn serves(&self, index: u32) -> bool {
        self.serving.load(Ordering::Relaxed) == index + 1
    }

    /// Notes a call of the application into this NIC.
    #[inline(always)]
    pub(crate) fn note_application(&self) {
        if !self.active.load(Ordering::Relaxed) {
            self.find_active();
        }
    }

    /// Not inlined: the address of a thread's variable takes a call, which the compiler would make before the condition
    /// is known.
    #[cold]
    #[inline(never)]
    fn find_active(&self) {
        if !ON_WATCH.get() {
            self.active.store(true, Ordering::Relaxed);
        }
    }

    /// Notes that a thread of the application has woken up.
    pub(crate) fn note_wake(&self) {
        if self.trusting.load(Ordering::Relaxed) && self.trusting.swap(false, Ordering::SeqCst) {
            self.kick(None);
        }
    }

    /// Notes that frames have been taken, if the watch thread has taken them. Frames that the application takes would
    /// make the watch thread poll again at once, for as long as the application is busy, and disturb it.
    #[inline(always)]
    pub(crate) fn note_arrival(&self) {
        if self.serving.load(Ordering::Relaxed) != 0 {
            self.find_arrival();
        }
    }

    /// Not inlined, for the same reason.
    #[cold]
    #[inline(never)]
    fn find_arrival(&self) {
        if ON_WATCH.get() {
            self.arrived.store(true, Ordering::Relaxed);
        }
    }

    /// Makes the thread serve a VI or a lingering close at this time.
    #[inline(always)]
    pub(crate) fn expect(&self, bell: &Bell, deadline: u64) {
        let until = self.until.load(Ordering::SeqCst);
        if deadline.saturating_add(SHORT_SLEEP_MIN) < until {
            self.hurry(bell, until);
        }
    }

    #[cold]
    fn hurry(&self, bell: &Bell, until: u64) {
        // One kick is enough.
        let first = self
            .until
            .compare_exchange(until, 0, Ordering::SeqCst, Ordering::SeqCst);
        if first.is_ok() {
            self.hurried.store(true, Ordering::Relaxed);
            self.kick(Some(bell));
        }
    }

    /// Makes the thread poll now.
    #[cold]
    pub(crate) fn kick(&self, bell: Option<&Bell>) {
        self.kicks.fetch_add(1, Ordering::SeqCst);
        match bell {
            Some(bell) if self.on_bell.load(Ordering::SeqCst) => bell.ring(),
            _ => futex::wake(&self.kicks),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vi_is_served_while_it_is_polled() {
        let watch = Watch::default();
        assert!(!watch.serves(7));
        let served = watch.serve(7, || (watch.serves(7), watch.serves(8)));
        assert_eq!(served, (true, false));
        assert!(!watch.serves(7));
    }
}
