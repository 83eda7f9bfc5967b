//! The messages that the two ends of a connection exchange.
//!
//! ```text
//!   0      1      2          4           8
//!   │ kind │ flags│ 0        │ posted    │ total, if FRAGMENTED │ data, if WITH_DATA │ tag, if TAGGED │ payload …
//! ```
//!
//! Numbers are little endian. `posted` is the count of [`crate::credit`]. A message longer than the receives of the peer
//! travels in several packets, of which only the first has `total`; one with a tag does not, but is offered and read by RDMA. The length of a packet is the one VIA gives.

use crate::address::Address;

/// Bytes of the header without its optional parts.
pub(crate) const HEADER: usize = 8;
/// Bytes of the longest header.
pub(crate) const LONGEST_HEADER: usize = 24;
/// Data that may accompany a connection request, its acceptance or its rejection.
pub(crate) const CM_DATA: usize = 256;
/// Bytes of every receive at least; a handshake is no longer.
pub(crate) const SMALLEST_CHUNK: u32 = 512;

const FRAGMENTED: u8 = 1;
const WITH_DATA: u8 = 2;
const TAGGED: u8 = 4;
const MAGIC: u32 = u32::from_le_bytes(*b"vFi1");

/// What a packet is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    /// A message of the application, or the first piece of one.
    Data = 1,
    /// A further piece.
    More = 2,
    /// Nothing but `posted`.
    Credit = 3,
    /// Data of an RDMA Write that went before.
    Written = 4,
    /// Requests that the peer write the contents of its memory into ours.
    Read = 5,
    /// Answer: the contents have been written, or why not.
    ReadDone = 6,
    /// First message of the side that connects.
    Hello = 7,
    /// First message of the side that was connected to.
    Accept = 8,
    /// The same; the connection ends.
    Reject = 9,
    /// Offers a long message with a tag: where it can be read.
    Offer = 10,
    /// The peer has read what was offered.
    Taken = 11,
}

impl Kind {
    fn from_byte(byte: u8) -> Option<Kind> {
        use Kind::*;
        let all = [
            Data, More, Credit, Written, Read, ReadDone, Hello, Accept, Reject, Offer, Taken,
        ];
        all.into_iter().find(|kind| *kind as u8 == byte)
    }
}

/// Beginning of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub kind: Kind,
    pub posted: u32,
    pub total: Option<u64>,
    pub data: Option<u64>,
    pub tag: Option<u64>,
}

impl Header {
    /// With nothing but its kind. Who sends it stores the count.
    #[inline]
    pub(crate) fn new(kind: Kind) -> Header {
        Header {
            kind,
            posted: 0,
            total: None,
            data: None,
            tag: None,
        }
    }

    /// Writes the header; returns its length.
    #[inline]
    pub(crate) fn write(&self, to: &mut [u8]) -> usize {
        let mut at = HEADER;
        let mut flags = 0;
        for (flag, value) in [
            (FRAGMENTED, self.total),
            (WITH_DATA, self.data),
            (TAGGED, self.tag),
        ] {
            if let Some(value) = value {
                flags |= flag;
                to[at..at + 8].copy_from_slice(&value.to_le_bytes());
                at += 8;
            }
        }
        to[..4].copy_from_slice(&[self.kind as u8, flags, 0, 0]);
        to[4..8].copy_from_slice(&self.posted.to_le_bytes());
        at
    }

