//! The outgoing ring, and which of its slots and payload are free as far as the sender knows.

use vipl_sys::wrap;

use crate::segment::{self, Announcement, LINE, OutRing, PAYLOAD, SLOTS, flag};

/// The outgoing ring with the sender's bookkeeping. Numbers of slots and payload positions wrap.
pub(crate) struct Outbox {
    ring: OutRing,
    /// Slots written so far.
    sent: u32,
    /// Slots that the peer is known to have consumed.
    consumed: u32,
    /// Payload bytes allocated so far.
    payload: u32,
    /// Up to here the payload area is known to be free and contiguous; `reserve` asks for more when it needs it.
    limit: u32,
    /// Payload position behind each slot; behind the one before the first, where the area begins.
    ends: Box<[u32; SLOTS as usize]>,
}

impl Outbox {
    pub(crate) fn new(ring: OutRing) -> Outbox {
        let payload = wrap::start(0).wrapping_mul(LINE);
        Outbox {
            ring,
            sent: wrap::start(0),
            consumed: wrap::start(0),
            payload,
            limit: payload,
            ends: Box::new([payload; SLOTS as usize]),
        }
    }

    /// The ring, to write into the next slot and into reserved payload.
    #[inline(always)]
    pub(crate) fn ring(&self) -> &OutRing {
        &self.ring
    }

    /// Slots written so far: the number of the next one.
    #[inline(always)]
    pub(crate) fn sent(&self) -> u32 {
        self.sent
    }

    /// Slots that the peer is known to have consumed.
    #[inline(always)]
    pub(crate) fn consumed(&self) -> u32 {
        self.consumed
    }

    /// Updates the peer's consumed count; an impossible count is ignored.
    #[inline(always)]
    pub(crate) fn learn(&mut self, consumed: u32) {
        let new = consumed.wrapping_sub(self.consumed);
        if new <= self.sent.wrapping_sub(self.consumed) {
            self.consumed = consumed;
        }
    }

    /// Payload position behind the slot before this number.
    #[inline(always)]
    fn end_before(&self, number: u32) -> u32 {
        self.ends[(number.wrapping_sub(1) & (SLOTS - 1)) as usize]
    }

    /// Whether the peer is known to have consumed everything.
    #[inline(always)]
    pub(crate) fn is_drained(&self) -> bool {
        self.sent == self.consumed
    }

    /// Whether a slot is free.
    #[inline(always)]
    pub(crate) fn has_slot(&self) -> bool {
        self.sent.wrapping_sub(self.consumed) < SLOTS
    }

    /// Reserves `bytes` contiguous bytes of payload, if they are free.
    #[inline(always)]
    pub(crate) fn reserve(&mut self, bytes: u32) -> Option<u32> {
        let rounded = bytes.next_multiple_of(LINE);
        if rounded > self.limit.wrapping_sub(self.payload) {
            return self.reserve_beyond(rounded);
        }
        let start = self.payload;
        self.payload = start.wrapping_add(rounded);
        Some(start)
    }

    /// The same if less is known to be free: asks what the peer has consumed, and continues at the start of the area if there
    /// is not enough up to its end.
    #[cold]
    fn reserve_beyond(&mut self, rounded: u32) -> Option<u32> {
        let to_end = |at: u32| PAYLOAD - (at & (PAYLOAD - 1));
        let freed = self.end_before(self.consumed);
        let skip = if rounded > to_end(self.payload) {
            to_end(self.payload)
        } else {
            0
        };
        if self.payload.wrapping_sub(freed) + skip + rounded > PAYLOAD {
            return None;
        }
        let start = self.payload.wrapping_add(skip);
        let free = PAYLOAD - start.wrapping_sub(freed);
        self.limit = start.wrapping_add(free.min(to_end(start)));
        self.payload = start.wrapping_add(rounded);
        Some(start)
    }

    /// Cancels what was reserved since the last slot.
    pub(crate) fn cancel(&mut self) {
        self.payload = self.end_before(self.sent);
        self.limit = self.payload;
    }

    /// Publishes the next slot with this side's own counts; gives its line.
    #[inline(always)]
    pub(crate) fn publish(&mut self, slot: Announcement, posted: u32, consumed: u32) -> *const u8 {
        let number = self.sent;
        let line = self.ring.publish(number, slot, posted, consumed);
        self.ends[(number & (SLOTS - 1)) as usize] = self.payload;
        self.sent = number.wrapping_add(1);
        line
    }

    /// The last slot had the flag `WRAP`: the next one is the first of the next pass.
    #[cold]
    pub(crate) fn wrap(&mut self) {
        // The payload area restarts, too, if that leaves room for the next messages.
        self.payload = segment::next_payload(self.payload, flag::WRAP);
        self.limit = self.payload;
        self.ends[(SLOTS - 1) as usize] = self.payload;
        self.sent = segment::next(self.sent.wrapping_sub(1), flag::WRAP);
    }

    /// Position of the next payload, if it fits there.
    #[inline(always)]
    pub(crate) fn next_payload(&self) -> u32 {
        self.payload
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An outbox whose slots lie in memory of this test.
    fn with_outbox(test: impl FnOnce(&mut Outbox)) {
        let mut memory = vec![0u64; segment::SEGMENT / 8];
        // SAFETY: large enough, and alive during the test.
        let (_, ring, _) = unsafe { segment::views(memory.as_mut_ptr().cast(), 0) };
        test(&mut Outbox::new(ring));
    }

    fn advance(outbox: &mut Outbox) {
        outbox.publish(Announcement::default(), 0, 0);
    }

    #[test]
    fn payload_is_contiguous_and_comes_back_with_its_slot() {
        with_outbox(|outbox| {
            let mut places = Vec::new();
            while let Some(place) = outbox.reserve(16 << 10) {
                places.push(place);
                advance(outbox);
            }
            assert_eq!(places.len(), 16);
            outbox.learn(1);
            let place = outbox.reserve(16 << 10).unwrap();
            advance(outbox);
            assert_eq!(place & (PAYLOAD - 1), 0, "the first place is used again");
            assert!(outbox.reserve(1).is_none());
            // A message that does not fit at the end begins at the start.
            outbox.learn(17);
            let mut last = 0;
            for _ in 0..100 {
                last = outbox.reserve(60_000).unwrap();
                advance(outbox);
                assert!((last & (PAYLOAD - 1)) + 60_000 <= PAYLOAD);
                outbox.learn(outbox.sent);
            }
            assert!(last > 0);
        });
    }

    #[test]
    fn impossible_counts_are_ignored() {
        with_outbox(|outbox| {
            for _ in 0..10 {
                advance(outbox);
            }
            outbox.learn(11);
            assert_eq!(outbox.consumed, 0);
            outbox.learn(7);
            assert_eq!(outbox.consumed, 7);
            outbox.learn(6);
            assert_eq!(outbox.consumed, 7);
        });
    }

    #[test]
    fn it_is_drained_when_all_is_consumed() {
        with_outbox(|outbox| {
            assert!(outbox.is_drained());
            advance(outbox);
            advance(outbox);
            outbox.learn(1);
            assert!(!outbox.is_drained());
            outbox.learn(2);
            assert!(outbox.is_drained());
        });
    }
}
