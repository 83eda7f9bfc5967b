//! The send doorbell: takes descriptors from the send queue and turns them into slots.

use std::sync::atomic::Ordering;

use vipl_abi::*;
use vipl_plugin_sdk::abi::*;
use vipl_plugin_sdk::descriptor::{self, Operation, Outgoing};
use vipl_plugin_sdk::{Entry, Port, Queue};

use crate::cm::Closed;
use crate::link::{Link, Outstanding};
use crate::nic::{LoopbackNic, READ_LEVELS};
use crate::ring::{self, HASTENED_MAX, INLINE, flag, op};
use crate::ticks::ticks;

/// What became of a descriptor.
pub(crate) enum Step {
    /// It is processed; on to the next one.
    Next,
    /// It cannot go on before the partner has.
    Wait,
    /// The connection has ended, or will.
    Stop,
}

/// What became of a small message.
enum Sent {
    /// It is in its slot, and its descriptor is to be completed.
    Whole,
    /// It could not be read; the descriptor has been dealt with.
    Not(Step),
}

impl Link {
    /// The doorbell: something was posted.
    #[inline(always)]
    pub(crate) fn post_send(&mut self, nic: &LoopbackNic, port: &Port) {
        let number = port.completed(Queue::Send);
        let alone = port.posted(Queue::Send) == number.wrapping_add(1);
        if alone && !(self.halted || self.waiting || self.reception) {
            // Nothing else is on the queue.
            debug_assert!(self.outstanding.is_empty());
            // SAFETY: posted and not complete.
            let entry = unsafe { port.entry(Queue::Send, number) };
            match self.send_plain(nic, port, &entry) {
                Some(Sent::Whole) => {
                    self.complete_entry(port, entry, VIP_STATUS_OP_SEND);
                    return self.wake_partner();
                }
                None if self.write_alone(nic, port, &entry) => return,
                _ => {}
            }
        }
        self.pump(nic, port);
    }

    /// An RDMA Write that is alone on its queue. False: `pump` has to look.
    #[inline(never)]
    fn write_alone(&mut self, nic: &LoopbackNic, port: &Port, entry: &Entry) -> bool {
        matches!(self.write_plain(nic, port, entry), Some(Step::Next))
    }

    /// Processes what was posted.
    #[inline(never)]
    pub(crate) fn pump(&mut self, nic: &LoopbackNic, port: &Port) {
        let before = self.outbox.sent;
        let mut waits = false;
        while !self.halted {
            let next = port
                .completed(Queue::Send)
                .wrapping_add(self.outstanding.len() as u32);
            if next == port.posted(Queue::Send) {
                break;
            }
            match self.process(nic, port, next) {
                Step::Next => {}
                Step::Wait => {
                    waits = true;
                    break;
                }
                Step::Stop => break,
            }
        }
        if self.outbox.sent != before {
            self.wake_partner();
        }
        let waits = port.is_connected()
            && (waits
                || !(self.reception || self.outstanding.is_empty())
                || self.serving.is_some()
                || self.help.is_open());
        if waits != self.waiting {
            self.wait_for_partner(nic, port, waits);
        }
    }

    #[cold]
    fn wait_for_partner(&mut self, nic: &LoopbackNic, port: &Port, waits: bool) {
        self.set_waiting(waits);
        if waits && port.is_connected() {
            self.find_reach(nic);
            let before = self.outbox.consumed;
            self.refresh(port);
            if self.outbox.consumed != before && port.is_connected() {
                // It went on while we said so.
                self.pump(nic, port);
            }
        }
    }

    #[inline(always)]
    fn process(&mut self, nic: &LoopbackNic, port: &Port, number: u32) -> Step {
        // SAFETY: posted and not complete.
        let entry = unsafe { port.entry(Queue::Send, number) };
        match self.send_plain(nic, port, &entry) {
            Some(Sent::Whole) => self.accepted_entry(port, entry, VIP_STATUS_OP_SEND),
            Some(Sent::Not(step)) => step,
            None => self.process_other(nic, port, entry),
        }
    }

