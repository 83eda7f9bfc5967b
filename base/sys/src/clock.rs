//! The clock. All times that the product measures, sleeps or passes to the kernel go through this module; no
//! other code reads a clock or sleeps (checked by `ctest/tests/clocks.rs`).
//!
//! In a build with debug assertions the variable `VIPL_TEST_TIME` makes time pass faster by a factor: the
//! clock shows the kernel's time multiplied by the factor, and waits are divided by it, so a test covers
//! hours in a minute. Times exchanged by processes stay comparable, since all processes multiply the same
//! clock. Builds without debug assertions have no factor, and no code for one.
//!
//! Times are counted in nanoseconds in 64 bits, 584 years. Sums saturate: a later end is never reached.

use std::ops::{Add, AddAssign, Sub};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The factor of the clock.
#[cfg(not(debug_assertions))]
const fn factor() -> u64 {
    1
}

#[cfg(debug_assertions)]
#[inline]
fn factor() -> u64 {
    use std::sync::atomic::{AtomicU64, Ordering};

    static FACTOR: AtomicU64 = AtomicU64::new(0);

    #[cold]
    fn read() -> u64 {
        // SAFETY: a NUL-terminated name. The text is copied at once; a program that changes its environment at the same time
        // does so only in tests.
        let text = unsafe {
            let value = libc::getenv(c"VIPL_TEST_TIME".as_ptr());
            (!value.is_null()).then(|| std::ffi::CStr::from_ptr(value))
        };
        let number = text.and_then(|text| text.to_str().ok()?.parse::<u64>().ok());
        let factor = number.unwrap_or(1).clamp(1, FACTOR_MAX);
        FACTOR.store(factor, Ordering::Relaxed);
        factor
    }

    match FACTOR.load(Ordering::Relaxed) {
        0 => read(),
        factor => factor,
    }
}

/// With this factor the clock shows 584 years when the machine has been up for 213 days.
#[cfg(debug_assertions)]
const FACTOR_MAX: u64 = 1000;

/// Nanoseconds on the monotonic clock, which all processes of a host share.
#[inline]
pub fn now_ns() -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `time` is valid; this clock always exists.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    (time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64) * factor()
}

/// A point on the monotonic clock. Like that of the standard library, except for the factor and saturating
/// sums.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Instant(u64);

impl Instant {
    /// The current time.
    #[inline]
    pub fn now() -> Instant {
        Instant(now_ns())
    }

    /// The time since then.
    #[inline]
    pub fn elapsed(self) -> Duration {
        Instant::now() - self
    }

    /// The time between; zero if the argument is later.
    #[inline]
    pub fn saturating_duration_since(self, earlier: Instant) -> Duration {
        self - earlier
    }
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

impl Add<Duration> for Instant {
    type Output = Instant;

    #[inline]
    fn add(self, time: Duration) -> Instant {
        Instant(self.0.saturating_add(nanoseconds(time)))
    }
}

impl AddAssign<Duration> for Instant {
    #[inline]
    fn add_assign(&mut self, time: Duration) {
        *self = *self + time;
    }
}

impl Sub for Instant {
    type Output = Duration;

