//! The limits of the machine, which the two processes of a session measure together.
//!
//! ```text
//!   driver                                  server
//!     limit-turns, limit-stream  ────────▶  serves its side of the arena
//!     limit-buffers  ────────────────────▶  both look whether the kernel copies between them
//!     limit-writes, limit-halves  ───────▶  serves its side of the copies
//! ```

#![forbid(unsafe_code)]

use serde_json::{Value, json};

use crate::arena::{Arena, RAW_MAX, Side};
use crate::limits;
use crate::process_vm::{self, Remote};
use crate::session::Session;
use crate::{Error, Result};

/// What an answer says when there is no arena.
pub const NEEDS_SELF: &str = "--limits needs --self: limits are those of one machine";

/// Messages of the raw ring; some ten milliseconds.
const RING_MESSAGES: u64 = 400_000;
/// Turns of polled writes; some ten milliseconds.
const WRITE_TURNS: u64 = 6_000;

fn arena(session: &Session) -> Result<&Arena> {
    let missing = || Error::Usage(NEEDS_SELF.to_owned());
    session.arena.as_ref().ok_or_else(missing)
}

/// One way of a cache line in ns, the mean over all lines of the arena; of a message of `bytes` that is
/// copied in and copied out, if there are bytes. None above the largest message.
///
/// # Errors
/// The partner does not answer.
pub fn one_way(session: &mut Session, bytes: usize) -> Result<Option<f64>> {
    if bytes > RAW_MAX {
        return Ok(None);
    }
    let turns = limits::turns_for(bytes);
    arena(session)?.reset();
    session.ask(&json!({"op": "limit-turns", "size": bytes, "turns": turns}))?;
    arena(session)?
        .ping_pong(Side::Driver, bytes, turns)
        .map(Some)
}

/// Messages per second through a ring of cache lines.
///
/// # Errors
/// The partner does not go on.
pub fn ring_rate(session: &mut Session) -> Result<f64> {
    arena(session)?.reset();
    session.ask(&json!({"op": "limit-stream", "messages": RING_MESSAGES}))?;
    arena(session)?.stream(Side::Driver, RING_MESSAGES)
}

/// Copies by the kernel into the partner's memory, in GB/s; None where it forbids them.
///
/// # Errors
/// The partner does not answer.
pub fn write_rate(session: &mut Session, bytes: usize) -> Result<Option<f64>> {
    match buffers(session, bytes)? {
        Some(partner) => process_vm::write_rate(&mut session.buffers, partner, bytes),
        None => Ok(None),
    }
}

/// One way of eight bytes in ns that the kernel writes into memory that is polled; None where it forbids it.
///
/// # Errors
/// The partner does not answer.
pub fn write_turns(session: &mut Session) -> Result<Option<f64>> {
    let Some(partner) = buffers(session, 4096)? else {
        return Ok(None);
    };
    session.buffers.clean_target()?;
    let buffer = own(session, 4096)?;
    session.ask(&json!({"op": "limit-writes", "turns": WRITE_TURNS, "buffer": buffer}))?;
    process_vm::write_turns(&mut session.buffers, partner, Side::Driver, WRITE_TURNS).map(Some)
}

/// Copies by the kernel from process to process, one half by each of the two, in GB/s; None where it
/// forbids them.
///
/// # Errors
/// The partner does not go on.
pub fn halves_rate(session: &mut Session, bytes: usize) -> Result<Option<f64>> {
    let Some(partner) = buffers(session, bytes)? else {
        return Ok(None);
    };
    let copies = ((256 << 20) / bytes.max(4096)).clamp(64, 2048) as u64;
    arena(session)?.reset();
    let buffer = own(session, bytes)?;
    session
        .ask(&json!({"op": "limit-halves", "size": bytes, "copies": copies, "buffer": buffer}))?;
    copy_halves(session, partner, (Side::Driver, bytes, copies)).map(Some)
}

fn copy_halves(session: &mut Session, remote: Remote, what: (Side, usize, u64)) -> Result<f64> {
    let Session { arena, buffers, .. } = session;
    let arena = arena
        .as_ref()
        .ok_or_else(|| Error::Usage(NEEDS_SELF.to_owned()))?;
    process_vm::copy_halves(buffers, arena, remote, what)
}

/// The buffers of this side, for the partner: the one that it may read, and the one that it may write.
fn own(session: &mut Session, bytes: usize) -> Result<Value> {
    let target = session.buffers.target(bytes)?;
    let source = session.buffers.source(bytes)?;
    Ok(json!({"pid": std::process::id(), "source": source, "target": target}))
}

fn of(value: &Value, place: &str) -> Remote {
    let number = |name: &str| value[name].as_u64().unwrap_or(0);
    Remote {
        pid: number("pid") as u32,
        address: number(place),
    }
}

/// The partner's buffer that this side may write, if the kernel allows it to both.
fn buffers(session: &mut Session, bytes: usize) -> Result<Option<Remote>> {
    let own = own(session, bytes)?;
    let answer = session.ask(&json!({"op": "limit-buffers", "size": bytes, "buffer": own}))?;
    let partner = of(&answer, "target");
    let theirs = answer["allowed"].as_bool().unwrap_or(false);
    let allowed = theirs && process_vm::is_allowed(&mut session.buffers, partner)?;
    Ok(allowed.then_some(partner))
}

/// The server's side of one question, answered here.
///
/// # Errors
/// The driver is gone, or does not do what it asked for.
pub(crate) fn serve(session: &mut Session, question: &Value) -> Result<()> {
    let number = |name: &str| question[name].as_u64().unwrap_or(0);
    let (bytes, buffer) = (number("size") as usize, &question["buffer"]);
    match question["op"].as_str().unwrap_or_default() {
        "limit-turns" => {
            session.reply(&json!({}))?;
            let turns = number("turns");
            let played = arena(session)?.ping_pong(Side::Server, bytes.min(RAW_MAX), turns);
            played.map(|_| ())
        }
        "limit-stream" => {
            session.reply(&json!({}))?;
            arena(session)?
                .stream(Side::Server, number("messages"))
                .map(|_| ())
        }
        "limit-buffers" => {
            let mut answer = own(session, bytes)?;
            let allowed = process_vm::is_allowed(&mut session.buffers, of(buffer, "target"))?;
            answer["allowed"] = json!(allowed);
            session.reply(&answer)
        }
        "limit-writes" => {
            session.buffers.clean_target()?;
            session.reply(&json!({}))?;
            let partner = of(buffer, "target");
            let turns = number("turns");
            process_vm::write_turns(&mut session.buffers, partner, Side::Server, turns).map(|_| ())
        }
        "limit-halves" => {
            session.reply(&json!({}))?;
            let what = (Side::Server, bytes, number("copies"));
            copy_halves(session, of(buffer, "source"), what).map(|_| ())
        }
        other => Err(Error::Partner(format!("unknown request {other:?}"))),
    }
}