    /// The common case, straight through: a small message of one segment, with nothing in its way.
    /// `None`: the descriptor is something else, and nothing has been done.
    #[inline(always)]
    fn send_plain(&mut self, nic: &LoopbackNic, port: &Port, entry: &Entry) -> Option<Sent> {
        // SAFETY: a posted descriptor; faults are caught.
        let image = unsafe { vipl_guard::load_descriptor(entry.descriptor().cast()) }.ok()?;
        let (segment, length) = (image.first, image.length);
        let plain = image.control & !(VIP_CONTROL_IMMEDIATE | VIP_CONTROL_QFENCE) == 0
            && image.seg_count == 1
            && segment.length == length
            && (1..=nic.eager_max).contains(&length)
            && u64::from(length) <= port.max_transfer()
            && self.sending.is_none()
            && (self.messages != self.partner_posted || self.learn_posted())
            && (self.outbox.has_slot() || self.learn_consumed());
        let (tag, bytes) = (port.ptag(), u64::from(length));
        if !plain
            || !port
                .regions()
                .is_local(segment.handle, segment.address, bytes, tag)
        {
            return None;
        }
        let (to, op, place) = if length as usize <= INLINE {
            (self.ends.inline_out(self.outbox.sent), op::INLINE, 0)
        } else {
            let place = self.reserve(length)?;
            (self.ends.payload_out(place), op::EAGER, place)
        };
        let from = std::ptr::with_exposed_provenance(segment.address as usize);
        // SAFETY: `to` has room for `length` bytes; faults are caught.
        let copied = unsafe { self.copy_out(to, from, length as usize) };
        if copied.is_err() {
            self.outbox.give_back();
            let step = self.local_error(port, VIP_STATUS_PROTECTION_ERROR);
            return Some(Sent::Not(step));
        }
        let flagged = image.control & VIP_CONTROL_IMMEDIATE != 0;
        let flags = if flagged { flag::IMMEDIATE } else { 0 };
        self.publish_slot(port, op, flags, length, image.immediate, place);
        self.messages = self.messages.wrapping_add(1);
        Some(Sent::Whole)
    }

    /// Copies a message into the ring.
    ///
    /// # Safety
    /// `to` has room for `bytes` bytes, and `from` is the application's memory.
    #[inline(always)]
    unsafe fn copy_out(
        &self,
        to: *mut u8,
        from: *const u8,
        bytes: usize,
    ) -> Result<(), vipl_guard::Fault> {
        // SAFETY: as asked of the caller.
        unsafe {
            let hastened = INLINE + 1..=HASTENED_MAX as usize;
            if hastened.contains(&bytes) && self.is_awaited() {
                vipl_guard::copy_blocks(to, from, bytes)
            } else {
                vipl_guard::copy(to, from, bytes)
            }
        }
    }

    /// What is no small message.
    #[inline(never)]
    fn process_other(&mut self, nic: &LoopbackNic, port: &Port, entry: Entry) -> Step {
        match self.write_plain(nic, port, &entry) {
            Some(step) => step,
            None => self.process_any(nic, port, entry),
        }
    }

    /// Any descriptor.
    #[inline(never)]
    fn process_any(&mut self, nic: &LoopbackNic, port: &Port, entry: Entry) -> Step {
        // Whatever becomes of the descriptor, the partner copies no more for it.
        if !self.rdma_is_settled() {
            return Step::Wait;
        }
        let outgoing = match descriptor::outgoing(port, &entry, READ_LEVELS) {
            Ok(outgoing) => outgoing,
            Err(fault) => return self.local_error(port, fault.status),
        };
        if self
            .sending
            .as_ref()
            .is_some_and(|pieces| pieces.total != outgoing.length)
        {
            return self.local_error(port, VIP_STATUS_LENGTH_ERROR | outgoing.operation.opcode());
        }
        if outgoing.operation == Operation::Send {
            self.forget_rdma();
            self.send(nic, port, &outgoing)
        } else {
            self.rdma(nic, port, &outgoing)
        }
    }

