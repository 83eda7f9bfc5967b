//! The receive side of Unreliable connections.
//!
//! Frames have numbers here, too, so that duplicates and losses are noticed. A late frame may still deliver whole
//! messages. Each piece of a message must follow the one before; otherwise the message is dropped, and the receive
//! descriptor reports PARTIAL_ERROR (spec §6.2), or an asynchronous error reports an RDMA Write without immediate data
//! (E12).

use vipl_abi::*;

use super::Connection;
use crate::arrivals::Pieces;
use crate::config::NEVER;
use crate::env::Env;
use crate::frame::Header;
use crate::part::{Part, PartKind, Parts};
use crate::receiver::Arriving;

/// How long to wait for the next piece of a message.
const PIECE_WAIT_NS: u64 = 100_000_000;

impl Connection {
    /// Handles a DATA frame of an Unreliable connection.
    pub(super) fn take_unreliable<E: Env>(&mut self, header: &Header, body: &[u8], env: &mut E) {
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
                // Duplicates have been dropped with their frame: this piece is the next one, or early.
                let same = part.kind != PartKind::Write || pieces.range == part.range();
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
            // A newer message: the rest of the current one is lost.
            self.give_up_message(env);
            if !self.is_open() {
                return;
            }
        }
        if part.is_first() && (in_turn || part.is_last()) {
            self.next_piece(part, payload, env);
        }
    }

    /// Delivers a whole message, or its next piece.
    fn next_piece<E: Env>(&mut self, part: &Part, payload: &[u8], env: &mut E) {
        self.arrivals.pieces = None;
        self.arrivals.due_ns = NEVER;
        let write = part.kind == PartKind::Write;
        if write {
            let (range, begun) = (part.range(), !part.is_first());
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
                arriving: Arriving::after(part),
                range: part.range(),
            });
            self.arrivals.due_ns = self.now_ns + PIECE_WAIT_NS;
        } else if !write {
            self.received_whole(part, VIP_STATUS_OP_RECEIVE, env);
        } else if part.flagged {
            self.announce_write(part, env);
        }
    }

    /// The rest of a message is lost.
    #[cold]
    pub(super) fn give_up_message<E: Env>(&mut self, env: &mut E) {
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
