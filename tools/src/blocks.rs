//! Timing turns in blocks: short enough that most of them miss every interrupt, long enough that the clock does not
//! count.
//!
//! A median over blocks of milliseconds is a mean with all interrupts in it: some 20 ns a message on a virtual machine,
//! a third of a short one. The median over these blocks leaves interrupts out, as other libraries' medians of single
//! messages do; who wants them in divides the whole time by all turns.

#![forbid(unsafe_code)]

use std::time::Instant;

use crate::Result;
use crate::stats::median;

/// What a block should take, in nanoseconds: two reads of the clock take about 50.
const SHORT_NS: f64 = 8_000.0;
const LONG_NS: f64 = 32_000.0;
/// Turns of a block at most.
const MOST: u64 = 64;

/// Times of blocks, in ns a turn.
pub struct Blocks {
    times: Vec<f64>,
    length: u64,
}

impl Blocks {
    /// For about so many turns.
    #[must_use]
    pub fn new(turns: u64) -> Self {
        let times = Vec::with_capacity((turns / (MOST / 2)).min(1 << 20) as usize);
        Self { times, length: 1 }
    }

    /// Takes a block of turns, no more than `most`, and returns how many.
    ///
    /// # Errors
    /// Those of a turn.
    #[inline(always)]
    pub fn take(&mut self, most: u64, mut turn: impl FnMut() -> Result<()>) -> Result<u64> {
        let turns = self.length.min(most);
        let start = Instant::now();
        for _ in 0..turns {
            turn()?;
        }
        let taken = start.elapsed().as_nanos() as f64;
        self.times.push(taken / turns.max(1) as f64);
        self.fit(taken);
        Ok(turns)
    }

    /// Doubles a block that was short, and halves one that was long.
    fn fit(&mut self, taken: f64) {
        if taken < SHORT_NS {
            self.length = (2 * self.length).min(MOST);
        } else if taken > LONG_NS {
            self.length = (self.length / 2).max(1);
        }
    }

    /// The median time of a turn in ns, without the first blocks, which warm up; 0 for none.
    #[must_use]
    pub fn median(&self) -> f64 {
        median(&self.times[self.times.len() / 5..])
    }
}

/// Takes so many turns, numbered from 1, and returns half the median time of one in ns: the way there, or
/// back. Both sides take equally many when they are given the same number.
///
/// # Errors
/// Those of a turn.
#[inline(always)]
pub fn median_turn(turns: u64, mut take: impl FnMut(u64) -> Result<()>) -> Result<f64> {
    let (mut blocks, mut taken) = (Blocks::new(turns), 0);
    let mut turn = 0;
    while taken < turns {
        taken += blocks.take(turns - taken, || {
            turn += 1;
            take(turn)
        })?;
    }
    Ok(blocks.median() / 2.0)
}

/// Turns that take some ten milliseconds.
#[must_use]
pub fn turns_for(size: usize) -> u64 {
    match size {
        0..=64 => 20_000,
        65..=4096 => 8_000,
        4097..=65536 => 1_600,
        _ => 160,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_get_the_length_that_their_turns_need() {
        let mut blocks = Blocks::new(1000);
        for _ in 0..20 {
            blocks.fit(5_000.0);
        }
        assert_eq!(blocks.length, MOST);
        for _ in 0..20 {
            blocks.fit(40_000.0);
        }
        assert_eq!(blocks.length, 1);
        blocks.fit(20_000.0);
        assert_eq!(blocks.length, 1);
    }

    #[test]
    fn all_turns_are_taken_and_none_more() {
        let (mut blocks, mut turns, mut left) = (Blocks::new(100), 0, 100);
        while left > 0 {
            let one = || {
                turns += 1;
                Ok(())
            };
            left -= blocks.take(left, one).unwrap();
        }
        assert_eq!(turns, 100);
        assert!(blocks.median() > 0.0);
        assert_eq!(Blocks::new(0).median(), 0.0);
    }
}
