//! What an endpoint sends: messages, RDMA, and messages about the connection.
//!
//! Operations are posted in the order in which the program gives them. One that needs several descriptors, or finds no
//! room, waits in the queue and is posted by [`Endpoint::pump`] as room comes. Answers to reads of the peer do not wait
//! behind them: the peer's program may post receives only when its read has ended.

use vipl_abi::*;

use super::Shared;
use super::block::SENDS;
use super::endpoint::{Endpoint, State};
use super::operation::{Operation, Sent, Waiting, Work};
use super::queues::{Completion, Context};
use crate::attributes::{INJECT, WAITING};
use crate::credit::READS;
use crate::fi::{FI_COMPLETION, FI_INJECT};
use crate::iov::Piece;
use crate::packet::{Header, Kind, LONGEST_HEADER, ReadAnswer, ReadRequest};

/// Descriptors that operations leave to messages about the connection.
const KEPT: usize = 8;

/// What one step of an operation came to.
enum Step {
    /// All of it is posted.
    Finished,
    /// A part of it is posted.
    Further,
    /// There is no room or no credit.
    Blocked,
}

impl Endpoint {
    #[inline]
    fn room(&self) -> usize {
        SENDS - self.tail.wrapping_sub(self.head)
    }

    /// Operations that may still be submitted.
    pub(crate) fn room_for_operations(&self) -> usize {
        WAITING - self.queue.len()
    }

    /// Posts the descriptor at the ring's end.
    #[inline]
    fn post(
        &mut self,
        control: u16,
        remote: Option<(u64, u32)>,
        pieces: impl Iterator<Item = Piece>,
        sent: Sent,
        shared: &Shared,
    ) {
        let at = self.tail % SENDS;
        let descriptor = self.block.prepare(at, control, remote, pieces);
        self.reporting += usize::from(matches!(sent, Sent::Operation { .. }));
        self.sent[at] = sent;
        self.tail = self.tail.wrapping_add(1);
        // SAFETY: a descriptor of ours that is not posted. An error shows in its status, when it is done.
        unsafe {
            (shared.device.functions.VipPostSend)(self.vi.raw(), descriptor, self.block.handle())
        };
    }

    /// Sends a packet whose payload is copied.
    #[inline]
    fn post_copy(
        &mut self,
        mut header: Header,
        fill: impl FnOnce(&mut [u8]),
        length: usize,
        sent: Sent,
        shared: &Shared,
    ) {
        header.posted = self.credit.send();
        let at = self.tail % SENDS;
        let slot = self.block.slot(at);
        let begin = header.write(slot);
        fill(&mut slot[begin..begin + length]);
        let piece = self.block.slot_piece(at, begin + length);
        self.post(
            VIP_CONTROL_OP_SENDRECV,
            None,
            std::iter::once(piece),
            sent,
            shared,
        );
    }

    /// Sends a packet about the connection.
    pub(super) fn post_control(&mut self, kind: Kind, payload: &[u8], sent: Sent, shared: &Shared) {
        let header = Header {
            kind,
            posted: 0,
            total: None,
            data: None,
        };
        self.post_copy(
            header,
            |to| to.copy_from_slice(payload),
            payload.len(),
            sent,
            shared,
        );
    }

    /// Takes an operation. An error means that it was not taken: FI_EAGAIN when there is no room.
    #[inline]
    pub(crate) fn submit(
        &mut self,
        mut operation: Operation,
        shared: &mut Shared,
    ) -> Result<(), i32> {
        match self.state {
            State::Connected => {}
            State::Ending | State::Ended => return Err(libc::ENOTCONN),
            _ => return Err(libc::EAGAIN),
        }
        let inject = operation.flags & FI_INJECT != 0;
        let copied = inject || matches!(operation.work, Work::Send) && operation.total <= INJECT;
        if inject && operation.total > INJECT || !copied && !operation.iov.is_registered() {
            return Err(libc::EINVAL);
        }
        if self.queue.is_empty() {
            match self.step(&mut operation, shared) {
                Step::Finished => return Ok(()),
                Step::Further => {
                    self.queue.push_back(Waiting::new(operation));
                    self.pump(shared);
                    return Ok(());
                }
                Step::Blocked => {}
            }
        }
        let waiting = match self.queue.len() < WAITING {
            // What is injected is the program's again after the call.
            true if inject => Waiting::copied(operation),
            true => Some(Waiting::new(operation)),
            false => None,
        };
        let Some(waiting) = waiting else {
            self.refused = true;
            return Err(libc::EAGAIN);
        };
        self.queue.push_back(waiting);
        Ok(())
    }

