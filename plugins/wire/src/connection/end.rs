//! The end of a connection: by the peer's CLOSE, by an error on this side, or by a dead peer.

use vipl_abi::*;

use super::{Connection, Phase, output};
use crate::closing::{Body, Closing, End, Reason};
use crate::env::{Cause, Env, Transmit};
use crate::frame::{Header, Kind};

/// How long to wait for frames that a CLOSE has overtaken.
const OVERTAKEN_NS: u64 = 20_000_000;

impl Connection {
    /// Handles the CLOSE of the peer. Frames that were sent before it may still arrive.
    #[cold]
    pub(super) fn take_close<E: Env>(
        &mut self,
        header: &Header,
        body: &[u8],
        env: &mut E,
    ) -> Result<(), End> {
        let body = Body::parse(body).ok_or(End::VIOLATION)?;
        let mut out = output(&mut self.framing, &self.send, &self.receive, env);
        out.send_empty(Kind::Closed);
        if matches!(self.phase, Phase::Open) {
            self.phase = Phase::Leaving {
                body,
                last: header.sequence,
                until_ns: self.framing.now_ns() + OVERTAKEN_NS,
            };
        }
        Ok(())
    }

    /// Ends the connection because of an error.
    #[cold]
    pub(super) fn end<E: Env>(&mut self, end: End, env: &mut E) {
        let operations = end.failed.unwrap_or(self.receive.operations());
        self.phase = Phase::Ended(self.send_close(end.reason, operations, env));
        if let Some((cause, opcode)) = end.report {
            env.fail(cause, opcode);
        }
    }

    /// Sends a CLOSE, unless the peer has sent one before. `operations` of the peer have been processed.
    pub(super) fn send_close<T: Transmit>(
        &mut self,
        reason: Reason,
        operations: u32,
        out: &mut T,
    ) -> Closing {
        let known = matches!(self.phase, Phase::Leaving { .. });
        output(&mut self.framing, &self.send, &self.receive, out).read_clock();
        let numbers = self.receive.numbers(self.send.inflight().next());
        let body = Body {
            reason,
            from_vi: self.own_vi,
            operations,
        };
        let mut closing = Closing::new(body, known, self.framing.take(), numbers);
        closing.timeout(self.framing.now_ns(), out);
        closing
    }

    /// The peer is dead (E5, E12, E14, E17): the oldest operation fails, or what was in progress is reported.
    #[cold]
    pub(super) fn peer_is_dead<E: Env>(&mut self, env: &mut E) -> End {
        let end = self.send.operations().peer_is_dead(env);
        let (code, opcode) = if end != End::LOST {
            return end;
        } else if self.send.is_answering() {
            let code = VIP_ERROR_CODE::VIP_ERROR_RDMA_TRANSPORT;
            (code, VIP_STATUS_OP_RDMA_READ)
        } else if self.receive.is_writing() {
            let code = VIP_ERROR_CODE::VIP_ERROR_RDMAW_ABORT;
            (code, VIP_STATUS_OP_REMOTE_RDMA_WRITE)
        } else {
            return end;
        };
        End::new(Reason::Lost, Cause::Async(code as u32), opcode)
    }
}
