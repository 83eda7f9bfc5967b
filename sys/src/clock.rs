//! The monotonic clock, which all processes of a host share.

/// Nanoseconds on the monotonic clock.
#[inline]
pub fn now_ns() -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `time` is valid; this clock always exists.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

#[cfg(test)]
mod tests {
    #[test]
    fn it_does_not_run_backwards() {
        let mut last = 0;
        for _ in 0..1000 {
            let now = super::now_ns();
            assert!(now >= last && now > 0);
            last = now;
        }
    }
}
