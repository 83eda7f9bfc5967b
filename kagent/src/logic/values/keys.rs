//! The source of connection keys: the key stream of ChaCha20, started from a secret seed.
//!
//! Both ends of a connection learn its key. A user who has seen many keys of his own must not be able to
//! predict those of others, which rules out the small statistical generators. The seed is passed in, so that
//! a test can repeat a run.

#![forbid(unsafe_code)]

use rand_chacha::ChaCha20Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

/// An endless stream of unpredictable numbers. Used by the agent's only thread.
#[derive(Debug)]
pub(crate) struct Keys(ChaCha20Rng);

impl Keys {
    pub(crate) fn new(seed: [u8; 32]) -> Self {
        Self(ChaCha20Rng::from_seed(seed))
    }

    /// The next key; never 0, so that 0 can mean "none" elsewhere.
    pub(crate) fn next_key(&mut self) -> u64 {
        loop {
            let key = self.0.next_u64();
            if key != 0 {
                return key;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn same_seed_same_keys() {
        let (mut a, mut b) = (Keys::new([7; 32]), Keys::new([7; 32]));
        let keys: std::collections::BTreeSet<u64> = (0..1000).map(|_| a.next_key()).collect();
        assert_eq!(keys.len(), 1000);
        assert!(keys.contains(&b.next_key()));
        assert!(!keys.contains(&Keys::new([8; 32]).next_key()));
    }
}
