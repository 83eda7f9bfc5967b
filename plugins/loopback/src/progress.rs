//! The receive side: from slots to receive descriptors; and acknowledgements for the send side.

use std::sync::atomic::Ordering;

use vipl_abi::*;
use vipl_plugin_sdk::abi::*;
use vipl_plugin_sdk::descriptor;
use vipl_plugin_sdk::{Entry, Port, Queue};

use crate::cm::Closed;
use crate::link::{Link, Outstanding, Reach};
use crate::nic::LoopbackNic;
use crate::ring::{
    self, Arrival, EXPECTED_MAX, INLINE, PAYLOAD, PIECE, SLOTS, TELL_EVERY, flag, op,
};
use crate::segments::scatter_into;
use crate::ticks::ticks;
use crate::watch;

/// Slots taken in one go.
const BATCH: u32 = 32;
/// How long a send that waits for its receipt only, and a look for that, leave the count alone: some 0.2 µs.
const LOOK_TICKS: u64 = 512;
pub(crate) const CONN_LOST: i32 = VIP_ERROR_CODE::VIP_ERROR_CONN_LOST as i32;

/// What became of an arrival.
pub(crate) enum Taken {
    /// Consumed.
    Yes,
    /// Consumed, and the connection has ended; the partner must not count it as received.
    Failed,
    /// Not yet: it is taken again at the next look.
    Later,
}

impl Link {
    /// Takes what has arrived, then goes on with what was waiting.
    #[inline(always)]
    pub(crate) fn progress(&mut self, nic: &LoopbackNic, port: &Port) {
        let Some(arrival) = self.next_arrival() else {
            return self.find_nothing(nic, port);
        };
        if !std::mem::take(&mut self.idle) || wants_signals(port) {
            return self.progress_many(nic, port);
        }
        // A message that was waited for, and is received sooner if nothing else is looked at: the next call does that.
        let Some(from) = self.small_message(&arrival) else {
            return self.progress_many(nic, port);
        };
        self.learn(&arrival);
        if let Taken::Yes = self.deliver(port, &arrival, from) {
            self.arrived = ring::next(self.arrived, arrival.flags);
            self.acknowledge();
        }
    }

    /// The end of a look at an empty ring.
    #[inline(always)]
    fn find_nothing(&mut self, nic: &LoopbackNic, port: &Port) {
        self.look_ahead();
        if self.needs_more(nic, port) {
            self.progress_more(nic, port);
        } else {
            self.idle = self.takes_one;
        }
    }

    /// Fetches what is expected to come with the next slot.
    #[inline(always)]
    fn look_ahead(&self) {
        if let Some(place) = self.expected {
            self.ends.look_ahead(place);
        }
    }

    /// The last look of all: the one before it may have left something to the next.
    pub(crate) fn take_the_rest(&mut self, nic: &LoopbackNic, port: &Port) {
        if port.is_connected() {
            self.progress_many(nic, port);
        }
    }

    /// Takes as many messages as there are, then goes on with what was waiting.
    #[inline(never)]
    fn progress_many(&mut self, nic: &LoopbackNic, port: &Port) {
        let (before, mut bytes) = (self.arrived, 0);
        let all = self.receive(nic, port, BATCH, &mut bytes);
        if self.arrived != before {
            if all {
                self.receive_more(nic, port, bytes);
            }
            self.acknowledge();
        }
        if self.needs_more(nic, port) {
            self.progress_more(nic, port);
        }
    }

    /// A whole batch, with so many bytes: goes on while nothing completes, and asks to be called again if there is more. A sender
    /// that makes use of the room meanwhile does not make a look longer.
    #[cold]
    fn receive_more(&mut self, nic: &LoopbackNic, port: &Port, mut bytes: u32) {
        let completed = port.completed(Queue::Recv);
        for _ in 0..SLOTS / BATCH {
            if !port.is_connected() || self.next_arrival().is_none() {
                return;
            }
            if port.completed(Queue::Recv) != completed || bytes >= PAYLOAD {
                break;
            }
            self.receive(nic, port, BATCH, &mut bytes);
        }
        nic.shared.ready().set(self.own_index);
    }

