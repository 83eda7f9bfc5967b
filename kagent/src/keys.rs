//! The source of connection keys: the ChaCha20 key stream, started from a secret seed.
//!
//! A key is told to both ends of one connection. Someone who has seen many keys of his own must not be
//! able to work out those of others, which rules out the small statistical generators.

#![forbid(unsafe_code)]

const CONSTANTS: [u32; 4] = [0x6170_7865, 0x3320_646e, 0x7962_2d32, 0x6b20_6574];
const ROUND_PAIRS: usize = 10;

/// An endless stream of unguessable numbers. Used by the agent's only thread.
#[derive(Debug)]
pub(crate) struct Keys {
    seed: [u32; 8],
    block: u64,
}

impl Keys {
    pub(crate) fn new(seed: [u8; 32]) -> Self {
        let mut words = [0; 8];
        for (word, bytes) in words.iter_mut().zip(seed.chunks_exact(4)) {
            *word = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        }
        Self {
            seed: words,
            block: 0,
        }
    }

    /// The next key; never 0, so that 0 can mean "none" elsewhere.
    pub(crate) fn next_key(&mut self) -> u64 {
        loop {
            // Connecting is rare enough that a whole block for each key does not matter.
            let counter = [self.block as u32, (self.block >> 32) as u32, 0, 0];
            self.block += 1;
            let out = chacha20_block(&self.seed, counter);
            let key = u64::from(out[0]) | u64::from(out[1]) << 32;
            if key != 0 {
                return key;
            }
        }
    }
}

fn chacha20_block(seed: &[u32; 8], counter: [u32; 4]) -> [u32; 16] {
    let mut start = [0; 16];
    start[..4].copy_from_slice(&CONSTANTS);
    start[4..12].copy_from_slice(seed);
    start[12..].copy_from_slice(&counter);
    let mut s = start;
    for _ in 0..ROUND_PAIRS {
        for column in 0..4 {
            quarter_round(&mut s, [column, column + 4, column + 8, column + 12]);
        }
        for i in 0..4 {
            let diagonal = [i, 4 + (i + 1) % 4, 8 + (i + 2) % 4, 12 + (i + 3) % 4];
            quarter_round(&mut s, diagonal);
        }
    }
    for (word, first) in s.iter_mut().zip(start) {
        *word = word.wrapping_add(first);
    }
    s
}

fn quarter_round(s: &mut [u32; 16], [a, b, c, d]: [usize; 4]) {
    for (x, y, z, bits) in [(a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)] {
        s[x] = s[x].wrapping_add(s[y]);
        s[z] = (s[z] ^ s[x]).rotate_left(bits);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn block_function_gives_the_published_vector() {
        // RFC 8439 §2.3.2.
        let mut seed = [0; 8];
        for (i, word) in seed.iter_mut().enumerate() {
            let i = 4 * i as u32;
            *word = i | (i + 1) << 8 | (i + 2) << 16 | (i + 3) << 24;
        }
        let out = chacha20_block(&seed, [1, 0x0900_0000, 0x4a00_0000, 0]);
        assert_eq!(
            out[..4],
            [0xe4e7_f110, 0x1559_3bd1, 0x1fdd_0f50, 0xc471_20a3]
        );
        assert_eq!(
            out[12..],
            [0xd19c_12b5, 0xb94e_16de, 0xe883_d0cb, 0x4e3c_50a2]
        );
    }

    #[test]
    fn same_seed_same_keys() {
        let (mut a, mut b) = (Keys::new([7; 32]), Keys::new([7; 32]));
        let keys: std::collections::BTreeSet<u64> = (0..1000).map(|_| a.next_key()).collect();
        assert_eq!(keys.len(), 1000);
        assert!(keys.contains(&b.next_key()));
        assert!(!keys.contains(&Keys::new([8; 32]).next_key()));
    }
}
