//! Completions, the end of a connection, and interrupts.
//!
//! A completion is *open* until one side writes it into the application's memory. An application that polls does so
//! itself, with the contents of the completion's line. For an application that does not poll (it computes, polls its
//! descriptors, or sleeps elsewhere) the device does so after some time.

use std::sync::atomic::Ordering::{Relaxed, Release};

use vipl_abi::*;
use vipl_clan_proto::claim;
use vipl_clan_proto::vi::{SMALL, ViPages, end, event};

use crate::process::{piece, pieces};
use crate::queues::{Incoming, Queues};
use crate::tools::Tools;

/// How long a completion stays open before the device writes it, in nanoseconds; at most twice as long.
const WRITE_BACK_NS: u64 = 30_000;
/// Completed sends of a queue with more to send that wake a sleeping thread, and how long the first of them may stay
/// unreported, in nanoseconds.
const UNREPORTED_MAX: u32 = 16;
const UNREPORTED_NS: u64 = 150_000;
/// Completions of sends that one system call writes.
const BATCH: u32 = 64;
/// Offsets of ImmediateData, Length and Status in a descriptor.
const RESULT: u64 = 20;
const STATUS: u64 = 28;

/// The result of a receive.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Outcome {
    /// `VIP_STATUS_*` without DONE.
    pub(crate) status: u32,
    pub(crate) length: u32,
    pub(crate) immediate: u32,
}

/// Result of placing the end of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Placed {
    /// It is in memory; or its descriptor cannot be written, which the application's side finds out.
    Yes,
    /// The posted buffers cannot be written; the receive has completed with that error.
    Fault,
}

/// Completions that wait for the application to poll.
#[derive(Clone, Copy, Debug, Default)]
struct Unseen {
    /// The first one that may still be open.
    first: u32,
    /// Those before this one have waited long enough when the time is over.
    aged: u32,
}

impl Unseen {
    fn begin(number: u32) -> Unseen {
        Unseen {
            first: number,
            aged: number,
        }
    }

    fn next(&mut self) {
        self.first = self.first.wrapping_add(1);
    }
}

/// What has completed on a VI, and what has been reported to its process.
#[derive(Debug, Default)]
pub(crate) struct Completions {
    /// Number of the next completion of a send.
    sends: u32,
    /// The same for receives.
    receives: u32,
    /// Completed sends that have not been reported to sleeping threads.
    unreported: u32,
    /// When the first of them completed, in nanoseconds.
    unreported_at: u64,
    unseen_sent: Unseen,
    unseen_received: Unseen,
    /// When the device writes open completions; 0: there are none.
    due: u64,
    /// Events that have been reported, by kind.
    events: [u32; event::KINDS],
}

/// Stores the completion of the receive with this number.
pub(crate) fn publish(pages: &ViPages, number: u32, outcome: Outcome, small: u32, claim: u32) {
    let slot = pages.received(number);
    slot.status.store(outcome.status, Relaxed);
    slot.length.store(outcome.length, Relaxed);
    slot.immediate.store(outcome.immediate, Relaxed);
    slot.small.store(small, Relaxed);
    slot.claim.publish(claim);
    slot.sequence.store(number.wrapping_add(1), Release);
}

/// Sets the ready bit of the VI, if a completion queue watches it.
#[inline(always)]
fn mark(queues: &Queues) {
    if queues.pages().words().watched.load(Relaxed) != 0 {
        queues.process().nic().ready.set(queues.number());
    }
}

/// The process polls this VI, even if the application does not.
fn notify(queues: &Queues) {
    let process = queues.process();
    if process.nic().notices.set(queues.number()) {
        process.interrupt();
    }
}

