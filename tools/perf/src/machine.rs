//! What the two processes of a session share on one machine, and the limits of the machine, which they measure together.
//!
//! ```text
//!   driver                                  server
//!     limit-turns, -stream, -futex  ─────▶  serves its side of the arena
//!     limit-buffers  ────────────────────▶  both look whether the kernel copies between them
//!     limit-writes, limit-halves  ───────▶  serves its side of the copies
//! ```

#![forbid(unsafe_code)]

use std::fs::File;

use serde_json::{Value, json};
use vipl_tools::Result;
use vipl_tools::control::{Control, SocketControl};
use vipl_tools::nic::Nic;
use vipl_tools::rendezvous::Side;
use vipl_tools::request::{TURNS_MAX, number, unknown};
use vipl_tools::session::Local;
use vipl_tools::sys;

use crate::cable::{self, Cable, Cables};
use crate::limits::Buffers;
use crate::peers::Peers;
use crate::process_vm::{self, Remote};
use crate::usage;
use vipl_tools::arena::{ARENA_BYTES, Arena, RAW_MAX};
use vipl_tools::blocks::turns_for;

/// The two processes.
pub(crate) type Session = vipl_tools::session::Session<Own>;

/// What a process shares with one that it has started, or that has started it.
pub(crate) struct Own {
    /// Memory of both.
    pub(crate) arena: Arena,
    /// Buffers for measuring limits.
    pub(crate) buffers: Buffers,
    /// The cable between two hosts, when its limits are measured.
    pub(crate) cable: Option<Cable>,
    /// Other libraries, when they are measured, too.
    pub(crate) peers: Option<Peers>,
    /// The process of the peer.
    pub(crate) peer: u32,
}

impl Cables for Own {
    fn cable(&mut self) -> &mut Option<Cable> {
        &mut self.cable
    }
}

impl Local for Own {
    const BYTES: usize = ARENA_BYTES;

    fn new(file: &File, peer: u32) -> Result<Self> {
        Ok(Self {
            arena: Arena::new(file)?,
            buffers: Buffers::default(),
            cable: None,
            peers: None,
            peer,
        })
    }

    fn serve(&mut self, control: &mut SocketControl, nic: &Nic, question: &Value) -> Result<bool> {
        match question["op"].as_str().unwrap_or_default() {
            op if op.starts_with("limit-") => serve(control, self, question)?,
            op if op.starts_with("cable-") => {
                cable::serve(control, &mut self.cable, nic, question)?
            }
            "usage" => control.send(&usage::own())?,
            "sleeps" => control.send(&json!(usage::sleeps()))?,
            "cpu" => control.send(&json!({"seconds": sys::cpu_seconds()}))?,
            _ => return Ok(false),
        }
        Ok(true)
    }
}

/// Messages of the raw ring; some ten milliseconds.
const RING_MESSAGES: u64 = 400_000;
/// Turns of futex wake-ups; some ten milliseconds on a quiet machine.
const FUTEX_TURNS: u64 = 2_000;
/// Turns of polled writes; some ten milliseconds.
const WRITE_TURNS: u64 = 6_000;

/// One way of a cache line in ns, the mean over all lines of the arena; of a message of `bytes` that is
/// copied in and copied out, if there are bytes. None above the largest message.
///
/// # Errors
/// The peer does not answer.
pub(crate) fn one_way(session: &mut Session, bytes: usize) -> Result<Option<f64>> {
    if bytes > RAW_MAX {
        return Ok(None);
    }
    let turns = turns_for(bytes);
    session.own()?.arena.reset();
    session.ask(&json!({"op": "limit-turns", "size": bytes, "turns": turns}))?;
    let arena = &session.own()?.arena;
    arena.ping_pong(Side::Driver, bytes, turns).map(Some)
}

/// Messages per second through a ring of cache lines.
///
/// # Errors
/// The peer does not go on.
pub(crate) fn ring_rate(session: &mut Session) -> Result<f64> {
    session.own()?.arena.reset();
    session.ask(&json!({"op": "limit-stream", "messages": RING_MESSAGES}))?;
    session.own()?.arena.stream(Side::Driver, RING_MESSAGES)
}

/// One way in ns of a word on which both sides sleep: a wake-up each way.
///
/// # Errors
/// The peer does not answer.
pub(crate) fn futex_turns(session: &mut Session) -> Result<f64> {
    session.own()?.arena.reset();
    session.ask(&json!({"op": "limit-futex", "turns": FUTEX_TURNS}))?;
    session.own()?.arena.futex_turns(Side::Driver, FUTEX_TURNS)
}

/// Copies by the kernel into the peer's memory, in GB/s; None where it forbids them.
///
/// # Errors
/// The peer does not answer.
pub(crate) fn write_rate(session: &mut Session, bytes: usize) -> Result<Option<f64>> {
    match buffers(session, bytes)? {
        Some(peer) => process_vm::write_rate(&mut session.own()?.buffers, peer, bytes),
        None => Ok(None),
    }
}

