//! The sending side of an endpoint: messages, RDMA, and answers to reads of the peer.
//!
//! Operations are posted in the order of their submission. One that needs several descriptors, or finds no room, waits in
//! the queue and is posted by [`Sender::pump`] when there is room. Answers to reads of the peer do not wait behind it:
//! the peer's program may post receives only after its read has ended.

use std::collections::VecDeque;

use vipl_abi::*;

use super::operation::{Answer, Operation, Owned, Reads, Sent, Waiting, Work};
use super::queues::Context;
use super::vi::Vi;
use crate::attributes::{INJECT, WAITING};
use crate::credit::READS;
use crate::fi::FI_INJECT;
use crate::iov::Piece;
use crate::packet::{Header, Kind, ReadAnswer, ReadRequest};

/// Descriptors that operations leave for control packets.
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

/// An operation that has ended.
pub(super) struct Ended {
    pub context: Context,
    pub flags: u64,
    /// Flags of its completion.
    pub kind: u64,
    pub error: i32,
    /// What the provider has registered for it.
    pub owned: Option<Owned>,
}

/// See the module.
#[derive(Default)]
pub(super) struct Sender {
    /// Operations that are not posted, or not wholly.
    queue: VecDeque<Waiting>,
    reads: Reads,
    answers: VecDeque<Answer>,
    /// Offers of the peer that are done with.
    taken: VecDeque<ReadAnswer>,
    /// An operation was refused for lack of room, and the program has not been woken since.
    refused: bool,
}

impl Sender {
    /// Operations that may still be submitted.
    pub(super) fn room(&self) -> usize {
        WAITING - self.queue.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty() && self.taken.is_empty()
    }

    /// Whether there is nothing to post, and no program to wake.
    #[inline]
    pub(super) fn is_idle(&self) -> bool {
        self.queue.is_empty() && self.answers.is_empty() && self.taken.is_empty() && !self.refused
    }

    /// Posts an operation or queues it. True: a part of it is posted, and there may be room for the rest.
    ///
    /// # Errors
    /// FI_EAGAIN: the queue is full; EINVAL: the memory is not registered, or too much is injected.
    #[inline]
    pub(super) fn submit(&mut self, mut operation: Operation, vi: &mut Vi) -> Result<bool, i32> {
        let inject = operation.flags & FI_INJECT != 0;
        let copied = inject || matches!(operation.work, Work::Send) && operation.total <= INJECT;
        if inject && operation.total > INJECT || !copied && !operation.iov.is_registered() {
            return Err(libc::EINVAL);
        }
        if self.queue.is_empty() {
            match self.step(&mut operation, vi) {
                Step::Finished => return Ok(false),
                Step::Further => {
                    self.queue.push_back(Waiting::new(operation));
                    return Ok(true);
                }
                Step::Blocked => {}
            }
        }
        let waiting = match self.queue.len() < WAITING {
            // Injected memory is the program's again after the call.
            true if inject => Waiting::copied(operation),
            true => Some(Waiting::new(operation)),
            false => None,
        };
        let Some(waiting) = waiting else {
            self.refused = true;
            return Err(libc::EAGAIN);
        };
        self.queue.push_back(waiting);
        Ok(false)
    }

    /// Posts a message that is copied and does not complete, without making an operation of it; false: it is too long, or has
    /// to wait.
    #[inline]
    pub(super) fn inject(
        &mut self,
        bytes: &[u8],
        data: Option<u64>,
        tag: Option<u64>,
        vi: &mut Vi,
    ) -> bool {
        let may = self.queue.is_empty()
            && bytes.len() <= INJECT.min(vi.payload_max())
            && vi.room() > KEPT
            && vi.credit().for_data();
        if may {
            let header = Header {
                data,
                tag,
                ..Header::new(Kind::Data)
            };
            let fill = |to: &mut [u8]| to.copy_from_slice(bytes);
            vi.send_copied(header, bytes.len(), fill, Sent::Nothing);
        }
        may
    }

    /// Takes an operation of the provider's own, however many wait.
    pub(super) fn add(&mut self, operation: Operation) {
        self.queue.push_back(Waiting::new(operation));
    }

    /// Tells the peer that what it has offered was read, or why not.
    pub(super) fn taken(&mut self, answer: ReadAnswer) {
        self.taken.push_back(answer);
    }

