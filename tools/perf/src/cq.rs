//! `cq`: what polling a completion queue costs when one of many connected VIs is active.
//!
//! Two costs, each with one VI and with many on the queue: of a poll that finds nothing, and of taking
//! a message that has already arrived (VipCQDone and VipRecvDone). The messages come in bursts that the
//! client asks for and lets arrive before it starts the clock. The ratio is the worse of the two.

use std::time::{Duration, Instant};

use serde_json::json;
use vipl_tools::cq::Cq;
use vipl_tools::endpoint::{Endpoint, Layout, ViSpec};
use vipl_tools::patience::Patience;
use vipl_tools::stats::median;
use vipl_tools::{Error, Result};

use crate::bench::{Bench, Figure, Params, figure};
use crate::machine::Session;
use crate::many::{Many, ask_peer};

/// Messages of a burst.
const BURST: u32 = 16;
/// Bursts of a measurement.
const BURSTS: usize = 300;
/// Polls that find nothing: this many times this many.
const EMPTY: (usize, usize) = (40, 2_000);
const LAYOUT: Layout = Layout {
    sends: 2 * BURST as usize,
    receives: 2 * BURST as usize,
    bytes: 8,
    separate: false,
};

/// The test; it connects anew for every run.
pub(crate) struct CqCost {
    params: Params,
}

/// Costs in ns.
#[derive(Clone, Copy, Debug)]
struct Cost {
    empty: f64,
    take: f64,
}

impl CqCost {
    pub(crate) fn open(params: Params) -> Self {
        Self { params }
    }

    /// Connects `vis` VIs, measures, and disconnects.
    fn measure(&self, session: &mut Session, vis: usize) -> Result<Cost> {
        let vi = self.params.vi(session)?;
        let most = session.nic.attributes().cq_entries_max;
        let cq = Cq::new(&session.nic, (vis as u64 + 64).max(1024).min(most))?;
        let mut idle = Many::new(session, vis - 1)?;
        let first = ask_peer(session, "cq", vi, vis)?;
        idle.connect(session, vi, vis - 1, first, Some(&cq))?;
        let active = Endpoint::new(&session.nic, vi, LAYOUT, Some(&cq))?;
        session.join(&active.vi, first + vis as u32 - 1)?;
        let empty = empty_looks(&cq)?;
        let take = bursts(&cq, &active)?;
        ask_for(&active, 0, 0)?;
        drop((active, idle, cq));
        session.end()?;
        Ok(Cost { empty, take })
    }
}

impl Bench for CqCost {
    fn run(&mut self, session: &mut Session) -> Result<Vec<Figure>> {
        let one = self.measure(session, 1)?;
        let many = self.measure(session, self.params.vis)?;
        let ratio = (many.empty / one.empty).max(many.take / one.take);
        Ok(vec![
            figure("many ÷ one VI", ratio, ""),
            figure("empty poll, one VI", one.empty, "ns"),
            figure("empty poll, many", many.empty, "ns"),
            figure("take, one VI", one.take, "ns"),
            figure("take, many", many.take, "ns"),
        ])
    }
}

fn empty_looks(cq: &Cq) -> Result<f64> {
    let mut times = Vec::with_capacity(EMPTY.0);
    for _ in 0..EMPTY.0 {
        let start = Instant::now();
        for _ in 0..EMPTY.1 {
            if cq.done()? {
                return Err(Error::Corrupt(
                    "a CQ that should be empty has an entry".to_owned(),
                ));
            }
        }
        times.push(start.elapsed().as_nanos() as f64 / EMPTY.1 as f64);
    }
    Ok(median(&times[EMPTY.0 / 4..]))
}

fn bursts(cq: &Cq, active: &Endpoint) -> Result<f64> {
    let mut pause = Duration::from_micros(20);
    let mut times = Vec::with_capacity(BURSTS);
    for burst in 0..BURSTS {
        ask_for(active, burst, BURST)?;
        let asked = Instant::now();
        while asked.elapsed() < pause {
            std::hint::spin_loop();
        }
        let mut taken = [None; BURST as usize];
        let mut looks = 0u32;
        let mut patience = Patience::new("waiting for a burst");
        let start = Instant::now();
        for slot in &mut taken {
            while !cq.done()? {
                looks += 1;
                patience.spend()?;
            }
            *slot = active.vi.receive_done()?;
        }
        let time = start.elapsed().as_nanos() as f64 / f64::from(BURST);
        for descriptor in taken.into_iter().flatten() {
            active.vi.post_receive(descriptor)?;
        }
        if looks == 0 || pause > Duration::from_millis(5) {
            times.push(time);
        } else {
            pause *= 2; // They had not all arrived.
        }
    }
    Ok(median(&times))
}

/// Asks the server for a burst on the active VI; for none to end it.
fn ask_for(active: &Endpoint, burst: usize, messages: u32) -> Result<()> {
    let descriptor = active.sends[burst % active.sends.len()];
    descriptor.set_immediate(messages);
    active.vi.post_send(descriptor)?;
    active.vi.next_sent("requesting a burst")
}

/// The server's side, from the question that opened it to its end.
pub(crate) fn serve(session: &mut Session, vi: ViSpec, vis: usize, first: u32) -> Result<()> {
    let mut idle = Many::new(session, vis - 1)?;
    session.reply(&json!({}))?;
    idle.connect(session, vi, vis - 1, first, None)?;
    let active = Endpoint::new(&session.nic, vi, LAYOUT, None)?;
    session.join(&active.vi, first + vis as u32 - 1)?;
    let mut sent = 0usize;
    loop {
        let asked = active
            .vi
            .next_received("waiting for the request for a burst")?;
        let messages = asked.immediate();
        active.vi.post_receive(asked)?;
        if messages == 0 {
            break;
        }
        if messages > BURST {
            return Err(Error::Refused(format!(
                "{messages} messages in a burst; this server accepts {BURST}"
            )));
        }
        for _ in 0..messages {
            active
                .vi
                .post_send(active.sends[sent % active.sends.len()])?;
            sent += 1;
        }
        for _ in 0..messages {
            active.vi.next_sent("sending a burst")?;
        }
    }
    session.next_go()?;
    drop((active, idle));
    session.ended()
}
