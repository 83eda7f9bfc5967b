//! Mutex and condition variable of the library's and the plug-ins' control paths.
//!
//! They are those of the standard library, without poisoning. Such a lock is a single word, so a forked child
//! with fresh state is not affected by locks of its parent. A lock that parks threads in a table shared by
//! all locks could not guarantee that.
//!
//! ThreadSanitizer (`--cfg tsan`) instruments this crate and not the standard library, whose locks then order
//! nothing for it. `order` informs it of their order.

use crate::clock::{self, Instant};
use std::ops::{Deref, DerefMut};
use std::sync::{PoisonError, TryLockError};
use std::time::Duration;

/// A mutex.
#[derive(Default)]
pub struct Mutex<T>(std::sync::Mutex<T>);

/// A locked mutex.
pub struct MutexGuard<'a, T> {
    mutex: &'a Mutex<T>,
    /// `None` only inside `unlocked` and `Condvar`.
    inner: Option<std::sync::MutexGuard<'a, T>>,
}

impl<T> Mutex<T> {
    /// An unlocked mutex.
    pub const fn new(value: T) -> Self {
        Mutex(std::sync::Mutex::new(value))
    }

    /// Waits until the mutex is free, and locks it.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        let inner = Some(self.0.lock().unwrap_or_else(PoisonError::into_inner));
        order::taken(self);
        MutexGuard { mutex: self, inner }
    }

    /// Locks the mutex if it is free.
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        let inner = match self.0.try_lock() {
            Ok(inner) => inner,
            Err(TryLockError::Poisoned(broken)) => broken.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        order::taken(self);
        Some(MutexGuard {
            mutex: self,
            inner: Some(inner),
        })
    }
}

#[cfg(tsan)]
impl<T> Drop for MutexGuard<'_, T> {
    fn drop(&mut self) {
        order::leaving(self.mutex);
    }
}

impl<T> MutexGuard<'_, T> {
    /// Runs a function with the mutex unlocked.
    pub fn unlocked<R>(guard: &mut Self, body: impl FnOnce() -> R) -> R {
        order::leaving(guard.mutex);
        guard.inner = None;
        let result = body();
        *guard = guard.mutex.lock();
        result
    }
}

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        match &self.inner {
            Some(inner) => inner,
            None => unreachable!("a guard is locked whenever its owner can use it"),
        }
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        match &mut self.inner {
            Some(inner) => inner,
            None => unreachable!("a guard is locked whenever its owner can use it"),
        }
    }
}

/// A condition variable.
#[derive(Default)]
pub struct Condvar(std::sync::Condvar);

impl Condvar {
    /// A condition variable without waiters.
    pub const fn new() -> Self {
        Condvar(std::sync::Condvar::new())
    }

    /// Wakes all waiting threads.
    pub fn notify_all(&self) {
        self.0.notify_all();
    }

    /// Unlocks the mutex, waits for a notification, and locks it again. It may return without one.
    pub fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
        if let Some(inner) = guard.inner.take() {
            order::leaving(guard.mutex);
            guard.inner = Some(self.0.wait(inner).unwrap_or_else(PoisonError::into_inner));
            order::taken(guard.mutex);
        }
    }

    /// As [`wait`](Self::wait), for at most `time`.
    pub fn wait_for<T>(&self, guard: &mut MutexGuard<'_, T>, time: Duration) {
        if let Some(inner) = guard.inner.take() {
            order::leaving(guard.mutex);
            let waited = self.0.wait_timeout(inner, clock::of_kernel(time));
            guard.inner = Some(waited.unwrap_or_else(PoisonError::into_inner).0);
            order::taken(guard.mutex);
        }
    }

    /// As [`wait`](Self::wait), until `end` at the latest.
    pub fn wait_until<T>(&self, guard: &mut MutexGuard<'_, T>, end: Instant) {
        self.wait_for(guard, end.saturating_duration_since(Instant::now()));
    }
}

/// The order of a mutex, for ThreadSanitizer.
mod order {
    #[cfg(tsan)]
    unsafe extern "C" {
        fn __tsan_acquire(at: *const std::ffi::c_void);
        fn __tsan_release(at: *const std::ffi::c_void);
    }

    /// Everything before the last `leaving` happened before this.
    #[inline(always)]
    pub(super) fn taken<T>(_mutex: &super::Mutex<T>) {
        #[cfg(tsan)]
        // SAFETY: only the address is used.
        unsafe {
            __tsan_acquire(std::ptr::from_ref(_mutex).cast());
        }
    }

    /// Called while the mutex is still held.
    #[inline(always)]
    pub(super) fn leaving<T>(_mutex: &super::Mutex<T>) {
        #[cfg(tsan)]
        // SAFETY: only the address is used.
        unsafe {
            __tsan_release(std::ptr::from_ref(_mutex).cast());
        }
    }
}