    /// Posts what there is room for. True: a program whose operation was refused may try again.
    pub(super) fn pump(&mut self, vi: &mut Vi) -> bool {
        if !self.answers.is_empty() {
            self.pump_answers(vi);
        }
        while vi.room() > KEPT
            && vi.credit().for_data()
            && let Some(answer) = self.taken.pop_front()
        {
            vi.send_control(Kind::Taken, &answer.to_bytes(), Sent::Nothing);
        }
        while let Some(mut waiting) = self.queue.pop_front() {
            match self.step(&mut waiting.operation, vi) {
                Step::Finished => {}
                Step::Further => self.queue.push_front(waiting),
                Step::Blocked => {
                    self.queue.push_front(waiting);
                    break;
                }
            }
        }
        vi.grant();
        let has_room = self.queue.is_empty() && vi.room() > KEPT && vi.credit().for_data();
        has_room && std::mem::take(&mut self.refused)
    }

    /// Posts one descriptor of an operation.
    #[inline]
    fn step(&mut self, operation: &mut Operation, vi: &mut Vi) -> Step {
        if vi.room() <= KEPT {
            return Step::Blocked;
        }
        match operation.work {
            Work::Send => send(operation, vi),
            Work::Write { address, key } => write(operation, address, key, vi),
            Work::Offer(request) => offer(operation, request, vi),
            Work::Read { .. } if operation.total == 0 => send_nothing(operation, vi),
            Work::Read { address, key } | Work::Pull { address, key } if vi.reads() => {
                let all = rdma(operation, VIP_CONTROL_OP_RDMAREAD, address, key, vi);
                if all { Step::Finished } else { Step::Further }
            }
            Work::Read { address, key } | Work::Pull { address, key } => {
                self.request(operation, address, key, vi)
            }
        }
    }

    /// Requests one piece of a read from the peer, which writes it.
    fn request(&mut self, operation: &mut Operation, address: u64, key: u32, vi: &mut Vi) -> Step {
        if self.reads.under_way >= READS || !vi.credit().for_control() {
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
        vi.send_control(Kind::Read, &request.to_bytes(), Sent::Nothing);
        operation.done += piece.length;
        if operation.done == operation.total {
            Step::Finished
        } else {
            Step::Further
        }
    }

    /// The peer has answered a read. None: there was no such request. Some(None): the read has not ended yet.
    #[expect(
        clippy::option_option,
        reason = "an answer is expected or not, and the last one or not"
    )]
    pub(super) fn answered(&mut self, answer: ReadAnswer) -> Option<Option<Ended>> {
        let ended = self.reads.answered(answer)?;
        Some(ended.map(|(context, flags, kind, error)| Ended {
            context,
            flags,
            kind,
            error,
            owned: None,
        }))
    }

    /// Queues the answer to a read of the peer; false if it has too many reads under way. An `error` is the answer.
    pub(super) fn answer(&mut self, request: ReadRequest, error: u32) -> bool {
        let has_room = self.answers.len() < READS as usize;
        if has_room {
            self.answers.push_back(Answer {
                request,
                done: 0,
                error,
            });
        }
        has_room
    }

    /// Writes what the peer has requested, then answers.
    fn pump_answers(&mut self, vi: &mut Vi) {
        while let Some(mut answer) = self.answers.pop_front() {
            let request = answer.request;
            while answer.error == 0 && answer.done < request.length && vi.room() > 1 {
                let length = (request.length - answer.done).min(vi.transfer_max() as u64);
                let piece = Piece {
                    address: request.from + answer.done,
                    length: length as usize,
                    key: request.from_key,
                };
                let remote = Some((request.to + answer.done, request.to_key));
                let control = VIP_CONTROL_OP_RDMAWRITE;
                vi.post(control, remote, std::iter::once(piece), Sent::Nothing);
                answer.done += length;
            }
            let written = answer.error != 0 || answer.done == request.length;
            if !written || vi.room() == 0 || !vi.credit().for_control() {
                self.answers.push_front(answer);
                return;
            }
            let done = ReadAnswer {
                id: request.id,
                error: answer.error,
            };
            vi.send_control(Kind::ReadDone, &done.to_bytes(), Sent::Nothing);
        }
    }

    /// Ends what is not posted and what waits for the peer, with this error.
    pub(super) fn end(&mut self, error: i32) -> Vec<Ended> {
        self.answers.clear();
        self.taken.clear();
        let queued = std::mem::take(&mut self.queue).into_iter();
        let queued = queued.map(|waiting| waiting.operation);
        let queued = queued.filter(|operation| !operation.silent);
        let queued = queued.map(|operation| Ended {
            context: operation.context,
            flags: operation.flags,
            kind: operation.kind(),
            error,
            owned: operation.owned,
        });
        let reads = self.reads.take_all().into_iter();
        let reads = reads.map(|(context, flags, kind)| Ended {
            context,
            flags,
            kind,
            error,
            owned: None,
        });
        queued.chain(reads).collect()
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
        kind: operation.kind(),
        owned: operation.owned,
    }
}

