//! The kernel's means of waiting, for words that two processes share.

use std::sync::atomic::AtomicU32;

/// `MEMBARRIER_CMD_GLOBAL_EXPEDITED`: a fence on every processor that runs a registered process.
const GLOBAL_EXPEDITED: i32 = 1 << 1;
/// Its registration.
const REGISTER_GLOBAL_EXPEDITED: i32 = 1 << 2;

fn membarrier(command: i32) -> bool {
    // SAFETY: no pointers.
    unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 }
}

/// This process takes part in the barriers of others. False: the kernel does not have them.
pub fn join_barriers() -> bool {
    membarrier(REGISTER_GLOBAL_EXPEDITED)
}

/// Makes every processor that runs a registered process execute a fence, this one too.
pub fn barrier() -> bool {
    let done = membarrier(GLOBAL_EXPEDITED);
    std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
    done
}

/// Sleeps while the word is `expected`. `u64::MAX`: without end.
pub fn futex_wait(word: &AtomicU32, expected: u32, timeout_ns: u64) {
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
pub fn futex_wake(word: &AtomicU32) {
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
