//! `register`, `post`, `calls` and `within`: what one process measures without a peer.

use std::time::Instant;

use vipl_tools::endpoint::{Endpoint, Layout};
use vipl_tools::nic::Nic;
use vipl_tools::options;
use vipl_tools::region::Region;
use vipl_tools::stats::{median, percentile};
use vipl_tools::{Error, Result};

use crate::bench::{Figure, Params, figure};
use crate::tests::Test;

/// One of them, open.
pub(crate) struct Alone {
    params: Params,
    work: Work,
}

enum Work {
    Register(Region),
    Post(Endpoint),
    Calls(Pair),
    /// Over the device, and over loopback for comparison.
    Within(Box<[Pair; 2]>),
}

/// Two connected VIs of this program.
struct Pair {
    from: Endpoint,
    to: Endpoint,
}

/// Different pages that are registered in turn.
const PLACES: usize = 16;
/// The most memory that is taken for that.
const PLACES_BYTES: usize = 256 << 20;
/// Descriptors of each queue.
const DEPTH: usize = 8;
/// Kinds of calls that a message takes, and the poll that finds nothing.
const CALLS: usize = 5;
/// What takes too long if a message does not come.
const MESSAGE: &str = "waiting for a message";
/// Milliseconds that a connection may take.
const CONNECT_MS: u64 = 20_000;

impl Alone {
    pub(crate) fn open(nic: &Nic, params: Params, test: Test) -> Result<Self> {
        let work = match test {
            Test::Post => Work::Post(endpoint(nic, params, 2 * DEPTH, 0)?),
            Test::Calls => Work::Calls(Pair::open(nic, params)?),
            Test::Within => {
                let loopback = Nic::open(nic.library(), "/dev/via_lo")?;
                Work::Within(Box::new([
                    Pair::open(nic, params)?,
                    Pair::open(&loopback, params)?,
                ]))
            }
            _ if params.bytes == 0 => {
                return Err(Error::Usage("register needs at least one byte".to_owned()));
            }
            _ => {
                let length = params.bytes.next_multiple_of(4096) * places(params.bytes);
                Work::Register(Region::new(nic, length)?)
            }
        };
        Ok(Self { params, work })
    }

    /// Runs it once.
    pub(crate) fn run_once(&self) -> Result<Vec<Figure>> {
        match &self.work {
            Work::Register(region) => self.register(region),
            Work::Post(endpoint) => self.post(endpoint),
            Work::Calls(pair) => self.calls(pair),
            Work::Within(pairs) => self.within(pairs),
        }
    }

    /// Pairs of VipRegisterMem and VipDeregisterMem.
    fn register(&self, region: &Region) -> Result<Vec<Figure>> {
        let bytes = self.params.bytes;
        let (stride, places) = (bytes.next_multiple_of(4096), places(bytes));
        let mut turn = 0usize;
        let (median, p99) = self.time_blocks(32, || {
            turn += 1;
            region.register_again(turn % places * stride, bytes)
        })?;
        let pair = figure("register + deregister", median / 1e3, "µs");
        Ok(vec![pair, figure("p99 of 32", p99 / 1e3, "µs")])
    }

