//! Frames that have arrived early, in a store of limited size.

use std::collections::VecDeque;

use crate::part::Part;

/// Limit of the bytes of kept frames.
const BYTES_MAX: usize = 256 << 10;

/// A frame that has arrived early.
pub(super) enum Kept {
    /// Its bytes have been placed.
    Placed(Part),
    /// Its body.
    Body(Vec<u8>),
}

/// Early frames.
#[derive(Default)]
pub(super) struct Early {
    /// Frames from the next one on; the first entry is empty, since the next one has not arrived.
    kept: VecDeque<Option<Kept>>,
    /// Bytes of the bodies.
    bytes: usize,
    /// Buffers of earlier bodies.
    spare: Vec<Vec<u8>>,
}

impl Early {
    /// Whether no frame is kept.
    pub(super) fn is_empty(&self) -> bool {
        self.kept.is_empty()
    }

    /// Whether the frame `ahead` of the next one is kept.
    pub(super) fn has(&self, ahead: u32) -> bool {
        self.kept.get(ahead as usize).is_some_and(Option::is_some)
    }

    /// Writes the map: bit `i`, lowest first, is the frame `i + 1` ahead of the next one. Returns its length in bytes.
    pub(super) fn write_map(&self, out: &mut [u8]) -> usize {
        let bytes = self.kept.len().saturating_sub(1).div_ceil(8).min(out.len());
        out[..bytes].fill(0);
        for (bit, kept) in self.kept.iter().skip(1).enumerate().take(8 * bytes) {
            if kept.is_some() {
                out[bit / 8] |= 1 << (bit % 8);
            }
        }
        bytes
    }

    /// The next frame has been processed. Returns the one that is in order now, if it was kept.
    pub(super) fn advance(&mut self) -> Option<Kept> {
        self.kept.pop_front();
        self.kept.front_mut()?.take()
    }

    /// Keeps a frame that is `ahead` of the next one: the `placed` part, or else a copy of its body. False: the limit
    /// is reached.
    pub(super) fn keep(&mut self, ahead: u32, placed: Option<Part>, body: &[u8]) -> bool {
        let kept = match placed {
            Some(part) => Kept::Placed(part),
            None if self.bytes + body.len() > BYTES_MAX => return false,
            None => {
                self.bytes += body.len();
                let mut copy = self.spare.pop().unwrap_or_default();
                copy.extend_from_slice(body);
                Kept::Body(copy)
            }
        };
        let ahead = ahead as usize;
        if self.kept.len() <= ahead {
            self.kept.resize_with(ahead + 1, || None);
        }
        self.kept[ahead] = Some(kept);
        true
    }

    /// Releases the buffer of a body.
    pub(super) fn recycle(&mut self, mut body: Vec<u8>) {
        self.bytes -= body.len();
        body.clear();
        self.spare.push(body);
    }
}
