//! FIFO queues of waiting calls, one per key.

#![forbid(unsafe_code)]

use std::collections::{BTreeMap, BTreeSet};

use crate::logic::values::ids::CallKey;

/// FIFO queues by key. Call identifiers only grow, so their order is the order of arrival, and a call can be
/// removed from the middle without a scan.
#[derive(Debug)]
pub(crate) struct Queues<P> {
    keys_of_wait: BTreeMap<P, BTreeSet<CallKey>>,
}

impl<P: Ord> Queues<P> {
    pub(crate) fn new() -> Self {
        Self {
            keys_of_wait: BTreeMap::new(),
        }
    }

    pub(crate) fn push(&mut self, place: P, call: CallKey) {
        self.keys_of_wait.entry(place).or_default().insert(call);
    }

    pub(crate) fn remove(&mut self, place: &P, call: CallKey) {
        if let Some(calls) = self.keys_of_wait.get_mut(place) {
            calls.remove(&call);
            if calls.is_empty() {
                self.keys_of_wait.remove(place);
            }
        }
    }

    /// The oldest call in a queue; it stays there.
    pub(crate) fn oldest(&self, place: &P) -> Option<CallKey> {
        self.keys_of_wait.get(place)?.first().copied()
    }

    /// All queued calls with their keys.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&P, CallKey)> {
        let keys_of_wait = self.keys_of_wait.iter();
        keys_of_wait.flat_map(|(place, calls)| calls.iter().map(move |call| (place, *call)))
    }

    /// Number of queued calls.
    pub(crate) fn len(&self) -> usize {
        self.keys_of_wait.values().map(BTreeSet::len).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
    }
}
