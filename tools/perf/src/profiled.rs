//! `profiled`: a ping-pong while `perf record` samples both processes, by its worst repetition.
//!
//! Each sample stops a side for microseconds. A program that takes that for company, or for a peer that has exited, and
//! begins to sleep, is slow for long.

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use vipl_tools::pingpong::{Driver, Spec};
use vipl_tools::stats::median;
use vipl_tools::{Error, Result, sys};

use crate::bench::{Bench, Figure, Params, figure};
use crate::machine::Session;

/// Samples a second; no multiple of what the kernel does at round times.
const FREQUENCY: &str = "999";
/// Repetitions of a run.
const REPETITIONS: usize = 40;
/// How long `perf` takes to begin.
const BEGINNING: Duration = Duration::from_millis(300);

/// The open test.
pub(crate) struct Profiled {
    driver: Driver,
    params: Params,
}

impl Profiled {
    pub(crate) fn open(session: &mut Session, params: Params) -> Result<Self> {
        let spec = Spec {
            vi: params.vi(session)?,
            bytes: params.bytes,
            wait: params.wait,
            check: false,
            rdma: false,
        };
        let driver = Driver::open(session, spec)?;
        Ok(Self { driver, params })
    }
}

impl Bench for Profiled {
    fn run(&mut self, session: &mut Session) -> Result<Vec<Figure>> {
        let time = self.params.time / 5;
        let turns = match self.params.iterations {
            Some(turns) => turns,
            None => self.driver.turns_for(session, time)?,
        };
        let profiler = Profiler::start([std::process::id(), session.own()?.peer])?;
        let mut times = Vec::with_capacity(REPETITIONS);
        for _ in 0..REPETITIONS {
            let outcome = self.driver.play(session, turns)?;
            times.push(outcome.mean_ns());
        }
        profiler.still_runs()?;
        let worst = times.iter().copied().fold(0.0, f64::max);
        let middle = median(&times);
        Ok(vec![
            figure("worst ÷ median", worst / middle, ""),
            figure("median", middle / 1e3, "µs"),
            figure("worst", worst / 1e3, "µs"),
        ])
    }

    fn close(self: Box<Self>, session: &mut Session) -> Result<()> {
        self.driver.close(session)
    }
}

/// A running `perf record`; killed when dropped.
struct Profiler(Child);

impl Profiler {
    /// Samples these processes; what it records is thrown away.
    fn start(processes: [u32; 2]) -> Result<Self> {
        let [one, other] = processes;
        let mut command = Command::new("perf");
        command
            .args(["record", "-q", "-F", FREQUENCY, "-o", "/dev/null"])
            .args(["-p", &format!("{one},{other}")])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        sys::start_on(&mut command, None);
        sys::end_with_this(&mut command);
        let child = command.spawn().map_err(|_| {
            let why =
                "profiled needs perf (Debian, Ubuntu: linux-perf or linux-tools; Fedora: perf)";
            Error::Usage(why.to_owned())
        })?;
        let mut profiler = Self(child);
        std::thread::sleep(BEGINNING);
        profiler.0.try_wait().map_or(Ok(()), |ended| match ended {
            None => Ok(()),
            Some(_) => Err(refused()),
        })?;
        Ok(profiler)
    }

    fn still_runs(mut self) -> Result<()> {
        match self.0.try_wait() {
            Ok(None) => Ok(()),
            _ => Err(refused()),
        }
    }
}

fn refused() -> Error {
    let why = "profiled: perf record ended at once; kernel.perf_event_paranoid may forbid it";
    Error::Usage(why.to_owned())
}

impl Drop for Profiler {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
