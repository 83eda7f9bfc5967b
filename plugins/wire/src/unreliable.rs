//! The receive side of Unreliable connections: what comes is delivered, what does not come is missed.
//!
//! Frames are numbered there too, so that none is taken twice and missing ones are noticed. A frame that
//! comes late is still good for whole messages. Of a message in pieces each piece must follow the one
//! before; otherwise it is given up, and the receive descriptor tells PARTIAL_ERROR (spec §6.2), or for an
//! RDMA Write without immediate data an asynchronous error does (E12).

use vipl_abi::*;

use crate::connection::{Connection, NEVER};
use crate::deliver::behind;
use crate::env::{Env, Remote};
use crate::frame::Header;
use crate::part::{Part, PartKind, Parts};
use crate::receiver::{Arriving, range};

/// How long a message in pieces waits for its next piece.
const PIECE_WAIT_NS: u64 = 100_000_000;
/// Frames that may come late.
const LATE_MAX: u32 = 64;

/// A message or RDMA Write in pieces.
#[derive(Clone, Copy, Debug)]
struct Pieces {
    kind: PartKind,
    flagged: bool,
    immediate: u32,
    arriving: Arriving,
    /// Of an RDMA Write: the pieces behind the first one name the same.
    range: Remote,
}

/// What has arrived on an Unreliable connection.
#[derive(Debug)]
pub(crate) struct Arrivals {
    /// Bit `i`: the frame `i + 1` before the next one has come.
    seen: u64,
    pieces: Option<Pieces>,
    due_ns: u64,
}

impl Default for Arrivals {
    fn default() -> Self {
        Arrivals {
            // What was before the first frame does not come.
            seen: !0,
            pieces: None,
            due_ns: NEVER,
        }
    }
}

impl Arrivals {
    /// When a message in pieces is given up.
    #[inline(always)]
    pub(crate) fn deadline(&self) -> u64 {
        self.due_ns
    }

    /// Notes a frame `ahead` of the next one, or behind it. `None`: it has come before, or is too old;
    /// else whether it comes in turn.
    fn note(&mut self, ahead: i32) -> Option<bool> {
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
}

impl Connection {
    /// Takes a DATA frame on an Unreliable connection.
    pub(crate) fn take_unreliable<E: Env>(&mut self, header: &Header, body: &[u8], env: &mut E) {
        let ahead = header.sequence.wrapping_sub(self.receiver.next()) as i32;
        let Some(in_turn) = self.arrivals.note(ahead) else {
            self.stats.duplicates += 1;
            return;
        };
        if in_turn {
            self.receiver.skip_to(header.sequence.wrapping_add(1));
        }
        for part in Parts::new(body) {
            match part {
                Ok((part, payload)) => self.take_part(&part, payload, in_turn, env),
                Err(()) => self.nonsense(env),
            }
            if !self.is_open() {
                return;
            }
        }
        self.check_leaving(env);
    }

    fn take_part<E: Env>(&mut self, part: &Part, payload: &[u8], in_turn: bool, env: &mut E) {
        if matches!(part.kind, PartKind::Read | PartKind::Data)
            || part.total > self.config.max_transfer
        {
            return self.nonsense(env);
        }
        if let Some(pieces) = self.arrivals.pieces {
            let arriving = pieces.arriving;
            if pieces.kind == part.kind && arriving.number == part.number {
                // A piece that comes twice was dropped with its frame; this one is next or too early.
                let same = part.kind != PartKind::Write || pieces.range == range(part);
                if same && arriving.total == part.total && arriving.offset == part.offset {
                    self.next_piece(part, payload, env);
                } else {
                    self.give_up_message(env);
                }
                return;
            }
            if !in_turn {
                return;
            }
            // Something newer: the rest does not come any more.
            self.give_up_message(env);
            if !self.is_open() {
                return;
            }
        }
        if part.is_first() && (in_turn || part.is_last()) {
            self.next_piece(part, payload, env);
        }
    }

    /// A whole message, or its next piece.
    fn next_piece<E: Env>(&mut self, part: &Part, payload: &[u8], env: &mut E) {
        self.arrivals.pieces = None;
        self.arrivals.due_ns = NEVER;
        let write = part.kind == PartKind::Write;
        if write {
            let (range, begun) = (range(part), !part.is_first());
            let place = |env: &mut E| env.place(&range, part.offset, payload, begun);
            if !payload.is_empty() && place(env).is_err() {
                return self.refuse_write(part, env);
            }
        } else if !self.fill(part, payload, env) {
            return;
        }
        if !part.is_last() {
            self.arrivals.pieces = Some(Pieces {
                kind: part.kind,
                flagged: part.flagged,
                immediate: part.immediate,
                arriving: behind(part),
                range: range(part),
            });
            self.arrivals.due_ns = self.now_ns + PIECE_WAIT_NS;
        } else if !write {
            self.received_whole(part, VIP_STATUS_OP_RECEIVE, env);
        } else if part.flagged {
            self.announce_write(part, env);
        }
    }

    /// The rest of a message does not come.
    #[cold]
    pub(crate) fn give_up_message<E: Env>(&mut self, env: &mut E) {
        self.arrivals.due_ns = NEVER;
        let Some(pieces) = self.arrivals.pieces.take() else {
            return;
        };
        let (mut opcode, mut immediate) = (VIP_STATUS_OP_RECEIVE, 0);
        if pieces.kind == PartKind::Write {
            opcode = VIP_STATUS_OP_REMOTE_RDMA_WRITE;
            immediate = pieces.immediate;
            if !pieces.flagged || env.receives_completed() == env.receives_posted() {
                let code = VIP_ERROR_CODE::VIP_ERROR_RDMAW_ABORT;
                return env.raise(code as u32, opcode);
            }
        }
        let status = VIP_STATUS_PARTIAL_ERROR | opcode;
        if !env.complete_receive(status, pieces.arriving.offset, immediate) {
            self.broken(env);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_frame_once_and_late_ones_too() {
        let mut arrivals = Arrivals::default();
        assert_eq!(arrivals.note(-1), None, "before the first");
        assert_eq!(arrivals.note(0), Some(true));
        assert_eq!(arrivals.note(-1), None, "twice");
        assert_eq!(arrivals.note(2), Some(true), "two are missing");
        assert_eq!(arrivals.note(-2), Some(false));
        assert_eq!(arrivals.note(-3), Some(false));
        assert_eq!(arrivals.note(-3), None);
        assert_eq!(arrivals.note(-4), None, "the very first");
        assert_eq!(arrivals.note(1000), Some(true));
        assert_eq!(arrivals.note(-65), None, "too old");
        assert_eq!(arrivals.note(-64), Some(false));
    }
}
