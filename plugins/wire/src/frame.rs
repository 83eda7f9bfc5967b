//! Header and trailer of every frame. Numbers are big-endian.
//!
//! ```text
//!    0        1        2                 4                 6               8
//!    ┌────────┬────────┬─────────────────┬─────────────────┬───────────────┐
//!    │version │ kind   │ to endpoint     │ from endpoint   │ length        │
//!    ├────────┴────────┴─────────────────┼─────────────────┴───────────────┤
//!    │ to VI                             │ key check (8 bytes, to 20)      │
//!    ├───────────────────────────────────┼─────────────────────────────────┤
//!    │ ... key check                     │ sequence                        │
//!    ├───────────────────────────────────┼─────────────────┬────────┬──────┤
//!    │ acknowledged                      │ window          │ flags  │marks │
//!    ├───────────────────────────────────┴─────────────────┴────────┴──────┤
//!    │ body, to `length` - 4                                 CRC32C        │
//!    └─────────────────────────────────────────────────────────────────────┘
//! ```
//!
//! The first eight bytes and the CRC at the end have the same meaning in every version of the protocol: filters in the
//! kernel and [`VersionNegotiation`](crate::VersionNegotiation) depend on it.

use vipl_sys::crc::crc32c;

/// Protocol version of this engine.
pub const VERSION: u8 = 1;
/// Bytes of the header.
pub const HEADER: usize = 32;
/// Bytes of the trailer, the CRC.
pub const TRAILER: usize = 4;
/// Smallest MTU that the protocol supports.
pub const MTU_MIN: usize = 256;
/// Flag: acknowledge at once.
pub const FLAG_ASK: u8 = 1;
/// Flag: a seal follows the body.
pub const FLAG_SEALED: u8 = 2;
/// Bytes of the body of a CLOSE.
pub const CLOSE_BODY: usize = 12;

/// Kind of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// Parts of messages; consumes a sequence number.
    Data = 1,
    /// Acknowledgement; the body is a bitmap of the frames received beyond the acknowledged number.
    Ack = 2,
    /// Asks for an acknowledgement.
    Probe = 3,
    /// The sender has ended the connection; the body has the reason.
    Close = 4,
    /// Answers a CLOSE.
    Closed = 5,
    /// Asks whether a frame of its length arrives.
    Try = 6,
    /// Answers a TRY; the body has the length of the TRY.
    Tried = 7,
    /// A piece of a DATA frame that is too long for the path.
    Slice = 8,
}

impl Kind {
    /// Whether a frame has this version and kind. The rest of the frame is not checked.
    pub fn is_of(self, frame: &[u8]) -> bool {
        matches!(frame, [VERSION, kind, ..] if *kind == self as u8)
    }
}

/// Why a frame is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// Shorter than a header, or than its length field says.
    Short,
    /// Another version of the protocol, which is the sender's.
    Version(u8),
    /// The CRC is wrong.
    Corrupt,
    /// The kind is unknown in this version.
    Unknown,
    /// The seal is missing, wrong or repeated, or the connection has no seals.
    Seal,
}

/// The header of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Kind of the frame.
    pub kind: Kind,
    /// Destination endpoint: one opening of a NIC on its link.
    pub to_endpoint: u16,
    /// Endpoint of its sender.
    pub from_endpoint: u16,
    /// Destination VI.
    pub to_vi: u32,
    /// Proof that the sender knows the connection's key ([`key_check`]).
    pub check: u64,
    /// DATA, SLICE: number of the frame. Others: number of the next DATA frame.
    pub sequence: u32,
    /// Every DATA frame before this number has been processed.
    pub acknowledged: u32,
    /// DATA frames from `acknowledged` on that the sender of this frame accepts.
    pub window: u16,
    /// `FLAG_*`.
    pub flags: u8,
    /// DATA frames received with a congestion mark, modulo 256.
    pub marks: u8,
}

/// Returns the key check that a side sends. The two sides send different ones, so that a reflected frame is not
/// accepted as a frame of the peer.
pub const fn key_check(key: u64, side: u32) -> u64 {
    if side & 1 == 0 { key } else { !key }
}

/// The connection that a frame claims to belong to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address {
    /// Destination endpoint.
    pub endpoint: u16,
    /// Destination VI.
    pub vi: u32,
    /// Key check of its sender.
    pub check: u64,
}

/// Reads the address of a frame. The rest of the frame is not checked. `None`: the frame is too short, or has another
/// version.
#[inline(always)]
pub fn address(frame: &[u8]) -> Option<Address> {
    if frame.len() < HEADER || frame[0] != VERSION {
        return None;
    }
    Some(Address {
        endpoint: u16_at(frame, 2),
        vi: u32_at(frame, 8),
        check: u64_at(frame, 12),
    })
}

/// Maximum length of the body of a frame on a link with this MTU.
#[inline(always)]
pub const fn body_max(mtu: usize) -> usize {
    mtu - HEADER - TRAILER
}

impl Header {
    /// Parses a frame and checks version, length, CRC and kind. Returns the header and the body, including the seal if
    /// there is one ([`FLAG_SEALED`]). Bytes after the frame's own length are padding of the link and ignored.
    ///
    /// # Errors
    /// The check that has failed.
    #[inline(always)]
    pub fn parse(frame: &[u8]) -> Result<(Header, &[u8]), Refused> {
        if frame.len() < HEADER + TRAILER {
            return Err(Refused::Short);
        }
        if frame[0] != VERSION {
            return Err(Refused::Version(frame[0]));
        }
        let Some((head, body, crc)) = split(frame) else {
            return Err(Refused::Short);
        };
        if !is_intact(frame, body, crc) {
            return Err(Refused::Corrupt);
        }
        let kind = match head[1] {
            1 => Kind::Data,
            2 => Kind::Ack,
            3 => Kind::Probe,
            4 => Kind::Close,
            5 => Kind::Closed,
            6 => Kind::Try,
            7 => Kind::Tried,
            8 => Kind::Slice,
            _ => return Err(Refused::Unknown),
        };
        Ok((Header::read(head, kind), body))
    }

