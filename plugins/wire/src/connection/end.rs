//! The end of a connection: by the peer's CLOSE, by an error on this side, or by a dead peer.

use vipl_abi::*;

use super::{Connection, Phase};
use crate::closing::{Body, Closing, Reason, send_empty};
use crate::env::{Cause, Env, Transmit};
use crate::frame::{Header, Kind};

/// How long to wait for frames that a CLOSE has overtaken.
const OVERTAKEN_NS: u64 = 20_000_000;
impl Connection {
    /// Handles the CLOSE of the peer. Frames that were sent before it may still arrive.
    #[cold]
    pub(super) fn take_close<E: Env>(&mut self, header: &Header, body: &[u8], env: &mut E) {
        let Some(body) = Body::parse(body) else {
            return self.nonsense(env);
        };
        let confirm = self.header(Kind::Closed, self.sender.inflight.next());
        send_empty(&confirm, &mut self.seals, env);
        if matches!(self.phase, Phase::Open) {
            self.phase = Phase::Leaving {
                body,
                last: header.sequence,
                until_ns: self.now_ns + OVERTAKEN_NS,
            };
        }
        self.check_leaving(env);
    }

    /// Checks whether all frames that were sent before the CLOSE have arrived.
    #[cold]
    pub(super) fn check_leaving<E: Env>(&mut self, env: &mut E) {
        if let Phase::Leaving { body, last, .. } = self.phase
            && last == self.receiver.next()
        {
            self.peer_left(body, env);
        }
    }

    /// Acts on the peer's reason, after all frames that were sent before the CLOSE.
    #[cold]
    pub(super) fn peer_left<E: Env>(&mut self, body: Body, env: &mut E) {
        if body.reason == Reason::Disconnected {
            return self.end(Reason::Lost, Cause::Disconnected, 0, env);
        }
        let cause = self.blame(body, env);
        // A failed completion has ended it already.
        if self.is_open() {
            self.end(Reason::Lost, cause, 0, env);
        }
    }

    /// A protocol violation ends the connection, and has no other effect.
    #[cold]
    pub(super) fn nonsense<E: Env>(&mut self, env: &mut E) {
        self.end(Reason::Lost, Cause::LOST, 0, env);
    }

    /// Ends the connection from this side because of an error.
    #[cold]
    pub(super) fn end<E: Env>(&mut self, reason: Reason, cause: Cause, opcode: u32, env: &mut E) {
        self.end_blaming(reason, self.receiver.operations(), cause, opcode, env);
    }

    /// The same; `operations` of the peer have been processed, and the next one has failed.
    #[cold]
    pub(super) fn end_blaming<E: Env>(
        &mut self,
        reason: Reason,
        operations: u32,
        cause: Cause,
        opcode: u32,
        env: &mut E,
    ) {
        self.say_close(reason, operations, env);
        env.fail(cause, opcode);
    }

    /// A completion could not be written: the host has broken the connection.
    #[cold]
    pub(super) fn broken<E: Env>(&mut self, env: &mut E) {
        self.say_close(Reason::Lost, self.receiver.operations(), env);
    }

    /// Sends a CLOSE, unless the peer has sent one before.
    pub(super) fn say_close<T: Transmit>(&mut self, reason: Reason, operations: u32, out: &mut T) {
        if self.closing.is_some() {
            return;
        }
        self.look_at_clock(out);
        let known = matches!(self.phase, Phase::Leaving { .. });
        self.phase = Phase::Ended;
        let header = self.header(Kind::Close, self.sender.inflight.next());
        let body = Body {
            reason,
            from_vi: self.config.own_vi,
            operations,
        };
        let mut closing = Closing::new(header, body, known, self.seals.take());
        closing.timeout(self.now_ns, out);
        self.closing = Some(closing);
    }

    /// The peer is dead (E5, E12, E14, E17): the oldest operation fails, or what was in progress is reported.
    #[cold]
    pub(super) fn peer_is_dead<E: Env>(&mut self, env: &mut E) {
        let async_error = |code: VIP_ERROR_CODE| Cause::Async(code as u32);
        let transport = VIP_STATUS_TRANSPORT_ERROR;
        let idle = self.sender.operations.is_empty();
        let mut cause = if idle && env.sends_posted() != env.sends_completed() {
            self.fail_unsent(transport, env)
        } else {
            self.fail_first(transport, env)
        };
        let mut opcode = 0;
        let answering = !self.sender.serving.is_empty() || self.sender.inflight.has_answer();
        if cause == Cause::LOST && answering {
            cause = async_error(VIP_ERROR_CODE::VIP_ERROR_RDMA_TRANSPORT);
            opcode = VIP_STATUS_OP_RDMA_READ;
        } else if cause == Cause::LOST && self.receiver.writing.is_some() {
            cause = async_error(VIP_ERROR_CODE::VIP_ERROR_RDMAW_ABORT);
            opcode = VIP_STATUS_OP_REMOTE_RDMA_WRITE;
        }
        if self.is_open() {
            self.end(Reason::Lost, cause, opcode, env);
        }
    }
}
