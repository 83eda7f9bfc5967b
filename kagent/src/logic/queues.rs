//! Ordered collections: FIFO queues of waiting calls, and deadlines.

#![forbid(unsafe_code)]

use std::collections::{BTreeMap, BTreeSet};

use crate::logic::ids::CallKey;

/// FIFO queues by key. Call identifiers increase monotonically, so their order is the order of arrival, and a
/// call can be removed from the middle without a scan.
#[derive(Debug)]
pub(crate) struct Queues<P> {
    queues: BTreeMap<P, BTreeSet<CallKey>>,
}

impl<P: Ord> Queues<P> {
    pub(crate) fn new() -> Self {
        Self {
            queues: BTreeMap::new(),
        }
    }

    pub(crate) fn push(&mut self, place: P, call: CallKey) {
        self.queues.entry(place).or_default().insert(call);
    }

    pub(crate) fn remove(&mut self, place: &P, call: CallKey) {
        if let Some(calls) = self.queues.get_mut(place) {
            calls.remove(&call);
            if calls.is_empty() {
                self.queues.remove(place);
            }
        }
    }

    /// The oldest call in a queue; it stays there.
    pub(crate) fn oldest(&self, place: &P) -> Option<CallKey> {
        self.queues.get(place)?.first().copied()
    }

    /// The keys of the queues before a key, nearest first, and of those from it on.
    pub(crate) fn around(&self, place: P) -> (impl Iterator<Item = &P>, impl Iterator<Item = &P>)
    where
        P: Copy,
    {
        let before = self.queues.range(..place).rev();
        let after = self.queues.range(place..);
        (
            before.map(|(place, _)| place),
            after.map(|(place, _)| place),
        )
    }

    /// All queued calls with their keys.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&P, CallKey)> {
        let queues = self.queues.iter();
        queues.flat_map(|(place, calls)| calls.iter().map(move |call| (place, *call)))
    }

    /// Number of queued calls.
    pub(crate) fn len(&self) -> usize {
        self.queues.values().map(BTreeSet::len).sum()
    }
}

pub(crate) const NS_PER_MS: u64 = 1_000_000;

/// The time `ms` milliseconds after `now`; `None` (no deadline) if `ms` is `u64::MAX` or the sum overflows.
pub(crate) fn deadline(now: u64, ms: u64) -> Option<u64> {
    if ms == u64::MAX {
        return None;
    }
    now.checked_add(ms.checked_mul(NS_PER_MS)?)
}

/// Running timers of one kind of record. Each record has at most one timer and stores its own deadline.
#[derive(Debug)]
pub(crate) struct Timers<K> {
    order: BTreeSet<(u64, K)>,
}

impl<K> Default for Timers<K> {
    fn default() -> Self {
        let order = BTreeSet::new();
        Self { order }
    }
}

impl<K: Copy + Ord> Timers<K> {
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

    /// Removes and returns the earliest timer that has expired.
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

    use crate::logic::ids::CallKey;

    #[test]
    fn oldest_first_and_nothing_left_behind() {
        let mut queues = Queues::new();
        for key in [3, 5, 9] {
            queues.push("here", CallKey(key));
        }
        queues.push("there", CallKey(4));
        assert_eq!(queues.oldest(&"here"), Some(CallKey(3)));
        queues.remove(&"here", CallKey(3));
        queues.remove(&"here", CallKey(9));
        assert_eq!(queues.oldest(&"here"), Some(CallKey(5)));
        queues.remove(&"here", CallKey(5));
        queues.remove(&"here", CallKey(5));
        assert_eq!((queues.oldest(&"here"), queues.len()), (None, 1));
        queues.push("a", CallKey(6));
        let (before, after) = queues.around("here");
        assert_eq!(before.copied().collect::<Vec<_>>(), ["a"]);
        assert_eq!(after.copied().collect::<Vec<_>>(), ["there"]);
    }

    #[test]
    fn deadlines_do_not_wrap() {
        assert_eq!(deadline(5, 2), Some(2_000_005));
        assert_eq!(deadline(5, u64::MAX), None);
        assert_eq!(deadline(5, u64::MAX - 1), None);
        assert_eq!(deadline(u64::MAX - 1, 1), None);
    }

    #[test]
    fn what_is_due_comes_in_order_of_time() {
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
