//! `register` and `post`: what the library does in one process, without a partner.

use std::time::Instant;

use vipl_tools::endpoint::{Endpoint, Layout};
use vipl_tools::nic::Nic;
use vipl_tools::options;
use vipl_tools::region::Region;
use vipl_tools::session::Session;
use vipl_tools::stats::{median, percentile};
use vipl_tools::{Error, Result};

use crate::bench::{Bench, Figure, Params, figure};

/// Which of the two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum What {
    Register,
    Post,
}

/// One of the two, open.
pub(crate) struct Alone {
    what: What,
    nic: Nic,
    params: Params,
    region: Option<Region>,
    endpoint: Option<Endpoint>,
}

/// Different pages that are registered in turn.
const PLACES: usize = 16;
/// The most memory that is taken for that.
const PLACES_BYTES: usize = 256 << 20;

impl Alone {
    pub(crate) fn open(nic: &Nic, params: Params, what: What) -> Result<Self> {
        let mut alone = Self {
            what,
            nic: nic.clone(),
            params,
            region: None,
            endpoint: None,
        };
        match what {
            What::Register if params.bytes == 0 => {
                return Err(Error::Usage("nothing cannot be registered".to_owned()));
            }
            What::Register => {
                let length = params.bytes.next_multiple_of(4096) * alone.places();
                alone.region = Some(Region::new(nic, length)?);
            }
            What::Post => {
                let vi = options::vi_spec(nic.attributes(), params.level, params.bytes, None)?;
                let layout = Layout {
                    sends: 16,
                    receives: 0,
                    bytes: params.bytes,
                    separate: false,
                };
                alone.endpoint = Some(Endpoint::new(&alone.nic, vi, layout, None)?);
            }
        }
        Ok(alone)
    }

    fn places(&self) -> usize {
        (PLACES_BYTES / self.params.bytes.next_multiple_of(4096)).clamp(1, PLACES)
    }

    /// Runs it once.
    pub(crate) fn run_once(&self) -> Result<Vec<Figure>> {
        match self.what {
            What::Register => self.register(),
            What::Post => self.post(),
        }
    }

    /// Pairs of VipRegisterMem and VipDeregisterMem.
    fn register(&self) -> Result<Vec<Figure>> {
        let Some(region) = &self.region else {
            return Ok(Vec::new());
        };
        let (stride, places) = (self.params.bytes.next_multiple_of(4096), self.places());
        let mut turn = 0usize;
        let (median, p99) = self.time_blocks(32, || {
            turn += 1;
            region.register_again(turn % places * stride, self.params.bytes)
        })?;
        let pair = figure("register + deregister", median / 1e3, "µs");
        Ok(vec![pair, figure("p99 of 32", p99 / 1e3, "µs")])
    }

    /// Pairs of VipPostSend and VipSendDone on a VI without connection, where sends are flushed at once:
    /// all that the library does, and no transport.
    fn post(&self) -> Result<Vec<Figure>> {
        let Some(endpoint) = &self.endpoint else {
            return Ok(Vec::new());
        };
        let mut turn = 0usize;
        let (median, p99) = self.time_blocks(1000, || {
            let descriptor = endpoint.sends[turn % endpoint.sends.len()];
            turn += 1;
            endpoint.vi.post_send(descriptor)?;
            if endpoint.vi.send_done_any() {
                return Ok(());
            }
            Err(Error::Corrupt(
                "a send on an idle VI was not flushed at once".to_owned(),
            ))
        })?;
        Ok(vec![
            figure("post + done", median, "ns"),
            figure("p99 of 1000", p99, "ns"),
        ])
    }

    /// Time of one step in ns, from blocks of `block` steps: median and 99th percentile of the blocks.
    fn time_blocks(
        &self,
        block: usize,
        mut step: impl FnMut() -> Result<()>,
    ) -> Result<(f64, f64)> {
        let mut times = Vec::new();
        let begin = Instant::now();
        let enough = |times: &Vec<f64>| match self.params.iterations {
            Some(steps) => (times.len() * block) as u64 >= steps,
            None => begin.elapsed() >= self.params.time,
        };
        while times.len() < 5 || (!enough(&times) && times.len() < 1_000_000) {
            let start = Instant::now();
            for _ in 0..block {
                step()?;
            }
            times.push(start.elapsed().as_nanos() as f64 / block as f64);
        }
        let settled = times.len() / 10;
        let middle = median(&times[settled..]);
        Ok((middle, percentile(&mut times[settled..], 0.99)))
    }
}

impl Bench for Alone {
    fn run(&mut self, _session: &mut Session) -> Result<Vec<Figure>> {
        self.run_once()
    }

    fn close(self: Box<Self>, _session: &mut Session) -> Result<()> {
        Ok(())
    }
}