    /// Whether anything but the ring wants attention.
    #[inline(always)]
    fn needs_more(&self, nic: &LoopbackNic, port: &Port) -> bool {
        let sends = port
            .posted(Queue::Send)
            .wrapping_sub(port.completed(Queue::Send));
        (sends != 0 && self.sends_need_more(nic, sends))
            || self.ends.partner().closed.load(Ordering::Relaxed) != 0
            || self.serving.is_some()
            || self.waiting
            || self.reach.get() == Reach::Unknown
            || self.is_asked()
    }

    /// Whether so many sends, which are not complete, want attention. Those of Reliable Reception that wait for the
    /// partner's count and for nothing else are left alone for moments: a message of the partner brings the count, and
    /// each look takes a line away that the partner writes before its next message.
    #[cold]
    fn sends_need_more(&self, nic: &LoopbackNic, sends: u32) -> bool {
        !self.reception
            || sends != self.outstanding.len() as u32
            || self.oldest_is_consumed()
            || self.may_be_told(nic)
            || ticks().saturating_sub(self.looked) >= LOOK_TICKS
    }

    /// Whether this look may be the one for which a mark or the bell has been. Either stands for all receipts before it, so
    /// that nothing else tells of them.
    fn may_be_told(&self, nic: &LoopbackNic) -> bool {
        self.wants_marks || nic.shared.bell().is_wanted()
    }

    /// Whether the partner is known to have consumed the oldest send that is not complete.
    fn oldest_is_consumed(&self) -> bool {
        let is_consumed =
            |first: &Outstanding| self.outbox.consumed.wrapping_sub(first.need) as i32 >= 0;
        self.outstanding.front().is_some_and(is_consumed)
    }

    #[cold]
    fn progress_more(&mut self, nic: &LoopbackNic, port: &Port) {
        if !port.is_connected() {
            return;
        }
        self.find_reach(nic);
        if self.is_asked() {
            self.help(nic, port);
        }
        if self.serving.is_some() {
            self.learn_consumed();
            self.serve_read(port);
        }
        let brought = self.reception && self.oldest_is_consumed();
        if brought && port.is_connected() {
            self.reap(port);
        }
        // A message has brought a receipt, but a mark may stand for more of them.
        let more = !self.outstanding.is_empty() && self.may_be_told(nic);
        if port.is_connected() && (more || !brought) {
            self.refresh(port);
        }
        if port.is_connected() {
            self.pump(nic, port);
        }
        // Acquire pairs with the partner's `close`: what it sent before is in the ring.
        let closed = Closed(self.ends.partner().closed.load(Ordering::Acquire));
        if closed.0 != 0 && port.is_connected() {
            self.drain(nic, port);
            if port.is_connected() {
                self.partner_closed(port, closed);
            }
        }
    }

    /// Takes everything that lies in the ring.
    pub(crate) fn drain(&mut self, nic: &LoopbackNic, port: &Port) {
        // An honest partner has no more slots than these.
        for _ in 0..SLOTS / BATCH {
            if !port.is_connected() || self.next_arrival().is_none() {
                break;
            }
            self.receive(nic, port, BATCH, &mut 0);
        }
        self.acknowledge();
    }

    /// Tells the partner how far this side is.
    #[inline(always)]
    pub(crate) fn acknowledge(&self) {
        self.tell_consumed();
        if self.ends.partner().waiting.load(Ordering::Relaxed) != 0 {
            self.alert();
        } else if self.reception {
            self.mark();
            self.wake_partner();
        }
    }

    /// Lets the partner see how far this side is, if it looks.
    #[inline(always)]
    pub(crate) fn tell_consumed(&self) {
        // Release: the payload of these slots has been read.
        self.ends
            .own()
            .consumed
            .store(self.arrived, Ordering::Release);
    }

    /// Learns how far the partner is and completes what that completes.
    pub(crate) fn refresh(&mut self, port: &Port) {
        self.learn_consumed();
        self.looked = ticks();
        self.reap(port);
    }

