//! Pseudo-random numbers: small, and from one seed the same on every machine. Not for secrets.

const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// Spreads the bits of a number over all 64.
#[inline]
pub fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Number `index` of the sequence of `seed`, without those before it.
#[inline]
pub fn nth(seed: u64, index: u64) -> u64 {
    mix(seed.wrapping_add(index.wrapping_add(1).wrapping_mul(STEP)))
}

/// SplitMix64.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// The sequence of this seed.
    pub const fn new(seed: u64) -> Random {
        Random(seed)
    }

    /// The next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(STEP);
        mix(self.0)
    }

    /// A number below `bound`; 0 if that is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next_u64()) * u128::from(bound)) >> 64) as u64
    }

    /// A number in `from..=to`.
    pub fn between(&mut self, from: u64, to: u64) -> u64 {
        from + self.below(to - from + 1)
    }

    /// True once in `n` times.
    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    /// True with this probability.
    pub fn chance(&mut self, probability: f64) -> bool {
        // 53 bits are what a float holds.
        ((self.next_u64() >> 11) as f64) < probability * (1u64 << 53) as f64
    }

    /// One of a list; `None` if that is empty.
    pub fn pick<T: Copy>(&mut self, list: &[T]) -> Option<T> {
        let place = self.below(list.len() as u64) as usize;
        list.get(place).copied()
    }

    /// Puts a list into random order.
    pub fn shuffle<T>(&mut self, list: &mut [T]) {
        for last in (1..list.len()).rev() {
            list.swap(last, self.below(last as u64 + 1) as usize);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sequence_is_that_of_splitmix64() {
        let mut random = Random::new(1_234_567);
        // The values published by the author of the algorithm for this seed.
        let known = [
            6_457_827_717_110_365_317,
            3_203_168_211_198_807_973,
            9_817_491_932_198_370_423,
            4_593_380_528_125_082_431,
            16_408_922_859_458_223_821,
        ];
        assert_eq!([(); 5].map(|()| random.next_u64()), known);
        assert_eq!([0, 1, 2, 3, 4].map(|n| nth(1_234_567, n)), known);
    }

    #[test]
    fn numbers_stay_below_their_bound_and_reach_it() {
        let mut random = Random::new(1);
        let mut seen = [0; 5];
        for _ in 0..1000 {
            seen[random.below(5) as usize] += 1;
            assert!((7..=9).contains(&random.between(7, 9)));
        }
        assert!(seen.iter().all(|&count| count > 150), "{seen:?}");
        assert_eq!(random.below(0), 0);
        assert!(random.one_in(1) && random.chance(1.0) && !random.chance(0.0));
        assert_eq!(random.pick::<u8>(&[]), None);
        assert_eq!(random.pick(&[3]), Some(3));
    }

    #[test]
    fn one_seed_has_one_order() {
        let order = |seed| {
            let mut list: Vec<u32> = (0..50).collect();
            Random::new(seed).shuffle(&mut list);
            list
        };
        assert_eq!(order(1), order(1));
        assert_ne!(order(1), order(2));
        let mut sorted = order(3);
        sorted.sort_unstable();
        assert_eq!(sorted, (0..50).collect::<Vec<_>>());
    }
}
