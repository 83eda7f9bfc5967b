//! Locks that ThreadSanitizer can follow.

use std::sync::{Mutex, MutexGuard};

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
