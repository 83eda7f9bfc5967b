//! `overlap`: how much of the processor a stream of RDMA Writes leaves to the program.
//!
//! The program computes without a call of the library, a millisecond or less at a time; in between it posts
//! again what has completed. What it gets done, divided by what it gets done in the same time without
//! communication, is the share that is available to it. The stream's rate stands beside it, and the rate
//! without computing: a device that works only while the program calls it has either the one or the other.
//! The target sleeps, so that its processor is free for a device that has none of its own.

use std::hint::black_box;
use std::time::{Duration, Instant};

use vipl_tools::Result;

use crate::bench::{Bench, Figure, Params, figure};
use crate::machine::Session;
use crate::stream::Stream;

/// Longest time without a call.
const QUANTUM_MAX: Duration = Duration::from_millis(1);
/// Steps of one unit of work; some microseconds.
const STEPS: u32 = 10_000;

/// The open test.
pub(crate) struct Overlap {
    stream: Stream,
    params: Params,
}

impl Overlap {
    /// Connects.
    pub(crate) fn open(session: &mut Session, params: Params) -> Result<Self> {
        let stream = Stream::open_to_sleeper(session, params)?;
        Ok(Self { stream, params })
    }
}

impl Bench for Overlap {
    fn run(&mut self, session: &mut Session) -> Result<Vec<Figure>> {
        let time = self.params.time;
        let (count, taken) = self.stream.pass_beside(session, time, || {})?;
        let plain = count as f64 / taken.as_secs_f64();
        // A quarter of what is under way, so that the device never runs out of work.
        let under_way = Duration::from_secs_f64(self.stream.window() as f64 / plain);
        let quantum = (under_way / 4).min(QUANTUM_MAX);
        let before = units_per_second(time / 2);
        let per_quantum = ((before * quantum.as_secs_f64()) as u64).max(1);
        let mut units = 0;
        let (count, taken) = self.stream.pass_beside(session, time, || {
            work(per_quantum);
            units += per_quantum;
        })?;
        let alone = f64::midpoint(before, units_per_second(time / 2));
        let bytes = self.params.bytes as f64;
        let share = units as f64 / taken.as_secs_f64() / alone;
        let rate = count as f64 / taken.as_secs_f64();
        Ok(vec![
            figure("available", 100.0 * share, "%"),
            figure("stream", rate * bytes / 1e9, "GB/s"),
            figure("without work", plain * bytes / 1e9, "GB/s"),
        ])
    }

    fn close(self: Box<Self>, session: &mut Session) -> Result<()> {
        Box::new(self.stream).close(session)
    }
}

/// How fast this processor works when nothing else is asked of it.
fn units_per_second(time: Duration) -> f64 {
    let (mut units, start) = (0, Instant::now());
    while start.elapsed() < time {
        work(10);
        units += 10;
    }
    f64::from(units) / start.elapsed().as_secs_f64()
}

/// Arithmetic that touches no memory.
fn work(units: u64) {
    let mut state = black_box(0x9E37_79B9_7F4A_7C15_u64);
    for _ in 0..units {
        for _ in 0..STEPS {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
        }
    }
    black_box(state);
}
