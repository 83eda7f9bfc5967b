//! Monotonic time, and the application's timeouts on it (rule R7).

use std::time::Duration;

use vipl_abi::VIP_ULONG;

pub(crate) use vipl_sys::clock::{Instant, now_ns};

/// Whether a timeout means "no limit": VIP_INFINITE, or 32 bits of ones on any host.
pub(crate) fn is_infinite(timeout: VIP_ULONG) -> bool {
    timeout == VIP_ULONG::MAX || timeout == 0xFFFF_FFFF
}

/// The deadline of a timeout in milliseconds; `None`: never.
pub(crate) fn deadline(timeout: VIP_ULONG) -> Option<Instant> {
    if is_infinite(timeout) {
        return None;
    }
    Some(Instant::now() + Duration::from_millis(timeout as u64))
}

/// The timeout in the form of the agent's messages.
pub(crate) fn timeout_ms(timeout: VIP_ULONG) -> u64 {
    if is_infinite(timeout) {
        u64::MAX
    } else {
        timeout as u64
    }
}

/// The remaining time until a deadline in the form of the agent's messages, rounded up, so that 0 means that
/// it has passed.
pub(crate) fn remaining_ms(deadline: Option<Instant>) -> u64 {
    deadline.map_or(u64::MAX, |end| {
        let left = end.saturating_duration_since(Instant::now());
        left.as_nanos().div_ceil(1_000_000) as u64
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn infinite_timeouts_have_no_deadline() {
        for timeout in [VIP_ULONG::MAX, 0xFFFF_FFFF] {
            assert_eq!(deadline(timeout), None);
            assert_eq!(timeout_ms(timeout), u64::MAX);
        }
        assert_eq!(remaining_ms(None), u64::MAX);
        assert_eq!(timeout_ms(25), 25);
    }

    #[test]
    fn what_is_left_is_rounded_up_and_never_negative() {
        assert_eq!(remaining_ms(deadline(0)), 0);
        let hour = remaining_ms(deadline(3_600_000));
        assert!((1..=3_600_000).contains(&hour), "{hour}");
    }
}
