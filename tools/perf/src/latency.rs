//! `latency`: one message back and forth; the same with RDMA Write, for `write`; and beside processes that compute, for
//! `company`.

use vipl_tools::Result;
use vipl_tools::pingpong::{Driver, Outcome, Spec};
use vipl_tools::stats::Histogram;

use crate::bench::{Bench, Figure, Params, figure};
use crate::company::Company;
use crate::machine::Session;

/// The open test.
pub(crate) struct Latency {
    driver: Driver,
    params: Params,
    turns: Option<u64>,
}

impl Latency {
    /// Connects.
    pub(crate) fn open(session: &mut Session, params: Params, rdma: bool) -> Result<Self> {
        let vi = params.vi(session)?;
        let spec = Spec {
            vi,
            bytes: params.bytes,
            wait: params.wait,
            check: false,
            rdma,
        };
        Ok(Self {
            driver: Driver::open(session, spec)?,
            params,
            turns: params.iterations,
        })
    }
}

impl Bench for Latency {
    fn run(&mut self, session: &mut Session) -> Result<Vec<Figure>> {
        let turns = match self.turns {
            Some(turns) => turns,
            None => self.driver.turns_for(session, self.params.time)?,
        };
        // Those before were to warm up.
        self.driver.take_times();
        let outcome = self.driver.play(session, turns)?;
        Ok(vec![
            figure("one way", outcome.median_ns / 1e3, "µs"),
            figure("p99", outcome.known_p99_ns() / 1e3, "µs"),
            figure("mean", outcome.mean_ns() / 1e3, "µs"),
        ])
    }

    fn times(&mut self) -> Histogram {
        self.driver.take_times()
    }

    fn close(self: Box<Self>, session: &mut Session) -> Result<()> {
        self.driver.close(session)
    }
}

/// `company`: both sides poll, and then wait, beside a process that computes on each processor. All round trips are timed
/// one by one; the mean is what a program feels, since a single one may last for a time slice. It connects anew for
/// each run.
pub(crate) struct InCompany {
    params: Params,
    cpus: Vec<usize>,
}

impl InCompany {
    pub(crate) fn open(params: Params, cpus: &[usize]) -> Self {
        let cpus = cpus.to_vec();
        Self { params, cpus }
    }

    fn play(&self, session: &mut Session, wait: bool) -> Result<Outcome> {
        let spec = Spec {
            vi: self.params.vi(session)?,
            bytes: self.params.bytes,
            wait,
            check: false,
            rdma: false,
        };
        let mut driver = Driver::open(session, spec)?;
        let company = Company::start(&self.cpus)?;
        let turns = match self.params.iterations {
            Some(turns) => turns,
            None => driver.turns_for(session, self.params.time)?,
        };
        let outcome = driver.play_singly(session, turns)?;
        drop(company);
        driver.close(session)?;
        Ok(outcome)
    }
}

impl Bench for InCompany {
    fn run(&mut self, session: &mut Session) -> Result<Vec<Figure>> {
        let (poll, wait) = (self.play(session, false)?, self.play(session, true)?);
        Ok(vec![
            figure("one way", poll.mean_ns() / 1e3, "µs"),
            figure("median", poll.p50_ns / 1e3, "µs"),
            figure("p99", poll.known_p99_ns() / 1e3, "µs"),
            figure("worst", poll.worst_ns / 1e3, "µs"),
            figure("waiting", wait.mean_ns() / 1e3, "µs"),
            figure("waiting, median", wait.p50_ns / 1e3, "µs"),
            figure("waiting, p99", wait.known_p99_ns() / 1e3, "µs"),
            figure("waiting, worst", wait.worst_ns / 1e3, "µs"),
        ])
    }
}
