//! The body of a DATA frame: parts, each with a small header and the bytes that it announces.
//!
//! ```text
//!    kind     header
//!    SEND     kind │ flags │ bytes │ number │ immediate                                    12 bytes
//!    PIECE    kind │ flags │ bytes │ number │ immediate │ total │ offset                   20
//!    DATA     as PIECE: data of an RDMA Read                                               20
//!    WRITE    kind │ flags │ bytes │ number │ immediate │ total │ offset │ address │ handle 32
//!    READ     as WRITE, without bytes                                                      32
//! ```
//!
//! `number` counts messages that use a receive descriptor (SEND, PIECE), RDMA Writes (WRITE) or RDMA Reads
//! (READ, DATA), each from 0.

use crate::env::{Operation, Remote};
use crate::frame::{u16_at, u32_at, u64_at};

const IMMEDIATE: u8 = 1;
/// Bytes at the end of an RDMA range that applications poll as a flag (spec §5.4).
pub(crate) const WATCHED: usize = 8;

/// Kind of a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum PartKind {
    /// A whole message.
    Send = 1,
    /// A piece of a message.
    Piece = 2,
    /// An RDMA Write, or a piece of one.
    Write = 3,
    /// A request of an RDMA Read.
    Read = 4,
    /// A piece of the answer to an RDMA Read.
    Data = 5,
}

impl PartKind {
    /// Kind of a part with a whole operation, or a piece of one.
    #[inline(always)]
    pub(crate) fn of(operation: Operation, whole: bool) -> PartKind {
        match operation {
            Operation::Send if whole => PartKind::Send,
            Operation::Send => PartKind::Piece,
            Operation::Write => PartKind::Write,
            Operation::Read => PartKind::Read,
        }
    }

    /// Bytes of the part's header.
    #[inline(always)]
    pub const fn header(self) -> usize {
        match self {
            PartKind::Send => 12,
            PartKind::Piece | PartKind::Data => 20,
            PartKind::Write | PartKind::Read => 32,
        }
    }
}

/// The header of a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// Its kind.
    pub kind: PartKind,
    /// The immediate flag of the descriptor.
    pub flagged: bool,
    /// Bytes of this part.
    pub bytes: u16,
    /// Number of the message, write or read.
    pub number: u32,
    /// Immediate data.
    pub immediate: u32,
    /// Length of the whole.
    pub total: u32,
    /// Offset of these bytes in the whole.
    pub offset: u32,
    /// Remote address (WRITE, READ).
    pub address: u64,
    /// Remote memory handle (WRITE, READ).
    pub handle: u32,
}

impl Part {
    /// Whether it is the first part of the whole.
    pub fn is_first(&self) -> bool {
        self.offset == 0
    }

    /// Whether it is the last part of the whole.
    pub fn is_last(&self) -> bool {
        self.offset + u32::from(self.bytes) == self.total
    }

    /// Whether it touches the last eight bytes of the whole.
    pub(crate) fn reaches_end(&self) -> bool {
        u64::from(self.offset) + u64::from(self.bytes) + WATCHED as u64 > u64::from(self.total)
    }

    /// The remote range of an RDMA operation.
    #[inline(always)]
    pub(crate) fn range(&self) -> Remote {
        Remote {
            address: self.address,
            handle: self.handle,
            length: self.total,
        }
    }

    /// Writes the header to `out`, which must have room for it.
    #[inline(always)]
    pub fn emit(&self, out: &mut [u8]) {
        let out = &mut out[..self.kind.header()];
        out[0] = self.kind as u8;
        out[1] = if self.flagged { IMMEDIATE } else { 0 };
        out[2..4].copy_from_slice(&self.bytes.to_be_bytes());
        out[4..8].copy_from_slice(&self.number.to_be_bytes());
        out[8..12].copy_from_slice(&self.immediate.to_be_bytes());
        if out.len() >= 20 {
            out[12..16].copy_from_slice(&self.total.to_be_bytes());
            out[16..20].copy_from_slice(&self.offset.to_be_bytes());
        }
        if out.len() >= 32 {
            out[20..28].copy_from_slice(&self.address.to_be_bytes());
            out[28..32].copy_from_slice(&self.handle.to_be_bytes());
        }
    }

    /// Reads the fields that all kinds have. The others are those of a whole message.
    #[inline(always)]
    fn read(kind: PartKind, head: &[u8; PartKind::Send.header()]) -> Part {
        let bytes = u16_at(head, 2);
        Part {
            kind,
            flagged: head[1] & IMMEDIATE != 0,
            bytes,
            number: u32_at(head, 4),
            immediate: u32_at(head, 8),
            total: u32::from(bytes),
            offset: 0,
            address: 0,
            handle: 0,
        }
    }

