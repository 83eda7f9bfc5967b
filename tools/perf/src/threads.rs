//! `threads`: several threads of each side, each with a NIC handle, a VI and a stream of its own.
//!
//! They may use all processors that the process may use: those that poll share a processor if there are fewer.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use serde_json::json;
use vipl_tools::rendezvous::Seat;
use vipl_tools::request::{Kind, StreamSpec};
use vipl_tools::{Error, Result, sys};

use crate::bench::{Bench, Figure, Params};
use crate::machine::Session;
use crate::measured::Measured;
use crate::stream::{self, Flow, Role};

/// The threads of one side.
struct Team {
    /// To each: so many messages.
    goes: Vec<Sender<u64>>,
    /// From all: connected, or a pass is over.
    done: Receiver<Result<()>>,
    threads: Vec<JoinHandle<()>>,
}

impl Team {
    /// Starts threads that connect on `first` and the channels that follow.
    fn start(seat: &Seat, spec: StreamSpec, role: Role, count: usize, first: u32) -> Result<Self> {
        let (report, done) = channel();
        let mut team = Team {
            goes: Vec::new(),
            done,
            threads: Vec::new(),
        };
        for number in 0..count {
            let (go, goes) = channel();
            let (seat, report) = (seat.clone(), report.clone());
            let work = move || {
                let ended = member(&seat, spec, role, first + number as u32, &goes, &report);
                // No thread listens when the test is over.
                let _ = ended.map_err(|error| report.send(Err(error)));
            };
            let thread = std::thread::Builder::new().spawn(work);
            team.threads
                .push(thread.map_err(|error| Error::io("starting a thread", error))?);
            team.goes.push(go);
        }
        Ok(team)
    }

    /// Waits until each has connected, or has ended its pass.
    fn wait(&self) -> Result<()> {
        let gone = || Error::Peer("a thread has ended".to_owned());
        (0..self.goes.len()).try_for_each(|_| self.done.recv().map_err(|_| gone())?)
    }

    fn pass(&self, count: u64) -> Result<()> {
        for go in &self.goes {
            let _ = go.send(count);
        }
        self.wait()
    }

    /// Ends them.
    fn end(self) {
        drop(self.goes);
        for thread in self.threads {
            let _ = thread.join();
        }
    }
}

/// One thread.
fn member(
    seat: &Seat,
    spec: StreamSpec,
    role: Role,
    channel: u32,
    goes: &Receiver<u64>,
    report: &Sender<Result<()>>,
) -> Result<()> {
    sys::run_on_all()?;
    let nic = seat.open()?;
    let mut flow = Flow::new(&nic, spec, spec.wait, role)?;
    seat.join(&nic, &flow.endpoint.vi, channel)?;
    let _ = report.send(Ok(()));
    for count in goes {
        match role {
            Role::Sender => flow.send(count)?,
            Role::Receiver => flow.receive(count)?,
        }
        let _ = report.send(Ok(()));
    }
    Ok(())
}

/// The open test at the client.
pub(crate) struct Threads {
    team: Team,
    params: Params,
    window: u64,
}

impl Threads {
    /// Connects.
    pub(crate) fn open(session: &mut Session, params: Params) -> Result<Self> {
        let spec = stream::spec(session, params, Kind::Send, params.wait)?;
        let first = session.new_channel();
        for _ in 1..params.threads {
            session.new_channel();
        }
        let mut question = stream::question("threads", spec, first);
        question["threads"] = json!(params.threads);
        session.ask(&question)?;
        let team = Team::start(&session.seat(), spec, Role::Sender, params.threads, first)?;
        team.wait()?;
        Ok(Self {
            team,
            params,
            window: spec.window,
        })
    }
}

impl Bench for Threads {
    fn run(&mut self, session: &mut Session) -> Result<Vec<Figure>> {
        let measured = Measured::passes(session, self.params, self.window, |count| {
            self.team.pass(count)
        })?;
        Ok(measured.figures(self.params.threads, self.params.bytes))
    }

    fn close(self: Box<Self>, session: &mut Session) -> Result<()> {
        self.team.end();
        session.end()
    }
}

/// The server's side.
pub(crate) fn serve(
    session: &mut Session,
    spec: StreamSpec,
    count: usize,
    first: u32,
) -> Result<()> {
    let team = Team::start(&session.seat(), spec, Role::Receiver, count, first)?;
    session.ended()?;
    team.wait()?;
    while let Some(count) = session.next_go()? {
        team.pass(count)?;
    }
    team.end();
    session.ended()
}