/// Appends ImmediateData, Length and, last, Status to [`Tools::bounce`]; returns their length.
fn append_result(tools: &mut Tools, at: u64, bytes: usize, outcome: Outcome) -> usize {
    let words = [
        outcome.immediate,
        outcome.length,
        outcome.status | VIP_STATUS_DONE,
    ];
    for (to, word) in tools.bounce[bytes..bytes + 12].chunks_mut(4).zip(words) {
        to.copy_from_slice(&word.to_ne_bytes());
    }
    tools.pieces.push(piece(at.wrapping_add(RESULT), 8));
    tools.pieces.push(piece(at.wrapping_add(STATUS), 4));
    12
}

/// The claim of a completion after the device has written it, or has failed to.
fn claim_of(written: bool) -> u32 {
    if written { claim::PLACED } else { claim::OPEN }
}

impl Completions {
    /// A connection begins with these numbers.
    pub(crate) fn begin(&mut self, sends: u32, receives: u32) {
        (self.sends, self.receives) = (sends, receives);
        self.unseen_sent = Unseen::begin(sends);
        self.unseen_received = Unseen::begin(receives);
        self.unreported = 0;
        self.due = 0;
    }

    /// Number of the next completion of a send.
    #[inline(always)]
    pub(crate) fn sends(&self) -> u32 {
        self.sends
    }

    /// The same for receives.
    #[inline(always)]
    pub(crate) fn receives(&self) -> u32 {
        self.receives
    }

    /// Whether completions are open, or sends unreported.
    #[inline(always)]
    pub(crate) fn has_open(&self) -> bool {
        self.due != 0
    }

    /// Whether they have waited long enough.
    #[inline(always)]
    pub(crate) fn is_due(&self, now: u64) -> bool {
        self.due != 0 && now >= self.due
    }

    /// Completes the send at the head; [`Completions::announce_sent`] follows.
    #[inline(always)]
    pub(crate) fn send(&mut self, queues: &Queues, tools: &Tools, status: u32) {
        let slot = queues.pages().sent(self.sends);
        slot.status.store(status, Relaxed);
        slot.claim.publish(claim::OPEN);
        self.sends = self.sends.wrapping_add(1);
        slot.sequence.store(self.sends, Release);
        self.opened(tools);
    }

    /// Reports a completed send to waiting threads, at the latest when the queue is empty. A thread that is woken for
    /// each of many sends takes the processor from the one that receives them. `more`: others will complete soon.
    #[inline(always)]
    pub(crate) fn announce_sent(&mut self, queues: &Queues, tools: &Tools, more: bool) {
        self.count_unreported(tools);
        if self.may_report_later(tools, more) {
            mark(queues);
        } else {
            self.announce(queues, tools);
        }
    }

    /// Counts a send that sleeping threads may not have seen.
    fn count_unreported(&mut self, tools: &Tools) {
        if self.unreported == 0 {
            self.unreported_at = tools.now;
        }
        self.unreported = self.unreported.saturating_add(1);
    }

    /// Whether more sends will complete soon, and the unreported ones are few and recent.
    fn may_report_later(&self, tools: &Tools, more: bool) -> bool {
        more && self.unreported < UNREPORTED_MAX && tools.now < self.unreported_at + UNREPORTED_NS
    }

    /// Completes the receive at the head, with `small` bytes of data in [`Tools::bounce`].
    pub(crate) fn receive(
        &mut self,
        queues: &Queues,
        tools: &Tools,
        outcome: Outcome,
        small: usize,
    ) {
        let pages = queues.pages();
        let slot = pages.received(self.receives);
        // Not a byte more: the rest of the buffer is data of other processes.
        for (to, from) in slot.data.iter().zip(tools.bounce[..small].chunks(8)) {
            let mut word = [0; 8];
            word[..from.len()].copy_from_slice(from);
            to.store(u64::from_ne_bytes(word), Relaxed);
        }
        publish(pages, self.receives, outcome, small as u32, claim::OPEN);
        self.receives = self.receives.wrapping_add(1);
        self.opened(tools);
        self.announce(queues, tools);
    }

