//! Random numbers from a seed, and bytes that depend on where they are.

/// A generator (SplitMix64): small, and the same on every machine.
#[derive(Clone, Debug)]
pub(crate) struct Dice(u64);

fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

impl Dice {
    pub(crate) fn new(seed: u64) -> Self {
        Dice(mix(seed))
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(STEP);
        mix(self.0)
    }

    /// A number below `sides`.
    pub(crate) fn roll(&mut self, sides: u64) -> u64 {
        self.next() % sides
    }

    /// Puts a list into random order.
    pub(crate) fn shuffle<T>(&mut self, list: &mut [T]) {
        for last in (1..list.len()).rev() {
            list.swap(last, self.roll(last as u64 + 1) as usize);
        }
    }
}

fn word(seed: u64, index: usize) -> [u8; 8] {
    mix(seed.wrapping_add((index as u64 + 1).wrapping_mul(STEP))).to_le_bytes()
}

/// The bytes of a pattern from an offset that is a multiple of 8.
pub(crate) fn fill(seed: u64, offset: usize, bytes: &mut [u8]) {
    for (index, piece) in bytes.chunks_mut(8).enumerate() {
        piece.copy_from_slice(&word(seed, offset / 8 + index)[..piece.len()]);
    }
}

/// How many bytes are not those of the pattern.
pub(crate) fn wrong(seed: u64, offset: usize, bytes: &[u8]) -> usize {
    let pieces = bytes.chunks(8).enumerate();
    pieces
        .map(|(index, piece)| {
            let right = word(seed, offset / 8 + index);
            // One comparison in the good case.
            if piece == &right[..piece.len()] {
                return 0;
            }
            piece.iter().zip(right).filter(|(a, b)| **a != *b).count()
        })
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_wrong_byte_is_found() {
        let mut bytes = [0; 1003];
        fill(5, 64, &mut bytes);
        assert_eq!(wrong(5, 64, &bytes), 0);
        assert!(wrong(5, 72, &bytes) > 900 && wrong(6, 64, &bytes) > 900);
        assert_eq!(wrong(5, 64 + 800, &bytes[800..]), 0);
        bytes[1002] ^= 1;
        bytes[17] ^= 0x80;
        assert_eq!(wrong(5, 64, &bytes), 2);
    }

    #[test]
    fn one_seed_one_order() {
        let order = |seed| {
            let mut list: Vec<u32> = (0..50).collect();
            Dice::new(seed).shuffle(&mut list);
            list
        };
        assert_eq!(order(1), order(1));
        assert_ne!(order(1), order(2));
    }
}