    /// Reads one part, and returns it with its bytes and the rest of the body. The part is in bounds: `offset + bytes
    /// <= total`, and its bytes are present.
    #[inline(always)]
    fn parse(body: &[u8]) -> Option<(Part, &[u8], &[u8])> {
        let kind = match body.first()? {
            1 => PartKind::Send,
            2 => PartKind::Piece,
            3 => PartKind::Write,
            4 => PartKind::Read,
            5 => PartKind::Data,
            _ => return None,
        };
        let header = kind.header();
        if body.len() < header {
            return None;
        }
        let bytes = u16_at(body, 2);
        let rest = &body[header..];
        if rest.len() < usize::from(bytes) {
            return None;
        }
        let (payload, rest) = rest.split_at(usize::from(bytes));
        let mut part = Part::read(kind, body.first_chunk()?);
        if header >= 20 {
            part.total = u32_at(body, 12);
            part.offset = u32_at(body, 16);
        }
        if header >= 32 {
            part.address = u64_at(body, 20);
            part.handle = u32_at(body, 28);
        }
        let end = u64::from(part.offset) + u64::from(bytes);
        // Without bytes a piece makes no progress.
        let moves = bytes > 0 || kind == PartKind::Read || part.total == 0;
        let asks = kind != PartKind::Read || (bytes == 0 && part.offset == 0);
        (end <= u64::from(part.total) && moves && asks).then_some((part, payload, rest))
    }
}

/// Length of the next piece when `left` bytes remain and `room` bytes fit. The last eight bytes of an RDMA range are
/// never divided, since applications poll them (spec §5.4).
#[inline(always)]
pub(crate) fn divide(left: usize, room: usize) -> usize {
    if left <= room {
        left
    } else {
        room.min(left - WATCHED)
    }
}

/// Iterator over the parts of a body. An item is a part with its bytes, or `Err`, once, where the body is invalid.
pub struct Parts<'a>(&'a [u8]);

impl<'a> Parts<'a> {
    /// The parts of this body.
    #[inline(always)]
    pub fn new(body: &'a [u8]) -> Parts<'a> {
        Parts(body)
    }

    /// Returns the part of a body that has exactly one.
    pub fn single(body: &'a [u8]) -> Option<(Part, &'a [u8])> {
        match Part::parse(body)? {
            (part, payload, []) => Some((part, payload)),
            _ => None,
        }
    }

    /// Returns the part of a body that has exactly one, a whole message.
    #[inline(always)]
    pub(crate) fn message(body: &'a [u8]) -> Option<(Part, &'a [u8])> {
        let (head, payload) = body.split_first_chunk()?;
        let part = Part::read(PartKind::Send, head);
        let whole = head[0] == PartKind::Send as u8 && payload.len() == usize::from(part.bytes);
        whole.then_some((part, payload))
    }
}

impl<'a> Iterator for Parts<'a> {
    type Item = Result<(Part, &'a [u8]), ()>;

    #[inline(always)]
    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        match Part::parse(self.0) {
            Some((part, payload, rest)) => {
                self.0 = rest;
                Some(Ok((part, payload)))
            }
            None => {
                self.0 = &[];
                Some(Err(()))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(kind: PartKind) -> Part {
        let rdma = matches!(kind, PartKind::Write | PartKind::Read);
        let whole = kind == PartKind::Send;
        Part {
            kind,
            flagged: true,
            bytes: if kind == PartKind::Read { 0 } else { 3 },
            number: 0x0102_0304,
            immediate: 0xFFEE_DDCC,
            total: if whole { 3 } else { 70_000 },
            offset: if whole || kind == PartKind::Read {
                0
            } else {
                66_000
            },
            address: if rdma { 0x1122_3344_5566_7788 } else { 0 },
            handle: if rdma { 99 } else { 0 },
        }
    }

    #[test]
    fn what_is_emitted_is_parsed() {
        use PartKind::*;
        let mut body = Vec::new();
        let kinds = [Send, Piece, Write, Read, Data];
        for kind in kinds {
            let part = part(kind);
            let at = body.len();
            body.resize(at + kind.header(), 0);
            part.emit(&mut body[at..]);
            body.extend(std::iter::repeat_n(kind as u8, part.bytes.into()));
        }
        let found: Vec<_> = Parts::new(&body).map(|found| found.unwrap()).collect();
        assert_eq!(found.len(), kinds.len());
        for ((found, payload), kind) in found.iter().zip(kinds) {
            assert_eq!(*found, part(kind));
            assert!(payload.iter().all(|byte| *byte == kind as u8));
        }
        assert!(Parts::single(&body).is_none());
    }

    #[test]
    fn a_part_that_points_outside_is_refused_and_ends_the_walk() {
        let mut piece = part(PartKind::Piece);
        for (bytes, total, offset) in [(3, 2, 0), (3, 70_000, u32::MAX), (4, 9, 5), (0, 9, 5)] {
            let mut body = vec![0; 23];
            (piece.bytes, piece.total, piece.offset) = (bytes, total, offset);
            piece.emit(&mut body);
            let mut parts = Parts::new(&body);
            assert_eq!(parts.next(), Some(Err(())), "{piece:?}");
            assert_eq!(parts.next(), None);
        }
        for cut in 1..12 {
            assert_eq!(Parts::new(&[1; 12][..cut]).next(), Some(Err(())));
        }
    }
}
