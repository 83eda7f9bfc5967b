//! The send side of a connection: slots that leave, and descriptors of the send queue that complete in order.

use std::collections::VecDeque;
use std::mem::offset_of;
use std::sync::atomic::Ordering;

use vipl_abi::*;
use vipl_guard::{Fault, Segment};
use vipl_plugin_sdk::abi::*;
use vipl_plugin_sdk::{Entry, Port, Queue};
use vipl_sys::wrap;

use crate::ending::{Closed, Ending};
use crate::outbox::Outbox;
use crate::peer::{self, Call, Peer};
use crate::segment::{self, Announcement, Arrival, INLINE, OutRing, PUSHED_MAX, flag, op};
use crate::ticks::ticks;

/// How long a send that waits for its acknowledgement only, and a poll for that, leave the peer's count alone: some 0.2 µs.
/// Each poll takes away a line that the peer writes before its next message (8 B on Reliable Reception, 0.20 to 0.16 µs).
const POLL_TICKS: u64 = 512;

/// What became of a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Its data has left: it completes when its level says so.
    Sent,
    /// Its data is where it belongs: it completes after the descriptors before it.
    Placed,
    /// The receiver will fetch its data: it completes when the slot is consumed.
    Announced,
    /// It is complete, or will be.
    Done,
    /// It cannot go on before the peer has.
    Wait,
    /// Nothing more is sent: an error is outstanding.
    Stop,
}

/// A processed send-queue descriptor that is not complete yet.
struct Outstanding {
    /// Slots that the peer must have consumed.
    need: u32,
    /// Final status.
    status: u32,
    /// The connection ends with it, for this cause.
    cause: Option<i32>,
}

/// How far the message or RDMA Write at the head of the send queue is that travels in pieces.
#[derive(Clone, Copy)]
pub(crate) struct Pieces {
    pub(crate) offset: u32,
    /// Length of the whole, which the program must not change meanwhile.
    pub(crate) total: u32,
}

/// An RDMA Read of the peer whose data this side sends.
#[derive(Clone, Copy)]
pub(crate) struct Serving {
    pub(crate) range: Segment,
    pub(crate) offset: u32,
}

/// The send side. Fields that every message touches come first, behind those of the peer.
#[repr(C)]
pub(crate) struct Sender {
    outbox: Outbox,
    /// Receive descriptors that the peer is known to have posted.
    peer_posted: u32,
    /// Messages sent, each of which used one of them.
    messages: u32,
    /// Nothing more is sent: an error is outstanding.
    halted: bool,
    /// The head of the send queue is an RDMA Read whose data the peer sends.
    reading: bool,
    /// There are `pieces`.
    in_pieces: bool,
    /// Immediate data travels without its flag, too.
    carries: bool,
    pieces: Option<Pieces>,
    serving: Option<Box<Serving>>,

    outstanding: VecDeque<Outstanding>,
    /// When something was sent that waits for its acknowledgement, or the peer's count was last polled, in ticks.
    polled: u64,
    /// Slot behind the last piece of an RDMA Write.
    written: u32,
}

// A single-frame message, and a poll that finds nothing, touch two lines of the peer and the sender.
const _: () = assert!(size_of::<Peer>() - peer::HOT + offset_of!(Sender, outstanding) <= 2 * 64);

impl Sender {
    pub(crate) fn new(ring: OutRing, port: &Port) -> Sender {
        Sender {
            outbox: Outbox::new(ring),
            peer_posted: 0,
            messages: 0,
            halted: false,
            reading: false,
            in_pieces: false,
            carries: port.options() & VIPL_OPTION_CARRY_IMMEDIATE != 0,
            pieces: None,
            serving: None,
            outstanding: VecDeque::new(),
            polled: 0,
            written: wrap::start(0),
        }
    }

    /// Whether nothing more is sent.
    #[inline(always)]
    pub(crate) fn is_halted(&self) -> bool {
        self.halted
    }

    /// Whether no message may go now: an error is outstanding, or the head of the queue travels in pieces.
    #[inline(always)]
    pub(crate) fn is_busy(&self) -> bool {
        self.halted | self.in_pieces
    }

    pub(crate) fn halt(&mut self) {
        self.halted = true;
    }

    /// The number of the descriptor that is processed next.
    pub(crate) fn next_number(&self, port: &Port) -> u32 {
        port.completed(Queue::Send)
            .wrapping_add(self.outstanding.len() as u32)
    }

