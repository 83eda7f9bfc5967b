//! RDMA Read: the target, which sends the data, and the initiator, which places it.

use std::sync::atomic::{Ordering, fence};

use vipl_abi::*;

use super::Connection;
use super::build::piece;
use super::send::Step;
use crate::closing::Reason;
use crate::env::{Cause, Env};
use crate::frame::{HEADER, Kind};
use crate::inflight::Load;
use crate::part::{Part, PartKind, WATCHED};
use crate::sender::{Begun, READS_MAX, Serving, Stage};

const REFUSED: Cause = Cause::Async(VIP_ERROR_CODE::VIP_ERROR_RDMAR_PROT as u32);

impl Connection {
    /// Handles a request of the peer, in order.
    #[cold]
    pub(super) fn read_asked<E: Env>(&mut self, part: &Part, env: &mut E) {
        let expected = self.receiver.reads;
        let serving = self.sender.serving.len() as u32;
        let sane = part.number == expected && part.total <= self.config.max_transfer;
        if !sane || serving == READS_MAX {
            return self.nonsense(env);
        }
        let range = part.range();
        if range.length > 0 && env.fetch(&range, 0, &mut []).is_err() {
            return self.end(Reason::TargetRefused, REFUSED, VIP_STATUS_OP_RDMA_READ, env);
        }
        let operation = self.receiver.operations();
        self.receiver.reads = expected.wrapping_add(1);
        self.receiver.count_operation();
        self.sender.serving.push_back(Serving {
            number: part.number,
            operation,
            range,
            offset: 0,
        });
    }

    /// Sends one frame of the oldest answer.
    #[cold]
    pub(super) fn serve_read<E: Env>(&mut self, env: &mut E) -> Step {
        let Some(serving) = self.sender.serving.front().copied() else {
            return Step::Idle;
        };
        let Some(mut frame) = env.frame() else {
            return Step::Full;
        };
        let left = (serving.range.length - serving.offset) as usize;
        let bytes = piece(left, self.room() - PartKind::Data.header()) as u16;
        let load = Load::Answer {
            read: serving.number,
            operation: serving.operation,
            range: serving.range,
            offset: serving.offset,
            bytes,
        };
        let Some(at) = self.answer_again(&load, frame.as_mut(), env) else {
            return Step::Moved;
        };
        match self.sender.serving.front_mut() {
            Some(front) if left > usize::from(bytes) => front.offset += u32::from(bytes),
            _ => drop(self.sender.serving.pop_front()),
        }
        let header = self.header(Kind::Data, self.sender.inflight.next());
        self.sender.inflight.push(load);
        self.transmit(frame, &header, at, env);
        Step::Moved
    }

    /// Builds a piece of an answer, for the first time or again. Returns the end of the body. `None`: the memory may
    /// not be read any more, and the connection has ended (E13).
    #[cold]
    pub(super) fn answer_again<E: Env>(
        &mut self,
        load: &Load,
        buffer: &mut [u8],
        env: &mut E,
    ) -> Option<usize> {
        let Load::Answer {
            read,
            operation,
            range,
            offset,
            bytes,
        } = *load
        else {
            return None;
        };
        let part = Part {
            kind: PartKind::Data,
            flagged: false,
            bytes,
            number: read,
            immediate: 0,
            total: range.length,
            offset,
            address: 0,
            handle: 0,
        };
        let to = HEADER + part.kind.header();
        let end = to + usize::from(bytes);
        if bytes > 0 && env.fetch(&range, offset, &mut buffer[to..end]).is_err() {
            let reason = Reason::TargetRefused;
            self.end_blaming(reason, operation, REFUSED, VIP_STATUS_OP_RDMA_READ, env);
            return None;
        }
        part.emit(&mut buffer[HEADER..]);
        Some(end)
    }

    /// Index of the oldest unanswered RDMA Read in the list of operations.
    fn oldest_read(&self) -> Option<usize> {
        self.sender.operations.iter().position(Begun::is_open_read)
    }

    /// Copies a piece of an answer into the segments of the descriptor. The error is a status.
    pub(super) fn place_answer<E: Env>(
        &mut self,
        place: usize,
        part: &Part,
        payload: &[u8],
        env: &mut E,
    ) -> Result<(), u32> {
        let begun = self.sender.operations[place];
        let number = env.sends_completed().wrapping_add(place as u32);
        let outgoing = env.outgoing(number)?;
        let same = outgoing.operation == begun.operation && outgoing.length == begun.length;
        if !same {
            return Err(VIP_STATUS_LENGTH_ERROR | begun.operation.status());
        }
        // The last eight bytes become visible after all others (spec §5.4).
        let watched = if part.is_last() { WATCHED } else { 0 };
        let (first, last) = payload.split_at(payload.len().saturating_sub(watched));
        let behind = part.offset + first.len() as u32;
        env.scatter(&outgoing.segments, part.offset, first)
            .and_then(|()| {
                fence(Ordering::Release);
                env.scatter(&outgoing.segments, behind, last)
            })
            .map_err(|_| VIP_STATUS_PROTECTION_ERROR | begun.operation.status())
    }

    /// Index of the operation to which an out-of-order piece of an answer belongs.
    pub(super) fn read_of(&self, part: &Part) -> Option<usize> {
        let belongs = |begun: &Begun| {
            begun.is_open_read() && (begun.number, begun.length) == (part.number, part.total)
        };
        self.sender.operations.iter().position(belongs)
    }

    /// Handles a piece of an answer that is in order. `payload` is absent if it has been placed already.
    #[cold]
    pub(super) fn answer_arrived<E: Env>(
        &mut self,
        part: &Part,
        payload: Option<&[u8]>,
        env: &mut E,
    ) {
        let Some(place) = self.oldest_read() else {
            return self.nonsense(env);
        };
        let begun = &self.sender.operations[place];
        let fits = part.number == begun.number
            && part.total == begun.length
            && part.offset == self.receiver.answered;
        if !fits {
            return self.nonsense(env);
        }
        if let Some(payload) = payload.filter(|payload| !payload.is_empty())
            && let Err(status) = self.place_answer(place, part, payload, env)
        {
            self.sender.operations[place].stage = Stage::Failed(status);
            self.sender.halted = true;
            return self.reap(env);
        }
        if !part.is_last() {
            self.receiver.answered = part.offset + u32::from(part.bytes);
            return;
        }
        self.receiver.answered = 0;
        self.sender.operations[place].stage = Stage::Answered;
        self.sender.reads_open -= 1;
        self.reap(env);
    }
}
