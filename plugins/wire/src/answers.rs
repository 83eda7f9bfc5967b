//! The target of RDMA Reads: the requests of the peer, and the pieces of their answers.

use std::collections::VecDeque;

use vipl_abi::{VIP_ERROR_CODE, VIP_STATUS_OP_RDMA_READ};

use crate::closing::{End, Reason};
use crate::env::{Cause, Env, Remote};
use crate::frame::HEADER;
use crate::part::{Part, PartKind, divide};

/// Limit of open RDMA Reads, in each direction.
pub(crate) const READS_MAX: u32 = 16;

const PROTECTION: Cause = Cause::Async(VIP_ERROR_CODE::VIP_ERROR_RDMAR_PROT as u32);

/// A piece of the answer to an RDMA Read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    /// Number of the read among the peer's reads.
    read: u32,
    /// Number of the read among the peer's operations, for a CLOSE.
    operation: u32,
    range: Remote,
    offset: u32,
    bytes: u16,
}

impl Answer {
    /// Builds the body of the frame, for the first time or again, and returns the end of the body in `buffer`.
    #[cold]
    pub(crate) fn build<E: Env>(&self, buffer: &mut [u8], env: &mut E) -> Result<usize, End> {
        let part = Part {
            kind: PartKind::Data,
            flagged: false,
            bytes: self.bytes,
            number: self.read,
            immediate: 0,
            total: self.range.length,
            offset: self.offset,
            address: 0,
            handle: 0,
        };
        let from = HEADER + part.kind.header();
        let end = from + usize::from(self.bytes);
        let out = &mut buffer[from..end];
        if !out.is_empty() && env.fetch(&self.range, self.offset, out).is_err() {
            return Err(End {
                failed: Some(self.operation),
                ..protection()
            });
        }
        part.emit(&mut buffer[HEADER..]);
        Ok(end)
    }
}

/// RDMA Reads of the peer that this side answers.
pub(crate) struct Answers {
    /// The oldest first. `bytes` is not used.
    open: VecDeque<Answer>,
    /// Number of the next request.
    next: u32,
    max_transfer: u32,
}

impl Answers {
    pub(crate) fn new(count_from: u32, max_transfer: u32) -> Answers {
        Answers {
            open: VecDeque::new(),
            next: count_from,
            max_transfer,
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    /// Handles a request in order, which is the operation `operation` of the peer.
    #[cold]
    pub(crate) fn request<E: Env>(
        &mut self,
        part: &Part,
        operation: u32,
        env: &mut E,
    ) -> Result<(), End> {
        let valid = part.number == self.next && part.total <= self.max_transfer;
        if !valid || self.open.len() as u32 == READS_MAX {
            return Err(End::VIOLATION);
        }
        let range = part.range();
        if range.length > 0 && env.fetch(&range, 0, &mut []).is_err() {
            return Err(protection());
        }
        self.next = self.next.wrapping_add(1);
        self.open.push_back(Answer {
            read: part.number,
            operation,
            range,
            offset: 0,
            bytes: 0,
        });
        Ok(())
    }

    /// The next piece of the oldest answer, for a frame with `room` bytes.
    pub(crate) fn next(&self, room: usize) -> Option<Answer> {
        let oldest = self.open.front()?;
        let left = (oldest.range.length - oldest.offset) as usize;
        let bytes = divide(left, room - PartKind::Data.header()) as u16;
        Some(Answer { bytes, ..*oldest })
    }

    /// This piece has been built.
    pub(crate) fn advance(&mut self, piece: &Answer) {
        if let Some(oldest) = self.open.front_mut() {
            oldest.offset = piece.offset + u32::from(piece.bytes);
            if oldest.offset == oldest.range.length {
                self.open.pop_front();
            }
        }
    }
}

#[cold]
fn protection() -> End {
    End::new(Reason::TargetRefused, PROTECTION, VIP_STATUS_OP_RDMA_READ)
}
