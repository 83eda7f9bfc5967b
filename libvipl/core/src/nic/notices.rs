//! Delayed reports of connections that the peers have ended in good order (spec §17), at most one per VI.
//!
//! A server may lose thousands of peers in a moment and then disconnect each of its VIs, so no call searches
//! all of them.

use std::collections::{BTreeMap, BTreeSet};

use vipl_sys::clock::Instant;

/// A delayed CONN_LOST after an orderly disconnect, for VIs that do not disconnect soon (spec §17).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Notice {
    pub(crate) due: Instant,
    /// Handle of the VI.
    pub(crate) vi: usize,
    /// The VI's connection counter.
    pub(crate) epoch: u64,
    /// Whether the application has taken a descriptor flushed by the end of the connection.
    pub(crate) seen: bool,
}

/// The notices of one NIC handle.
#[derive(Default)]
pub(super) struct Notices {
    by_vi: BTreeMap<usize, Notice>,
    /// The same by the time at which they are due.
    order: BTreeSet<(Instant, usize)>,
}

impl Notices {
    /// Adds a notice, in place of the last one of its VI. Returns whether it is the next one.
    pub(super) fn add(&mut self, notice: Notice) -> bool {
        self.forget(notice.vi);
        self.by_vi.insert(notice.vi, notice);
        self.order.insert((notice.due, notice.vi));
        self.next_due() == Some(notice.due)
    }

    /// Removes the notice of a VI.
    pub(super) fn forget(&mut self, vi: usize) {
        if let Some(notice) = self.by_vi.remove(&vi) {
            self.order.remove(&(notice.due, vi));
        }
    }

    /// Notes that the application has taken a flushed descriptor of this VI.
    pub(super) fn note_seen(&mut self, vi: usize) {
        if let Some(notice) = self.by_vi.get_mut(&vi) {
            notice.seen = true;
        }
    }

    /// When the next one is due.
    pub(super) fn next_due(&self) -> Option<Instant> {
        self.order.first().map(|(due, _)| *due)
    }

    /// Takes those that are due.
    pub(super) fn take_due(&mut self, now: Instant) -> Vec<Notice> {
        let mut due = Vec::new();
        while let Some(&(time, vi)) = self.order.first()
            && time <= now
        {
            self.order.pop_first();
            due.extend(self.by_vi.remove(&vi));
        }
        due
    }

    /// Takes all of them.
    pub(super) fn take_all(&mut self) -> impl Iterator<Item = Notice> + use<> {
        self.order.clear();
        std::mem::take(&mut self.by_vi).into_values()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn notices_come_in_the_order_of_their_times_and_one_per_vi() {
        let start = Instant::now();
        let at = |vi: usize, later: u64| Notice {
            due: start + Duration::from_secs(later),
            vi,
            epoch: later,
            seen: false,
        };
        let mut notices = Notices::default();
        assert!(notices.add(at(3, 5)) && !notices.add(at(1, 7)) && notices.add(at(2, 4)));
        assert!(!notices.add(at(2, 6)), "it replaces the first one");
        notices.note_seen(1);
        notices.note_seen(9);
        assert_eq!(notices.next_due(), Some(at(3, 5).due));
        assert_eq!(notices.take_due(start), []);
        assert_eq!(notices.take_due(at(0, 6).due), [at(3, 5), at(2, 6)]);
        notices.forget(3);
        let left = Notice {
            seen: true,
            ..at(1, 7)
        };
        assert_eq!(notices.next_due(), Some(left.due));
        assert!(notices.take_all().eq([left]));
        assert_eq!(notices.next_due(), None);
    }
}
