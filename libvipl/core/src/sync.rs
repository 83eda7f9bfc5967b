//! Mutex and condition variable of the control path.
//!
//! They are the standard library's, without poisoning: a lock is a word of its own and nothing else, so
//! that a forked child, which starts with a fresh `Process`, finds nothing of its parent in its way. (A
//! lock that parks threads in a table common to all locks cannot promise that.)
//!
//! A check with ThreadSanitizer (`--cfg tsan`) instruments this crate and not the standard library, whose
//! locks then order nothing for it. `order` tells it what they do. What is made once is made by a cell that
//! is compiled with us, for the same reason.

use std::ops::{Deref, DerefMut};
use std::sync::PoisonError;
use std::time::{Duration, Instant};

pub(crate) use std::sync::atomic;

pub(crate) use once_cell::sync::OnceCell as OnceLock;

/// A mutex.
#[derive(Default)]
pub(crate) struct Mutex<T>(std::sync::Mutex<T>);

/// A locked mutex.
pub(crate) struct MutexGuard<'a, T> {
    mutex: &'a Mutex<T>,
    /// `None` only inside `unlocked` and `Condvar`.
    inner: Option<std::sync::MutexGuard<'a, T>>,
}

impl<T> Mutex<T> {
    pub(crate) const fn new(value: T) -> Self {
        Mutex(std::sync::Mutex::new(value))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        let inner = Some(self.0.lock().unwrap_or_else(PoisonError::into_inner));
        order::taken(self);
        MutexGuard { mutex: self, inner }
    }
}

#[cfg(tsan)]
impl<T> Drop for MutexGuard<'_, T> {
    fn drop(&mut self) {
        order::leaving(self.mutex);
    }
}

impl<T> MutexGuard<'_, T> {
    /// Runs something with the mutex unlocked.
    pub(crate) fn unlocked<R>(guard: &mut Self, body: impl FnOnce() -> R) -> R {
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
pub(crate) struct Condvar(std::sync::Condvar);

impl Condvar {
    pub(crate) const fn new() -> Self {
        Condvar(std::sync::Condvar::new())
    }

    pub(crate) fn notify_all(&self) {
        self.0.notify_all();
    }

    pub(crate) fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
        if let Some(inner) = guard.inner.take() {
            order::leaving(guard.mutex);
            guard.inner = Some(self.0.wait(inner).unwrap_or_else(PoisonError::into_inner));
            order::taken(guard.mutex);
        }
    }

    pub(crate) fn wait_for<T>(&self, guard: &mut MutexGuard<'_, T>, time: Duration) {
        if let Some(inner) = guard.inner.take() {
            order::leaving(guard.mutex);
            let waited = self.0.wait_timeout(inner, time);
            guard.inner = Some(waited.unwrap_or_else(PoisonError::into_inner).0);
            order::taken(guard.mutex);
        }
    }

    pub(crate) fn wait_until<T>(&self, guard: &mut MutexGuard<'_, T>, end: Instant) {
        self.wait_for(guard, end.saturating_duration_since(Instant::now()));
    }
}

/// What ThreadSanitizer has to be told of a mutex.
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
        // SAFETY: only the address counts.
        unsafe {
            __tsan_acquire(std::ptr::from_ref(_mutex).cast());
        }
    }

    /// Said while the mutex is still held.
    #[inline(always)]
    pub(super) fn leaving<T>(_mutex: &super::Mutex<T>) {
        #[cfg(tsan)]
        // SAFETY: only the address counts.
        unsafe {
            __tsan_release(std::ptr::from_ref(_mutex).cast());
        }
    }
}
