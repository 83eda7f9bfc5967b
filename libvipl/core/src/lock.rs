//! The lock of a slot: one word, one atomic operation to take it, one store to release it.
//!
//! It is held for the length of one operation of one VI. A waiter spins shortly and then yields, since
//! on a small machine the holder may need this very core.

use std::sync::atomic::{AtomicU32, Ordering};

/// A spin lock that can be all zero.
#[derive(Default)]
#[repr(transparent)]
pub(crate) struct SpinLock(AtomicU32);

impl SpinLock {
    #[inline(always)]
    pub(crate) fn lock(&self) {
        // Acquire pairs with the release in `unlock`.
        if self.0.swap(1, Ordering::Acquire) != 0 {
            self.contended();
        }
    }

    #[cold]
    fn contended(&self) {
        let mut rounds = 0u32;
        loop {
            while self.0.load(Ordering::Relaxed) != 0 {
                rounds += 1;
                match rounds {
                    0..=200 => std::hint::spin_loop(),
                    201..=2000 => std::thread::yield_now(),
                    // A holder of lower priority never runs while we only yield.
                    _ => std::thread::sleep(std::time::Duration::from_micros(50)),
                }
            }
            if self.0.swap(1, Ordering::Acquire) == 0 {
                return;
            }
        }
    }

    /// Takes the lock if it is free.
    #[inline(always)]
    pub(crate) fn try_lock(&self) -> bool {
        self.0.load(Ordering::Relaxed) == 0 && self.0.swap(1, Ordering::Acquire) == 0
    }

    #[inline(always)]
    pub(crate) fn unlock(&self) {
        self.0.store(0, Ordering::Release);
    }
}
