//! Deadlines of waiting calls, earliest first.

#![forbid(unsafe_code)]

use std::collections::BTreeSet;

use crate::call::CallKey;

const NS_PER_MS: u64 = 1_000_000;

/// The moment `ms` milliseconds after `now`; `None` when that is never, be it because the caller set
/// no limit or because the sum is beyond the clock.
pub(crate) fn deadline(now: u64, ms: u64) -> Option<u64> {
    if ms == u64::MAX {
        return None;
    }
    now.checked_add(ms.checked_mul(NS_PER_MS)?)
}

/// All running timers. A call has at most one at a time and remembers its deadline itself.
#[derive(Debug, Default)]
pub(crate) struct Timers {
    order: BTreeSet<(u64, CallKey)>,
}

impl Timers {
    pub(crate) fn start(&mut self, deadline: Option<u64>, call: CallKey) {
        if let Some(deadline) = deadline {
            self.order.insert((deadline, call));
        }
    }

    pub(crate) fn stop(&mut self, deadline: Option<u64>, call: CallKey) {
        if let Some(deadline) = deadline {
            self.order.remove(&(deadline, call));
        }
    }

    /// The earliest deadline.
    pub(crate) fn next(&self) -> Option<u64> {
        self.order.first().map(|&(deadline, _)| deadline)
    }

    /// Takes one call whose time has come.
    pub(crate) fn pop_due(&mut self, now: u64) -> Option<CallKey> {
        let &(deadline, call) = self.order.first()?;
        if deadline > now {
            return None;
        }
        self.order.pop_first();
        Some(call)
    }

    pub(crate) fn len(&self) -> usize {
        self.order.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deadlines_do_not_wrap() {
        assert_eq!(deadline(5, 2), Some(2_000_005));
        assert_eq!(deadline(5, u64::MAX), None);
        assert_eq!(deadline(5, u64::MAX - 1), None);
        assert_eq!(deadline(u64::MAX - 1, 1), None);
    }

    #[test]
    fn due_calls_come_in_order_of_time() {
        let mut timers = Timers::default();
        timers.start(Some(30), CallKey(1));
        timers.start(Some(10), CallKey(3));
        timers.start(Some(10), CallKey(2));
        timers.start(None, CallKey(4));
        assert_eq!((timers.next(), timers.pop_due(9)), (Some(10), None));
        assert_eq!(timers.pop_due(30), Some(CallKey(2)));
        timers.stop(Some(10), CallKey(3));
        assert_eq!(timers.pop_due(30), Some(CallKey(1)));
        assert_eq!((timers.pop_due(u64::MAX), timers.len()), (None, 0));
    }
}