/// One way of eight bytes in ns that the kernel writes into memory that is polled; None where it forbids it.
///
/// # Errors
/// The peer does not answer.
pub(crate) fn write_turns(session: &mut Session) -> Result<Option<f64>> {
    let Some(peer) = buffers(session, 4096)? else {
        return Ok(None);
    };
    session.own()?.buffers.clean_target()?;
    let buffer = described(session.own()?, 4096)?;
    session.ask(&json!({"op": "limit-writes", "turns": WRITE_TURNS, "buffer": buffer}))?;
    let buffers = &mut session.own()?.buffers;
    process_vm::write_turns(buffers, peer, Side::Driver, WRITE_TURNS).map(Some)
}

/// Copies by the kernel from process to process, one half by each of the two, in GB/s; None where it
/// forbids them.
///
/// # Errors
/// The peer does not go on.
pub(crate) fn halves_rate(session: &mut Session, bytes: usize) -> Result<Option<f64>> {
    let Some(peer) = buffers(session, bytes)? else {
        return Ok(None);
    };
    let copies = ((256 << 20) / bytes.max(4096)).clamp(64, 2048) as u64;
    session.own()?.arena.reset();
    let buffer = described(session.own()?, bytes)?;
    session
        .ask(&json!({"op": "limit-halves", "size": bytes, "copies": copies, "buffer": buffer}))?;
    copy_halves(session.own()?, peer, (Side::Driver, bytes, copies)).map(Some)
}

fn copy_halves(own: &mut Own, remote: Remote, what: (Side, usize, u64)) -> Result<f64> {
    process_vm::copy_halves(&mut own.buffers, &own.arena, remote, what)
}

/// The buffers of this side, for the peer: the one that it may read, and the one that it may write.
fn described(own: &mut Own, bytes: usize) -> Result<Value> {
    let target = own.buffers.target(bytes)?;
    let source = own.buffers.source(bytes)?;
    Ok(json!({"source": source, "target": target}))
}

/// A buffer of the peer. The process is the one that this one has started, or that has started it.
fn of(own: &Own, value: &Value, place: &str) -> Result<Remote> {
    Ok(Remote {
        pid: own.peer,
        address: number(value, place, 0..=u64::MAX)?,
    })
}

/// The peer's buffer that this side may write, if the kernel allows it to both.
fn buffers(session: &mut Session, bytes: usize) -> Result<Option<Remote>> {
    let buffer = described(session.own()?, bytes)?;
    let answer = session.ask(&json!({"op": "limit-buffers", "size": bytes, "buffer": buffer}))?;
    let own = session.own()?;
    let peer = of(own, &answer, "target")?;
    let theirs = answer["allowed"].as_bool().unwrap_or(false);
    let allowed = theirs && process_vm::is_allowed(&mut own.buffers, peer)?;
    Ok(allowed.then_some(peer))
}

/// Largest buffer, for both sides.
const BUFFER_MAX: u64 = 1 << 30;

/// The server's side of one question, answered here. Only a process that this one has started, or that has
/// started it, can ask.
///
/// # Errors
/// The driver has exited, or does not do what it asked for.
fn serve(control: &mut SocketControl, own: &mut Own, question: &Value) -> Result<()> {
    let size = || number(question, "size", 0..=BUFFER_MAX).map(|bytes| bytes as usize);
    let count = |name| number(question, name, 0..=TURNS_MAX);
    let buffer = &question["buffer"];
    match question["op"].as_str().unwrap_or_default() {
        "limit-turns" => {
            let (bytes, turns) = (size()?.min(RAW_MAX), count("turns")?);
            control.send(&json!({}))?;
            own.arena.ping_pong(Side::Server, bytes, turns).map(drop)
        }
        "limit-futex" => {
            let turns = count("turns")?;
            control.send(&json!({}))?;
            own.arena.futex_turns(Side::Server, turns).map(drop)
        }
        "limit-stream" => {
            let messages = count("messages")?;
            control.send(&json!({}))?;
            own.arena.stream(Side::Server, messages).map(drop)
        }
        "limit-buffers" => {
            let mut answer = described(own, size()?)?;
            let peer = of(own, buffer, "target")?;
            answer["allowed"] = json!(process_vm::is_allowed(&mut own.buffers, peer)?);
            control.send(&answer)
        }
        "limit-writes" => {
            let (peer, turns) = (of(own, buffer, "target")?, count("turns")?);
            own.buffers.clean_target()?;
            control.send(&json!({}))?;
            process_vm::write_turns(&mut own.buffers, peer, Side::Server, turns).map(drop)
        }
        "limit-halves" => {
            let peer = of(own, buffer, "source")?;
            let what = (Side::Server, size()?, count("copies")?);
            control.send(&json!({}))?;
            copy_halves(own, peer, what).map(drop)
        }
        other => Err(unknown(other)),
    }
}
