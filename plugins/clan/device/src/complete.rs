//! Completions, the end of a connection, and interrupts.
//!
//! A completion is *open* until somebody puts it into the program's memory. A program that looks for
//! completions does so itself, with what it finds in the completion's line. For one that does not (it
//! computes, polls its descriptors, or sleeps elsewhere) the device does it after a while.

use std::os::fd::AsRawFd;
use std::sync::atomic::Ordering::{Relaxed, Release};

use vipl_abi::*;
use vipl_clan_proto::channel;
use vipl_clan_proto::claim;
use vipl_clan_proto::vi::{SMALL, end};

use crate::descriptor::Incoming;
use crate::vi::{Tools, Unseen, Vi};
use crate::vm::{piece, pieces};

/// How long a completion waits for its program, in nanoseconds; twice as long at most.
const WRITE_BACK_NS: u64 = 30_000;
/// Completed sends of a queue with more to send for which a sleeper is woken, or how long the first of them
/// waits, in nanoseconds.
const UNTOLD_MAX: u32 = 16;
const UNTOLD_NS: u64 = 150_000;
/// Completions of sends that one call of the kernel writes.
const BATCH: u32 = 64;
/// Where ImmediateData, Length and Status stand in a descriptor.
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

/// What became of the end of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Placed {
    /// It is there, or its descriptor is not, which the program's side finds out.
    Yes,
    /// The posted buffers are not there; the receive has completed with that error.
    Fault,
}

impl Vi {
    /// Completes the send at the head.
    pub(crate) fn complete_send(&mut self, tools: &Tools, status: u32) {
        let slot = self.pages.sent(self.sends);
        slot.status.store(status, Relaxed);
        slot.claim.publish(claim::OPEN);
        slot.lap.store(self.sends.wrapping_add(1), Release);
        self.sends = self.sends.wrapping_add(1);
        self.moved = (0, 0);
        self.opened(tools);
        self.announce_sent(tools);
    }

    /// Tells whoever waits of a completed send, at the latest when the queue is empty: a sleeper that is woken
    /// for each of many sends takes the processor from the one that receives them.
    fn announce_sent(&mut self, tools: &Tools) {
        self.mark();
        self.note_untold(tools);
        if !self.has_time_to_tell(tools) {
            self.announce(tools);
        }
    }

    /// One more that sleepers may not have seen.
    fn note_untold(&mut self, tools: &Tools) {
        if self.untold == 0 {
            self.untold_at = tools.now;
        }
        self.untold = self.untold.saturating_add(1);
    }

    /// Whether more sends will complete soon, and those of which nobody has been told are few and recent.
    fn has_time_to_tell(&self, tools: &Tools) -> bool {
        let more = self.is_rung() || self.offered > 0;
        more && self.untold < UNTOLD_MAX && tools.now < self.untold_at + UNTOLD_NS
    }

    /// Completes the receive at the head, with `small` bytes of data in [`Tools::bounce`].
    pub(crate) fn complete_receive(&mut self, tools: &Tools, outcome: Outcome, small: usize) {
        let slot = self.pages.received(self.receives);
        // Not a byte more: what else lies in the buffer is another process's.
        for (to, from) in slot.data.iter().zip(tools.bounce[..small].chunks(8)) {
            let mut word = [0; 8];
            word[..from.len()].copy_from_slice(from);
            to.store(u64::from_ne_bytes(word), Relaxed);
        }
        self.publish(self.receives, outcome, small as u32, claim::OPEN);
        self.receives = self.receives.wrapping_add(1);
        self.opened(tools);
        self.announce(tools);
    }

    /// Stores the completion of the receive with this number.
    pub(crate) fn publish(&self, number: u32, outcome: Outcome, small: u32, claim: u32) {
        let slot = self.pages.received(number);
        slot.status.store(outcome.status, Relaxed);
        slot.length.store(outcome.length, Relaxed);
        slot.immediate.store(outcome.immediate, Relaxed);
        slot.small.store(small, Relaxed);
        slot.claim.publish(claim);
        slot.lap.store(number.wrapping_add(1), Release);
    }

