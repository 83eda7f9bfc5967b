//! `latency`: one message back and forth; and the same with RDMA Write, for `write`.

use vipl_tools::Result;
use vipl_tools::pingpong::{Driver, Spec};

use crate::bench::{Bench, Figure, Params, figure};
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
        let outcome = self.driver.play(session, turns)?;
        Ok(vec![
            figure("one way", outcome.median_ns / 1e3, "µs"),
            figure("p99", outcome.p99_ns / 1e3, "µs"),
        ])
    }

    fn close(self: Box<Self>, session: &mut Session) -> Result<()> {
        self.driver.close(session)
    }
}
