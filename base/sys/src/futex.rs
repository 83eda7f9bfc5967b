//! Sleeping on a word of shared memory.

use std::sync::atomic::AtomicU32;

use crate::clock;

/// Sleeps while the word is `expected`. `u64::MAX`: no timeout.
pub fn wait(word: &AtomicU32, expected: u32, timeout_ns: u64) {
    let time = clock::limit(timeout_ns).map(clock::timespec);
    let limit = time.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
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

/// Wakes all threads that sleep on the word.
pub fn wake(word: &AtomicU32) {
    wake_address(word.as_ptr().addr());
}

/// The same by the word's address, which may have been unmapped.
pub fn wake_address(word: usize) {
    // SAFETY: the kernel searches sleepers by address, and does not read there.
    unsafe {
        libc::syscall(libc::SYS_futex, word, libc::FUTEX_WAKE, i32::MAX, 0, 0, 0);
    }
}