    fn send(&mut self, nic: &LoopbackNic, port: &Port, outgoing: &Outgoing) -> Step {
        if self.sending.is_some() {
            return self.send_pieces(nic, port, outgoing);
        }
        if self.messages == self.partner_posted
            && !self.learn_posted()
            && let Some(step) = self.no_descriptor(port, VIP_STATUS_OP_SEND)
        {
            return step;
        }
        if !self.outbox.has_slot() && !self.learn_consumed() {
            return Step::Wait;
        }
        let length = outgoing.length;
        if length as usize <= INLINE {
            let to = self.ends.inline_out(self.outbox.sent);
            if self.gather(outgoing, to).is_err() {
                return self.local_error(port, VIP_STATUS_PROTECTION_ERROR);
            }
            self.publish(port, op::INLINE, outgoing, 0);
        } else if length <= nic.eager_max {
            let Some(place) = self.reserve(length) else {
                return Step::Wait;
            };
            if self.gather(outgoing, self.ends.payload_out(place)).is_err() {
                self.outbox.give_back();
                return self.local_error(port, VIP_STATUS_PROTECTION_ERROR);
            }
            self.publish(port, op::EAGER, outgoing, place);
        } else {
            return self.send_large(nic, port, outgoing);
        }
        self.messages = self.messages.wrapping_add(1);
        self.accepted(port, VIP_STATUS_OP_SEND)
    }

    /// Copies the data segments to one place.
    fn gather(&self, outgoing: &Outgoing, to: *mut u8) -> Result<(), vipl_guard::Fault> {
        let segments = &outgoing.segments;
        let (mut at, mut left) = (to, outgoing.length);
        for number in 0..segments.len() {
            // Read for the second time: the program may have changed it since the check.
            let segment = segments.get(number)?;
            left = left.checked_sub(segment.length).ok_or(vipl_guard::Fault)?;
            let length = segment.length as usize;
            let from = std::ptr::with_exposed_provenance(segment.address as usize);
            // SAFETY: `at` has room for the total length, which was checked; faults are caught.
            unsafe { self.copy_out(at, from, length)? };
            at = at.wrapping_add(length);
        }
        Ok(())
    }

    /// Whether the partner waits for the next message, and for no other. A side that has just waited, for room mostly, sends a burst.
    #[inline(always)]
    pub(crate) fn is_awaited(&self) -> bool {
        self.outbox.is_drained() && !self.waiting
    }

    /// Room in the payload area, looked for twice.
    #[inline(always)]
    pub(crate) fn reserve(&mut self, bytes: u32) -> Option<u32> {
        if let Some(place) = self.outbox.reserve(bytes) {
            return Some(place);
        }
        self.learn_consumed();
        self.outbox.reserve(bytes)
    }

    #[inline(always)]
    pub(crate) fn publish(&mut self, port: &Port, op: u8, outgoing: &Outgoing, payload: u32) {
        let flags = if outgoing.flagged { flag::IMMEDIATE } else { 0 };
        self.publish_slot(
            port,
            op,
            flags,
            outgoing.length,
            outgoing.immediate,
            payload,
        );
    }

    /// Announces the next slot, with this side's own counts.
    #[inline(always)]
    pub(crate) fn publish_slot(
        &mut self,
        port: &Port,
        op: u8,
        flags: u8,
        length: u32,
        immediate: u32,
        payload: u32,
    ) {
        let immediate = if flags & flag::IMMEDIATE != 0 || self.carry_immediate {
            immediate
        } else {
            0
        };
        let (posted, consumed) = (self.posted_count(port), self.arrived);
        let (number, awaited) = (self.outbox.sent, self.is_awaited());
        let small = matches!(op, op::INLINE | op::EAGER);
        // Behind an early turn there is room for no more than the lap has had.
        let turns = awaited && small && ring::may_turn(number, self.partner_wants_marks());
        let flags = if turns { flags | flag::TURN } else { flags };
        self.ends.publish(
            number, op, flags, length, immediate, payload, posted, consumed,
        );
        self.outbox.advance(flags);
        // Before the hints: a mark waits for every line that has been asked for before it.
        self.mark();
        if awaited {
            let bytes = if op == op::EAGER { length } else { 0 };
            let next = self.outbox.next_payload();
            self.ends.hasten(number, payload, bytes, next);
        } else {
            self.ends.fetch_ahead(number);
        }
    }

