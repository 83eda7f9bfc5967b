//! A lock without waiting: a thread that finds it taken leaves the work to the holder.
//!
//! A `Mutex` is released by an atomic exchange, which waits until all earlier stores of its processor are visible. The
//! last of these stores is to a word of the receive ring, in a cache line that another processor has just written. This
//! lock is released by a plain store, and has no thread to wake.

use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, Ordering};

/// A value that one thread at a time may use.
pub(crate) struct TryLock<T> {
    taken: AtomicBool,
    value: UnsafeCell<T>,
}

// SAFETY: `taken` admits one thread at a time to the value.
unsafe impl<T: Send> Sync for TryLock<T> {}

/// Exclusive access to the value, until it is dropped.
pub(crate) struct Guard<'a, T> {
    value: &'a mut T,
    taken: &'a AtomicBool,
}

impl<T> TryLock<T> {
    pub(crate) fn new(value: T) -> TryLock<T> {
        TryLock {
            taken: AtomicBool::new(false),
            value: UnsafeCell::new(value),
        }
    }

    /// `None`: another thread holds the lock.
    #[inline(always)]
    pub(crate) fn try_lock(&self) -> Option<Guard<'_, T>> {
        // Acquire pairs with the release in `drop`.
        if self.taken.swap(true, Ordering::Acquire) {
            return None;
        }
        Some(Guard {
            // SAFETY: no other thread gets access before `taken` is false again.
            value: unsafe { &mut *self.value.get() },
            taken: &self.taken,
        })
    }
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        self.value
    }
}

impl<T> DerefMut for Guard<'_, T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        self.value
    }
}

impl<T> Drop for Guard<'_, T> {
    #[inline(always)]
    fn drop(&mut self) {
        self.taken.store(false, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_thread_at_a_time_and_no_update_is_lost() {
        let lock = TryLock::new(0u64);
        {
            let mut first = lock.try_lock().unwrap();
            assert!(lock.try_lock().is_none(), "taken");
            *first += 1;
        }
        let add = || (0..100_000).filter(|_| lock.try_lock().map(|mut n| *n += 1).is_some());
        let added = std::thread::scope(|scope| {
            let threads = [(); 3].map(|()| scope.spawn(|| add().count() as u64));
            threads
                .map(|thread| thread.join().unwrap())
                .iter()
                .sum::<u64>()
        });
        assert!(added > 0);
        assert_eq!(*lock.try_lock().unwrap(), 1 + added);
    }
}