    /// Completes sends in order.
    pub(crate) fn reap(&mut self, port: &Port) {
        while self.oldest_is_consumed()
            && let Some(Outstanding { status, cause, .. }) = self.outstanding.pop_front()
        {
            if !port.complete(Queue::Send, status, None) {
                self.broken(port);
                return;
            }
            if let Some(cause) = cause {
                self.die(port, Closed::LOST, cause, 0);
                return;
            }
        }
    }

    /// Takes so many slots, if they have arrived, and adds up the `bytes` of the payload area that become free. True: as many as
    /// that, or as much as the area holds.
    #[inline(always)]
    pub(crate) fn receive(
        &mut self,
        nic: &LoopbackNic,
        port: &Port,
        most: u32,
        bytes: &mut u32,
    ) -> bool {
        for taken in 0..most {
            let Some(arrival) = self.next_arrival() else {
                self.look_ahead();
                return false;
            };
            if taken != 0 {
                self.ends.look_further(self.arrived);
            }
            self.learn(&arrival);
            match self.take(nic, port, &arrival) {
                Taken::Yes => self.arrived = ring::next(self.arrived, arrival.flags),
                Taken::Failed | Taken::Later => return false,
            }
            // A batch of smaller messages has no more than that.
            if arrival.length > TELL_EVERY / BATCH {
                let told = *bytes / TELL_EVERY;
                *bytes += payload_bytes(&arrival);
                if *bytes / TELL_EVERY != told {
                    self.tell_consumed();
                }
            }
            if !port.is_connected() {
                return false;
            }
            if *bytes >= PAYLOAD {
                return true;
            }
        }
        true
    }

    /// The partner's counts, which every slot carries. Impossible ones are ignored.
    #[inline(always)]
    fn learn(&mut self, arrival: &Arrival) {
        self.outbox.learn(arrival.consumed);
        let more = arrival.posted.wrapping_sub(self.partner_posted as u16) as i16;
        if more > 0 {
            self.partner_posted = self.partner_posted.wrapping_add(more as u32);
        }
    }

    #[inline(always)]
    fn take(&mut self, nic: &LoopbackNic, port: &Port, arrival: &Arrival) -> Taken {
        match self.small_message(arrival) {
            Some(from) => self.deliver(port, arrival, from),
            None => self.take_other(nic, port, *arrival),
        }
    }

    /// Where a message lies that is in one place of the ring.
    #[inline(always)]
    fn small_message(&mut self, arrival: &Arrival) -> Option<*const u8> {
        match arrival.op {
            op::INLINE if arrival.length as usize <= INLINE => Some(arrival.inline),
            op::EAGER if arrival.length <= PAYLOAD => {
                let another = arrival.length <= EXPECTED_MAX;
                self.expected = another.then(|| arrival.next_payload());
                self.ends.payload_in(arrival.payload, arrival.length)
            }
            _ => None,
        }
    }

    #[inline(never)]
    fn take_other(&mut self, nic: &LoopbackNic, port: &Port, arrival: Arrival) -> Taken {
        let arrival = &arrival;
        watch::note_arrival();
        self.expected = None;
        match arrival.op {
            op::FETCH => self.fetch(nic, port, arrival),
            op::PIECE => self.piece(port, arrival),
            op::PLACED => {
                if self.placed(port, arrival, arrival.flags & flag::REFUSED) {
                    Taken::Yes
                } else {
                    Taken::Failed
                }
            }
            op::NEWS => self.hear(port, arrival),
            op::WRITE => {
                if self.write_arrived(port, arrival) {
                    Taken::Yes
                } else {
                    Taken::Failed
                }
            }
            op::READ => {
                self.read_asked(port, arrival);
                Taken::Yes
            }
            op::DATA => {
                self.data_arrived(port, arrival);
                Taken::Yes
            }
            _ => self.nonsense(port),
        }
    }

    /// A partner that breaks the rules loses the connection, and nothing else happens.
    #[cold]
    pub(crate) fn nonsense(&mut self, port: &Port) -> Taken {
        self.die(port, Closed::LOST, CONN_LOST, 0);
        Taken::Failed
    }

