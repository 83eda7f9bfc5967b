//! State of the receive side: the next frame, and frames that have arrived early.

use std::collections::VecDeque;

use crate::part::Part;
use crate::slices::Slices;

/// Limit of the bytes of kept frames.
const KEPT_BYTES_MAX: usize = 256 << 10;

/// A message or RDMA Write that arrives in pieces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Arriving {
    pub(crate) number: u32,
    pub(crate) total: u32,
    /// Bytes so far.
    pub(crate) offset: u32,
}

impl Arriving {
    /// The state after this part.
    #[inline(always)]
    pub(crate) fn after(part: &Part) -> Arriving {
        Arriving {
            number: part.number,
            total: part.total,
            offset: part.offset + u32::from(part.bytes),
        }
    }
}

/// A frame that has arrived early.
pub(crate) enum Kept {
    /// Its bytes have been placed.
    Placed(Part),
    /// Its body.
    Body(Vec<u8>),
}

/// The receive side of a connection.
pub(crate) struct Receiver {
    next: u32,
    /// Frames from `next` on; the first entry is empty, since `next` has not arrived.
    kept: VecDeque<Option<Kept>>,
    kept_bytes: usize,
    /// Buffers of earlier bodies.
    spare: Vec<Vec<u8>>,
    operations: u32,
    /// Messages that have consumed a receive descriptor.
    pub(crate) messages: u32,
    pub(crate) writes: u32,
    pub(crate) reads: u32,
    pub(crate) receiving: Option<Arriving>,
    pub(crate) writing: Option<Arriving>,
    /// Bytes of the oldest RDMA Read of this side that have arrived.
    pub(crate) answered: u32,
    pub(crate) slices: Slices,
    /// DATA frames that a router has marked, modulo 256.
    pub(crate) marks: u8,
}

impl Receiver {
    pub(crate) fn new(first: u32, count_from: u32) -> Receiver {
        Receiver {
            next: first,
            kept: VecDeque::new(),
            kept_bytes: 0,
            spare: Vec::new(),
            operations: count_from,
            messages: count_from,
            writes: count_from,
            reads: count_from,
            receiving: None,
            writing: None,
            answered: 0,
            slices: Slices::default(),
            marks: 0,
        }
    }

    /// All frames before this number have been processed.
    #[inline(always)]
    pub(crate) fn next(&self) -> u32 {
        self.next
    }

    /// The next frame has been processed.
    #[inline(always)]
    pub(crate) fn advance(&mut self) {
        self.next = self.next.wrapping_add(1);
    }

    /// After [`Receiver::advance`]: the frame that is in order now, if it was kept.
    pub(crate) fn next_kept(&mut self) -> Option<Kept> {
        self.kept.pop_front();
        self.kept.front_mut()?.take()
    }

    /// Unreliable: frames before this number are not expected any more.
    pub(crate) fn skip_to(&mut self, next: u32) {
        self.next = next;
    }

    /// Operations of the peer that have been processed.
    #[inline(always)]
    pub(crate) fn operations(&self) -> u32 {
        self.operations
    }

    #[inline(always)]
    pub(crate) fn count_operation(&mut self) {
        self.operations = self.operations.wrapping_add(1);
    }

    /// Whether frames before one that was kept are missing.
    #[inline(always)]
    pub(crate) fn has_holes(&self) -> bool {
        !self.kept.is_empty()
    }

    /// Whether no message and no RDMA Write has arrived in part, and no frame early.
    #[inline(always)]
    pub(crate) fn is_idle(&self) -> bool {
        self.kept.is_empty() && self.receiving.is_none() && self.writing.is_none()
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

    /// Keeps a frame that is early by `ahead`.
    pub(crate) fn keep(&mut self, ahead: usize, kept: Kept) {
        if self.kept.len() <= ahead {
            self.kept.resize_with(ahead + 1, || None);
        }
        self.kept[ahead] = Some(kept);
    }

    /// Whether the frame `ahead` of the next one was kept.
    pub(crate) fn has(&self, ahead: usize) -> bool {
        self.kept.get(ahead).is_some_and(Option::is_some)
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
}
