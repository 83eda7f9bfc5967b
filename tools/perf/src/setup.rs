//! What happens before there is data: `open` (VipOpenNic in a process that has not opened a NIC before) and
//! `connect` (many connections, one after the other, and their end).

use std::time::{Duration, Instant};

use serde_json::json;
use vipl_client::Library;
use vipl_tools::endpoint::ViSpec;
use vipl_tools::nic::Nic;
use vipl_tools::stats::median;
use vipl_tools::{Result, sys};

use crate::bench::{Bench, Figure, Params, figure};
use crate::fresh::Fresh;
use crate::machine::Session;
use crate::many::{Many, ask_peer};

/// The first VipOpenNic of a process: with the Kernel Agent that runs, and with one that has to be started.
/// A process starts one for itself when it may use no other.
pub(crate) fn open(fresh: &Fresh) -> Result<Vec<Figure>> {
    let command = || {
        let mut command = fresh.command(&["open"])?;
        sys::start_on(&mut command, None);
        Ok::<_, vipl_tools::Error>(command)
    };
    let running = Fresh::first_figure(command()?, "open")?;
    let mut command = command()?;
    command.env("VIPL_AGENT", "off");
    let started = Fresh::first_figure(command, "open")?;
    Ok(vec![
        figure("agent running", running, "ms"),
        figure("agent started", started, "ms"),
    ])
}

/// What the process that `open` starts measures.
pub(crate) fn open_once(vipl: &'static Library, device: &str) -> Result<Vec<Figure>> {
    let start = Instant::now();
    let nic = Nic::open(vipl, device)?;
    let taken = start.elapsed();
    drop(nic);
    Ok(vec![figure("VipOpenNic", milliseconds(taken), "ms")])
}

/// Connections that are ended one by one: the last of all, and the last of twice as many.
const FEW: usize = 10;

/// The test `connect`.
pub(crate) struct Connect {
    params: Params,
}

impl Connect {
    pub(crate) fn open(params: Params) -> Self {
        Self { params }
    }
}

impl Bench for Connect {
    fn run(&mut self, session: &mut Session) -> Result<Vec<Figure>> {
        let count = self.params.vis;
        let vi = self.params.vi(session)?;
        let mut many = Many::new(session, count)?;
        let first = ask_peer(session, "connect", vi, count)?;
        let start = Instant::now();
        many.connect(session, vi, count, first, None)?;
        let connected = start.elapsed();
        // The peer's VIs still exist: each disconnect is reported to it.
        let start = Instant::now();
        let among_many = disconnect(&mut many)?;
        many.truncate(2 * FEW);
        let among_few = disconnect(&mut many)?;
        drop(many);
        let ended = start.elapsed();
        session.end()?;
        let each = connected.as_nanos() as f64 / 1e3 / count as f64;
        Ok(vec![
            figure("create and connect", milliseconds(connected), "ms"),
            figure("each", each, "µs"),
            figure("disconnect and destroy", milliseconds(ended), "ms"),
            figure("VipDisconnect, many ÷ few", among_many / among_few, ""),
            figure("with many", among_many / 1e3, "µs"),
            figure("with few", among_few / 1e3, "µs"),
        ])
    }
}

/// Median time of VipDisconnect in ns, of the last VIs; they are destroyed.
fn disconnect(many: &mut Many) -> Result<f64> {
    let mut times = Vec::with_capacity(FEW);
    while times.len() < FEW
        && let Some(vi) = many.pop()
    {
        let start = Instant::now();
        vi.disconnect()?;
        times.push(start.elapsed().as_nanos() as f64);
    }
    Ok(median(&times))
}

fn milliseconds(time: Duration) -> f64 {
    time.as_nanos() as f64 / 1e6
}

/// The server's side, from the question that opened it to its end.
pub(crate) fn serve(session: &mut Session, vi: ViSpec, count: usize, first: u32) -> Result<()> {
    let mut many = Many::new(session, count)?;
    session.reply(&json!({}))?;
    many.connect(session, vi, count, first, None)?;
    session.next_go()?;
    drop(many);
    session.ended()
}