    /// Puts the last `bytes` bytes of a message, which lie in [`Tools::bounce`], into the posted buffers
    /// and completes the receive, all in one call of the kernel, Status last.
    pub(crate) fn place_last(
        &mut self,
        tools: &mut Tools,
        incoming: &Incoming,
        offset: u32,
        bytes: usize,
        outcome: Outcome,
    ) -> Placed {
        // Announced before it is written: a program that finds DONE in its descriptor finds it here, too.
        self.publish(self.receives, outcome, 0, claim::DEVICE);
        tools.pieces.clear();
        pieces(&mut tools.pieces, &tools.into, offset, bytes);
        let mut total = bytes;
        if self.may_write(incoming.descriptor, incoming.memory) {
            total += self.append_result(tools, incoming.descriptor, bytes, outcome);
        }
        let written = self.process.write(&tools.bounce[..total], &tools.pieces);
        let slot = self.pages.received(self.receives);
        let fault = written < bytes;
        let written = written == total && total > bytes;
        if fault {
            slot.status
                .store(VIP_STATUS_PROTECTION_ERROR | VIP_STATUS_OP_RECEIVE, Relaxed);
            slot.length.store(0, Relaxed);
            slot.immediate.store(0, Relaxed);
        }
        let claim = if written { claim::PLACED } else { claim::OPEN };
        slot.claim.publish(claim);
        self.receives = self.receives.wrapping_add(1);
        self.opened(tools);
        if !written && !fault {
            self.notify();
        }
        self.announce(tools);
        if fault { Placed::Fault } else { Placed::Yes }
    }

