//! Delivery: parts of frames that are in order, into receive descriptors and into the application's memory. Some of it
//! is shared with Unreliable connections.

use vipl_abi::*;

use super::Connection;
use crate::closing::Reason;
use crate::env::{Cause, Env, Level};
use crate::part::{Part, PartKind};
use crate::receiver::Arriving;

const EMPTY: u32 = VIP_ERROR_CODE::VIP_ERROR_RECVQ_EMPTY as u32;
const RDMAW_PROT: u32 = VIP_ERROR_CODE::VIP_ERROR_RDMAW_PROT as u32;

impl Connection {
    /// Delivers a part that is in order. `payload` is absent if its bytes have been placed already.
    #[inline(always)]
    pub(super) fn deliver<E: Env>(&mut self, part: &Part, payload: Option<&[u8]>, env: &mut E) {
        match part.kind {
            PartKind::Send | PartKind::Piece => self.deliver_message(part, payload, env),
            PartKind::Write => self.deliver_write(part, payload, env),
            PartKind::Read => self.read_asked(part, env),
            PartKind::Data => self.answer_arrived(part, payload, env),
        }
    }

    #[inline(always)]
    fn deliver_message<E: Env>(&mut self, part: &Part, payload: Option<&[u8]>, env: &mut E) {
        let receiver = &mut self.receiver;
        let in_order = follows(receiver.receiving, receiver.messages, part);
        if !in_order || receiver.writing.is_some() || part.total > self.config.max_transfer {
            return self.nonsense(env);
        }
        if let Some(payload) = payload
            && !self.fill(part, payload, env)
        {
            return;
        }
        if part.is_last() {
            self.receiver.receiving = None;
            self.received_whole(part, VIP_STATUS_OP_RECEIVE, env);
        } else {
            self.receiver.receiving = Some(Arriving::after(part));
        }
    }

    /// Copies the bytes of a part into the oldest receive descriptor. False: that has failed, and the failure has been
    /// reported.
    #[inline(always)]
    pub(super) fn fill<E: Env>(&mut self, part: &Part, payload: &[u8], env: &mut E) -> bool {
        let number = env.receives_completed();
        if number == env.receives_posted() {
            self.nothing_posted(env);
            return false;
        }
        let status = match env.incoming(number, Some(part.total)) {
            Ok(incoming) if u64::from(part.total) > incoming.capacity => VIP_STATUS_LENGTH_ERROR,
            Ok(incoming) => match env.scatter(&incoming.segments, part.offset, payload) {
                Ok(()) => return true,
                Err(_) => VIP_STATUS_PROTECTION_ERROR,
            },
            Err(status) => status,
        };
        self.cannot_receive(status, 0, env);
        false
    }

    /// Completes the oldest receive descriptor with success. False: the connection has ended.
    #[inline(always)]
    pub(super) fn received_whole<E: Env>(&mut self, part: &Part, opcode: u32, env: &mut E) -> bool {
        let carried = part.flagged || self.config.carry_immediate;
        let immediate = if carried { part.immediate } else { 0 };
        let flag = if part.flagged {
            VIP_STATUS_IMMEDIATE
        } else {
            0
        };
        if !env.complete_receive(opcode | flag, part.total, immediate) {
            self.broken(env);
            return false;
        }
        self.receiver.messages = self.receiver.messages.wrapping_add(1);
        self.receiver.count_operation();
        true
    }

    #[inline(always)]
    fn deliver_write<E: Env>(&mut self, part: &Part, payload: Option<&[u8]>, env: &mut E) {
        let receiver = &mut self.receiver;
        let in_order = follows(receiver.writing, receiver.writes, part);
        if !in_order || receiver.receiving.is_some() || part.total > self.config.max_transfer {
            return self.nonsense(env);
        }
        if let Some(payload) = payload.filter(|payload| !payload.is_empty())
            && env
                .place(&part.range(), part.offset, payload, false)
                .is_err()
        {
            return self.refuse_write(part, env);
        }
        if !part.is_last() {
            self.receiver.writing = Some(Arriving::after(part));
            return;
        }
        self.receiver.writing = None;
        self.receiver.writes = self.receiver.writes.wrapping_add(1);
        if part.flagged {
            self.announce_write(part, env);
        } else {
            self.receiver.count_operation();
        }
    }

    /// The immediate data of an RDMA Write consumes a receive descriptor, whose segments are not used (spec §5.5).
    /// False: that has failed, and the failure has been reported.
    #[cold]
    pub(super) fn announce_write<E: Env>(&mut self, part: &Part, env: &mut E) -> bool {
        let number = env.receives_completed();
        if number == env.receives_posted() {
            self.nothing_posted(env);
            return false;
        }
        if let Err(status) = env.incoming(number, None) {
            self.cannot_receive(status, 0, env);
            return false;
        }
        self.received_whole(part, VIP_STATUS_OP_REMOTE_RDMA_WRITE, env)
    }

    /// E6: no receive descriptor.
    #[cold]
    pub(super) fn nothing_posted<E: Env>(&mut self, env: &mut E) {
        let opcode = VIP_STATUS_OP_RECEIVE;
        if self.config.level == Level::Unreliable {
            return env.raise(EMPTY, opcode);
        }
        self.end(Reason::ReceiveFailed, Cause::Async(EMPTY), opcode, env);
    }

    /// E7, E8: completes the receive descriptor with an error; on the reliable levels the connection ends.
    #[cold]
    pub(super) fn cannot_receive<E: Env>(&mut self, status: u32, length: u32, env: &mut E) {
        if !env.complete_receive(status | VIP_STATUS_OP_RECEIVE, length, 0) {
            return self.broken(env);
        }
        if self.config.level != Level::Unreliable {
            self.end(Reason::ReceiveFailed, Cause::Reported, 0, env);
        }
    }

    /// E9, E10: the range of an RDMA Write is not permitted.
    #[cold]
    pub(super) fn refuse_write<E: Env>(&mut self, part: &Part, env: &mut E) {
        let (opcode, reason) = (VIP_STATUS_OP_REMOTE_RDMA_WRITE, Reason::TargetRefused);
        let unreliable = self.config.level == Level::Unreliable;
        let number = env.receives_completed();
        if !part.flagged || number == env.receives_posted() {
            return if unreliable {
                env.raise(RDMAW_PROT, opcode);
            } else {
                self.end(reason, Cause::Async(RDMAW_PROT), opcode, env);
            };
        }
        if let Err(status) = env.incoming(number, None) {
            return self.cannot_receive(status, 0, env);
        }
        let carried = part.immediate;
        if !env.complete_receive(VIP_STATUS_RDMA_PROT_ERROR | opcode, 0, carried) {
            return self.broken(env);
        }
        if !unreliable {
            self.end(reason, Cause::Reported, 0, env);
        }
    }
}

/// Whether a part continues what is arriving, or begins the next message or RDMA Write if nothing is.
#[inline(always)]
fn follows(arriving: Option<Arriving>, next: u32, part: &Part) -> bool {
    part.number == next
        && match arriving {
            None => part.is_first(),
            Some(arriving) => part.offset == arriving.offset && part.total == arriving.total,
        }
}
