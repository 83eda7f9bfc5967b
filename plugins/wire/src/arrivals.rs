//! State of the receive side of an Unreliable connection: which frames have arrived, and the message of which only some
//! pieces have.

use crate::config::NEVER;
use crate::env::Remote;
use crate::part::PartKind;
use crate::receiver::Arriving;

/// How far behind the latest frame a late one may be.
const LATE_MAX: u32 = 64;

/// A message or RDMA Write that arrives in pieces.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pieces {
    pub(crate) kind: PartKind,
    pub(crate) flagged: bool,
    pub(crate) immediate: u32,
    pub(crate) arriving: Arriving,
    /// The remote range of an RDMA Write, which all its pieces name.
    pub(crate) range: Remote,
}

/// What has arrived on an Unreliable connection.
#[derive(Debug)]
pub(crate) struct Arrivals {
    /// Bit `i`: the frame `i + 1` before the next one has arrived.
    seen: u64,
    pub(crate) pieces: Option<Pieces>,
    pub(crate) due_ns: u64,
}

impl Default for Arrivals {
    fn default() -> Self {
        Arrivals {
            // Frames before the first one do not exist.
            seen: !0,
            pieces: None,
            due_ns: NEVER,
        }
    }
}

impl Arrivals {
    /// When a message in pieces is given up.
    #[inline(always)]
    pub(crate) fn deadline(&self) -> u64 {
        self.due_ns
    }

    /// Records a frame `ahead` of the next one, or behind it if negative. `None`: it is a duplicate or too old;
    /// otherwise, whether it is in order.
    pub(crate) fn note(&mut self, ahead: i32) -> Option<bool> {
        if ahead >= 0 {
            let shift = ahead as u32 + 1;
            self.seen = self.seen.checked_shl(shift).unwrap_or(0) | 1;
            return Some(true);
        }
        let back = ahead.unsigned_abs() - 1;
        if back >= LATE_MAX || self.seen >> back & 1 == 1 {
            return None;
        }
        self.seen |= 1 << back;
        Some(false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_frame_once_and_late_ones_too() {
        let mut arrivals = Arrivals::default();
        assert_eq!(arrivals.note(-1), None, "before the first");
        assert_eq!(arrivals.note(0), Some(true));
        assert_eq!(arrivals.note(-1), None, "twice");
        assert_eq!(arrivals.note(2), Some(true), "two are missing");
        assert_eq!(arrivals.note(-2), Some(false));
        assert_eq!(arrivals.note(-3), Some(false));
        assert_eq!(arrivals.note(-3), None);
        assert_eq!(arrivals.note(-4), None, "the very first");
        assert_eq!(arrivals.note(1000), Some(true));
        assert_eq!(arrivals.note(-65), None, "too old");
        assert_eq!(arrivals.note(-64), Some(false));
    }
}