    /// Adds ImmediateData, Length and, last, Status to what lies in [`Tools::bounce`]; how many bytes.
    fn append_result(&self, tools: &mut Tools, at: u64, bytes: usize, outcome: Outcome) -> usize {
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

    /// A completion waits for its program from now on.
    fn opened(&mut self, tools: &Tools) {
        if self.due == 0 {
            self.due = tools.now + WRITE_BACK_NS;
        }
    }

    /// Tells whoever waits.
    pub(crate) fn announce(&mut self, tools: &Tools) {
        self.untold = 0;
        self.mark();
        let bell = &self.process.nic().bell;
        bell.ring_if_wanted(tools.page().needs_fences());
    }

    /// Completion queues find this VI.
    fn mark(&self) {
        if self.pages.words().marks.load(Relaxed) != 0 {
            self.process.nic().ready.set(self.number);
        }
    }

    /// The process looks at this VI, whatever its program does.
    pub(crate) fn notify(&self) {
        if self.process.nic().notices.set(self.number) {
            // A process with no room for it has an interrupt that it has not looked at.
            let _ = channel::send(self.process.interrupts.as_raw_fd(), &[0], &[]);
        }
    }

    /// Tells the program of something on a connection that lives on.
    pub(crate) fn raise(&mut self, tools: &Tools, news: usize) {
        self.news[news] = self.news[news].wrapping_add(1);
        self.pages.words().news[news].store(self.news[news], Release);
        self.notify();
        self.announce(tools);
    }

    /// Ends the connection: nothing of this VI is processed any more. The first reason counts.
    pub(crate) fn die(&mut self, tools: &mut Tools, reason: u32) {
        if self.halted {
            return;
        }
        self.halted = true;
        self.write_back_all(tools);
        debug_assert!(reason != end::NONE);
        let word = u64::from(self.terms.epoch) << 32 | u64::from(reason);
        self.pages.words().end.store(word, Release);
        self.notify();
        self.announce(tools);
    }

    /// Puts completions into the program's memory that have waited long enough.
    pub(crate) fn write_back(&mut self, tools: &mut Tools) {
        let (sent, received) = (self.unseen_sent.aged, self.unseen_received.aged);
        let received = self.write_back_up_to(tools, sent, received);
        if received || self.untold > 0 && !self.has_time_to_tell(tools) {
            self.announce(tools);
        }
        self.unseen_sent.aged = self.sends;
        self.unseen_received.aged = self.receives;
        let left =
            self.unseen_sent.first != self.sends || self.unseen_received.first != self.receives;
        let later = left || self.untold > 0;
        self.due = if later { tools.now + WRITE_BACK_NS } else { 0 };
    }

    /// All of them, at once.
    pub(crate) fn write_back_all(&mut self, tools: &mut Tools) {
        if self.due == 0 {
            return;
        }
        let (sent, received) = (self.sends, self.receives);
        self.write_back_up_to(tools, sent, received);
        self.announce(tools);
        self.unseen_sent.aged = sent;
        self.unseen_received.aged = received;
        self.due = 0;
    }

    /// The receive at the head is in the program's memory already.
    pub(crate) fn pass_received(&mut self) {
        let all_seen = self.unseen_received.first == self.receives;
        self.receives = self.receives.wrapping_add(1);
        if all_seen {
            self.unseen_received.first = self.receives;
            self.unseen_received.aged = self.receives;
        }
    }

    /// True: receives were put into the program's memory.
    fn write_back_up_to(&mut self, tools: &mut Tools, sent: u32, received: u32) -> bool {
        let mut placed = false;
        while self.unseen_received.first != received {
            placed |= self.write_back_received(tools, self.unseen_received.first);
            next(&mut self.unseen_received);
        }
        while self.unseen_sent.first != sent {
            if self.write_back_sent(tools, sent) {
                // Who looked while the device was at it has gone to sleep without them.
                self.note_untold(tools);
            }
        }
        placed
    }

    /// Writes the Status of up to [`BATCH`] sends. True: some were written.
    fn write_back_sent(&mut self, tools: &mut Tools, until: u32) -> bool {
        tools.pieces.clear();
        let mut taken = [0u32; BATCH as usize];
        let mut count = 0;
        while self.unseen_sent.first != until && count < taken.len() {
            let number = self.unseen_sent.first;
            next(&mut self.unseen_sent);
            let slot = self.pages.sent(number);
            let line = self.pages.send_doorbell(number);
            if !self.may_write(line.descriptor, line.memory) {
                self.notify();
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
        let written = self
            .process
            .write(&tools.bounce[..count * 4], &tools.pieces)
            / 4;
        for (place, number) in taken[..count].iter().enumerate() {
            let claim = if place < written {
                claim::PLACED
            } else {
                claim::OPEN
            };
            self.pages.sent(*number).claim.publish(claim);
        }
        if written < count {
            // The program's side sees for itself what has become of its descriptors.
            self.notify();
        }
        true
    }

    /// Puts a receive into the program's memory. True: it was written.
    fn write_back_received(&mut self, tools: &mut Tools, number: u32) -> bool {
        let slot = self.pages.received(number);
        if slot.claim.state() != claim::OPEN {
            return false;
        }
        let Some(line) = self.pages.receive_doorbell(number) else {
            return false;
        };
        let small = (slot.small.load(Relaxed) as usize).min(SMALL);
        let message = (small > 0).then_some(small as u32);
        let incoming = self.incoming(&line, message, tools);
        let fits = incoming.is_ok_and(|found| found.capacity >= small as u64);
        let whole = small == 0 || fits;
        if !whole || !self.may_write(line.descriptor, line.memory) {
            self.notify();
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
        let total = small + self.append_result(tools, line.descriptor, small, outcome);
        let written = self.process.write(&tools.bounce[..total], &tools.pieces) == total;
        let claim = if written { claim::PLACED } else { claim::OPEN };
        self.pages.received(number).claim.publish(claim);
        if !written {
            self.notify();
        }
        true
    }
}

fn next(unseen: &mut Unseen) {
    unseen.first = unseen.first.wrapping_add(1);
}