    /// Copies a message that lies in one place into the next receive descriptor.
    #[inline(always)]
    fn deliver(&mut self, port: &Port, arrival: &Arrival, from: *const u8) -> Taken {
        let number = port.completed(Queue::Recv);
        if number == port.posted(Queue::Recv) {
            return self.nothing_posted(port);
        }
        // SAFETY: posted and not complete.
        let entry = unsafe { port.entry(Queue::Recv, number) };
        if place_plain(port, &entry, from, arrival.length) {
            return self.received_into(port, entry, arrival, VIP_STATUS_OP_RECEIVE);
        }
        self.deliver_any(port, *arrival, from, entry)
    }

    /// The same for any descriptor.
    #[inline(never)]
    fn deliver_any(
        &mut self,
        port: &Port,
        arrival: Arrival,
        from: *const u8,
        entry: Entry,
    ) -> Taken {
        let segments = match descriptor::incoming(port, &entry, Some(arrival.length)) {
            Ok(segments) => segments,
            Err(fault) => return self.cannot_receive(port, fault.status, 0),
        };
        match scatter_into(&segments, from, arrival.length) {
            Ok(()) => {}
            Err(status) => return self.cannot_receive(port, status, 0),
        }
        self.received_into(port, entry, &arrival, VIP_STATUS_OP_RECEIVE)
    }

    /// Completes the next receive descriptor with success.
    pub(crate) fn received(&mut self, port: &Port, arrival: &Arrival, opcode: u32) -> Taken {
        // SAFETY: posted and not complete.
        let entry = unsafe { port.entry(Queue::Recv, port.completed(Queue::Recv)) };
        self.received_into(port, entry, arrival, opcode)
    }

    /// The same, for a caller that has its entry.
    #[inline(always)]
    fn received_into(
        &mut self,
        port: &Port,
        entry: Entry,
        arrival: &Arrival,
        opcode: u32,
    ) -> Taken {
        let flagged = arrival.flags & flag::IMMEDIATE != 0;
        let immediate = if flagged || self.carry_immediate {
            arrival.immediate
        } else {
            0
        };
        let status = opcode | if flagged { VIP_STATUS_IMMEDIATE } else { 0 };
        let data = Some((arrival.length, immediate));
        // SAFETY: the oldest receive.
        if unsafe { port.complete_entry(Queue::Recv, entry, status, data) } {
            Taken::Yes
        } else {
            self.broken(port);
            Taken::Failed
        }
    }

    /// The partner sent although nothing is posted: it has not looked, or has lied.
    #[cold]
    pub(crate) fn nothing_posted(&mut self, port: &Port) -> Taken {
        let code = VIP_ERROR_CODE::VIP_ERROR_RECVQ_EMPTY;
        watch::note_arrival();
        if !port.is_reliable() {
            port.raise(code, VIP_STATUS_OP_RECEIVE);
            return Taken::Yes;
        }
        self.die(
            port,
            Closed::RECEIVE_FAILED,
            code as i32,
            VIP_STATUS_OP_RECEIVE,
        );
        Taken::Failed
    }

    /// E7, E8: the receive descriptor tells; on the reliable levels the connection ends.
    #[cold]
    pub(crate) fn cannot_receive(&mut self, port: &Port, status: u32, length: u32) -> Taken {
        let opcode = VIP_STATUS_OP_RECEIVE;
        if !port.complete(Queue::Recv, status | opcode, Some((length, 0))) {
            self.broken(port);
            return Taken::Failed;
        }
        if !port.is_reliable() {
            return Taken::Yes;
        }
        self.acknowledge();
        self.die(port, Closed::RECEIVE_FAILED, VIPL_CAUSE_REPORTED, 0);
        Taken::Failed
    }

