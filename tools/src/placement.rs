//! Where the two processors of a measurement are: near each other, in one part of the last-level cache, or far.
//!
//! The topology that the kernel reports says nothing on a virtual machine, whose processors also move. So a cache line
//! decides, to and fro between the two, before and after each run.

use std::thread;

use crate::arena::{ARENA_BYTES, Arena};
use crate::pin::{self, Pair};
use crate::rendezvous::Side;
use crate::{Error, Result, sys};

/// One way of a cache line in ns, the mean over many lines, below which two processors are near each other.
pub const NEAR_NS: f64 = 120.0;
/// Turns of a cache line: about sixty blocks, and a second or two where other programs use both processors.
const TURNS: u64 = 4_000;
/// Processors that are tried beside the first one, at most.
const TRIED: usize = 24;

/// The place of one processor beside another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Placement {
    /// A cache line takes less than 120 ns.
    Near,
    /// It takes longer.
    Far,
}

impl Placement {
    /// By the one way of a cache line in ns.
    #[must_use]
    pub fn of(line_ns: f64) -> Self {
        if line_ns < NEAR_NS {
            Self::Near
        } else {
            Self::Far
        }
    }

    /// As it stands in tables.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Near => "near",
            Self::Far => "far",
        }
    }
}

/// The pairs of processors to measure on: a near one and a far one, if this process may use both.
///
/// # Errors
/// A processor may no longer be used.
pub fn pairs() -> Result<Vec<Pair>> {
    let (first, others) = pin::first_of_each_core();
    if others.len() < 2 {
        return Ok(vec![Pair::choose()]);
    }
    let step = others.len().div_ceil(TRIED);
    let pairs = others.iter().step_by(step).map(|other| Pair(first, *other));
    let timed = pairs.map(|pair| Ok((pair, line_ns(pair)?)));
    Ok(chosen(&timed.collect::<Result<Vec<_>>>()?))
}

/// The nearest pair and the farthest; only one of them if both are near or both are far.
fn chosen(timed: &[(Pair, f64)]) -> Vec<Pair> {
    let mut sorted = timed.to_vec();
    sorted.sort_by(|one, other| one.1.total_cmp(&other.1));
    let ends = [sorted.first(), sorted.last()].map(Option::<&_>::copied);
    let [Some(nearest), Some(farthest)] = ends else {
        return vec![Pair::choose()];
    };
    if Placement::of(nearest.1) == Placement::of(farthest.1) {
        vec![nearest.0]
    } else {
        vec![nearest.0, farthest.0]
    }
}

/// One way of a cache line between two processors in ns, by two threads of this process.
///
/// # Errors
/// A processor may no longer be used, or has no time for a thread.
pub fn line_ns(pair: Pair) -> Result<f64> {
    let file = sys::anonymous_file(ARENA_BYTES)?;
    let play = |side: Side, cpu: usize| {
        sys::run_on(cpu)?;
        Arena::new(&file)?.ping_pong(side, 0, TURNS)
    };
    let play = &play;
    std::thread::scope(|scope| {
        let start = |side: Side, cpu: usize| {
            let thread = thread::Builder::new().spawn_scoped(scope, move || play(side, cpu));
            thread.map_err(|error| Error::io("starting a thread", error))
        };
        let server = start(Side::Server, pair.1)?;
        let driver = start(Side::Driver, pair.0)?.join();
        let failed = |_| Error::Peer("failed".to_owned());
        server.join().map_err(failed)??;
        driver.map_err(failed)?
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_near_and_a_far_pair_are_chosen_if_there_are_both() {
        let near = [(Pair(0, 1), 60.0), (Pair(0, 2), 55.0), (Pair(0, 3), 90.0)];
        assert_eq!(chosen(&near), [Pair(0, 2)]);
        let both = [&near[..], &[(Pair(0, 8), 130.0), (Pair(0, 9), 290.0)]].concat();
        assert_eq!(chosen(&both), [Pair(0, 2), Pair(0, 9)]);
        assert_eq!(chosen(&both[3..]), [Pair(0, 8)]);
    }

    #[test]
    fn a_line_between_two_processors_takes_time() {
        assert!(line_ns(Pair::choose()).unwrap() > 0.0);
        assert!(!pairs().unwrap().is_empty());
    }
}
