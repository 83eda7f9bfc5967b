//! Passes of streams of messages, repeated until one takes the time that was asked for.

use std::time::Instant;

use serde_json::json;
use vipl_tools::{Error, Result, sys};

use crate::bench::{Figure, Params, figure};
use crate::machine::Session;

/// What was measured of a pass.
pub(crate) struct Measured {
    /// Messages of each stream.
    pub(crate) count: u64,
    seconds: f64,
    /// Of processor time, of both processes; `None` for a peer that this process has not started.
    cpu: Option<f64>,
}

impl Measured {
    /// Makes passes of so many messages, which the server has been told of, until one takes the time that was asked for.
    pub(crate) fn passes(
        session: &mut Session,
        params: Params,
        window: u64,
        mut pass: impl FnMut(u64) -> Result<()>,
    ) -> Result<Self> {
        let mut timed = |count| {
            let before = cpu_seconds(session)?;
            session.go(count)?;
            let start = Instant::now();
            pass(count)?;
            let seconds = start.elapsed().as_secs_f64();
            let after = cpu_seconds(session)?;
            let cpu = before.zip(after).map(|(before, after)| after - before);
            Ok::<_, Error>(Self {
                count,
                seconds,
                cpu,
            })
        };
        let count = match params.iterations {
            Some(count) => {
                timed(count.min(1000))?;
                count
            }
            None => {
                // Warms up, and finds how many messages take the time that was asked for.
                let per_message = timed(window)?.seconds / window as f64;
                let guess = (0.02 / per_message.max(1e-9)) as u64;
                let guess = guess.clamp(window, 2_000_000);
                let rate = guess as f64 / timed(guess)?.seconds.max(1e-9);
                ((rate * params.time.as_secs_f64()) as u64).clamp(window, 200_000_000)
            }
        };
        timed(count)
    }

    /// Bandwidth, rate, and processor time, of so many streams with messages of a size.
    pub(crate) fn figures(&self, streams: usize, bytes: usize) -> Vec<Figure> {
        let messages = self.count * streams as u64;
        let gigabytes = (messages * bytes as u64) as f64 / 1e9;
        let mut all = vec![
            figure("stream", gigabytes / self.seconds, "GB/s"),
            figure("messages", messages as f64 / self.seconds / 1e6, "M/s"),
        ];
        all.extend(
            self.cpu
                .map(|seconds| figure("CPU", seconds / gigabytes, "s/GB")),
        );
        all
    }
}

/// Processor time of both processes so far in seconds, with the threads of the library and the kernel's part; None for a
/// peer that this process has not started.
fn cpu_seconds(session: &mut Session) -> Result<Option<f64>> {
    if !session.is_local() {
        return Ok(None);
    }
    let peer = session.ask(&json!({"op": "cpu"}))?;
    Ok(peer["seconds"]
        .as_f64()
        .map(|peer| peer + sys::cpu_seconds()))
}
