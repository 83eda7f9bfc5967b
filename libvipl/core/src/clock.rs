//! Monotonic time, and the program's timeouts on it (rule R7).

use std::time::{Duration, Instant};

use vipl_abi::VIP_ULONG;

/// Nanoseconds on the monotonic clock.
pub(crate) fn now_ns() -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `time` is valid; this clock always exists.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Whether a timeout means "no limit": VIP_INFINITE, or 32 bits of ones on any host.
pub(crate) fn is_infinite(timeout: VIP_ULONG) -> bool {
    timeout == VIP_ULONG::MAX || timeout == 0xFFFF_FFFF
}

/// The end of a timeout in milliseconds; `None` is never.
pub(crate) fn deadline(timeout: VIP_ULONG) -> Option<Instant> {
    if is_infinite(timeout) {
        return None;
    }
    Instant::now().checked_add(Duration::from_millis(timeout as u64))
}

/// The timeout as the agent's messages carry it.
pub(crate) fn timeout_ms(timeout: VIP_ULONG) -> u64 {
    if is_infinite(timeout) {
        u64::MAX
    } else {
        timeout as u64
    }
}
