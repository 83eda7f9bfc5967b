//! The receive side of Unreliable connections.
//!
//! Frames have numbers here, too, so that duplicates and losses are noticed. A late frame may still deliver whole
//! messages. Each piece of a message must follow the one before; otherwise the message is dropped, and the receive
//! descriptor reports PARTIAL_ERROR (spec §6.2), or an asynchronous error reports an RDMA Write without immediate data
//! (E12).

use vipl_abi::*;

use crate::closing::End;
use crate::config::NEVER;
use crate::delivery::{Arriving, Delivery};
use crate::env::{Env, Remote};
use crate::part::{Part, PartKind, Parts};

/// How long to wait for the next piece of a message.
const PIECE_WAIT_NS: u64 = 100_000_000;
/// How far behind the latest frame a late one may be.
const LATE_MAX: u32 = 64;

/// A message or RDMA Write that arrives in pieces.
#[derive(Clone, Copy, Debug)]
struct Pieces {
    kind: PartKind,
    flagged: bool,
    immediate: u32,
    arriving: Arriving,
    /// The remote range of an RDMA Write, which all its pieces name.
    range: Remote,
}

/// What has arrived on an Unreliable connection.
#[derive(Debug)]
pub(crate) struct Unreliable {
    /// Bit `i`: the frame `i + 1` before the next one has arrived.
    seen: u64,
    pieces: Option<Pieces>,
    due_ns: u64,
}

impl Unreliable {
    pub(crate) fn new() -> Unreliable {
        Unreliable {
            // Frames before the first one do not exist.
            seen: !0,
            pieces: None,
            due_ns: NEVER,
        }
    }

    /// When a message in pieces is given up.
    pub(crate) fn deadline(&self) -> u64 {
        self.due_ns
    }

    /// Records a frame `ahead` of the next one, or behind it if negative. `None`: it is a duplicate or too old;
    /// otherwise, whether it is in order.
    pub(crate) fn note(&mut self, ahead: i32) -> Option<bool> {
        if ahead >= 0 {
            let shift = ahead as u32 + 1;
            self.seen = self.seen.checked_shl(shift).unwrap_or(0) | 1;
            return Some(true);
        }
        let back = ahead.unsigned_abs() - 1;
        if back >= LATE_MAX || self.seen >> back & 1 == 1 {
            return None;
        }
        self.seen |= 1 << back;
        Some(false)
    }

    /// Delivers the parts of a frame.
    pub(crate) fn take<E: Env>(
        &mut self,
        body: &[u8],
        in_order: bool,
        now_ns: u64,
        delivery: &mut Delivery,
        env: &mut E,
    ) -> Result<(), End> {
        for part in Parts::new(body) {
            let (part, payload) = part.map_err(|()| End::VIOLATION)?;
            if matches!(part.kind, PartKind::Read | PartKind::Data) || !delivery.permits(&part) {
                return Err(End::VIOLATION);
            }
            if self.accepts(&part, in_order, env)? {
                self.deliver(&part, payload, now_ns, delivery, env)?;
            }
        }
        Ok(())
    }

    /// Whether a part is the next one to deliver. Gives up an incomplete message that it does not continue.
    fn accepts<E: Env>(&mut self, part: &Part, in_order: bool, env: &mut E) -> Result<bool, End> {
        if let Some(pieces) = self.pieces {
            if pieces.kind == part.kind && pieces.arriving.has(part) {
                // Duplicates have been dropped with their frame: this piece is the next one, or early.
                let same = part.kind != PartKind::Write || pieces.range == part.range();
                let next = same && pieces.arriving.continues(part);
                if !next {
                    self.give_up(env)?;
                }
                return Ok(next);
            }
            if !in_order {
                return Ok(false);
            }
            // A newer message: the rest of the current one is lost.
            self.give_up(env)?;
        }
        Ok(part.is_first() && (in_order || part.is_last()))
    }

    /// Delivers a whole message, or its next piece.
    fn deliver<E: Env>(
        &mut self,
        part: &Part,
        payload: &[u8],
        now_ns: u64,
        delivery: &mut Delivery,
        env: &mut E,
    ) -> Result<(), End> {
        self.pieces = None;
        self.due_ns = NEVER;
        let write = part.kind == PartKind::Write;
        if write {
            let (range, begun) = (part.range(), !part.is_first());
            let place = |env: &mut E| env.place(&range, part.offset, payload, begun);
            if !payload.is_empty() && place(env).is_err() {
                return delivery.refuse_write(part, env);
            }
        } else if !delivery.fill(part, payload, env)? {
            return Ok(());
        }
        if !part.is_last() {
            self.pieces = Some(Pieces {
                kind: part.kind,
                flagged: part.flagged,
                immediate: part.immediate,
                arriving: Arriving::after(part),
                range: part.range(),
            });
            self.due_ns = now_ns + PIECE_WAIT_NS;
            Ok(())
        } else if !write {
            delivery.complete(part, VIP_STATUS_OP_RECEIVE, env)
        } else if part.flagged {
            delivery.announce_write(part, env)
        } else {
            Ok(())
        }
    }

    /// The rest of a message is lost.
    #[cold]
    pub(crate) fn give_up<E: Env>(&mut self, env: &mut E) -> Result<(), End> {
        self.due_ns = NEVER;
        let Some(pieces) = self.pieces.take() else {
            return Ok(());
        };
        let (mut opcode, mut immediate) = (VIP_STATUS_OP_RECEIVE, 0);
        if pieces.kind == PartKind::Write {
            opcode = VIP_STATUS_OP_REMOTE_RDMA_WRITE;
            immediate = pieces.immediate;
            if !pieces.flagged || env.receives_completed() == env.receives_posted() {
                let code = VIP_ERROR_CODE::VIP_ERROR_RDMAW_ABORT;
                env.raise(code as u32, opcode);
                return Ok(());
            }
        }
        let status = VIP_STATUS_PARTIAL_ERROR | opcode;
        if env.complete_receive(status, pieces.arriving.bytes(), immediate) {
            Ok(())
        } else {
            Err(End::BROKEN)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_frame_once_and_late_ones_too() {
        let mut unreliable = Unreliable::new();
        assert_eq!(unreliable.note(-1), None, "before the first");
        assert_eq!(unreliable.note(0), Some(true));
        assert_eq!(unreliable.note(-1), None, "twice");
        assert_eq!(unreliable.note(2), Some(true), "two are missing");
        assert_eq!(unreliable.note(-2), Some(false));
        assert_eq!(unreliable.note(-3), Some(false));
        assert_eq!(unreliable.note(-3), None);
        assert_eq!(unreliable.note(-4), None, "the very first");
        assert_eq!(unreliable.note(1000), Some(true));
        assert_eq!(unreliable.note(-65), None, "too old");
        assert_eq!(unreliable.note(-64), Some(false));
    }
}