    /// Posts what there is room for.
    pub(super) fn pump(&mut self, shared: &mut Shared) {
        if self.state != State::Connected {
            return;
        }
        if !self.answers.is_empty() {
            self.pump_answers(shared);
        }
        while let Some(mut waiting) = self.queue.pop_front() {
            match self.step(&mut waiting.operation, shared) {
                Step::Finished => {}
                Step::Further => self.queue.push_front(waiting),
                Step::Blocked => {
                    self.queue.push_front(waiting);
                    break;
                }
            }
        }
        if self.credit.owes() && self.credit.for_control() && self.room() > 0 {
            self.post_control(Kind::Credit, &[], Sent::Nothing, shared);
        }
        if self.refused && self.queue.is_empty() && self.room() > KEPT && self.credit.for_data() {
            self.refused = false;
            shared.nudge(self.sends.queue);
        }
    }

    /// Posts one descriptor of an operation.
    #[inline]
    fn step(&mut self, operation: &mut Operation, shared: &Shared) -> Step {
        if self.room() <= KEPT {
            return Step::Blocked;
        }
        match operation.work {
            Work::Send => self.step_send(operation, shared),
            Work::Write { address, key } => self.step_write(operation, address, key, shared),
            Work::Read { address, key } if shared.device.limits.reads => {
                if operation.total == 0 {
                    return self.step_nothing(operation, shared);
                }
                let sent = self.rdma(operation, VIP_CONTROL_OP_RDMAREAD, address, key, shared);
                if sent { Step::Finished } else { Step::Further }
            }
            Work::Read { address, key } => self.step_request(operation, address, key, shared),
        }
    }

    /// What the last descriptor of an operation carries.
    #[inline]
    fn end_of(operation: &Operation) -> Sent {
        if operation.silent {
            return Sent::Nothing;
        }
        Sent::Operation {
            context: operation.context,
            flags: operation.flags,
            kind: operation.work.flags(),
        }
    }

    /// One packet of a message.
    #[inline]
    fn step_send(&mut self, operation: &mut Operation, shared: &Shared) -> Step {
        if !self.credit.for_data() {
            return Step::Blocked;
        }
        let left = operation.total - operation.done;
        let room = self.peer_chunk - LONGEST_HEADER;
        let length = left.min(room);
        let first = !std::mem::replace(&mut operation.begun, true);
        let last = length == left;
        let mut header = Header {
            kind: if first { Kind::Data } else { Kind::More },
            posted: 0,
            total: (first && !last).then_some(operation.total as u64),
            data: operation.data.filter(|_| first),
        };
        let sent = if last {
            Self::end_of(operation)
        } else {
            Sent::Nothing
        };
        if operation.total <= INJECT && first && last {
            // SAFETY: the program's memory, which it leaves alone until the operation has ended.
            let fill = |to: &mut [u8]| unsafe { operation.iov.gather(to) };
            self.post_copy(header, fill, length, sent, shared);
            return Step::Finished;
        }
        header.posted = self.credit.send();
        let at = self.tail % SENDS;
        let begin = header.write(self.block.slot(at));
        let pieces = std::iter::once(self.block.slot_piece(at, begin));
        let pieces = pieces.chain(operation.iov.part(operation.done, length));
        self.post(VIP_CONTROL_OP_SENDRECV, None, pieces, sent, shared);
        operation.done += length;
        if last { Step::Finished } else { Step::Further }
    }

    /// One descriptor of an RDMA Write, or the packet that carries its data for the peer.
    #[inline]
    fn step_write(
        &mut self,
        operation: &mut Operation,
        address: u64,
        key: u32,
        shared: &Shared,
    ) -> Step {
        if operation.done < operation.total {
            let all = self.rdma(operation, VIP_CONTROL_OP_RDMAWRITE, address, key, shared);
            return if all { Step::Finished } else { Step::Further };
        }
        if operation.data.is_none() {
            return self.step_nothing(operation, shared);
        }
        if !self.credit.for_data() {
            return Step::Blocked;
        }
        let header = Header {
            kind: Kind::Written,
            posted: 0,
            total: Some(operation.total as u64),
            data: operation.data,
        };
        self.post_copy(header, |_| {}, 0, Self::end_of(operation), shared);
        Step::Finished
    }

    /// An RDMA operation without bytes: its place in the order is taken by a packet that says nothing.
    fn step_nothing(&mut self, operation: &Operation, shared: &Shared) -> Step {
        if !self.credit.for_data() {
            return Step::Blocked;
        }
        self.post_control(Kind::Credit, &[], Self::end_of(operation), shared);
        Step::Finished
    }

    /// One RDMA descriptor; returns whether the operation has ended with it.
    #[inline]
    fn rdma(
        &mut self,
        operation: &mut Operation,
        control: u16,
        address: u64,
        key: u32,
        shared: &Shared,
    ) -> bool {
        let length = (operation.total - operation.done).min(shared.device.limits.transfer);
        let all = operation.done + length == operation.total
            && !(control == VIP_CONTROL_OP_RDMAWRITE && operation.data.is_some());
        let sent = if all {
            Self::end_of(operation)
        } else {
            Sent::Nothing
        };
        let remote = Some((address.wrapping_add(operation.done as u64), key));
        if operation.flags & FI_INJECT != 0 {
            let at = self.tail % SENDS;
            // SAFETY: the program's memory during its call; injected data fits a slot.
            unsafe { operation.iov.gather(&mut self.block.slot(at)[..length]) };
            let piece = self.block.slot_piece(at, length);
            self.post(control, remote, std::iter::once(piece), sent, shared);
        } else {
            let pieces = operation.iov.part(operation.done, length);
            self.post(control, remote, pieces, sent, shared);
        }
        operation.done += length;
        all
    }