    /// Writes the last `bytes` bytes of a message, which are in [`Tools::bounce`], into the posted buffers and
    /// completes the receive, all in one system call, Status last.
    pub(crate) fn place_last(
        &mut self,
        queues: &Queues,
        tools: &mut Tools,
        incoming: &Incoming,
        (offset, bytes): (u32, usize),
        outcome: Outcome,
    ) -> Placed {
        // Published before it is written: an application that finds DONE in its descriptor must find it here, too.
        let pages = queues.pages();
        publish(pages, self.receives, outcome, 0, claim::DEVICE);
        tools.pieces.clear();
        pieces(&mut tools.pieces, &tools.into, offset, bytes);
        let mut total = bytes;
        if queues.may_write(incoming.descriptor, incoming.memory) {
            total += append_result(tools, incoming.descriptor, bytes, outcome);
        }
        let data = &tools.bounce[..total];
        let written = queues.process().write(data, &tools.pieces);
        let slot = pages.received(self.receives);
        let fault = written < bytes;
        let written = written == total && total > bytes;
        if fault {
            slot.status
                .store(VIP_STATUS_PROTECTION_ERROR | VIP_STATUS_OP_RECEIVE, Relaxed);
            slot.length.store(0, Relaxed);
            slot.immediate.store(0, Relaxed);
        }
        slot.claim.publish(claim_of(written));
        self.receives = self.receives.wrapping_add(1);
        self.opened(tools);
        if !written && !fault {
            notify(queues);
        }
        self.announce(queues, tools);
        if fault { Placed::Fault } else { Placed::Yes }
    }

    /// A completion is open from now on.
    fn opened(&mut self, tools: &Tools) {
        if self.due == 0 {
            self.due = tools.now + WRITE_BACK_NS;
        }
    }

    /// Wakes threads that wait for a completion of the VI.
    #[inline(always)]
    pub(crate) fn announce(&mut self, queues: &Queues, tools: &Tools) {
        self.unreported = 0;
        mark(queues);
        let bell = &queues.process().nic().bell;
        bell.ring_if_wanted(tools.page.needs_fences());
    }

    /// Reports an event that does not end the connection.
    pub(crate) fn raise(&mut self, queues: &Queues, tools: &Tools, event: usize) {
        self.events[event] = self.events[event].wrapping_add(1);
        queues.pages().words().events[event].store(self.events[event], Release);
        notify(queues);
        self.announce(queues, tools);
    }

    /// The connection ends, for this reason, after everything that has completed.
    pub(crate) fn end(&mut self, queues: &Queues, tools: &mut Tools, reason: u32) {
        self.write_back_all(queues, tools);
        debug_assert!(reason != end::NONE);
        let word = u64::from(queues.terms().epoch) << 32 | u64::from(reason);
        queues.pages().words().end.store(word, Release);
        notify(queues);
        self.announce(queues, tools);
    }

    /// Writes completions that have been open for long enough.
    pub(crate) fn write_back(&mut self, queues: &Queues, tools: &mut Tools, more: bool) {
        let (sent, received) = (self.unseen_sent.aged, self.unseen_received.aged);
        let received = self.write_back_up_to(queues, tools, sent, received);
        if received || self.unreported > 0 && !self.may_report_later(tools, more) {
            self.announce(queues, tools);
        }
        self.unseen_sent.aged = self.sends;
        self.unseen_received.aged = self.receives;
        let left =
            self.unseen_sent.first != self.sends || self.unseen_received.first != self.receives;
        let later = left || self.unreported > 0;
        self.due = if later { tools.now + WRITE_BACK_NS } else { 0 };
    }

    /// Writes all open completions.
    pub(crate) fn write_back_all(&mut self, queues: &Queues, tools: &mut Tools) {
        if self.due == 0 {
            return;
        }
        let (sent, received) = (self.sends, self.receives);
        self.write_back_up_to(queues, tools, sent, received);
        self.announce(queues, tools);
        self.unseen_sent.aged = sent;
        self.unseen_received.aged = received;
        self.due = 0;
    }

