//! The order of DATA frames: the next frame, frames that have arrived early, slices of a long one, and the
//! acknowledgement that is owed for them.

use std::collections::VecDeque;

use crate::config::{Config, NEVER};
use crate::part::Part;
use crate::slices::Slices;

/// Limit of the bytes of kept frames.
const KEPT_BYTES_MAX: usize = 256 << 10;
/// Received frames after which an acknowledgement is not delayed any longer.
const ACK_EVERY: u16 = 8;

/// A frame that has arrived early.
pub(crate) enum Kept {
    /// Its bytes have been placed.
    Placed(Part),
    /// Its body.
    Body(Vec<u8>),
}

/// Frames in order and early ones.
pub(crate) struct Order {
    next: u32,
    /// Frames from `next` on; the first entry is empty, since `next` has not arrived.
    kept: VecDeque<Option<Kept>>,
    kept_bytes: usize,
    /// Buffers of earlier bodies.
    spare: Vec<Vec<u8>>,
    slices: Slices,
    /// Frames that have not been acknowledged.
    owed: u16,
    urgent: bool,
    ack_at_ns: u64,
    ack_delay_ns: u64,
}

impl Order {
    pub(crate) fn new(config: &Config) -> Order {
        Order {
            next: config.first(config.side ^ 1),
            kept: VecDeque::new(),
            kept_bytes: 0,
            spare: Vec::new(),
            slices: Slices::default(),
            owed: 0,
            urgent: false,
            ack_at_ns: NEVER,
            ack_delay_ns: config.ack_delay_ns,
        }
    }

    /// All frames before this number have been processed.
    #[inline(always)]
    pub(crate) fn next(&self) -> u32 {
        self.next
    }

    /// The next frame has been processed.
    #[inline(always)]
    pub(crate) fn advance(&mut self, now_ns: u64) {
        self.next = self.next.wrapping_add(1);
        // A peer that ignores the window may send more frames than this can count.
        self.owed = self.owed.saturating_add(1);
        if self.owed == 1 {
            self.ack_at_ns = now_ns + self.ack_delay_ns;
        }
        self.urgent |= self.owed >= ACK_EVERY;
    }

    /// The frame that is in order now, if it was kept. It was acknowledged as early.
    pub(crate) fn next_kept(&mut self) -> Option<Kept> {
        self.kept.pop_front();
        self.kept.front_mut()?.take()
    }

    /// A kept frame has been processed.
    pub(crate) fn advance_kept(&mut self, now_ns: u64) {
        self.next = self.next.wrapping_add(1);
        self.acknowledge_now(now_ns);
    }

    /// Unreliable: frames before this number are not expected any more.
    pub(crate) fn skip_to(&mut self, next: u32) {
        self.next = next;
    }

    /// Whether frames before one that was kept are missing.
    #[inline(always)]
    pub(crate) fn has_gap(&self) -> bool {
        !self.kept.is_empty()
    }

    /// Writes the map of early frames: bit `i`, lowest first, is frame `next + 1 + i`. Returns its length in bytes.
    pub(crate) fn map(&self, out: &mut [u8]) -> usize {
        let bytes = self.kept.len().saturating_sub(1).div_ceil(8).min(out.len());
        out[..bytes].fill(0);
        for (bit, kept) in self.kept.iter().skip(1).enumerate().take(8 * bytes) {
            if kept.is_some() {
                out[bit / 8] |= 1 << (bit % 8);
            }
        }
        bytes
    }

    /// Keeps a frame that is `ahead` of the next one.
    pub(crate) fn keep(&mut self, ahead: u32, kept: Kept) {
        let ahead = ahead as usize;
        if self.kept.len() <= ahead {
            self.kept.resize_with(ahead + 1, || None);
        }
        self.kept[ahead] = Some(kept);
    }

    /// Whether the frame `ahead` of the next one has been received: it was processed, or is kept.
    pub(crate) fn has(&self, ahead: u32) -> bool {
        (ahead as i32) < 0 || self.kept.get(ahead as usize).is_some_and(Option::is_some)
    }

    /// Copies a body. `None`: the limit is reached.
    pub(crate) fn store(&mut self, body: &[u8]) -> Option<Kept> {
        if self.kept_bytes + body.len() > KEPT_BYTES_MAX {
            return None;
        }
        self.kept_bytes += body.len();
        let mut copy = self.spare.pop().unwrap_or_default();
        copy.extend_from_slice(body);
        Some(Kept::Body(copy))
    }

    /// Releases the buffer of a body.
    pub(crate) fn recycle(&mut self, mut body: Vec<u8>) {
        self.kept_bytes -= body.len();
        body.clear();
        self.spare.push(body);
    }

    /// Slices of frames.
    pub(crate) fn slices(&mut self) -> &mut Slices {
        &mut self.slices
    }

    /// Acknowledges without delay: the peer has asked for it or sends frames again, or frames are missing.
    pub(crate) fn acknowledge_now(&mut self, now_ns: u64) {
        self.urgent = true;
        self.ack_at_ns = now_ns;
    }

    /// A frame with an acknowledgement has been sent; `whole`: it included the map of early frames, if there are any.
    #[inline(always)]
    pub(crate) fn acknowledged(&mut self, whole: bool) {
        if whole || !self.urgent {
            (self.owed, self.urgent, self.ack_at_ns) = (0, false, NEVER);
        }
    }

    #[inline(always)]
    pub(crate) fn owes_ack(&self) -> bool {
        self.ack_at_ns != NEVER
    }

    #[inline(always)]
    pub(crate) fn is_ack_due(&self, now_ns: u64) -> bool {
        self.urgent || self.ack_at_ns <= now_ns
    }

    /// When the acknowledgement is due.
    #[inline(always)]
    pub(crate) fn deadline(&self) -> u64 {
        self.ack_at_ns
    }
}
