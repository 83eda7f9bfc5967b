//! Which VIs of a NIC are connected, when each must be served, and when the application last served it.

use std::sync::atomic::{AtomicU64, Ordering};

use vipl_sys::table::{self, WordsInUse};

use crate::VIS_MAX;

/// A deadline that never passes.
pub(crate) const NEVER: u64 = u64::MAX;
/// If the application has not served a VI or the socket for so long, it computes, and the watch thread serves them; in
/// nanoseconds. It is longer than a watch thread that has preempted the application keeps it from running.
const ABSENT_NS: u64 = 50_000;
/// The same for an application inside an operation, in nanoseconds: the kernel delivers frames while it sends them, and
/// a window of frames takes a millisecond.
const ABSENT_INSIDE_NS: u64 = 5_000_000;
/// Set in the time at which the socket was read: the application is still inside that operation.
const INSIDE: u64 = 1 << 63;

/// The VIs of one NIC. All times are in nanoseconds.
pub(crate) struct Schedule {
    connected: [AtomicU64; VIS_MAX as usize / 64],
    words: WordsInUse,
    /// When each VI must be served, inverted: a page of the table that is zero, [`NEVER`], takes no memory.
    deadlines: Box<[AtomicU64]>,
    /// None of them is earlier than this.
    soonest: AtomicU64,
    /// When the application last served each VI, and read the socket.
    served: Box<[AtomicU64]>,
    read: AtomicU64,
}

impl Default for Schedule {
    fn default() -> Schedule {
        // SAFETY: zeroes are valid.
        let each = || unsafe { table::zeroed(VIS_MAX as usize) };
        Schedule {
            connected: [const { AtomicU64::new(0) }; VIS_MAX as usize / 64],
            words: WordsInUse::default(),
            deadlines: each(),
            soonest: AtomicU64::new(NEVER),
            served: each(),
            read: AtomicU64::new(0),
        }
    }
}

impl Schedule {
    /// The application begins to serve a VI, and to read the socket for it.
    #[inline(always)]
    pub(crate) fn begin_to_serve(&self, index: u32, now: u64) {
        self.note_posted(index, now);
        self.read.store(now | INSIDE, Ordering::Relaxed);
    }

    /// The application has served the VI.
    #[inline(always)]
    pub(crate) fn end_serving(&self, now: u64) {
        self.read.store(now, Ordering::Relaxed);
    }

    /// The application has posted on a VI, and will serve it.
    #[inline(always)]
    pub(crate) fn note_posted(&self, index: u32, now: u64) {
        self.served[index as usize].store(now, Ordering::Relaxed);
    }

    /// Whether the application serves a VI. Inside an operation of that VI it holds the lock.
    pub(crate) fn is_served(&self, index: u32, now: u64) -> bool {
        let time = self.served[index as usize].load(Ordering::Relaxed);
        now.saturating_sub(time) < ABSENT_NS
    }

    /// Whether the application reads the socket.
    pub(crate) fn is_read(&self, now: u64) -> bool {
        let word = self.read.load(Ordering::Relaxed);
        let limit = if word & INSIDE == 0 {
            ABSENT_NS
        } else {
            ABSENT_INSIDE_NS
        };
        now.saturating_sub(word & !INSIDE) < limit
    }

    /// Starts or stops watching the deadline of a VI.
    pub(crate) fn set_connected(&self, index: u32, connected: bool) {
        let (word, bit) = (&self.connected[index as usize / 64], 1 << (index % 64));
        if connected {
            self.words.include(index);
            word.fetch_or(bit, Ordering::AcqRel);
        } else {
            word.fetch_and(!bit, Ordering::AcqRel);
            self.deadlines[index as usize].store(!NEVER, Ordering::SeqCst);
        }
    }

    /// How many words of ready bits are in use.
    #[inline(always)]
    pub(crate) fn words(&self) -> usize {
        self.words.count()
    }

