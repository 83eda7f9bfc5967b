//! Locks, atomics and the kernel's means of waiting, in one place so that a checker can put others there:
//! `ctest/loom` compiles `bell.rs` with those of a model checker.

use std::sync::{Mutex, MutexGuard};

pub(crate) use std::sync::atomic::{self, compiler_fence};

pub(crate) use vipl_sys::futex::{wait as futex_wait, wake as futex_wake};
pub(crate) use vipl_sys::membarrier::{self, Scope};

/// Locks; what a panic left behind is used as it is.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // ThreadSanitizer sees what is compiled with us; waiting for a lock is not.
    #[cfg(tsan)]
    loop {
        match mutex.try_lock() {
            Ok(guard) => return guard,
            Err(std::sync::TryLockError::Poisoned(broken)) => return broken.into_inner(),
            Err(std::sync::TryLockError::WouldBlock) => std::thread::yield_now(),
        }
    }
    #[cfg(not(tsan))]
    mutex.lock().unwrap_or_else(|broken| broken.into_inner())
}