    /// Reads a header and the payload behind it; None unless it is well-formed.
    #[inline]
    pub(crate) fn read(packet: &[u8]) -> Option<(Header, &[u8])> {
        let (fixed, mut rest) = packet.split_first_chunk::<HEADER>()?;
        let [kind, flags, 0, 0, posted @ ..] = *fixed else {
            return None;
        };
        if flags & !(FRAGMENTED | WITH_DATA | TAGGED) != 0
            || flags == FRAGMENTED | WITH_DATA | TAGGED
        {
            return None;
        }
        let mut word = |flag: u8| -> Option<Option<u64>> {
            if flags & flag == 0 {
                return Some(None);
            }
            let (word, behind) = rest.split_first_chunk::<8>()?;
            rest = behind;
            Some(Some(u64::from_le_bytes(*word)))
        };
        let header = Header {
            kind: Kind::from_byte(kind)?,
            posted: u32::from_le_bytes(posted),
            total: word(FRAGMENTED)?,
            data: word(WITH_DATA)?,
            tag: word(TAGGED)?,
        };
        Some((header, rest))
    }
}

/// Payload of Hello, Accept and Reject.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Handshake {
    /// Bytes of each of the sender's receives.
    pub chunk: u32,
    /// The sender is an endpoint for messages with tags.
    pub tagged: bool,
    /// Where the sender is.
    pub address: Address,
    /// The application's.
    pub data: Vec<u8>,
}

const HANDSHAKE: usize = 4 + 4 + 2 + 2 + Address::BYTES;

impl Handshake {
    /// As bytes.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(HANDSHAKE + self.data.len());
        bytes.extend(MAGIC.to_le_bytes());
        bytes.extend(self.chunk.to_le_bytes());
        bytes.extend((self.data.len() as u16).to_le_bytes());
        bytes.extend([u8::from(self.tagged), 0]);
        bytes.extend(self.address.to_bytes());
        bytes.extend(&self.data);
        bytes
    }

    /// From bytes; None unless both sides speak the same protocol.
    pub(crate) fn from_bytes(bytes: &[u8]) -> Option<Handshake> {
        let (magic, rest) = bytes.split_first_chunk::<4>()?;
        let (chunk, rest) = rest.split_first_chunk::<4>()?;
        let (length, rest) = rest.split_first_chunk::<2>()?;
        let (kind, rest) = rest.split_first_chunk::<2>()?;
        let (address, data) = rest.split_first_chunk::<{ Address::BYTES }>()?;
        let chunk = u32::from_le_bytes(*chunk);
        let fits = data.len() == usize::from(u16::from_le_bytes(*length)) && data.len() <= CM_DATA;
        let ours = u32::from_le_bytes(*magic) == MAGIC && chunk >= SMALLEST_CHUNK;
        (fits && ours).then(|| Handshake {
            chunk,
            tagged: kind[0] != 0,
            address: Address::from_bytes(address),
            data: data.to_vec(),
        })
    }
}

/// Payload of Read: one piece of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ReadRequest {
    /// Names the request in its answer.
    pub id: u64,
    /// What is read.
    pub from: u64,
    pub from_key: u32,
    /// Where it is to be written.
    pub to: u64,
    pub to_key: u32,
    pub length: u64,
}

impl ReadRequest {
    const BYTES: usize = 40;

    /// As bytes.
    pub(crate) fn to_bytes(self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        let words = [self.id, self.from, self.to, self.length];
        for (to, word) in bytes.chunks_exact_mut(8).zip(words) {
            to.copy_from_slice(&word.to_le_bytes());
        }
        bytes[32..36].copy_from_slice(&self.from_key.to_le_bytes());
        bytes[36..].copy_from_slice(&self.to_key.to_le_bytes());
        bytes
    }

    /// From bytes.
    pub(crate) fn from_bytes(bytes: &[u8]) -> Option<ReadRequest> {
        let bytes: &[u8; Self::BYTES] = bytes.try_into().ok()?;
        let word = |at: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&bytes[at..at + 8]);
            u64::from_le_bytes(word)
        };
        let keys = word(32);
        Some(ReadRequest {
            id: word(0),
            from: word(8),
            to: word(16),
            length: word(24),
            from_key: keys as u32,
            to_key: (keys >> 32) as u32,
        })
    }
}

/// Payload of ReadDone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ReadAnswer {
    pub id: u64,
    /// 0, or an error number of libfabric.
    pub error: u32,
}