    /// The data has left: complete at once, or, where the level asks for it, when the partner has it.
    #[inline(always)]
    pub(crate) fn accepted(&mut self, port: &Port, opcode: u32) -> Step {
        // SAFETY: posted and not complete.
        let entry = unsafe { port.entry(Queue::Send, port.completed(Queue::Send)) };
        self.accepted_entry(port, entry, opcode)
    }

    /// The same, for a caller that has the entry: the oldest one, unless others are outstanding.
    #[inline(always)]
    fn accepted_entry(&mut self, port: &Port, entry: Entry, opcode: u32) -> Step {
        if !self.reception && self.outstanding.is_empty() {
            return self.complete_entry(port, entry, opcode);
        }
        self.when_consumed(opcode)
    }

    /// Completes the oldest descriptor of the send queue: nothing is under way before it.
    #[inline(always)]
    pub(crate) fn complete_now(&mut self, port: &Port, opcode: u32) -> Step {
        // SAFETY: posted and not complete.
        let entry = unsafe { port.entry(Queue::Send, port.completed(Queue::Send)) };
        self.complete_entry(port, entry, opcode)
    }

    #[inline(always)]
    pub(crate) fn complete_entry(&mut self, port: &Port, entry: Entry, opcode: u32) -> Step {
        // SAFETY: the oldest send.
        if unsafe { port.complete_entry(Queue::Send, entry, opcode, None) } {
            Step::Next
        } else {
            self.broken(port)
        }
    }

    /// Complete when the partner has consumed everything sent so far.
    #[cold]
    pub(crate) fn when_consumed(&mut self, opcode: u32) -> Step {
        self.looked = ticks();
        self.outstanding.push_back(Outstanding {
            need: self.outbox.sent,
            status: opcode,
            cause: None,
        });
        Step::Next
    }

    /// Complete in turn, with nothing to wait for of its own; `cause` ends the connection then.
    #[cold]
    pub(crate) fn in_turn(&mut self, port: &Port, status: u32, cause: Option<i32>) -> Step {
        self.outstanding.push_back(Outstanding {
            need: self.outbox.consumed,
            status,
            cause,
        });
        self.halted |= cause.is_some();
        self.reap(port);
        if self.halted { Step::Stop } else { Step::Next }
    }

    /// E1, E2, E3: the descriptor tells; on the reliable levels the connection ends.
    #[cold]
    pub(crate) fn local_error(&mut self, port: &Port, status: u32) -> Step {
        self.forget_rdma();
        let reliable = port.is_reliable();
        let begun = self.sending.take().filter(|pieces| pieces.offset > 0);
        if let (Some(begun), false) = (begun, reliable) {
            self.abort_pieces(port, status, &begun);
        }
        self.in_turn(port, status, reliable.then_some(VIPL_CAUSE_REPORTED))
    }

    /// E6: the partner has no receive descriptor for this message. `None`: it has one after all.
    #[cold]
    pub(crate) fn no_descriptor(&mut self, port: &Port, opcode: u32) -> Option<Step> {
        if self.ends.partner().attached.load(Ordering::Acquire) == 0 {
            return Some(Step::Wait);
        }
        // The count may have come together with that.
        if self.learn_posted() {
            return None;
        }
        let level = port.reliability();
        if level == VIP_SERVICE_UNRELIABLE {
            self.news(port, VIP_ERROR_CODE::VIP_ERROR_RECVQ_EMPTY as u32);
            return Some(self.in_turn(port, opcode, None));
        }
        // What was sent before is received before: the connection must not end under it.
        if !self.outstanding.is_empty() {
            return Some(Step::Wait);
        }
        self.close(Closed::EMPTY);
        let error = vipl_rules::receive_failed(level);
        Some(self.in_turn(port, error | opcode, Some(VIPL_CAUSE_REPORTED)))
    }