    #[inline]
    fn sub(self, earlier: Instant) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

/// The system's time since 1970. It may jump, has no factor, and must not be used to measure durations.
pub fn since_1970() -> Duration {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
}

/// The time in nanoseconds; the largest number means no limit.
#[inline]
pub fn limit(nanoseconds: u64) -> Option<Duration> {
    (nanoseconds != u64::MAX).then_some(Duration::from_nanos(nanoseconds))
}

/// The kernel's time in which at least `time` passes on this clock.
#[inline]
pub fn of_kernel(time: Duration) -> Duration {
    match factor() {
        1 => time,
        factor => Duration::from_nanos(nanoseconds(time).div_ceil(factor)),
    }
}

/// A time to wait, for the kernel. Longer times saturate.
pub fn timespec(time: Duration) -> libc::timespec {
    plain(of_kernel(time))
}

/// A point on the monotonic clock, for the kernel.
pub fn timespec_at(now_ns: u64) -> libc::timespec {
    plain(Duration::from_nanos(now_ns.div_ceil(factor())))
}

fn plain(time: Duration) -> libc::timespec {
    libc::timespec {
        tv_sec: libc::time_t::try_from(time.as_secs()).unwrap_or(libc::time_t::MAX),
        // Less than a billion.
        tv_nsec: time.subsec_nanos() as libc::c_long,
    }
}

/// A limit of a socket (`SO_RCVTIMEO`), in whole microseconds, rounded up: zero would be none.
pub fn timeval(time: Duration) -> libc::timeval {
    let time = plain(of_kernel(time).saturating_add(Duration::from_nanos(999)));
    libc::timeval {
        tv_sec: time.tv_sec,
        tv_usec: time.tv_nsec / 1000,
    }
}

/// A time to wait in whole milliseconds, rounded up, for `epoll_wait`. Longer times saturate, and callers
/// check the clock afterwards.
pub fn milliseconds(time: Duration) -> i32 {
    let whole = of_kernel(time).as_nanos().div_ceil(1_000_000);
    i32::try_from(whole).unwrap_or(i32::MAX)
}

/// Sleeps for a time.
pub fn sleep(time: Duration) {
    std::thread::sleep(of_kernel(time));
}

/// Waits for one of the descriptors, or for a time, if given. Returns the number of ready descriptors;
/// negative if the system refuses. A signal neither ends nor prolongs the wait.
pub fn poll(fds: &mut [libc::pollfd], time: Option<Duration>) -> i32 {
    let mut left = time.map(timespec);
    let limit = left
        .as_mut()
        .map_or(std::ptr::null_mut(), std::ptr::from_mut);
    let no_mask = std::ptr::null::<libc::sigset_t>();
    loop {
        // The raw system call: it stores the remaining time after a signal in `left`, which the function of
        // glibc does not. SAFETY: a valid array, a valid time or none, and no mask.
        let found = unsafe {
            libc::syscall(
                libc::SYS_ppoll,
                fds.as_mut_ptr(),
                fds.len(),
                limit,
                no_mask,
                0_usize,
            )
        };
        if found >= 0 || std::io::Error::last_os_error().raw_os_error() != Some(libc::EINTR) {
            return found as i32;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_does_not_run_backwards() {
        let mut last = 0;
        for _ in 0..1000 {
            let now = now_ns();
            assert!(now >= last && now > 0);
            last = now;
        }
    }

    #[test]
    fn what_is_too_long_does_not_end() {
        let now = Instant::now();
        let end = now + Duration::MAX;
        assert_eq!(end + Duration::from_secs(1), end);
        assert_eq!(now - end, Duration::ZERO);
        assert!(end - now > Duration::from_secs(500 * 365 * 86400));
        for time in [Duration::MAX, end - now, Duration::from_millis(0xFFFF_FFFE)] {
            assert!(milliseconds(time) > 0);
            let (spec, value) = (timespec(time), timeval(time));
            assert!(spec.tv_sec > 0 && (0..1_000_000_000).contains(&spec.tv_nsec));
            assert!(value.tv_sec > 0 && (0..1_000_000).contains(&value.tv_usec));
        }
        assert_eq!(limit(u64::MAX), None);
    }

    #[test]
    fn nothing_is_rounded_to_an_earlier_end() {
        let little = Duration::from_nanos(1);
        assert_eq!(milliseconds(little), 1);
        assert_eq!(timeval(little).tv_usec, 1);
        assert_eq!(timespec(little).tv_nsec, 1);
        assert_eq!(milliseconds(Duration::ZERO), 0);
    }

    #[test]
    fn a_signal_neither_ends_nor_prolongs_a_wait() {
        extern "C" fn nothing(_: i32) {}
        // SAFETY: a handler that does nothing, without SA_RESTART.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = nothing as extern "C" fn(i32) as usize;
            libc::sigaction(libc::SIGUSR1, &raw const action, std::ptr::null_mut());
        }
        // SAFETY: the calling thread.
        let waiter = unsafe { libc::pthread_self() };
        let time = Duration::from_millis(100);
        let stop = std::sync::atomic::AtomicBool::new(false);
        let passed = std::thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    // SAFETY: the waiting thread outlives the scope.
                    unsafe { libc::pthread_kill(waiter, libc::SIGUSR1) };
                    sleep(Duration::from_millis(1));
                }
            });
            let begin = Instant::now();
            let found = poll(&mut [], Some(time));
            stop.store(true, std::sync::atomic::Ordering::Relaxed);
            assert_eq!(found, 0);
            begin.elapsed()
        });
        assert!(passed >= time, "{passed:?}");
    }
}