    /// Sets the deadline of a connected VI. A pending earlier deadline stays: the deadline changes with each message,
    /// and serving a VI early finds nothing due. False: an earlier deadline is pending.
    #[inline(always)]
    pub(crate) fn set_deadline(&self, index: u32, deadline: u64, now: u64) -> bool {
        let place = &self.deadlines[index as usize];
        let before = !place.load(Ordering::Relaxed);
        if now < before && before <= deadline {
            return false;
        }
        place.store(!deadline, Ordering::SeqCst);
        // If it is lower already, the thread that raises it does so after the store above, and sees it.
        if self.soonest.load(Ordering::SeqCst) > deadline {
            self.soonest.fetch_min(deadline, Ordering::SeqCst);
        }
        true
    }

    /// The same for the watch thread, which sleeps until the deadline: a pending earlier one would wake it for nothing.
    pub(crate) fn renew_deadline(&self, index: u32, deadline: u64) {
        self.deadlines[index as usize].store(!deadline, Ordering::SeqCst);
        // The earliest one may have been this VI's.
        self.soonest.store(0, Ordering::SeqCst);
    }

    /// Calls `each` with the VIs whose deadlines have passed. Returns the next deadline.
    pub(crate) fn due(&self, now: u64, each: impl Fn(u32)) -> u64 {
        if self.soonest.load(Ordering::SeqCst) > now {
            return self.soonest.load(Ordering::SeqCst);
        }
        // A thread that sets a deadline from now on lowers it again.
        self.soonest.store(NEVER, Ordering::SeqCst);
        let mut soonest = NEVER;
        for (place, word) in self.connected.iter().take(self.words()).enumerate() {
            let mut bits = word.load(Ordering::Acquire);
            while bits != 0 {
                let index = place as u32 * 64 + bits.trailing_zeros();
                bits &= bits - 1;
                let deadline = !self.deadlines[index as usize].load(Ordering::SeqCst);
                if deadline <= now {
                    each(index);
                }
                soonest = soonest.min(deadline);
            }
        }
        self.soonest.fetch_min(soonest, Ordering::SeqCst);
        soonest
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    fn due(schedule: &Schedule, now: u64) -> (Vec<u32>, u64) {
        let found = RefCell::new(Vec::new());
        let next = schedule.due(now, |index| found.borrow_mut().push(index));
        (found.into_inner(), next)
    }

    #[test]
    fn deadlines_of_connected_vis_pass_in_their_order() {
        let schedule = Schedule::default();
        for (index, deadline) in [(0, 30), (63, 10), (64, 20)] {
            schedule.set_connected(index, true);
            assert!(schedule.set_deadline(index, deadline, 5));
        }
        assert_eq!(due(&schedule, 5), (vec![], 10));
        assert_eq!(due(&schedule, 20), (vec![63, 64], 10));
        assert!(
            !schedule.set_deadline(0, 40, 20),
            "an earlier one is pending"
        );
        assert!(schedule.set_deadline(63, 50, 20));
        schedule.set_connected(64, false);
        assert_eq!(due(&schedule, 30), (vec![0], 30));
        schedule.set_connected(0, false);
        assert_eq!(due(&schedule, 30), (vec![], 50));
        assert!(
            !schedule.set_deadline(63, 90, 30),
            "an earlier one is pending"
        );
        schedule.renew_deadline(63, 90);
        assert_eq!(due(&schedule, 40), (vec![], 90));
    }

    #[test]
    fn an_application_is_absent_after_a_while_and_later_if_it_is_inside() {
        let schedule = Schedule::default();
        let (begin, soon) = (ABSENT_NS, ABSENT_NS + ABSENT_NS - 1);
        schedule.note_posted(7, begin);
        assert!(schedule.is_served(7, soon) && !schedule.is_read(soon));
        schedule.begin_to_serve(7, begin);
        assert!(schedule.is_served(7, soon) && !schedule.is_served(7, soon + 1));
        assert!(schedule.is_read(begin + ABSENT_INSIDE_NS - 1));
        assert!(!schedule.is_read(begin + ABSENT_INSIDE_NS));
        schedule.end_serving(begin);
        assert!(schedule.is_read(soon) && !schedule.is_read(soon + 1));
    }
}