    /// Reads the fields of a header whose kind is known.
    #[inline(always)]
    pub(crate) fn read(head: &[u8; HEADER], kind: Kind) -> Header {
        Header {
            kind,
            to_endpoint: u16_at(head, 2),
            from_endpoint: u16_at(head, 4),
            to_vi: u32_at(head, 8),
            check: u64_at(head, 12),
            sequence: u32_at(head, 20),
            acknowledged: u32_at(head, 24),
            window: u16_at(head, 28),
            flags: head[30],
            marks: head[31],
        }
    }

    /// Writes the header before, and the CRC after, a body of `body` bytes that is in place. Returns the length of the
    /// frame.
    #[inline(always)]
    pub fn emit(&self, frame: &mut [u8], body: usize) -> usize {
        self.write(frame, HEADER + body);
        finish(frame, HEADER + body)
    }

    /// Writes the header of a frame whose CRC is at `end`.
    #[inline(always)]
    pub(crate) fn write(&self, frame: &mut [u8], end: usize) {
        let length = end + TRAILER;
        let head = &mut frame[..HEADER];
        head[0] = VERSION;
        head[1] = self.kind as u8;
        head[2..4].copy_from_slice(&self.to_endpoint.to_be_bytes());
        head[4..6].copy_from_slice(&self.from_endpoint.to_be_bytes());
        head[6..8].copy_from_slice(&(length as u16).to_be_bytes());
        head[8..12].copy_from_slice(&self.to_vi.to_be_bytes());
        head[12..20].copy_from_slice(&self.check.to_be_bytes());
        head[20..24].copy_from_slice(&self.sequence.to_be_bytes());
        head[24..28].copy_from_slice(&self.acknowledged.to_be_bytes());
        head[28..30].copy_from_slice(&self.window.to_be_bytes());
        head[30] = self.flags;
        head[31] = self.marks;
    }
}

/// Returns header, body and CRC of a frame. `None`: the frame is shorter than its length field; padding may follow.
#[inline(always)]
pub(crate) fn split(frame: &[u8]) -> Option<(&[u8; HEADER], &[u8], u32)> {
    let length = usize::from(u16_at(frame.get(..HEADER)?, 6));
    let (before, crc) = frame.get(..length)?.split_last_chunk()?;
    let (head, body) = before.split_first_chunk()?;
    Some((head, body, u32::from_be_bytes(*crc)))
}

/// Whether a frame with this body has this CRC.
#[inline(always)]
pub(crate) fn is_intact(frame: &[u8], body: &[u8], crc: u32) -> bool {
    crc32c(&frame[..HEADER + body.len()]) == crc
}

/// Writes the CRC. Returns the length of the frame.
#[inline(always)]
pub(crate) fn finish(frame: &mut [u8], end: usize) -> usize {
    let crc = crc32c(&frame[..end]);
    frame[end..end + TRAILER].copy_from_slice(&crc.to_be_bytes());
    end + TRAILER
}

#[inline(always)]
pub(crate) fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

#[inline(always)]
pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let mut word = [0; 4];
    word.copy_from_slice(&bytes[at..at + 4]);
    u32::from_be_bytes(word)
}

#[inline(always)]
pub(crate) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[at..at + 8]);
    u64::from_be_bytes(word)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> Header {
        Header {
            kind: Kind::Ack,
            to_endpoint: 0x1234,
            from_endpoint: 0x5678,
            to_vi: 9,
            check: key_check(0xDEAD_BEEF_0BAD_CAFE, 1),
            sequence: u32::MAX,
            acknowledged: 7,
            window: 256,
            flags: FLAG_ASK,
            marks: 200,
        }
    }

    #[test]
    fn what_is_emitted_is_parsed() {
        let mut frame = [0xAA; 100];
        frame[HEADER..HEADER + 3].copy_from_slice(&[1, 2, 3]);
        let length = header().emit(&mut frame, 3);
        assert_eq!(length, HEADER + 3 + TRAILER);
        let parsed = Header::parse(&frame).unwrap();
        assert_eq!(parsed, (header(), &[1u8, 2, 3][..]), "with padding behind");
        let known = Address {
            endpoint: 0x1234,
            vi: 9,
            check: header().check,
        };
        assert_eq!(address(&frame), Some(known));
        assert_eq!(address(&frame[..HEADER - 1]), None);
        assert_eq!(
            &frame[2..4],
            [0x12, 0x34],
            "where the kernel's filter looks"
        );
    }

    #[test]
    fn every_single_bit_counts() {
        let mut frame = [0; 64];
        let length = header().emit(&mut frame, 5);
        for bit in 0..length * 8 {
            let mut broken = frame;
            broken[bit / 8] ^= 1 << (bit % 8);
            assert!(Header::parse(&broken[..length]).is_err(), "bit {bit}");
        }
        for short in 0..length {
            assert!(Header::parse(&frame[..short]).is_err(), "{short} bytes");
        }
    }

    #[test]
    fn the_sides_send_different_checks() {
        assert_ne!(key_check(5, 0), key_check(5, 1));
    }
}