    /// Slots published so far.
    #[inline(always)]
    pub(crate) fn sent(&self) -> u32 {
        self.outbox.sent()
    }

    /// Slots that the peer is known to have consumed.
    pub(crate) fn consumed(&self) -> u32 {
        self.outbox.consumed()
    }

    /// How far the head of the queue is that travels in pieces.
    #[inline(always)]
    pub(crate) fn pieces(&self) -> Option<Pieces> {
        self.pieces
    }

    pub(crate) fn set_pieces(&mut self, pieces: Option<Pieces>) {
        self.in_pieces = pieces.is_some();
        self.pieces = pieces;
    }

    /// The peer's RDMA Read whose data this side sends.
    #[inline(always)]
    pub(crate) fn serving(&self) -> Option<Serving> {
        self.serving.as_deref().copied()
    }

    #[inline(always)]
    pub(crate) fn is_serving(&self) -> bool {
        self.serving.is_some()
    }

    pub(crate) fn set_serving(&mut self, serving: Option<Serving>) {
        self.serving = serving.map(Box::new);
    }

    /// Whether the head of the queue is an RDMA Read whose data the peer sends.
    pub(crate) fn is_reading(&self) -> bool {
        self.reading
    }

    pub(crate) fn set_reading(&mut self, reading: bool) {
        self.reading = reading;
    }

    /// Applies the peer's counts, which every slot carries. Impossible ones are ignored.
    #[inline(always)]
    pub(crate) fn learn(&mut self, arrival: &Arrival) {
        self.outbox.learn(arrival.consumed);
        let more = arrival.posted.wrapping_sub(self.peer_posted as u16) as i16;
        if more > 0 {
            self.peer_posted = self.peer_posted.wrapping_add(more as u32);
        }
    }

    /// Reads the peer's count of posted receive descriptors; true if one is free.
    #[cold]
    pub(crate) fn learn_posted(&mut self, peer: &Peer) -> bool {
        // Acquire pairs with the release of the peer's post.
        let posted = peer.side().posted.load(Ordering::Acquire);
        if (posted.wrapping_sub(self.messages) as i32) > 0 {
            self.peer_posted = posted;
        }
        self.peer_posted != self.messages
    }

    /// Reads the peer's count of consumed slots; true if a slot is free.
    #[cold]
    pub(crate) fn learn_consumed(&mut self, peer: &Peer) -> bool {
        // Acquire pairs with the release in `publish_consumed`.
        let consumed = peer.side().consumed.load(Ordering::Acquire);
        self.outbox.learn(consumed);
        self.outbox.has_slot()
    }

    /// Whether the peer has a receive descriptor for the next message.
    #[inline(always)]
    pub(crate) fn has_descriptor(&mut self, peer: &Peer) -> bool {
        self.messages != self.peer_posted || self.learn_posted(peer)
    }

    /// Whether a slot is free.
    #[inline(always)]
    pub(crate) fn has_slot(&mut self, peer: &Peer) -> bool {
        self.outbox.has_slot() || self.learn_consumed(peer)
    }

    /// Whether the peer has a receive descriptor for the next message, and a slot is free.
    #[inline(always)]
    pub(crate) fn is_open(&mut self, peer: &Peer) -> bool {
        self.has_descriptor(peer) && self.has_slot(peer)
    }

    /// Whether a message may go now: the peer has a receive descriptor, and a slot is free. If not, what became of it.
    ///
    /// # Errors
    /// The connection ends: E6 on a reliable level.
    #[inline(always)]
    pub(crate) fn blocked(&mut self, call: Call, opcode: u32) -> Result<Option<Step>, Ending> {
        if !self.has_descriptor(call.peer)
            && let Some(step) = self.no_descriptor(call, opcode)?
        {
            return Ok(Some(step));
        }
        Ok((!self.has_slot(call.peer)).then_some(Step::Wait))
    }

