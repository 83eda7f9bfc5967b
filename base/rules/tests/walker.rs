//! The descriptor walker against an oracle, over descriptors made at random from fixed seeds.

#[path = "walker/mod.rs"]
mod oracle;

/// A generator that is the same everywhere (splitmix64).
struct Dice(u64);

impl Dice {
    fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

#[test]
fn the_walker_agrees_with_the_oracle() {
    for seed in 0..40_000u64 {
        let mut dice = Dice(seed);
        let bytes: Vec<u8> = (0..160).map(|_| dice.roll() as u8).collect();
        let agreed = std::panic::catch_unwind(|| oracle::compare(&bytes));
        assert!(
            agreed.is_ok(),
            "seed {seed}: the walker and the oracle differ"
        );
    }
}