    /// The receive at the head is already in the application's memory.
    pub(crate) fn pass_received(&mut self) {
        let all_seen = self.unseen_received.first == self.receives;
        self.receives = self.receives.wrapping_add(1);
        if all_seen {
            self.unseen_received = Unseen::begin(self.receives);
        }
    }

    /// True: receives were written.
    fn write_back_up_to(
        &mut self,
        queues: &Queues,
        tools: &mut Tools,
        sent: u32,
        received: u32,
    ) -> bool {
        let mut placed = false;
        while self.unseen_received.first != received {
            placed |= write_back_received(queues, tools, self.unseen_received.first);
            self.unseen_received.next();
        }
        while self.unseen_sent.first != sent {
            if self.write_back_sent(queues, tools, sent) {
                // A thread that polled while the device held the claim has gone to sleep without them.
                self.count_unreported(tools);
            }
        }
        placed
    }

    /// Writes the Status of up to [`BATCH`] sends. True: some were written.
    fn write_back_sent(&mut self, queues: &Queues, tools: &mut Tools, until: u32) -> bool {
        let pages = queues.pages();
        tools.pieces.clear();
        let mut taken = [0u32; BATCH as usize];
        let mut count = 0;
        while self.unseen_sent.first != until && count < taken.len() {
            let number = self.unseen_sent.first;
            self.unseen_sent.next();
            let slot = pages.sent(number);
            let line = pages.send_doorbell(number);
            if !queues.may_write(line.descriptor, line.memory) {
                notify(queues);
            } else if slot.claim.take_for_device() {
                let status = slot.status.load(Relaxed) | VIP_STATUS_DONE;
                tools.bounce[count * 4..count * 4 + 4].copy_from_slice(&status.to_ne_bytes());
                tools
                    .pieces
                    .push(piece(line.descriptor.wrapping_add(STATUS), 4));
                taken[count] = number;
                count += 1;
            }
        }
        if count == 0 {
            return false;
        }
        let data = &tools.bounce[..count * 4];
        let written = queues.process().write(data, &tools.pieces) / 4;
        for (place, number) in taken[..count].iter().enumerate() {
            let claim = claim_of(place < written);
            pages.sent(*number).claim.publish(claim);
        }
        if written < count {
            // The application's side finds out itself what has become of its descriptors.
            notify(queues);
        }
        true
    }
}

/// Writes a receive. True: it was written, or the write failed.
fn write_back_received(queues: &Queues, tools: &mut Tools, number: u32) -> bool {
    let slot = queues.pages().received(number);
    if slot.claim.state() != claim::OPEN {
        return false;
    }
    let Some(line) = queues.pages().receive_doorbell(number) else {
        return false;
    };
    let small = (slot.small.load(Relaxed) as usize).min(SMALL);
    let whole = small == 0 || {
        let incoming = queues.incoming(&line, Some(small as u32), tools);
        incoming.is_ok_and(|found| found.capacity >= small as u64)
    };
    if !whole || !queues.may_write(line.descriptor, line.memory) {
        notify(queues);
        return false;
    }
    if !slot.claim.take_for_device() {
        return false;
    }
    let outcome = Outcome {
        status: slot.status.load(Relaxed),
        length: slot.length.load(Relaxed),
        immediate: slot.immediate.load(Relaxed),
    };
    for (to, word) in tools.bounce[..SMALL].chunks_mut(8).zip(&slot.data) {
        to.copy_from_slice(&word.load(Relaxed).to_ne_bytes());
    }
    tools.pieces.clear();
    pieces(&mut tools.pieces, &tools.into, 0, small);
    let total = small + append_result(tools, line.descriptor, small, outcome);
    let data = &tools.bounce[..total];
    let written = queues.process().write(data, &tools.pieces) == total;
    slot.claim.publish(claim_of(written));
    if !written {
        notify(queues);
    }
    true
}
