//! The sender's bookkeeping of the ring: slots and payload that are free, as far as it knows.

use vipl_sys::wrap;

use crate::ring::{self, LINE, PAYLOAD, SLOTS, flag};

/// The sender's bookkeeping of its direction. Numbers of slots and payload positions wrap.
pub(crate) struct Outbox {
    /// Slots written so far.
    pub(crate) sent: u32,
    /// Slots that the partner is known to have consumed.
    pub(crate) consumed: u32,
    /// Payload bytes given out so far.
    payload: u32,
    /// Payload bytes that are free again.
    freed: u32,
    /// Payload position behind each slot.
    ends: Box<[u32; SLOTS as usize]>,
}

impl Outbox {
    pub(crate) fn new() -> Outbox {
        let payload = wrap::start(0).wrapping_mul(LINE);
        Outbox {
            sent: wrap::start(0),
            consumed: wrap::start(0),
            payload,
            freed: payload,
            ends: Box::new([0; SLOTS as usize]),
        }
    }

    /// Learns how far the partner is; a count that cannot be is ignored.
    #[inline(always)]
    pub(crate) fn learn(&mut self, consumed: u32) {
        let ahead = self.sent.wrapping_sub(consumed);
        let new = consumed.wrapping_sub(self.consumed);
        if new != 0 && ahead <= SLOTS && new <= SLOTS {
            self.consumed = consumed;
            self.freed = self.ends[(consumed.wrapping_sub(1) & (SLOTS - 1)) as usize];
        }
    }

    /// Whether the partner is known to have consumed everything.
    #[inline(always)]
    pub(crate) fn is_drained(&self) -> bool {
        self.sent == self.consumed
    }

    /// Whether a slot is free.
    #[inline(always)]
    pub(crate) fn has_slot(&self) -> bool {
        self.sent.wrapping_sub(self.consumed) < SLOTS
    }

    /// A contiguous place for `bytes` bytes of payload, if there is one.
    #[inline(always)]
    pub(crate) fn reserve(&mut self, bytes: u32) -> Option<u32> {
        let rounded = bytes.next_multiple_of(LINE);
        let at = self.payload & (PAYLOAD - 1);
        let skip = if at + rounded > PAYLOAD {
            PAYLOAD - at
        } else {
            0
        };
        let used = self.payload.wrapping_sub(self.freed);
        if used + skip + rounded > PAYLOAD {
            return None;
        }
        let start = self.payload.wrapping_add(skip);
        self.payload = start.wrapping_add(rounded);
        Some(start)
    }

    /// Takes back what was reserved since the last slot.
    pub(crate) fn give_back(&mut self) {
        self.payload = if self.sent == self.consumed {
            self.freed
        } else {
            self.ends[(self.sent.wrapping_sub(1) & (SLOTS - 1)) as usize]
        };
    }

    /// Counts a slot with these flags as sent.
    #[inline(always)]
    pub(crate) fn advance(&mut self, flags: u8) {
        self.ends[(self.sent & (SLOTS - 1)) as usize] = self.payload;
        if flags & flag::TURN != 0 {
            self.turn();
        }
        self.sent = ring::next(self.sent, flags);
    }

    /// The lap ends here, and the payload area begins anew, too, if that leaves room for the next messages.
    #[inline(always)]
    fn turn(&mut self) {
        self.payload = ring::next_payload(self.payload, flag::TURN);
        self.ends[(SLOTS - 1) as usize] = self.payload;
    }

    /// Where the next payload begins, if it fits there.
    #[inline(always)]
    pub(crate) fn next_payload(&self) -> u32 {
        self.payload
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn payload_is_contiguous_and_comes_back_with_its_slot() {
        let mut outbox = Outbox::new();
        let mut places = Vec::new();
        while let Some(place) = outbox.reserve(16 << 10) {
            places.push(place);
            outbox.advance(0);
        }
        assert_eq!(places.len(), 16);
        outbox.learn(1);
        let place = outbox.reserve(16 << 10).unwrap();
        outbox.advance(0);
        assert_eq!(place & (PAYLOAD - 1), 0, "the first place is used again");
        assert!(outbox.reserve(1).is_none());
        // A message that does not fit at the end begins at the start.
        outbox.learn(17);
        let mut last = 0;
        for _ in 0..100 {
            last = outbox.reserve(60_000).unwrap();
            outbox.advance(0);
            assert!((last & (PAYLOAD - 1)) + 60_000 <= PAYLOAD);
            outbox.learn(outbox.sent);
        }
        assert!(last > 0);
    }

    #[test]
    fn impossible_counts_are_ignored() {
        let mut outbox = Outbox::new();
        for _ in 0..10 {
            outbox.advance(0);
        }
        outbox.learn(11);
        assert_eq!(outbox.consumed, 0);
        outbox.learn(7);
        assert_eq!(outbox.consumed, 7);
        outbox.learn(6);
        assert_eq!(outbox.consumed, 7);
    }

    #[test]
    fn it_is_drained_when_all_is_consumed() {
        let mut outbox = Outbox::new();
        assert!(outbox.is_drained());
        outbox.advance(0);
        outbox.advance(0);
        outbox.learn(1);
        assert!(!outbox.is_drained());
        outbox.learn(2);
        assert!(outbox.is_drained());
    }
}