    /// E6: the peer has no receive descriptor for this message. `None`: it has one after all.
    #[cold]
    fn no_descriptor(&mut self, call: Call, opcode: u32) -> Result<Option<Step>, Ending> {
        if !call.peer.is_attached() {
            return Ok(Some(Step::Wait));
        }
        // The count may have come together with that.
        if self.learn_posted(call.peer) {
            return Ok(None);
        }
        let level = call.port.reliability();
        if level == VIP_SERVICE_UNRELIABLE {
            self.send_event(call, VIP_ERROR_CODE::VIP_ERROR_RECVQ_EMPTY as u32);
            return self.complete_in_turn(call, opcode, None).map(Some);
        }
        // Earlier messages are received first: the connection must not end before.
        if !self.outstanding.is_empty() {
            return Ok(Some(Step::Wait));
        }
        call.peer.close(Closed::EMPTY);
        let error = vipl_rules::receive_failed(level) | opcode;
        self.complete_in_turn(call, error, Some(VIPL_CAUSE_REPORTED))
            .map(Some)
    }

    /// Reserves payload for the next slot, if there is room.
    #[inline(always)]
    pub(crate) fn reserve(&mut self, peer: &Peer, bytes: u32) -> Option<u32> {
        let place = self.outbox.reserve(bytes);
        place.or_else(|| self.reserve_again(peer, bytes))
    }

    /// The same after it has failed.
    #[cold]
    fn reserve_again(&mut self, peer: &Peer, bytes: u32) -> Option<u32> {
        self.learn_consumed(peer);
        self.outbox.reserve(bytes)
    }

    /// Cancels a reservation.
    pub(crate) fn cancel(&mut self) {
        self.outbox.cancel();
    }

    /// The ring, to write into the next slot and into reserved payload.
    #[inline(always)]
    pub(crate) fn ring(&self) -> &OutRing {
        self.outbox.ring()
    }

    /// Whether the receiver is idle: it polls for the next message. A side that has just waited sends a burst.
    #[inline(always)]
    pub(crate) fn receiver_is_idle(&self, peer: &Peer) -> bool {
        self.outbox.is_drained() && !peer.is_waiting()
    }

    /// Copies a message into the ring.
    ///
    /// # Errors
    /// `from` is not accessible.
    ///
    /// # Safety
    /// `to` has room for `bytes` bytes, and `from` is the application's memory.
    #[inline(always)]
    pub(crate) unsafe fn copy_in(
        &self,
        peer: &Peer,
        to: *mut u8,
        from: *const u8,
        bytes: usize,
    ) -> Result<(), Fault> {
        // SAFETY: as asked of the caller.
        unsafe {
            let pushed = INLINE + 1..=PUSHED_MAX as usize;
            if pushed.contains(&bytes) && self.receiver_is_idle(peer) {
                vipl_guard::copy_blocks(to, from, bytes)
            } else {
                vipl_guard::copy(to, from, bytes)
            }
        }
    }

    /// Publishes the next slot.
    #[inline(always)]
    pub(crate) fn publish(&mut self, call: Call, slot: Announcement) {
        let peer = call.peer;
        let carried = (slot.flags & flag::IMMEDIATE != 0) | self.carries;
        let slot = Announcement {
            immediate: slot.immediate & u32::from(carried).wrapping_neg(),
            ..slot
        };
        let (posted, consumed) = (peer.posted(call.port), peer.consumed());
        if !self.receiver_is_idle(peer) {
            let number = self.sent();
            self.outbox.publish(slot, posted, consumed);
            // Before the hints: setting the bit waits for every line that has been requested before it.
            peer.set_ready_bit();
            return self.ring().prefetch(number);
        }
        let is_frame = matches!(slot.op, op::INLINE | op::EAGER);
        // Behind an early wrap there is room for no more than this pass has had.
        let wrap = if is_frame && segment::is_past_early(self.sent()) {
            segment::wrap_flag(self.sent())
        } else {
            0
        };
        let flags = slot.flags | wrap;
        let line = self
            .outbox
            .publish(Announcement { flags, ..slot }, posted, consumed);
        if wrap != 0 {
            self.outbox.wrap();
        }
        peer.set_ready_bit();
        let bytes = if slot.op == op::EAGER { slot.length } else { 0 };
        let next = self.outbox.next_payload();
        self.ring().push(line, slot.payload, bytes, next);
    }

    /// Counts a message, which used a receive descriptor of the peer.
    #[inline(always)]
    pub(crate) fn count_message(&mut self) {
        self.messages = self.messages.wrapping_add(1);
    }

    /// Notes that the last slot was a piece of an RDMA Write.
    pub(crate) fn note_write(&mut self) {
        self.written = self.sent();
    }