    /// Pairs of VipPostSend and VipSendDone on a VI without connection, where sends are flushed at once:
    /// all that the library does, and no transport.
    fn post(&self, endpoint: &Endpoint) -> Result<Vec<Figure>> {
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

    /// What each call of a message costs the processor that makes it, when no cache line has to come from
    /// another one: bursts of the same call, without the clock's own time.
    fn calls(&self, pair: &Pair) -> Result<Vec<Figure>> {
        let mut parts: [Vec<f64>; CALLS] = Default::default();
        let (mut clock, begin) = (Vec::new(), Instant::now());
        let bursts = self
            .params
            .iterations
            .map(|steps| (steps / DEPTH as u64).max(5));
        while bursts.map_or(begin.elapsed() < self.params.time, |most| {
            (clock.len() as u64) < most
        }) {
            let times = pair.burst()?;
            for (part, two) in parts.iter_mut().zip(times.windows(2)) {
                part.push((two[1] - two[0]).as_nanos() as f64);
            }
            let start = Instant::now();
            clock.push((Instant::now() - start).as_nanos() as f64);
        }
        let clock = median(&clock);
        let cost = |part: &Vec<f64>| (median(part) - clock).max(0.0) / DEPTH as f64;
        let [poll, send, take, repost, done] = parts.each_ref().map(cost);
        Ok(vec![
            figure("all four", send + take + repost + done, "ns"),
            figure("VipPostSend", send, "ns"),
            figure("VipRecvDone", take, "ns"),
            figure("VipPostRecv", repost, "ns"),
            figure("VipSendDone", done, "ns"),
            figure("VipRecvDone, empty", poll, "ns"),
        ])
    }

    /// Messages from one VI of this thread to another, the next when the last has been taken. A device that
    /// runs beside the program does not share its processor then, if there are two.
    fn within(&self, [pair, loopback]: &[Pair; 2]) -> Result<Vec<Figure>> {
        let (here, p99) = self.time_blocks(100, || pair.pass())?;
        let (there, _) = self.time_blocks(100, || loopback.pass())?;
        Ok(vec![
            figure("one way", here / 1e3, "µs"),
            figure("p99 of 100", p99 / 1e3, "µs"),
            figure("loopback", there / 1e3, "µs"),
            figure("÷ loopback", here / there, ""),
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

fn places(bytes: usize) -> usize {
    (PLACES_BYTES / bytes.next_multiple_of(4096)).clamp(1, PLACES)
}

fn endpoint(nic: &Nic, params: Params, sends: usize, receives: usize) -> Result<Endpoint> {
    let vi = options::vi_spec(nic.attributes(), params.level, params.bytes, None)?;
    let layout = Layout {
        sends,
        receives,
        bytes: params.bytes,
        separate: false,
    };
    Endpoint::new(nic, vi, layout, None)
}

impl Pair {
    fn open(nic: &Nic, params: Params) -> Result<Self> {
        let from = endpoint(nic, params, DEPTH, 0)?;
        let to = endpoint(nic, params, 0, DEPTH)?;
        let point = |name: &str| {
            let name = format!("vip_perf {} {name}", std::process::id());
            nic.address(name.as_bytes())
        };
        let (one, other) = (point("from"), point("to"));
        from.vi.connect_peer(&one, &other, CONNECT_MS)?;
        to.vi.connect_peer(&other, &one, CONNECT_MS)?;
        from.vi.peer_wait()?;
        to.vi.peer_wait()?;
        Ok(Self { from, to })
    }

    /// `DEPTH` messages, there and taken, one kind of call after the other: the times before, between and
    /// after them.
    fn burst(&self) -> Result<[Instant; CALLS + 1]> {
        let mut times = [Instant::now(); CALLS + 1];
        let mut taken = [None; DEPTH];
        for _ in 0..DEPTH {
            if self.to.vi.receive_done()?.is_some() {
                return Err(Error::Corrupt("a message came that nobody sent".to_owned()));
            }
        }
        times[1] = Instant::now();
        for send in &self.from.sends {
            self.from.vi.post_send(*send)?;
        }
        times[2] = Instant::now();
        for slot in &mut taken {
            *slot = Some(self.to.vi.next_received(MESSAGE)?);
        }
        times[3] = Instant::now();
        for descriptor in taken.into_iter().flatten() {
            self.to.vi.post_receive(descriptor)?;
        }
        times[4] = Instant::now();
        for _ in 0..DEPTH {
            self.from.vi.next_sent(MESSAGE)?;
        }
        times[5] = Instant::now();
        Ok(times)
    }

    /// One message, there and taken.
    fn pass(&self) -> Result<()> {
        self.from.vi.post_send(self.from.sends[0])?;
        let arrived = self.to.vi.next_received(MESSAGE)?;
        self.to.vi.post_receive(arrived)?;
        self.from.vi.next_sent(MESSAGE)
    }
}
