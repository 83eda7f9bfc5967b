//! The usual case of programs that take turns: one small message, while nothing else is in progress. The functions for
//! all cases do the same, with a loop around each step, and note most of it before the frame leaves.

use vipl_abi::VIP_STATUS_OP_RECEIVE;

use super::{Connection, Phase};
use crate::env::{Env, Level, Operation};
use crate::frame::{HEADER, Header, Kind, TRAILER, is_intact, split};
use crate::inflight::Load;
use crate::part::{Part, PartKind, Parts};

/// Bytes before the message.
const BEFORE: usize = HEADER + PartKind::Send.header();

impl Connection {
    /// Whether the connection is open, and reliable, and its frames have no seals.
    #[inline(always)]
    fn is_plain(&self) -> bool {
        let reliable = self.config.level != Level::Unreliable;
        matches!(self.phase, Phase::Open) && reliable && self.seals.is_none()
    }

    /// Whether nothing is in progress on the send side, and a frame may leave now that need not ask for an acknowledgement.
    #[inline(always)]
    fn is_idle(&self) -> bool {
        let sender = &self.sender;
        self.is_plain()
            && sender.operations.is_empty()
            && sender.inflight.is_empty()
            && sender.serving.is_empty()
            && !sender.pace.is_careful()
            && sender.window > 1
    }

    /// Sends what is posted, if that is one message that fits into a frame, and nothing else is in progress. False: this has
    /// still to be done, or reported.
    #[inline(always)]
    pub(super) fn send_alone<E: Env>(&mut self, env: &mut E) -> bool {
        let number = env.sends_completed();
        if !self.is_idle() || env.sends_posted().wrapping_sub(number) != 1 {
            return false;
        }
        debug_assert!(!self.sender.halted && self.sender.reads_open == 0);
        let Ok(outgoing) = env.outgoing(number) else {
            return false;
        };
        let length = outgoing.length as usize;
        if outgoing.operation != Operation::Send || length > self.room - PartKind::Send.header() {
            return false;
        }
        let Some(mut frame) = env.frame() else {
            return false;
        };
        let buffer = &mut frame.as_mut()[..BEFORE + length + TRAILER];
        let payload = &mut buffer[BEFORE..BEFORE + length];
        if env.gather(&outgoing.segments, 0, payload).is_err() {
            return false;
        }
        let part = Part {
            kind: PartKind::Send,
            flagged: outgoing.flagged,
            bytes: outgoing.length as u16,
            number: self.sender.messages,
            immediate: self.carried(&outgoing),
            total: outgoing.length,
            offset: 0,
            address: 0,
            handle: 0,
        };
        part.emit(&mut buffer[HEADER..]);
        let sequence = self.sender.inflight.next();
        let header = self.header(Kind::Data, sequence);
        let bytes = header.emit(buffer, BEFORE - HEADER + length);
        env.transmit(frame, bytes);
        // All that follows is done while the frame travels.
        self.blocked = false;
        self.sender.answered_last = false;
        self.sender.begin(&outgoing, part.immediate);
        let first = self.sender.last_number();
        if let Some(begun) = self.sender.operations.back_mut() {
            begun.note_left(outgoing.length, sequence);
        }
        self.sender.inflight.push(Load::Whole { first, count: 1 });
        self.note_left(sequence, env);
        true
    }

    /// Takes a frame that has one whole message, the next one, into a receive descriptor with room for it. False: this has
    /// still to be done, or reported.
    #[inline(never)]
    pub(super) fn take_alone<E: Env>(&mut self, frame: &[u8], env: &mut E) -> bool {
        let Some((head, body, crc)) = split(frame).filter(|_| Kind::Data.is_of(frame)) else {
            return false;
        };
        let header = Header::read(head, Kind::Data);
        let is_next = header.check == self.peer_check
            && header.to_vi == self.config.own_vi
            && header.sequence == self.receiver.next()
            && header.flags == 0
            && self.receiver.is_idle()
            && self.is_plain();
        let Some((part, payload)) = Parts::message(body).filter(|_| is_next) else {
            return false;
        };
        let number = env.receives_completed();
        let has_place = part.number == self.receiver.messages && number != env.receives_posted();
        if !has_place || part.total > self.config.max_transfer || !is_intact(frame, body, crc) {
            return false;
        }
        let Ok(incoming) = env.incoming(number, Some(part.total)) else {
            return false;
        };
        let has_room = u64::from(part.total) <= incoming.capacity;
        if !has_room || env.scatter(&incoming.segments, 0, payload).is_err() {
            return false;
        }
        self.keepalive.heard(self.now_ns);
        let (inflight, next) = (&mut self.sender.inflight, header.acknowledged);
        match inflight.only_one_arrived(next, self.now_ns) {
            Some(progress) => self.apply(&header, &progress, env),
            None => self.acknowledged(&header, &[], env),
        }
        if self.is_open() && self.received_whole(&part, VIP_STATUS_OP_RECEIVE, env) {
            self.receiver.advance();
            self.acks.owe(self.now_ns);
        }
        true
    }
}
