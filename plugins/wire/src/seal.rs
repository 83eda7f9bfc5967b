//! Seals: each frame carries a number that is used once, and a hash of everything before it, keyed with a secret that
//! only the two sides have. Without the secret a frame cannot be made, changed or repeated.
//!
//! ```text
//!    ┌────────┬─ ─ ─ ─┬───────────────────┬───────────────────┬────────┐
//!    │ header │ body  │ number  (8 bytes) │ hash  (16 bytes)  │ CRC32C │
//!    └────────┴─ ─ ─ ─┴───────────────────┴───────────────────┴────────┘
//!     ◀──────── hashed, with BLAKE3 ─────▶
//! ```

use crate::frame::{FLAG_SEALED, HEADER, Header, finish, u64_at};

/// Bytes of the number.
const NUMBER: usize = 8;
/// Bytes of the hash: a part of BLAKE3's 32.
const HASH: usize = 16;
/// Bytes that a seal adds to a frame.
pub const SEAL: usize = NUMBER + HASH;
/// The secret of one connection.
pub type SealKey = [u8; 32];

/// Words of the map of received numbers.
const WORDS: u64 = 16;
/// Numbers below the highest one that are still accepted: more than the frames that can be in flight.
const BEHIND: u64 = 64 * (WORDS - 1);

/// The seals of one connection, both directions.
#[derive(Clone)]
pub(crate) struct Seals {
    key: SealKey,
    /// The number of the next frame of this side.
    next: u64,
    seen: Seen,
    /// The last frame that was opened has the highest number so far.
    newest: bool,
}

impl std::fmt::Debug for Seals {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(to, "Seals({})", self.next)
    }
}

impl Seals {
    pub(crate) fn new(key: &SealKey) -> Seals {
        Seals {
            key: *key,
            next: 0,
            seen: Seen::default(),
            newest: false,
        }
    }

    /// Whether the last frame that was opened has the highest number so far.
    pub(crate) fn is_newest(&self) -> bool {
        self.newest
    }

    /// Writes the header before, and seal and CRC after, a body of `body` bytes that is in place. Returns the length
    /// of the frame.
    #[inline(always)]
    pub(crate) fn emit(&mut self, header: &Header, frame: &mut [u8], body: usize) -> usize {
        let end = HEADER + body + SEAL;
        let flags = header.flags | FLAG_SEALED;
        Header { flags, ..*header }.write(frame, end);
        self.append(frame, HEADER + body);
        finish(frame, end)
    }

    /// Appends the seal to a frame that is complete up to `at`.
    fn append(&mut self, frame: &mut [u8], at: usize) {
        frame[at..at + NUMBER].copy_from_slice(&self.next.to_be_bytes());
        self.next += 1;
        let (sealed, rest) = frame.split_at_mut(at + NUMBER);
        let hash = blake3::keyed_hash(&self.key, sealed);
        rest[..HASH].copy_from_slice(&hash.as_bytes()[..HASH]);
    }

    /// Checks a frame whose `body` ends with a seal. Returns the body without it, or `None` if the frame was made
    /// without the secret or has been received before.
    pub(crate) fn open<'a>(&mut self, frame: &[u8], body: &'a [u8]) -> Option<&'a [u8]> {
        let length = body.len().checked_sub(SEAL)?;
        let at = HEADER + length;
        let number = u64_at(frame, at);
        if !self.seen.is_new(number) {
            return None;
        }
        let hash = blake3::keyed_hash(&self.key, &frame[..at + NUMBER]);
        let differ = hash.as_bytes()[..HASH]
            .iter()
            .zip(&body[length + NUMBER..])
            .fold(0, |differ, (one, other)| differ | one ^ other);
        // Constant time: the duration must not depend on where they differ.
        if std::hint::black_box(differ) != 0 {
            return None;
        }
        self.newest = number >= self.seen.end;
        self.seen.note(number);
        Some(&body[..length])
    }
}

/// Numbers received: a ring of bits up to the highest one (RFC 6479).
#[derive(Clone, Debug, Default)]
struct Seen {
    /// One more than the highest.
    end: u64,
    bits: [u64; WORDS as usize],
}

impl Seen {
    fn place(number: u64) -> (usize, u64) {
        ((number / 64 % WORDS) as usize, 1 << (number % 64))
    }

    /// Whether a number has not been received and is not too old.
    fn is_new(&self, number: u64) -> bool {
        if number >= self.end {
            return number < u64::MAX;
        }
        let (word, bit) = Seen::place(number);
        self.end - number <= BEHIND && self.bits[word] & bit == 0
    }

    /// Notes a new number.
    fn note(&mut self, number: u64) {
        if number >= self.end {
            // Words between the two ends belong to older numbers.
            let (from, to) = (self.end.div_ceil(64), number / 64);
            for word in from..=to.min(from.saturating_add(WORDS)) {
                self.bits[(word % WORDS) as usize] = 0;
            }
            self.end = number + 1;
        }
        let (word, bit) = Seen::place(number);
        self.bits[word] |= bit;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn a_number_passes_once_and_not_when_it_is_old() {
        let mut seen = Seen::default();
        let mut known = HashSet::new();
        let mut random = 1u64;
        let mut highest = 0;
        for round in 0..200_000u64 {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            let jump = if round % 1000 == 0 { 5000 } else { 3 };
            let near = (highest + (random >> 33) % jump).saturating_sub((random >> 20) % 1200);
            let expected = !known.contains(&near)
                && (known.is_empty() || near > highest || highest + 1 - near <= BEHIND);
            assert_eq!(seen.is_new(near), expected, "{near} of {highest}");
            if expected {
                seen.note(near);
                known.insert(near);
                highest = highest.max(near);
            }
        }
        assert!(!seen.is_new(u64::MAX));
        seen.note(u64::MAX - 1);
        assert!(!seen.is_new(u64::MAX - 1) && seen.is_new(u64::MAX - 2));
    }

    #[test]
    fn every_bit_is_sealed() {
        let (mut one, mut other) = (Seals::new(&[7; 32]), Seals::new(&[7; 32]));
        let mut frame = [3; HEADER + 40 + SEAL];
        one.append(&mut frame, HEADER + 40);
        for bit in 0..8 * frame.len() {
            let mut changed = frame;
            changed[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(other.open(&changed, &changed[HEADER..]), None, "bit {bit}");
        }
        let mut stranger = Seals::new(&[8; 32]);
        assert_eq!(stranger.open(&frame, &frame[HEADER..]), None);
        let mut later = frame;
        one.append(&mut later, HEADER + 40);
        assert!(other.open(&later, &later[HEADER..]).is_some() && other.newest);
        assert_eq!(other.open(&frame, &frame[HEADER..]), Some(&[3; 40][..]));
        assert!(!other.newest, "it was sent before the last one");
        assert_eq!(other.open(&frame, &frame[HEADER..]), None, "again");
        assert_eq!(
            other.open(&frame[..HEADER + 9], &frame[HEADER..][..9]),
            None
        );
    }
}