    /// Unreliable: an error that only the sender could see.
    #[cold]
    fn hear(&mut self, port: &Port, arrival: &Arrival) -> Taken {
        if port.is_reliable() {
            return self.nonsense(port);
        }
        if arrival.length == VIP_ERROR_CODE::VIP_ERROR_RECVQ_EMPTY as u32 {
            port.raise(VIP_ERROR_CODE::VIP_ERROR_RECVQ_EMPTY, VIP_STATUS_OP_RECEIVE);
        } else if arrival.length == VIP_ERROR_CODE::VIP_ERROR_RDMAW_PROT as u32 {
            let opcode = VIP_STATUS_OP_REMOTE_RDMA_WRITE;
            port.raise(VIP_ERROR_CODE::VIP_ERROR_RDMAW_PROT, opcode);
        }
        Taken::Yes
    }
}

/// Whether a completion wakes or calls somebody. Then one look completes all that it can.
#[inline(always)]
fn wants_signals(port: &Port) -> bool {
    port.wants_signal(Queue::Recv) || port.wants_signal(Queue::Send)
}

/// The most bytes of the payload area that a slot may have had; pieces can be shorter.
#[inline(always)]
fn payload_bytes(arrival: &Arrival) -> u32 {
    match arrival.op {
        op::EAGER => arrival.length.min(PAYLOAD),
        op::PIECE | op::WRITE | op::DATA => arrival.length.min(PIECE),
        _ => 0,
    }
}