    /// Asks the peer for one piece.
    fn step_request(
        &mut self,
        operation: &mut Operation,
        address: u64,
        key: u32,
        shared: &Shared,
    ) -> Step {
        if operation.total == 0 {
            return self.step_nothing(operation, shared);
        }
        if self.reads.under_way >= READS || !self.credit.for_control() {
            return Step::Blocked;
        }
        if !std::mem::replace(&mut operation.begun, true) {
            let requests = operation.iov.part(0, operation.total).count();
            self.reads.begin(operation, requests);
        }
        let Some(piece) = operation.iov.part(operation.done, usize::MAX).next() else {
            return Step::Finished;
        };
        let request = ReadRequest {
            id: self.reads.next,
            from: address.wrapping_add(operation.done as u64),
            from_key: key,
            to: piece.address,
            to_key: piece.key,
            length: piece.length as u64,
        };
        self.reads.under_way += 1;
        self.post_control(Kind::Read, &request.to_bytes(), Sent::Nothing, shared);
        operation.done += piece.length;
        if operation.done == operation.total {
            Step::Finished
        } else {
            Step::Further
        }
    }

    /// Writes what the peer has asked for, then says so.
    fn pump_answers(&mut self, shared: &Shared) {
        while let Some(mut answer) = self.answers.pop_front() {
            let request = answer.request;
            while answer.error == 0 && answer.done < request.length && self.room() > 1 {
                let length =
                    (request.length - answer.done).min(shared.device.limits.transfer as u64);
                let piece = Piece {
                    address: request.from + answer.done,
                    length: length as usize,
                    key: request.from_key,
                };
                let remote = Some((request.to + answer.done, request.to_key));
                self.post(
                    VIP_CONTROL_OP_RDMAWRITE,
                    remote,
                    std::iter::once(piece),
                    Sent::Nothing,
                    shared,
                );
                answer.done += length;
            }
            let written = answer.error != 0 || answer.done == request.length;
            if !written || self.room() == 0 || !self.credit.for_control() {
                self.answers.push_front(answer);
                return;
            }
            let done = ReadAnswer {
                id: request.id,
                error: answer.error,
            };
            self.post_control(Kind::ReadDone, &done.to_bytes(), Sent::Nothing, shared);
        }
    }

    /// Takes the sends that are done.
    #[inline]
    pub(super) fn take_sent(&mut self, shared: &mut Shared) {
        while self.head != self.tail {
            let mut descriptor = std::ptr::null_mut();
            // SAFETY: takes any handle; room for the result.
            unsafe { (shared.device.functions.VipSendDone)(self.vi.raw(), &raw mut descriptor) };
            if descriptor.is_null() {
                return;
            }
            // SAFETY: it was just given back.
            let status = unsafe { self.block.outcome(descriptor) }.status & VIP_STATUS_ERROR_MASK;
            let at = self.head % SENDS;
            let sent = std::mem::replace(&mut self.sent[at], Sent::Nothing);
            self.head = self.head.wrapping_add(1);
            let error = if status == 0 { 0 } else { self.meaning(status) };
            if let Sent::Operation {
                context,
                flags,
                kind,
            } = sent
            {
                self.reporting -= 1;
                self.finish(context, flags, kind, error, shared);
            }
            if error != 0 {
                self.fail(error, shared);
            }
        }
    }

    /// The error of libfabric for a status.
    #[cold]
    fn meaning(&self, status: u32) -> i32 {
        if matches!(self.state, State::Ending | State::Ended)
            || status & VIP_STATUS_DESC_FLUSHED_ERROR != 0
        {
            self.error
        } else if status & (VIP_STATUS_PROTECTION_ERROR | VIP_STATUS_RDMA_PROT_ERROR) != 0 {
            libc::EACCES
        } else if status & VIP_STATUS_LENGTH_ERROR != 0 {
            libc::EMSGSIZE
        } else if status & VIP_STATUS_REMOTE_DESC_ERROR != 0 {
            libc::EREMOTEIO
        } else {
            libc::EIO
        }
    }

    /// Reports the end of an operation.
    #[inline]
    pub(super) fn finish(
        &mut self,
        context: Context,
        flags: u64,
        kind: u64,
        error: i32,
        shared: &mut Shared,
    ) {
        if error == 0 && self.sends.selective && flags & FI_COMPLETION == 0 {
            return;
        }
        shared.complete(
            self.sends.queue,
            Completion {
                context,
                flags: kind,
                len: 0,
                data: 0,
                error,
                missing: 0,
            },
        );
    }
}