    /// Whether pieces of earlier RDMA Writes may still lie in the ring.
    pub(crate) fn has_writes_in_ring(&mut self, peer: &Peer) -> bool {
        // Slots since the last piece, and slots that the peer has not consumed.
        let in_ring = |sender: &Sender| {
            let (sent, open) = (sender.sent(), sender.consumed());
            sent.wrapping_sub(sender.written) < sent.wrapping_sub(open)
        };
        in_ring(self) && {
            self.learn_consumed(peer);
            in_ring(self)
        }
    }

    /// Whether the processed descriptors are all complete.
    #[inline(always)]
    pub(crate) fn has_outstanding(&self) -> bool {
        !self.outstanding.is_empty()
    }

    /// The number of the descriptor whose message is in this slot and not complete.
    pub(crate) fn number_of(&self, port: &Port, slot: u32) -> Option<u32> {
        let need = slot.wrapping_add(1);
        let place = self.outstanding.iter().position(|sent| sent.need == need)?;
        Some(port.completed(Queue::Send).wrapping_add(place as u32))
    }

    /// The data has left: completes the descriptor at once, or, where the level asks for it, when the peer has consumed it.
    ///
    /// # Errors
    /// The completion could not be written.
    ///
    /// # Safety
    /// It is the oldest send descriptor that is not processed.
    #[inline(always)]
    pub(crate) unsafe fn accepted(
        &mut self,
        call: Call,
        entry: Entry,
        opcode: u32,
    ) -> Result<Step, Ending> {
        if !call.peer.reception() && self.outstanding.is_empty() {
            // SAFETY: with none outstanding, the oldest one that is not processed is not complete.
            unsafe { complete(call.port, entry, opcode)? };
        } else {
            self.complete_when_consumed(opcode);
        }
        Ok(Step::Done)
    }

    /// Completes the last processed descriptor when the peer has consumed everything sent so far.
    #[cold]
    pub(crate) fn complete_when_consumed(&mut self, opcode: u32) {
        self.polled = ticks();
        self.outstanding.push_back(Outstanding {
            need: self.sent(),
            status: opcode,
            cause: None,
        });
    }

    /// Completes a descriptor after those before it, with nothing to wait for of its own; `cause` ends the connection then.
    ///
    /// # Errors
    /// The connection ends now.
    #[cold]
    pub(crate) fn complete_in_turn(
        &mut self,
        call: Call,
        status: u32,
        cause: Option<i32>,
    ) -> Result<Step, Ending> {
        self.outstanding.push_back(Outstanding {
            need: self.consumed(),
            status,
            cause,
        });
        self.halted |= cause.is_some();
        self.reap(call.port)?;
        Ok(if self.halted { Step::Stop } else { Step::Done })
    }

    /// E1, E2, E3: the descriptor reports the error; on the reliable levels the connection ends.
    ///
    /// # Errors
    /// The connection ends now.
    #[cold]
    pub(crate) fn local_error(&mut self, call: Call, status: u32) -> Result<Step, Ending> {
        let reliable = call.port.is_reliable();
        let begun = self.pieces.filter(|pieces| pieces.offset > 0);
        self.set_pieces(None);
        if let (Some(begun), false) = (begun, reliable) {
            self.abort_pieces(call, status, begun);
        }
        self.complete_in_turn(call, status, reliable.then_some(VIPL_CAUSE_REPORTED))
    }

    /// Unreliable: pieces that have left cannot be taken back; the peer learns that the rest will not follow (spec §6.2).
    #[cold]
    fn abort_pieces(&mut self, call: Call, status: u32, begun: Pieces) {
        let op = match status & VIP_STATUS_OP_MASK {
            VIP_STATUS_OP_RDMA_WRITE => op::WRITE,
            _ => op::PIECE,
        };
        if op == op::PIECE {
            self.count_message();
        }
        if self.has_slot(call.peer) {
            let extra = segment::Extra {
                offset: begun.offset,
                ..segment::Extra::default()
            };
            self.ring().put_extra(self.sent(), extra);
            let slot = Announcement {
                op,
                flags: flag::LAST | flag::ABORTED,
                length: begun.total,
                ..Announcement::default()
            };
            self.publish(call, slot);
        }
    }