    /// Unreliable: tells the receiver of an error it could not see; lost if there is no slot.
    #[cold]
    pub(crate) fn news(&mut self, port: &Port, code: u32) {
        if self.outbox.has_slot() || self.learn_consumed() {
            self.publish_slot(port, op::NEWS, 0, code, 0, 0);
        }
    }

    /// A completion could not be written: `complete` has broken the connection.
    #[cold]
    pub(crate) fn broken(&mut self, _port: &Port) -> Step {
        self.halted = true;
        self.close(Closed::LOST);
        self.end_help();
        self.set_waiting(false);
        Step::Stop
    }

    /// Looks how many receive descriptors the partner has posted; true when there are more than known.
    #[cold]
    pub(crate) fn learn_posted(&mut self) -> bool {
        // Acquire pairs with the release of the partner's post.
        let posted = self.ends.partner().posted.load(Ordering::Acquire);
        if (posted.wrapping_sub(self.messages) as i32) > 0 {
            self.partner_posted = posted;
        }
        self.partner_posted != self.messages
    }

    /// Looks how many slots the partner has consumed; true when a slot is free now.
    #[cold]
    pub(crate) fn learn_consumed(&mut self) -> bool {
        // Acquire pairs with the release in `tell_consumed`.
        let consumed = self.ends.partner().consumed.load(Ordering::Acquire);
        self.outbox.learn(consumed);
        self.outbox.has_slot()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ring::{PAYLOAD, SLOTS};
    use crate::testing::{DONE, HANDLE, Pair, Posted, RD, RR, Told, U, code, pair, told};

    #[test]
    fn a_send_completes_when_its_level_says_so() {
        for (level, at_once) in [(U, true), (RD, true), (RR, false)] {
            let mut pair = pair(level, true);
            pair.right.receive(0, 64);
            pair.left.fill(0, 64, 1);
            let send = pair.left.send(0, 64);
            assert_eq!(pair.left.status(send) == DONE, at_once, "level {level}");
            pair.right.progress();
            pair.left.progress();
            assert_eq!(pair.left.status(send), DONE, "level {level}");
        }
    }

    /// How many of these sends of the left side are complete.
    fn done(pair: &Pair, sends: &[Posted]) -> usize {
        let is_done = |send: &&Posted| pair.left.status(**send) == DONE;
        sends.iter().filter(is_done).count()
    }

    #[test]
    fn a_full_ring_sends_the_rest_when_there_is_room() {
        let mut pair = pair(RD, true);
        for _ in 0..SLOTS + 10 {
            pair.right.receive(0, 8);
        }
        let sends: Vec<_> = (0..SLOTS + 10).map(|_| pair.left.send(0, 8)).collect();
        assert_eq!(done(&pair, &sends), SLOTS as usize);
        assert!(
            pair.left.link().waiting,
            "the peer must tell when it has made room"
        );
        pair.left.progress();
        assert_eq!(done(&pair, &sends), SLOTS as usize, "no room yet");
        while pair.left.link().waiting {
            pair.right.progress();
            pair.left.progress();
        }
        assert_eq!(done(&pair, &sends), sends.len());
    }

    /// What is cold is not touched where messages wait for each other; afterwards everything is there for a stream.
    #[test]
    fn messages_one_by_one_use_the_first_slots_and_payload() {
        for (length, slots) in [(8, 16), (4000, 16), (8, 4)] {
            let mut pair = pair(RD, true);
            if slots == 4 {
                let right = pair.right.link();
                right.ends.own().marks.store(1, Ordering::Relaxed);
            }
            let mut laps = 0;
            for round in 0..200 {
                let data = pair.left.fill(0, length, round);
                let receive = pair.right.receive(0, length as u32);
                pair.left.send(0, length as u32);
                pair.right.progress();
                assert_eq!(pair.right.status(receive), DONE | VIP_STATUS_OP_RECEIVE);
                assert_eq!(pair.right.bytes(0, length), data);
                let answer = pair.left.receive(0, 8);
                pair.right.send(0, 8);
                pair.left.progress();
                assert_eq!(pair.left.status(answer), DONE | VIP_STATUS_OP_RECEIVE);
                let outbox = &pair.left.link().outbox;
                assert!(outbox.sent % SLOTS < slots, "slot {}", outbox.sent);
                assert!(outbox.next_payload() % PAYLOAD < 80 << 10);
                laps = outbox.sent / SLOTS;
            }
            assert_eq!(laps, 200 / slots);
            // The ring has skipped slots that are not known to be free, or are.
            pair.left.link().learn_consumed();
            for _ in 0..SLOTS {
                pair.right.receive(0, 8);
            }
            let data: Vec<_> = (0..SLOTS).map(|_| pair.left.send(0, 8)).collect();
            for send in &data {
                assert_eq!(pair.left.status(*send), DONE);
            }
            for _ in 0..SLOTS / 32 {
                pair.right.progress();
            }
            assert_eq!(pair.right.link().arrived, pair.left.link().outbox.sent);
        }
    }

    /// A burst that meets the few slots behind a short lap waits once, and has the whole ring then.
    #[test]
    fn a_burst_waits_once_behind_a_short_lap() {
        let mut pair = pair(RD, true);
        let marks = &pair.right.link().ends.own().marks;
        marks.store(1, Ordering::Relaxed);
        for _ in 0..3 {
            pair.right.receive(0, 8);
            pair.left.send(0, 8);
            pair.right.progress();
            let answer = pair.left.receive(0, 8);
            pair.right.send(0, 8);
            pair.left.progress();
            assert_eq!(pair.left.status(answer), DONE | VIP_STATUS_OP_RECEIVE);
        }
        for _ in 0..64 {
            pair.right.receive(0, 8);
        }
        let sends: Vec<_> = (0..64).map(|_| pair.left.send(0, 8)).collect();
        assert!(done(&pair, &sends) < 8, "there are few slots");
        pair.right.progress();
        pair.left.progress();
        assert_eq!(done(&pair, &sends), 64);
    }

    /// E1 to E3.
    #[test]
    fn an_error_of_the_sender_ends_reliable_connections_only() {
        for level in [U, RD, RR] {
            let wrong: [(u16, u32, u32, u32); 3] = [
                (VIP_CONTROL_OP_RESERVED, 8, HANDLE, VIP_STATUS_FORMAT_ERROR),
                (0, 8, HANDLE + 1, VIP_STATUS_PROTECTION_ERROR),
                (0, 9, HANDLE, VIP_STATUS_LENGTH_ERROR),
            ];
            for (control, length, handle, status) in wrong {
                let mut pair = pair(level, true);
                pair.right.receive(0, 64);
                let segment = (pair.left.address(0), handle, 8);
                let send = pair.left.post(control, length, &[segment]);
                assert_eq!(pair.left.status(send), DONE | status);
                assert_eq!(pair.left.is_connected(), level == U, "level {level}");
                let ended = [Told::Failed(0, VIPL_CAUSE_REPORTED)];
                assert_eq!(told(), if level == U { &[][..] } else { &ended });
            }
        }
    }

    /// E6.
    #[test]
    fn a_send_without_a_receive_descriptor() {
        let empty = code(VIP_ERROR_CODE::VIP_ERROR_RECVQ_EMPTY);
        let expected = [
            (U, 0),
            (RD, VIP_STATUS_TRANSPORT_ERROR),
            (RR, VIP_STATUS_REMOTE_DESC_ERROR),
        ];
        for (level, status) in expected {
            let mut pair = pair(level, true);
            let send = pair.left.send(0, 8);
            assert_eq!(pair.left.status(send), DONE | status, "level {level}");
            assert_eq!(pair.left.is_connected(), level == U);
            pair.right.progress();
            let heard = told();
            let here = if level == U {
                Told::Raised(1, empty)
            } else {
                Told::Failed(1, empty)
            };
            assert_eq!(heard.last(), Some(&here), "level {level}");
        }
    }
}
