//! Initial values of wrapping counters: 2^32 messages take an hour, and no test sends that many.
//!
//! In a build with debug assertions the variable `VIPL_TEST_WRAP` makes them start shortly before they wrap.
//! Then both sides of a connection need it. Other builds have no such variable.

/// Steps until a counter wraps.
#[cfg(debug_assertions)]
const STEPS: u32 = 24;

/// The initial value of a counter whose usual initial value is this one.
#[cfg(not(debug_assertions))]
#[inline(always)]
pub const fn start(usual: u32) -> u32 {
    usual
}

/// The initial value of a counter whose usual initial value is this one.
#[cfg(debug_assertions)]
pub fn start(usual: u32) -> u32 {
    use std::sync::atomic::{AtomicU32, Ordering};

    const NEVER: u32 = 1;
    const SOON: u32 = 2;
    static WRAP: AtomicU32 = AtomicU32::new(0);

    if WRAP.load(Ordering::Relaxed) == 0 {
        // SAFETY: a NUL-terminated name; the value is not read.
        let is_set = unsafe { !libc::getenv(c"VIPL_TEST_WRAP".as_ptr()).is_null() };
        WRAP.store(if is_set { SOON } else { NEVER }, Ordering::Relaxed);
    }
    match WRAP.load(Ordering::Relaxed) {
        SOON => STEPS.wrapping_neg(),
        _ => usual,
    }
}