    /// Unreliable: sends the receiver an asynchronous error that only the sender sees; lost if no slot is free.
    #[cold]
    pub(crate) fn send_event(&mut self, call: Call, code: u32) {
        if self.has_slot(call.peer) {
            let slot = Announcement {
                op: op::EVENT,
                length: code,
                ..Announcement::default()
            };
            self.publish(call, slot);
        }
    }

    /// Whether the peer is known to have consumed the oldest descriptor that is not complete.
    pub(crate) fn oldest_is_consumed(&self) -> bool {
        let is_consumed =
            |first: &Outstanding| self.consumed().wrapping_sub(first.need) as i32 >= 0;
        self.outstanding.front().is_some_and(is_consumed)
    }

    /// Whether so many descriptors, which are not complete, need attention. On Reliable Reception those that wait for the peer's
    /// count only are left alone for moments: a message of the peer brings the count. `signalled`: a ready bit or the bell may
    /// stand for the count.
    #[cold]
    pub(crate) fn needs_attention(&self, peer: &Peer, posted: u32, signalled: bool) -> bool {
        !peer.reception()
            || posted != self.outstanding.len() as u32
            || self.oldest_is_consumed()
            || signalled
            || ticks().saturating_sub(self.polled) >= POLL_TICKS
    }

    /// Reads the peer's count and completes what that allows.
    ///
    /// # Errors
    /// The connection ends now.
    pub(crate) fn refresh(&mut self, call: Call) -> Result<(), Ending> {
        self.learn_consumed(call.peer);
        self.polled = ticks();
        self.reap(call.port)
    }

    /// Completes descriptors in order.
    ///
    /// # Errors
    /// The connection ends now.
    pub(crate) fn reap(&mut self, port: &Port) -> Result<(), Ending> {
        while self.oldest_is_consumed()
            && let Some(Outstanding { status, cause, .. }) = self.outstanding.pop_front()
        {
            if !port.complete(Queue::Send, status, None) {
                return Err(Ending::completion_failed());
            }
            if let Some(cause) = cause {
                return Err(Ending::new(Closed::LOST, cause, 0));
            }
        }
        Ok(())
    }

    /// Completes the oldest descriptor in progress with an error, if there is one. Gives the cause that is left to report.
    pub(crate) fn fail_oldest(&mut self, port: &Port, error: u32) -> i32 {
        if self.outstanding.is_empty() && self.pieces.is_none() && !self.reading {
            return crate::ending::CONN_LOST;
        }
        let image = port.oldest(Queue::Send).and_then(|entry| {
            // SAFETY: a posted descriptor; faults are caught.
            unsafe { vipl_guard::load_descriptor(entry.descriptor().cast()) }.ok()
        });
        let opcode = match image.map_or(0, |image| image.control) & VIP_CONTROL_OP_MASK {
            VIP_CONTROL_OP_RDMAWRITE => VIP_STATUS_OP_RDMA_WRITE,
            VIP_CONTROL_OP_RDMAREAD => VIP_STATUS_OP_RDMA_READ,
            _ => VIP_STATUS_OP_SEND,
        };
        self.outstanding.clear();
        if port.complete(Queue::Send, error | opcode, None) {
            VIPL_CAUSE_REPORTED
        } else {
            crate::ending::CONN_LOST
        }
    }
}

#[cfg(test)]
impl Sender {
    pub(crate) fn outbox(&self) -> &Outbox {
        &self.outbox
    }

    pub(crate) fn polled(&self) -> u64 {
        self.polled
    }

    pub(crate) fn set_polled(&mut self, polled: u64) {
        self.polled = polled;
    }
}

/// Completes the oldest descriptor of the send queue.
///
/// # Errors
/// The completion could not be written.
pub(crate) fn complete_oldest(port: &Port, opcode: u32) -> Result<Step, Ending> {
    if port.complete(Queue::Send, opcode, None) {
        Ok(Step::Done)
    } else {
        Err(Ending::completion_failed())
    }
}

/// The same, for a caller that has its entry.
///
/// # Errors
/// The completion could not be written.
///
/// # Safety
/// It is the oldest send descriptor that is not complete.
#[inline(always)]
pub(crate) unsafe fn complete(port: &Port, entry: Entry, opcode: u32) -> Result<Step, Ending> {
    // SAFETY: as asked of the caller.
    if unsafe { port.complete_entry(Queue::Send, entry, opcode, None) } {
        Ok(Step::Done)
    } else {
        Err(Ending::completion_failed())
    }
}
