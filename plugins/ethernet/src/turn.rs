//! A lock that nobody waits for: who finds it taken leaves the work to whoever has it.
//!
//! A `Mutex` is given back by an atomic exchange, which waits until all earlier stores of its processor are
//! visible. Here the last of them is a word of the receive ring, in a cache line that another processor has just
//! written. A plain store gives this one back, and nobody has to be woken.

use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, Ordering};

/// Something that one thread at a time may use.
pub(crate) struct Turn<T> {
    taken: AtomicBool,
    value: UnsafeCell<T>,
}

// SAFETY: `taken` sees to it that one thread at a time reaches the value.
unsafe impl<T: Send> Sync for Turn<T> {}

/// The use of it, until this is dropped.
pub(crate) struct Taken<'a, T> {
    value: &'a mut T,
    taken: &'a AtomicBool,
}

impl<T> Turn<T> {
    pub(crate) fn new(value: T) -> Turn<T> {
        Turn {
            taken: AtomicBool::new(false),
            value: UnsafeCell::new(value),
        }
    }

    /// `None`: another thread is at it.
    #[inline(always)]
    pub(crate) fn take(&self) -> Option<Taken<'_, T>> {
        // Acquire pairs with the release in `drop`.
        if self.taken.swap(true, Ordering::Acquire) {
            return None;
        }
        Some(Taken {
            // SAFETY: nobody else has it before `taken` is false again.
            value: unsafe { &mut *self.value.get() },
            taken: &self.taken,
        })
    }
}

impl<T> Deref for Taken<'_, T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        self.value
    }
}

impl<T> DerefMut for Taken<'_, T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        self.value
    }
}

impl<T> Drop for Taken<'_, T> {
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
        let turn = Turn::new(0u64);
        {
            let mut first = turn.take().unwrap();
            assert!(turn.take().is_none(), "taken");
            *first += 1;
        }
        let add = || (0..100_000).filter(|_| turn.take().map(|mut n| *n += 1).is_some());
        let added = std::thread::scope(|scope| {
            let threads = [(); 3].map(|()| scope.spawn(|| add().count() as u64));
            threads
                .map(|thread| thread.join().unwrap())
                .iter()
                .sum::<u64>()
        });
        assert!(added > 0);
        assert_eq!(*turn.take().unwrap(), 1 + added);
    }
}