/// The common case, straight through: one segment that takes the whole message. False: something else,
/// or an error.
#[inline(always)]
fn place_plain(port: &Port, entry: &Entry, from: *const u8, length: u32) -> bool {
    // SAFETY: a posted descriptor; faults are caught.
    let image = unsafe { vipl_guard::load_descriptor(entry.descriptor().cast()) };
    let Ok(image) = image else { return false };
    let (segment, tag) = (image.first, port.ptag());
    let checked = descriptor::checked_of(port, length).unwrap_or(segment.length.into());
    if image.control & (VIP_CONTROL_OP_MASK | VIP_CONTROL_RESERVED) != 0
        || image.seg_count != 1
        || segment.length < length
        || !port
            .regions()
            .is_local(segment.handle, segment.address, checked, tag)
    {
        return false;
    }
    let to = std::ptr::with_exposed_provenance_mut(segment.address as usize);
    // SAFETY: `from` has `length` bytes; faults are caught.
    unsafe { vipl_guard::copy(to, from, length as usize) }.is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{DONE, Pair, Posted, RD, RR, Told, U, code, pair, told};

    #[test]
    fn messages_of_all_ways_arrive_whole() {
        for single_copy in [true, false] {
            for length in [0, 1, 40, 41, 16_384, 16_385, 65_536] {
                let mut pair = pair(RD, single_copy);
                let data = pair.left.fill(0, length, length);
                let receive = pair.right.receive(64, length as u32 + 3);
                let send = pair.left.send(0, length as u32);
                // Both sides may have to learn first how the other one's memory is reached.
                for _ in 0..4 {
                    pair.right.progress();
                    pair.left.progress();
                }
                assert_eq!(pair.left.status(send), DONE, "{length} bytes");
                let received = DONE | VIP_STATUS_OP_RECEIVE;
                assert_eq!(pair.right.status(receive), received, "{length} bytes");
                assert_eq!(pair.right.result(receive), (length as u32, 0));
                assert_eq!(pair.right.bytes(64, length), data);
                assert_eq!(
                    pair.right.bytes(64 + length, 3),
                    [0; 3],
                    "behind the message"
                );
            }
        }
    }

    /// A pair whose sides have nothing else to find out, and whose left thread does not sleep on the bell.
    fn settled() -> Pair {
        let mut pair = pair(RR, true);
        pair.left.nic.watch.stop();
        received(&mut pair);
        pair.left.progress();
        pair
    }

    /// A message of the left side that the right one has received.
    fn received(pair: &mut Pair) -> Posted {
        pair.right.receive(0, 8);
        let send = pair.left.send(0, 8);
        pair.right.progress();
        send
    }

    /// Whether a look of the left side tells it that the message was received, if it has `looked` at that time.
    fn is_found(pair: &mut Pair, send: Posted, looked: u64) -> bool {
        pair.left.link().looked = looked;
        pair.left.progress();
        pair.left.status(send) == DONE
    }

    /// How many of three messages a look takes that follows one at an empty ring.
    fn taken_after_nothing(pair: &mut Pair) -> usize {
        pair.right.progress();
        let receives = [0; 3].map(|at| pair.right.receive(at, 8));
        for _ in 0..3 {
            pair.left.send(0, 8);
        }
        pair.right.progress();
        let done = |pair: &Pair| receives.map(|receive| pair.right.status(receive) != 0);
        let taken = done(pair);
        pair.right.progress();
        assert_eq!(done(pair), [true; 3], "the next look takes the others");
        taken.into_iter().filter(|taken| *taken).count()
    }

    #[test]
    fn a_message_that_was_waited_for_is_taken_by_itself() {
        // A receipt tells of all messages before it.
        for (level, taken) in [(U, 1), (RD, 1), (RR, 3)] {
            let mut pair = pair(level, true);
            received(&mut pair);
            assert_eq!(taken_after_nothing(&mut pair), taken, "level {level}");
            assert_eq!(taken_after_nothing(&mut pair), taken, "again");
        }
    }

    /// A thread is woken once for all that has arrived, and a mark stands for it.
    #[test]
    fn for_those_who_sleep_a_look_takes_everything() {
        for (recv, send) in [(true, false), (false, true)] {
            let mut pair = pair(RD, true);
            received(&mut pair);
            pair.right.await_completions(recv, send);
            assert_eq!(taken_after_nothing(&mut pair), 3);
        }
        let mut pair = pair(RD, true);
        received(&mut pair);
        pair.right.link().set_wants_marks(true);
        assert_eq!(taken_after_nothing(&mut pair), 3);
        pair.right.link().set_wants_marks(false);
        pair.right.progress();
        assert!(pair.right.link().idle);
        pair.right.link().set_waiting(true);
        assert!(!pair.right.link().idle, "it waits for room in the ring");
    }

    #[test]
    fn a_message_in_pieces_is_not_left_after_the_first() {
        let mut pair = pair(RD, false);
        received(&mut pair);
        pair.right.progress();
        assert!(pair.right.link().idle);
        let receive = pair.right.receive(0, 65_536);
        pair.left.send(0, 65_536);
        pair.right.progress();
        assert_eq!(
            pair.right.status(receive),
            DONE | VIP_STATUS_OP_RECEIVE,
            "one look takes all pieces"
        );
    }

    /// Messages of one piece's length that the left side has sent and the right one has room for.
    fn large_messages(pair: &mut Pair, count: usize) -> Vec<Posted> {
        let receives = (0..count).map(|_| pair.right.receive(0, PIECE)).collect();
        for _ in 0..count {
            pair.left.send(0, PIECE);
        }
        receives
    }

    fn consumed(pair: &mut Pair) -> u32 {
        pair.right
            .link()
            .ends
            .own()
            .consumed
            .load(Ordering::Relaxed)
    }

    #[test]
    fn the_sender_learns_of_room_before_the_end_of_a_batch() {
        let mut pair = pair(RD, true);
        received(&mut pair);
        let before = consumed(&mut pair);
        large_messages(&mut pair, 5);
        assert_eq!(pair.right.receive_batch(5), (true, 5 * PIECE));
        assert_eq!(consumed(&mut pair), before + 4, "told after each 32 KiB");
        pair.right.link().acknowledge();
        assert_eq!(consumed(&mut pair), before + 5);
    }

    /// Otherwise a look could last as long as the sender has something to send.
    #[test]
    fn a_batch_ends_with_as_much_as_the_payload_area_holds() {
        let mut pair = pair(RD, true);
        received(&mut pair);
        let receives = large_messages(&mut pair, 20);
        assert_eq!(pair.right.receive_batch(BATCH), (true, PAYLOAD));
        pair.right.link().acknowledge();
        pair.left.progress();
        assert_eq!(pair.right.receive_batch(BATCH), (false, 4 * PIECE));
        for receive in receives {
            assert_eq!(pair.right.status(receive), DONE | VIP_STATUS_OP_RECEIVE);
        }
    }

    #[test]
    fn what_follows_a_wait_for_room_is_a_burst() {
        let mut pair = pair(RD, true);
        received(&mut pair);
        pair.left.link().learn_consumed();
        assert!(pair.left.link().is_awaited());
        pair.left.link().set_waiting(true);
        assert!(!pair.left.link().is_awaited());
    }

    /// VipDisconnect looks once, and whatever has come by then counts (spec §4.4).
    #[test]
    fn the_end_leaves_nothing_that_has_arrived() {
        for level in [U, RD, RR] {
            let mut pair = pair(level, true);
            received(&mut pair);
            for _ in 0..3 {
                pair.left.progress();
            }
            assert_eq!(pair.left.link().idle, level != RR);
            pair.right.receive(0, 8);
            let send = pair.left.send(0, 8);
            pair.right.progress();
            let receives = [0; 3].map(|at| pair.left.receive(at, 8));
            for _ in 0..3 {
                pair.right.send(0, 8);
            }
            pair.left.progress();
            pair.left.detach();
            assert_eq!(pair.left.status(send), DONE, "level {level}");
            let received = DONE | VIP_STATUS_OP_RECEIVE;
            let statuses = receives.map(|receive| pair.left.status(receive));
            assert_eq!(statuses, [received; 3], "level {level}");
        }
    }

    const LONG_AGO: u64 = 0;
    const JUST_NOW: u64 = u64::MAX;

    #[test]
    fn a_sender_that_polls_leaves_the_count_alone_for_moments() {
        let mut pair = settled();
        let before = ticks();
        let send = received(&mut pair);
        assert!(pair.left.link().looked >= before, "after a send");
        assert!(!is_found(&mut pair, send, JUST_NOW));
        assert!(is_found(&mut pair, send, LONG_AGO));
        assert!(pair.left.link().looked >= before, "after a look");
    }

    #[test]
    fn an_answer_brings_the_receipt() {
        let mut pair = settled();
        let send = received(&mut pair);
        pair.left.receive(0, 8);
        pair.right.send(0, 8);
        assert!(is_found(&mut pair, send, JUST_NOW));
    }

    #[test]
    fn a_sender_that_may_be_told_looks_at_once() {
        let mut pair = settled();
        let shared = pair.left.nic.shared.clone();
        let epoch = shared.bell().arm();
        let send = received(&mut pair);
        assert!(is_found(&mut pair, send, JUST_NOW), "before it sleeps");
        shared.bell().sleep(epoch, 0);
        let link = pair.left.link();
        link.set_wants_marks(true);
        link.ends.own().marks.store(1, Ordering::Relaxed);
        let send = received(&mut pair);
        assert!(is_found(&mut pair, send, JUST_NOW), "at a mark");
        let mut marks = [0; 64];
        assert_eq!(shared.ready().take(&mut marks), 1, "the partner sets it");
    }

    /// The mark of the answer stands for the receipt that came after it, too.
    #[test]
    fn one_mark_stands_for_an_answer_and_a_later_receipt() {
        let mut pair = settled();
        pair.left.receive(0, 8);
        let first = received(&mut pair);
        pair.right.receive(0, 8);
        let second = pair.left.send(0, 8);
        pair.right.send(0, 8);
        pair.right.progress();
        pair.left.link().set_wants_marks(true);
        assert!(is_found(&mut pair, first, JUST_NOW));
        assert_eq!(pair.left.status(second), DONE);
    }

    /// RDMA may find first that the partner's process is gone. What that left in its own memory is lost, and nothing
    /// from behind it is delivered.
    #[test]
    fn no_message_follows_one_that_cannot_be_fetched_any_more() {
        for level in [U, RD, RR] {
            let mut pair = pair(level, true);
            let met = pair.right.receive(0, 20_000);
            pair.left.send(0, 20_000);
            for _ in 0..4 {
                pair.right.progress();
                pair.left.progress();
            }
            assert_eq!(pair.right.status(met), DONE | VIP_STATUS_OP_RECEIVE);
            let receives = [pair.right.receive(0, 20_000), pair.right.receive(0, 8)];
            pair.left.send(0, 20_000);
            pair.left.send(0, 8);
            pair.right.link().lose_reach();
            pair.right.progress();
            assert_eq!(told(), [Told::Failed(1, CONN_LOST)], "level {level}");
            assert_eq!(receives.map(|receive| pair.right.status(receive)), [0, 0]);
        }
    }

    #[test]
    fn immediate_data_travels_with_its_flag() {
        let mut pair = pair(RD, true);
        let receive = pair.right.receive(0, 8);
        pair.left.post(VIP_CONTROL_IMMEDIATE, 0, &[]);
        pair.right.progress();
        let status = DONE | VIP_STATUS_OP_RECEIVE | VIP_STATUS_IMMEDIATE;
        assert_eq!(pair.right.status(receive), status);
        assert_eq!(pair.right.result(receive), (0, 0x1234_5678));
    }

    /// E7.
    #[test]
    fn a_message_that_is_too_long_tells_both_sides() {
        let expected = [
            (U, 0),
            (RD, VIP_STATUS_TRANSPORT_ERROR),
            (RR, VIP_STATUS_REMOTE_DESC_ERROR),
        ];
        for (level, status) in expected {
            let mut pair = pair(level, true);
            let receive = pair.right.receive(0, 8);
            let send = pair.left.send(0, 9);
            pair.right.progress();
            let error = DONE | VIP_STATUS_LENGTH_ERROR | VIP_STATUS_OP_RECEIVE;
            assert_eq!(pair.right.status(receive), error);
            assert_eq!(pair.right.bytes(0, 9), [0; 9]);
            assert_eq!(pair.right.is_connected(), level == U, "level {level}");
            pair.left.progress();
            assert_eq!(pair.left.is_connected(), level == U, "level {level}");
            // On Reliable Delivery the send was complete when its data had left.
            let status = if level == RD { 0 } else { status };
            assert_eq!(pair.left.status(send), DONE | status, "level {level}");
        }
    }

    #[test]
    fn a_look_ends_and_asks_for_another_one() {
        let mut pair = pair(RD, true);
        let receives: Vec<_> = (0..2 * BATCH + 1)
            .map(|_| pair.right.receive(0, 8))
            .collect();
        for _ in 0..2 * BATCH + 1 {
            pair.left.send(0, 8);
        }
        pair.right.nic.shared.ready().take(&mut [0; 64]);
        pair.right.progress();
        assert_ne!(pair.right.status(receives[2 * BATCH as usize - 1]), 0);
        assert_eq!(pair.right.status(receives[2 * BATCH as usize]), 0);
        let mut marked = [0; 64];
        assert_eq!(pair.right.nic.shared.ready().take(&mut marked), 1);
        assert_eq!(marked[0], 1, "the VI's own index");
    }

    /// A slot that no honest peer writes costs the connection and nothing else.
    #[test]
    fn a_peer_that_breaks_the_rules_loses_the_connection() {
        let lost = code(VIP_ERROR_CODE::VIP_ERROR_CONN_LOST);
        let slots = [
            (99, 8, 0),
            (op::INLINE, INLINE as u32 + 1, 0),
            (op::EAGER, PAYLOAD, 64),
            (op::PIECE, 8, 0),
            (op::NEWS, 0, 0),
            (op::DATA, 8, 0),
        ];
        for (op, length, payload) in slots {
            let mut pair = pair(RD, true);
            let receive = pair.right.receive(0, 8);
            let link = pair.left.link();
            link.ends.publish(0, op, 0, length, 0, payload, 0, 0);
            pair.right.progress();
            assert_eq!(told(), [Told::Failed(1, lost)], "operation {op}");
            assert_eq!(pair.right.status(receive), 0, "operation {op}");
            assert_eq!(pair.right.bytes(0, 8), [0; 8], "operation {op}");
        }
    }
}