impl ReadAnswer {
    /// As bytes.
    pub(crate) fn to_bytes(self) -> [u8; 12] {
        let mut bytes = [0; 12];
        bytes[..8].copy_from_slice(&self.id.to_le_bytes());
        bytes[8..].copy_from_slice(&self.error.to_le_bytes());
        bytes
    }

    /// From bytes.
    pub(crate) fn from_bytes(bytes: &[u8]) -> Option<ReadAnswer> {
        let (id, rest) = bytes.split_first_chunk::<8>()?;
        let error: &[u8; 4] = rest.try_into().ok()?;
        Some(ReadAnswer {
            id: u64::from_le_bytes(*id),
            error: u32::from_le_bytes(*error),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_come_back() {
        for total in [None, Some(1 << 30)] {
            for (data, tag) in [
                (None, None),
                (Some(u64::MAX), None),
                (None, Some(7)),
                (Some(5), Some(9)),
            ] {
                if total.and(data).and(tag).is_some() {
                    continue; // Longer than any header: a message with a tag is not fragmented.
                }
                let header = Header {
                    kind: Kind::Data,
                    posted: 0xDEAD_BEEF,
                    total,
                    data,
                    tag,
                };
                let mut bytes = [0; LONGEST_HEADER + 3];
                let length = header.write(&mut bytes);
                bytes[length..].fill(7);
                let (read, rest) = Header::read(&bytes).expect("well-formed");
                assert_eq!(read, header);
                assert_eq!(rest.len(), bytes.len() - length);
                assert!(rest.iter().all(|byte| *byte == 7));
                for cut in 0..length {
                    assert_eq!(Header::read(&bytes[..cut]), None, "{cut} bytes of a header");
                }
            }
        }
    }

    #[test]
    fn headers_that_no_peer_writes_are_refused() {
        let mut bytes = [0; 8];
        for kind in 0..=255 {
            bytes[0] = kind;
            assert_eq!(Header::read(&bytes).is_some(), (1..=11).contains(&kind));
        }
        bytes[0] = Kind::Data as u8;
        for flags in [7, 8] {
            bytes[1] = flags;
            assert_eq!(Header::read(&bytes), None);
        }
        bytes[1] = 0;
        bytes[3] = 1;
        assert_eq!(Header::read(&bytes), None);
    }

    #[test]
    fn handshakes_come_back_and_fit_a_receive() {
        let handshake = Handshake {
            chunk: 4096,
            tagged: true,
            address: Address::new([1, 2, 3, 4, 5, 6], 77, 9),
            data: vec![5; CM_DATA],
        };
        let bytes = handshake.to_bytes();
        assert!(bytes.len() + LONGEST_HEADER <= SMALLEST_CHUNK as usize);
        assert_eq!(Handshake::from_bytes(&bytes), Some(handshake));
        assert_eq!(Handshake::from_bytes(&bytes[..bytes.len() - 1]), None);
        let mut other = bytes.clone();
        other[0] ^= 1;
        assert_eq!(Handshake::from_bytes(&other), None, "another protocol");
        let mut small = bytes;
        small[4..8].copy_from_slice(&8u32.to_le_bytes());
        assert_eq!(
            Handshake::from_bytes(&small),
            None,
            "receives that hold no handshake"
        );
    }

    #[test]
    fn reads_come_back() {
        let request = ReadRequest {
            id: 1,
            from: u64::MAX,
            from_key: 3,
            to: 4,
            to_key: u32::MAX,
            length: 1 << 40,
        };
        assert_eq!(ReadRequest::from_bytes(&request.to_bytes()), Some(request));
        assert_eq!(ReadRequest::from_bytes(&request.to_bytes()[1..]), None);
        let answer = ReadAnswer { id: 9, error: 266 };
        assert_eq!(ReadAnswer::from_bytes(&answer.to_bytes()), Some(answer));
        assert_eq!(ReadAnswer::from_bytes(&[0; 11]), None);
    }
}
