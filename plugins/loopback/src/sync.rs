//! Locks, atomics and the kernel's means of waiting, in one place so that a checker can put others there:
//! `ctest/loom` compiles `bell.rs` with those of a model checker.

use std::sync::atomic::AtomicU32;
use std::sync::{Mutex, MutexGuard};

pub(crate) use std::sync::atomic::{self, compiler_fence};

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

/// A command of the system call `membarrier`; whether it worked.
pub(crate) fn membarrier(command: i32) -> bool {
    // SAFETY: no pointers.
    unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 }
}

/// Sleeps while the word, which other processes may map, is `expected`. `u64::MAX`: without end.
pub(crate) fn futex_wait(word: &AtomicU32, expected: u32, timeout_ns: u64) {
    let time = libc::timespec {
        tv_sec: (timeout_ns / 1_000_000_000) as libc::time_t,
        tv_nsec: (timeout_ns % 1_000_000_000) as libc::c_long,
    };
    let limit = if timeout_ns == u64::MAX {
        std::ptr::null()
    } else {
        &raw const time
    };
    // SAFETY: the word lives; the time is valid.
    unsafe {
        libc::syscall(
            libc::SYS_futex,
            word.as_ptr(),
            libc::FUTEX_WAIT,
            expected,
            limit,
            0,
            0,
        );
    }
}

/// Wakes all who sleep on the word.
pub(crate) fn futex_wake(word: &AtomicU32) {
    // SAFETY: the word lives.
    unsafe {
        libc::syscall(
            libc::SYS_futex,
            word.as_ptr(),
            libc::FUTEX_WAKE,
            i32::MAX,
            0,
            0,
            0,
        );
    }
}
