//! `idle-memory`: memory of a connected pair of VIs that does nothing.
//!
//! Counted is the growth of both processes, of the kernel agents of this user, and of shared memory
//! that no process maps; once after connecting, and once more after one message each way. A receive is
//! posted on every VI. What this program itself keeps for a VI (some 100 bytes) is counted, too. A
//! process that has had connections before has memory to spare, so a run needs fresh processes.

use std::time::Duration;

use serde_json::json;
use vipl_tools::endpoint::ViSpec;
use vipl_tools::{Error, Result};

use crate::bench::{Bench, Figure, Params, figure};
use crate::fresh::Fresh;
use crate::machine::Session;
use crate::many::{Many, ask_peer};
use crate::usage::{self, Usage};

/// The test; it connects when it is run.
pub(crate) struct IdleMemory {
    params: Params,
}

/// Memory at one moment.
#[derive(Clone, Copy)]
struct Moment {
    own: Usage,
    peer: Usage,
    agents: Usage,
    machine: i64,
}

impl Moment {
    fn now(session: &mut Session) -> Result<Self> {
        std::thread::sleep(Duration::from_millis(100)); // Others may still be busy with it.
        let answer = session.ask(&json!({"op": "usage"}))?;
        let number = |name: &str| answer[name].as_i64().unwrap_or(0);
        let peer = Usage {
            pss: number("pss"),
            shared: number("shared"),
        };
        let own = usage::of_process(std::process::id());
        let own = own.ok_or_else(|| Error::Usage("smaps_rollup cannot be read".to_owned()))?;
        let (agents, machine) = (usage::of_agents(), usage::machine_shared());
        Ok(Self {
            own,
            peer,
            agents,
            machine,
        })
    }

    fn all(&self) -> (Usage, i64) {
        (self.own.plus(self.peer).plus(self.agents), self.machine)
    }

    fn since(&self, before: &Self) -> i64 {
        usage::growth(before.all(), self.all())
    }
}

const NEEDS_SELF: &str = "idle-memory needs --self: it looks at both";

impl IdleMemory {
    pub(crate) fn open(session: &Session, params: Params) -> Result<Self> {
        if !session.is_local() {
            return Err(Error::Usage(NEEDS_SELF.to_owned()));
        }
        Ok(Self { params })
    }
}

impl Bench for IdleMemory {
    fn run(&mut self, session: &mut Session) -> Result<Vec<Figure>> {
        let pairs = self.params.vis;
        let vi = self.params.vi(session)?;
        let mut many = Many::new(session, pairs)?;
        let first = ask_peer(session, "memory", vi, pairs)?;
        Moment::now(session)?; // The first look itself takes memory.
        let before = Moment::now(session)?;
        session.go(1)?;
        many.connect(session, vi, pairs, first, None)?;
        let idle = Moment::now(session)?;
        session.go(1)?;
        many.send_each()?;
        many.receive_each()?;
        let used = Moment::now(session)?;
        drop(many);
        session.end()?;
        let per_pair = |bytes: i64| bytes as f64 / pairs as f64 / 1024.0;
        let part = |from: Usage, to: Usage| per_pair(to.pss - from.pss);
        Ok(vec![
            figure("per pair", per_pair(idle.since(&before)), "KiB"),
            figure("after one message", per_pair(used.since(&before)), "KiB"),
            figure("client", part(before.own, idle.own), "KiB"),
            figure("server", part(before.peer, idle.peer), "KiB"),
            figure("agent", part(before.agents, idle.agents), "KiB"),
            figure(
                "machine shared",
                per_pair(idle.machine - before.machine),
                "KiB",
            ),
        ])
    }
}

/// The server's side, from the question that opened it to its end.
pub(crate) fn serve(session: &mut Session, vi: ViSpec, pairs: usize, first: u32) -> Result<()> {
    if !session.is_local() {
        return Err(Error::Refused(NEEDS_SELF.to_owned()));
    }
    let mut many = Many::new(session, pairs)?;
    session.reply(&json!({}))?;
    if session.next_go()?.is_some() {
        many.connect(session, vi, pairs, first, None)?;
    }
    if session.next_go()?.is_some() {
        many.receive_each()?;
        many.send_each()?;
    }
    session.next_go()?;
    drop(many);
    session.ended()
}

/// Runs the test in two fresh processes, and returns its figures.
pub(crate) fn in_fresh_processes(
    fresh: &Fresh,
    vis: usize,
    unset: Option<&str>,
) -> Result<Vec<Figure>> {
    let mut command = fresh.command(&["idle-memory", "--self", "--vis", &vis.to_string()])?;
    if let Some(name) = unset {
        command.env_remove(name);
    }
    Fresh::figures(command, "idle-memory")
}
