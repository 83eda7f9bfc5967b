//! The envelope of a frame between agents over UDP.
//!
//! The address of a datagram can be forged, so a sender must first prove that it receives datagrams at that
//! address: it repeats a *cookie* that was sent there. A frame without a valid cookie is answered with a
//! cookie and dropped. Each envelope carries a cookie for the receiver's answers, so that only the first
//! frame of a host costs a round trip.
//!
//! This module has the format only; `kagent` makes and checks cookies and seals.

use super::FRAME_MAX;

/// The version of the envelope.
const VERSION: u8 = 1;
/// Bytes before the frame.
const HEAD: usize = 28;
/// Flag: a seal follows.
const SEALED: u8 = 1;
/// Bytes of a seal.
pub const SEAL: usize = 32;
/// Longest datagram in bytes.
pub const DATAGRAM_MAX: usize = HEAD + FRAME_MAX + SEAL;

const FRAME: u8 = 1;
const COOKIE: u8 = 2;

/// One datagram between agents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Datagram<'a> {
    /// Increases with each datagram of a sender, also across its restarts.
    pub number: u64,
    /// The cookie that the receiver issued to the sender; 0: none yet.
    pub cookie: u64,
    /// A cookie for the receiver.
    pub offer: u64,
    /// The frame. `None`: the receiver's last frame had no valid cookie, and `offer` is one.
    pub frame: Option<&'a [u8]>,
}

/// A datagram with its seal, which has not been checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opened<'a> {
    /// The contents.
    pub datagram: Datagram<'a>,
    /// The sealed bytes.
    pub sealed: &'a [u8],
    /// The seal, if any.
    pub seal: Option<&'a [u8; SEAL]>,
}

impl<'a> Datagram<'a> {
    /// Formats all but the seal. `sealed`: a seal will be appended.
    pub fn emit(&self, sealed: bool) -> Vec<u8> {
        let frame = self.frame.unwrap_or_default();
        let kind = if self.frame.is_some() { FRAME } else { COOKIE };
        let mut out = Vec::with_capacity(HEAD + frame.len() + SEAL);
        out.extend([VERSION, kind, u8::from(sealed) * SEALED, 0]);
        for word in [self.number, self.cookie, self.offer] {
            out.extend(word.to_be_bytes());
        }
        out.extend(frame);
        out
    }

    /// Parses a datagram. `None` if it is malformed or of another version.
    pub fn open(bytes: &'a [u8]) -> Option<Opened<'a>> {
        let &[VERSION, kind, flags, _, ..] = bytes else {
            return None;
        };
        if bytes.len() > DATAGRAM_MAX {
            return None;
        }
        let (sealed, seal) = match flags & SEALED {
            0 => (bytes, None),
            _ => {
                let (sealed, seal) = bytes.split_last_chunk::<SEAL>()?;
                (sealed, Some(seal))
            }
        };
        let (head, frame) = sealed.split_at_checked(HEAD)?;
        let word = |at: usize| {
            let bytes = head[at..at + 8].try_into().unwrap_or_default();
            u64::from_be_bytes(bytes)
        };
        let frame = match kind {
            FRAME => Some(frame),
            COOKIE if frame.is_empty() => None,
            _ => return None,
        };
        let datagram = Datagram {
            number: word(4),
            cookie: word(12),
            offer: word(20),
            frame,
        };
        Some(Opened {
            datagram,
            sealed,
            seal,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DATAGRAM: Datagram<'_> = Datagram {
        number: 0x0102_0304_0506_0708,
        cookie: 9,
        offer: u64::MAX - 1,
        frame: Some(b"frame"),
    };

    #[test]
    fn datagrams_survive() {
        for datagram in [
            DATAGRAM,
            Datagram {
                frame: None,
                ..DATAGRAM
            },
        ] {
            let plain = datagram.emit(false);
            let opened = Datagram::open(&plain).unwrap();
            assert_eq!((opened.datagram, opened.seal), (datagram, None));
            let mut sealed = datagram.emit(true);
            let length = sealed.len();
            sealed.extend([7; SEAL]);
            let opened = Datagram::open(&sealed).unwrap();
            assert_eq!((opened.datagram, opened.seal), (datagram, Some(&[7; SEAL])));
            assert_eq!(opened.sealed, &sealed[..length]);
        }
    }

    #[test]
    fn a_cookie_is_no_longer_than_the_frame_that_it_answers() {
        let none = Datagram {
            frame: None,
            ..DATAGRAM
        };
        assert!(none.emit(false).len() < DATAGRAM.emit(false).len());
    }

    #[test]
    fn malformed_datagrams_are_refused() {
        let good = DATAGRAM.emit(true);
        assert_eq!(Datagram::open(&good), None, "no room for the seal");
        for length in 0..HEAD {
            assert_eq!(Datagram::open(&DATAGRAM.emit(false)[..length]), None);
        }
        for (at, value) in [(0, 2), (1, 0), (1, 3), (1, COOKIE)] {
            let mut bytes = DATAGRAM.emit(false);
            bytes[at] = value;
            assert_eq!(Datagram::open(&bytes), None, "{at}: {value}");
        }
        let mut long = DATAGRAM.emit(false);
        long.resize(DATAGRAM_MAX + 1, 0);
        assert_eq!(Datagram::open(&long), None);
    }
}
