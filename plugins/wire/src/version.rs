//! Version negotiation: the answer to a frame of another version. Its layout is frozen, so that hosts of any two
//! versions can detect that they cannot communicate. It carries no key and proves nothing: it may be logged, but must
//! not end a connection.
//!
//! ```text
//!    0        1        2                 4                 6        7        8        9..12   12..16
//!    ┌────────┬────────┬─────────────────┬─────────────────┬────────┬────────┬────────┬───────┬────────┐
//!    │version │ 0xFF   │ to endpoint     │ from endpoint   │ lowest │ highest│ refused│ 0     │ CRC32C │
//!    └────────┴────────┴─────────────────┴─────────────────┴────────┴────────┴────────┴───────┴────────┘
//! ```

use crate::frame::{TRAILER, VERSION, u16_at, u32_at};
use vipl_sys::crc::crc32c;

const KIND: u8 = 0xFF;
/// Start of a frame in any version: version, kind, endpoints, length.
const HEAD: usize = 8;

/// A VERSIONS frame: the versions that its sender supports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VersionNegotiation {
    /// Endpoint that sent the refused frame.
    pub to_endpoint: u16,
    /// Endpoint that refused it.
    pub from_endpoint: u16,
    /// Lowest version that its sender supports.
    pub lowest: u8,
    /// Highest version that its sender supports.
    pub highest: u8,
    /// Version of the refused frame.
    pub refused: u8,
}

impl VersionNegotiation {
    /// Length of the frame, in every version.
    pub const BYTES: usize = 16;

    /// Returns the answer to an intact frame of another version. A VERSIONS is never answered. The caller limits the
    /// rate of answers.
    pub fn answer(frame: &[u8]) -> Option<VersionNegotiation> {
        if frame.len() < HEAD || frame[0] == VERSION || frame[1] == KIND {
            return None;
        }
        // A corrupt version field must not count as another version.
        let end = usize::from(u16_at(frame, 6)).checked_sub(TRAILER)?;
        let whole = end >= HEAD
            && frame.len() >= end + TRAILER
            && crc32c(&frame[..end]) == u32_at(frame, end);
        whole.then(|| VersionNegotiation {
            to_endpoint: u16_at(frame, 4),
            from_endpoint: u16_at(frame, 2),
            lowest: VERSION,
            highest: VERSION,
            refused: frame[0],
        })
    }

    /// Parses a VERSIONS of any version.
    pub fn parse(frame: &[u8]) -> Option<VersionNegotiation> {
        let valid = frame.len() >= VersionNegotiation::BYTES
            && frame[1] == KIND
            && crc32c(&frame[..12]) == u32_at(frame, 12);
        valid.then(|| VersionNegotiation {
            to_endpoint: u16_at(frame, 2),
            from_endpoint: u16_at(frame, 4),
            lowest: frame[6],
            highest: frame[7],
            refused: frame[8],
        })
    }

    /// Returns the frame.
    pub fn emit(&self) -> [u8; VersionNegotiation::BYTES] {
        let mut frame = [0; VersionNegotiation::BYTES];
        frame[0] = VERSION;
        frame[1] = KIND;
        frame[2..4].copy_from_slice(&self.to_endpoint.to_be_bytes());
        frame[4..6].copy_from_slice(&self.from_endpoint.to_be_bytes());
        frame[6..9].copy_from_slice(&[self.lowest, self.highest, self.refused]);
        let crc = crc32c(&frame[..12]);
        frame[12..].copy_from_slice(&crc.to_be_bytes());
        frame
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_version_is_answered_and_an_answer_is_not() {
        let mut whole = vec![9, 1, 0, 7, 0, 8, 0, 15, 1, 2, 3];
        let crc = crc32c(&whole);
        whole.extend(crc.to_be_bytes());
        let answer = VersionNegotiation::answer(&whole).unwrap();
        assert_eq!((answer.to_endpoint, answer.from_endpoint), (8, 7));
        assert_eq!((answer.refused, answer.highest), (9, VERSION));
        let mut frame = answer.emit();
        assert_eq!(VersionNegotiation::parse(&frame), Some(answer));
        assert_eq!(VersionNegotiation::answer(&frame), None);
        frame[0] = 9;
        assert_eq!(
            VersionNegotiation::answer(&frame),
            None,
            "also not one of another version"
        );
        for (place, what) in [(0, "own version"), (7, "length"), (9, "spoiled")] {
            let mut other = whole.clone();
            other[place] ^= 9 ^ VERSION;
            assert_eq!(VersionNegotiation::answer(&other), None, "{what}");
        }
        for length in 0..whole.len() {
            assert_eq!(VersionNegotiation::answer(&whole[..length]), None);
        }
        frame[0] = VERSION;
        frame[7] ^= 1;
        assert_eq!(VersionNegotiation::parse(&frame), None, "broken");
    }

    #[test]
    fn the_layout_is_frozen() {
        let answer = VersionNegotiation {
            to_endpoint: 0x0102,
            from_endpoint: 0x0304,
            lowest: 1,
            highest: 1,
            refused: 7,
        };
        let frozen = [1, 0xFF, 1, 2, 3, 4, 1, 1, 7, 0, 0, 0];
        assert_eq!(answer.emit()[..12], frozen);
        assert_eq!(answer.emit()[12..], crc32c(&frozen).to_be_bytes());
    }
}
