//! First-in first-out queues of waiting calls, one for each place where a partner would look.

#![forbid(unsafe_code)]

use std::collections::{BTreeMap, BTreeSet};

use crate::logic::values::ids::CallKey;

/// Queues by place. Call keys only grow, so the order of keys is the order of arrival, and a call can
/// leave from the middle without a scan.
#[derive(Debug)]
pub(crate) struct Queues<P> {
    places: BTreeMap<P, BTreeSet<CallKey>>,
}

impl<P: Ord> Queues<P> {
    pub(crate) fn new() -> Self {
        Self {
            places: BTreeMap::new(),
        }
    }

    pub(crate) fn push(&mut self, place: P, call: CallKey) {
        self.places.entry(place).or_default().insert(call);
    }

    pub(crate) fn remove(&mut self, place: &P, call: CallKey) {
        if let Some(calls) = self.places.get_mut(place) {
            calls.remove(&call);
            if calls.is_empty() {
                self.places.remove(place);
            }
        }
    }

    /// The call that has waited longest at a place; it stays in the queue.
    pub(crate) fn oldest(&self, place: &P) -> Option<CallKey> {
        self.places.get(place)?.first().copied()
    }

    /// Every call that waits, with its place.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&P, CallKey)> {
        let places = self.places.iter();
        places.flat_map(|(place, calls)| calls.iter().map(move |call| (place, *call)))
    }

    /// How many calls wait, over all places.
    pub(crate) fn len(&self) -> usize {
        self.places.values().map(BTreeSet::len).sum()
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