/// Offers a long message.
fn offer(operation: &Operation, request: ReadRequest, vi: &mut Vi) -> Step {
    if !vi.credit().for_data() {
        return Step::Blocked;
    }
    let header = Header {
        data: operation.data,
        tag: operation.tag,
        ..Header::new(Kind::Offer)
    };
    let bytes = request.to_bytes();
    let fill = |to: &mut [u8]| to.copy_from_slice(&bytes);
    vi.send_copied(header, bytes.len(), fill, Sent::Nothing);
    Step::Finished
}

/// One packet of a message.
#[inline]
fn send(operation: &mut Operation, vi: &mut Vi) -> Step {
    if !vi.credit().for_data() {
        return Step::Blocked;
    }
    let left = operation.total - operation.done;
    let length = left.min(vi.payload_max());
    let first = !std::mem::replace(&mut operation.begun, true);
    let last = length == left;
    let header = Header {
        total: (first && !last).then_some(operation.total as u64),
        data: operation.data.filter(|_| first),
        tag: operation.tag.filter(|_| first),
        ..Header::new(if first { Kind::Data } else { Kind::More })
    };
    let sent = if last {
        end_of(operation)
    } else {
        Sent::Nothing
    };
    if operation.total <= INJECT && first && last {
        // SAFETY: the program's memory, which it leaves alone until the operation has ended.
        let fill = |to: &mut [u8]| unsafe { operation.iov.gather(to) };
        vi.send_copied(header, length, fill, sent);
        return Step::Finished;
    }
    vi.send(header, operation.iov.part(operation.done, length), sent);
    operation.done += length;
    if last { Step::Finished } else { Step::Further }
}

/// One descriptor of an RDMA Write, or the packet that carries its data for the peer.
#[inline]
fn write(operation: &mut Operation, address: u64, key: u32, vi: &mut Vi) -> Step {
    if operation.done < operation.total {
        let all = rdma(operation, VIP_CONTROL_OP_RDMAWRITE, address, key, vi);
        return if all { Step::Finished } else { Step::Further };
    }
    if operation.data.is_none() {
        return send_nothing(operation, vi);
    }
    if !vi.credit().for_data() {
        return Step::Blocked;
    }
    let header = Header {
        total: Some(operation.total as u64),
        data: operation.data,
        ..Header::new(Kind::Written)
    };
    vi.send_copied(header, 0, |_| {}, end_of(operation));
    Step::Finished
}

/// An RDMA operation without bytes: an empty packet takes its place in the order.
fn send_nothing(operation: &Operation, vi: &mut Vi) -> Step {
    if !vi.credit().for_data() {
        return Step::Blocked;
    }
    vi.send_control(Kind::Credit, &[], end_of(operation));
    Step::Finished
}

/// One RDMA descriptor; true if the operation has ended with it.
#[inline]
fn rdma(operation: &mut Operation, control: u16, address: u64, key: u32, vi: &mut Vi) -> bool {
    let length = (operation.total - operation.done).min(vi.transfer_max());
    let all = operation.done + length == operation.total
        && !(control == VIP_CONTROL_OP_RDMAWRITE && operation.data.is_some());
    let sent = if all {
        end_of(operation)
    } else {
        Sent::Nothing
    };
    let remote = (address.wrapping_add(operation.done as u64), key);
    if operation.flags & FI_INJECT != 0 {
        // SAFETY: the program's memory during its call; injected data fits a slot.
        let fill = |to: &mut [u8]| unsafe { operation.iov.gather(to) };
        vi.post_copied(control, remote, length, fill, sent);
    } else {
        let pieces = operation.iov.part(operation.done, length);
        vi.post(control, Some(remote), pieces, sent);
    }
    operation.done += length;
    all
}
