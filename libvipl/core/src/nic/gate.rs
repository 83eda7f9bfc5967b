//! Threads may create objects on a NIC until VipCloseNic closes the gate. Closing waits for the threads
//! inside, so that it sees all objects that they have created.

use crate::error::Error;
use crate::sync::atomic::{AtomicU32, Ordering};
use crate::sync::{Condvar, Mutex};

/// A thread is closing the gate: entering threads wait for the outcome.
const CLOSING: u32 = 1 << 31;
/// The gate is closed permanently.
const CLOSED: u32 = 1 << 30;

/// The gate. Entering and leaving take one atomic operation each while no thread closes it.
#[derive(Default)]
pub(super) struct Gate {
    /// Number of threads inside, and the two bits above, which are set under `lock`.
    state: AtomicU32,
    lock: Mutex<()>,
    changed: Condvar,
}

/// A thread inside; dropping it leaves.
#[must_use]
pub(crate) struct Inside<'a>(&'a Gate);

impl Gate {
    /// Fails if the gate is closed.
    #[inline]
    pub(super) fn enter(&self) -> Result<Inside<'_>, Error> {
        // Acquire pairs with the release of a thread that tried to close the gate and left it open.
        if self.state.fetch_add(1, Ordering::Acquire) & (CLOSING | CLOSED) == 0 {
            return Ok(Inside(self));
        }
        self.leave();
        self.wait_for_outcome()
    }

    #[cold]
    fn wait_for_outcome(&self) -> Result<Inside<'_>, Error> {
        let mut lock = self.lock.lock();
        while self.state.load(Ordering::Relaxed) & CLOSING != 0 {
            self.changed.wait(&mut lock);
        }
        if self.state.load(Ordering::Relaxed) & CLOSED != 0 {
            return Err(Error::InvalidParameter);
        }
        // No thread can begin to close it while `lock` is held.
        self.state.fetch_add(1, Ordering::Acquire);
        Ok(Inside(self))
    }

    #[inline]
    fn leave(&self) {
        // Release pairs with the acquire in `close`, which then sees the created objects.
        let before = self.state.fetch_sub(1, Ordering::Release);
        if before & CLOSING != 0 {
            self.notify();
        }
    }

    /// Wakes the thread that closes the gate, and those that wait for the outcome.
    #[cold]
    fn notify(&self) {
        let _lock = self.lock.lock();
        self.changed.notify_all();
    }

    /// Closes the gate permanently if `check` succeeds, which runs while no thread is inside.
    pub(super) fn close(&self, check: impl FnOnce() -> Result<(), Error>) -> Result<(), Error> {
        let mut lock = self.lock.lock();
        while self.state.load(Ordering::Relaxed) & CLOSING != 0 {
            self.changed.wait(&mut lock);
        }
        if self.state.load(Ordering::Relaxed) & CLOSED != 0 {
            return Err(Error::InvalidParameter);
        }
        self.state.fetch_or(CLOSING, Ordering::Relaxed);
        while self.state.load(Ordering::Acquire) & !CLOSING != 0 {
            self.changed.wait(&mut lock);
        }
        let result = check();
        if result.is_ok() {
            self.state.fetch_or(CLOSED, Ordering::Release);
        }
        self.state.fetch_and(!CLOSING, Ordering::Release);
        self.changed.notify_all();
        result
    }
}

impl Drop for Inside<'_> {
    #[inline]
    fn drop(&mut self) {
        self.0.leave();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use super::*;

    #[test]
    fn a_gate_stays_open_if_the_check_fails_and_closes_once() {
        let gate = Gate::default();
        assert_eq!(gate.close(|| Err(Error::Resource)), Err(Error::Resource));
        assert!(gate.enter().is_ok());
        assert_eq!(gate.close(|| Ok(())), Ok(()));
        assert!(gate.enter().is_err());
        assert_eq!(gate.close(|| Ok(())), Err(Error::InvalidParameter));
    }

    #[test]
    fn closing_waits_for_a_thread_inside_and_sees_what_it_made() {
        for fails in [false, true] {
            let gate = Gate::default();
            let made = AtomicBool::new(false);
            let inside = gate.enter().unwrap();
            let closing = || gate.state.load(Ordering::Relaxed) & CLOSING != 0;
            std::thread::scope(|scope| {
                let closer = scope.spawn(|| {
                    gate.close(|| {
                        assert!(made.load(Ordering::Relaxed));
                        if fails { Err(Error::Resource) } else { Ok(()) }
                    })
                });
                while !closing() {
                    std::thread::yield_now();
                }
                let late = scope.spawn(|| gate.enter().is_ok());
                made.store(true, Ordering::Relaxed);
                drop(inside);
                assert_eq!(closer.join().unwrap().is_err(), fails);
                assert_eq!(late.join().unwrap(), fails);
            });
        }
    }
}
