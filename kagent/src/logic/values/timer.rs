//! Deadlines, earliest first.

#![forbid(unsafe_code)]

use std::collections::BTreeSet;

pub(crate) const NS_PER_MS: u64 = 1_000_000;

/// The time `ms` milliseconds after `now`; `None` for no deadline: `ms` is `u64::MAX`, or the sum exceeds the
/// clock.
pub(crate) fn deadline(now: u64, ms: u64) -> Option<u64> {
    if ms == u64::MAX {
        return None;
    }
    now.checked_add(ms.checked_mul(NS_PER_MS)?)
}

/// Running timers of one kind of record. Each record has at most one and stores its deadline itself.
#[derive(Debug)]
pub(crate) struct Timers<K> {
    order: BTreeSet<(u64, K)>,
}

impl<K: Copy + Ord> Timers<K> {
    pub(crate) fn new() -> Self {
        Self {
            order: BTreeSet::new(),
        }
    }

    pub(crate) fn start(&mut self, deadline: Option<u64>, what: K) {
        if let Some(deadline) = deadline {
            self.order.insert((deadline, what));
        }
    }

    pub(crate) fn stop(&mut self, deadline: Option<u64>, what: K) {
        if let Some(deadline) = deadline {
            self.order.remove(&(deadline, what));
        }
    }

    /// The earliest deadline.
    pub(crate) fn next(&self) -> Option<u64> {
        self.order.first().map(|&(deadline, _)| deadline)
    }

    /// Removes a timer that has expired.
    pub(crate) fn pop_due(&mut self, now: u64) -> Option<K> {
        let &(deadline, what) = self.order.first()?;
        if deadline > now {
            return None;
        }
        self.order.pop_first();
        Some(what)
    }

    pub(crate) fn len(&self) -> usize {
        self.order.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::logic::values::ids::CallKey;

    #[test]
    fn deadlines_do_not_wrap() {
        assert_eq!(deadline(5, 2), Some(2_000_005));
        assert_eq!(deadline(5, u64::MAX), None);
        assert_eq!(deadline(5, u64::MAX - 1), None);
        assert_eq!(deadline(u64::MAX - 1, 1), None);
    }

    #[test]
    fn what_is_due_comes_in_order_of_time() {
        let mut timers = Timers::new();
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
