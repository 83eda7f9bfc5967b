//! RDMA Write and Read, both sides (spec §10.2, E9 to E13).

use std::sync::atomic::Ordering;

use vipl_abi::*;
use vipl_guard::Segment;
use vipl_plugin_sdk::abi::*;
use vipl_plugin_sdk::descriptor::{self, Operation, Outgoing};
use vipl_plugin_sdk::{Entry, Port, Queue};
use vipl_sys::process_vm::Way;

use crate::cm::Closed;
use crate::help::{RDMA_MIN, SHARED_TAIL};
use crate::link::{Link, Pieces, Reach, Shared};
use crate::mem::{self, CopyError};
use crate::nic::LoopbackNic;
use crate::progress::CONN_LOST;
use crate::queue::Step;
use crate::ring::{Arrival, Extra, PIECE, flag, op};
use crate::segments::{List, scatter};
use crate::ticks::ticks;

/// How long the initiator waits for room in the ring before it goes back to its program.
const ROOM_TICKS: u64 = 40_000;
/// How long one post may take with such waits (some milliseconds).
const POST_TICKS: u64 = 10_000_000;

impl Link {
    /// The common RDMA Write, straight through: of one segment, without immediate data, copied by the kernel in one call.
    /// `None`: it is another operation, something is in its way, or it has failed, whose reason is found by doing it again.
    #[inline(always)]
    pub(crate) fn write_plain(
        &mut self,
        nic: &LoopbackNic,
        port: &Port,
        entry: &Entry,
    ) -> Option<Step> {
        let Reach::Process(pid) = self.reach.get() else {
            return None;
        };
        // SAFETY: a posted descriptor; faults are caught.
        let image = unsafe { vipl_guard::load_descriptor(entry.descriptor().cast()) }.ok()?;
        let plain = image.control & !VIP_CONTROL_QFENCE == VIP_CONTROL_OP_RDMAWRITE
            && image.seg_count == 2
            && (1..RDMA_MIN).contains(&image.length)
            && u64::from(image.length) <= port.max_transfer()
            && self.partner_rdma_write
            && self.outstanding.is_empty()
            && !self.help.is_open()
            && !self.is_in_pieces();
        if !plain {
            return None;
        }
        let data = descriptor::segment(entry, 1).ok()?;
        let (bytes, own_tag) = (u64::from(image.length), port.ptag());
        if data.length != image.length
            || !port
                .regions()
                .is_local(data.handle, data.address, bytes, own_tag)
        {
            return None;
        }
        let remote = self.in_partner(image.first);
        if !self.write_straight(pid, data.address, &remote, bytes) {
            return None;
        }
        LoopbackNic::count(nic.counters.single_copy_bytes, bytes);
        Some(self.complete_entry(port, *entry, VIP_STATUS_OP_RDMA_WRITE))
    }

    /// Processes an RDMA descriptor of the send queue.
    pub(crate) fn rdma(&mut self, nic: &LoopbackNic, port: &Port, outgoing: &Outgoing) -> Step {
        if self.ends.partner().attached.load(Ordering::Acquire) == 0 {
            return Step::Wait;
        }
        match (outgoing.operation, self.reaches(nic)) {
            (_, None) => Step::Wait,
            (Operation::Write, Some(true)) if !self.is_in_pieces() => {
                self.write_direct(nic, port, outgoing)
            }
            (Operation::Write, _) => self.write_pieces(nic, port, outgoing),
            // A read must see what earlier writes wrote.
            (_, Some(true)) if self.writes_under_way() => Step::Wait,
            (_, Some(true)) => self.read_direct(nic, port, outgoing),
            (_, Some(false)) => self.ask_to_read(port, outgoing),
        }
    }

    /// Whether pieces of earlier RDMA Writes still lie in the ring.
    fn writes_under_way(&mut self) -> bool {
        let under_way = |link: &Link| {
            // Slots since the last piece, and slots that the partner has not consumed.
            let (since, open) = (link.written, link.outbox.consumed);
            link.outbox.sent.wrapping_sub(since) < link.outbox.sent.wrapping_sub(open)
        };
        if under_way(self) {
            self.learn_consumed();
        }
        under_way(self)
    }

    /// Whether an RDMA Write goes through the ring although the kernel could copy it: it has begun so, before the
    /// kernel's permission was known or after it was lost, or it must not overtake one that did.
    fn is_in_pieces(&mut self) -> bool {
        self.sending.is_some() || self.writes_under_way()
    }

    fn write_direct(&mut self, nic: &LoopbackNic, port: &Port, outgoing: &Outgoing) -> Step {
        let slots = self.outbox.has_slot() || self.learn_consumed();
        // Under Reliable Reception nothing takes effect before what was sent earlier has been received.
        let ordered = port.reliability() == VIP_SERVICE_RELIABLE_RECEPTION;
        if outgoing.flagged && !slots || ordered && !self.outstanding.is_empty() {
            return Step::Wait;
        }
        let Ok(local) = List::new(&outgoing.segments) else {
            return self.local_error(port, VIP_STATUS_PROTECTION_ERROR | VIP_STATUS_OP_RDMA_WRITE);
        };
        match self.copy_remote(Way::Write, outgoing, &local) {
            Ok(bytes) => LoopbackNic::count(nic.counters.single_copy_bytes, bytes),
            // The partner's reason is dealt with by `progress`.
            Err(CopyError::Closed | CopyError::Later) => return Step::Wait,
            Err(CopyError::Gone) => {
                self.lose_reach();
                return self.rdma(nic, port, outgoing);
            }
            Err(CopyError::Fault) if !mem::is_accessible(&local, false) => {
                let status = VIP_STATUS_PROTECTION_ERROR | VIP_STATUS_OP_RDMA_WRITE;
                return self.local_error(port, status);
            }
            // What was sent before is received before the connection ends.
            Err(CopyError::Fault) if !self.outstanding.is_empty() => return Step::Wait,
            Err(CopyError::Fault) => return self.write_refused(port, outgoing),
        }
        if outgoing.flagged {
            return self.announce_write(port, outgoing);
        }
        // The data is in place: complete at every level.
        if self.outstanding.is_empty() {
            return self.complete_now(port, VIP_STATUS_OP_RDMA_WRITE);
        }
        self.in_turn(port, VIP_STATUS_OP_RDMA_WRITE, None)
    }

    /// Copies to or from the target range, if the target permits it.
    fn copy_remote(
        &mut self,
        way: Way,
        outgoing: &Outgoing,
        local: &[Segment],
    ) -> Result<u64, CopyError> {
        if outgoing.length == 0 {
            return Ok(0);
        }
        let remote = Segment {
            length: outgoing.length,
            ..self.in_partner(outgoing.remote)
        };
        let (enabled, flag) = match way {
            Way::Write => (self.partner_rdma_write, VIPL_REGION_RDMA_WRITE),
            Way::Read => (self.partner_rdma_read, VIPL_REGION_RDMA_READ),
        };
        // SAFETY: the NIC stays mapped as long as the connection.
        let table = unsafe { self.partner_nic.lasting_table() };
        let tag = self.ends.partner().ptag.load(Ordering::Relaxed);
        let length = u64::from(outgoing.length);
        let permitted =
            || enabled && table.is_remote(remote.handle, remote.address, length, tag, flag);
        if outgoing.length >= RDMA_MIN {
            match self.share_rdma(way, remote, local, permitted) {
                Shared::Later => return Err(CopyError::Later),
                Shared::Done => {
                    let tail = length - SHARED_TAIL..length;
                    if self
                        .copy_part(way, local, &[remote], tail, permitted)
                        .is_ok()
                    {
                        return Ok(length);
                    }
                }
                Shared::Alone => {}
            }
        }
        self.copy(way, local, &[remote], permitted)
    }

    /// The immediate data of an RDMA Write that has been placed.
    fn announce_write(&mut self, port: &Port, outgoing: &Outgoing) -> Step {
        if self.messages == self.partner_posted
            && !self.learn_posted()
            && let Some(step) = self.no_descriptor(port, VIP_STATUS_OP_RDMA_WRITE)
        {
            return step;
        }
        self.publish(port, op::PLACED, outgoing, 0);
        self.messages = self.messages.wrapping_add(1);
        self.accepted(port, VIP_STATUS_OP_RDMA_WRITE)
    }

    /// E9 and E10, found by the initiator.
    #[cold]
    fn write_refused(&mut self, port: &Port, outgoing: &Outgoing) -> Step {
        let posted = self.messages != self.partner_posted || self.learn_posted();
        let by_descriptor = outgoing.flagged && posted;
        if by_descriptor {
            let flags = flag::IMMEDIATE | flag::REFUSED;
            self.publish_slot(port, op::PLACED, flags, 0, outgoing.immediate, 0);
            self.messages = self.messages.wrapping_add(1);
        }
        let refused = VIP_ERROR_CODE::VIP_ERROR_RDMAW_PROT as u32;
        let opcode = VIP_STATUS_OP_RDMA_WRITE;
        match port.reliability() {
            VIP_SERVICE_UNRELIABLE => {
                if !by_descriptor {
                    self.news(port, refused);
                }
                self.in_turn(port, opcode, None)
            }
            level => {
                if !by_descriptor {
                    self.close(Closed::WRITE_REFUSED);
                }
                if level == VIP_SERVICE_RELIABLE_RECEPTION {
                    let status = VIP_STATUS_RDMA_PROT_ERROR | opcode;
                    self.in_turn(port, status, Some(VIPL_CAUSE_REPORTED))
                } else {
                    // The write was complete when its data had left; the loss is told afterwards.
                    self.in_turn(port, opcode, Some(CONN_LOST))
                }
            }
        }
    }

    fn read_direct(&mut self, nic: &LoopbackNic, port: &Port, outgoing: &Outgoing) -> Step {
        let opcode = VIP_STATUS_OP_RDMA_READ;
        let Ok(local) = List::new(&outgoing.segments) else {
            return self.local_error(port, VIP_STATUS_PROTECTION_ERROR | opcode);
        };
        match self.copy_remote(Way::Read, outgoing, &local) {
            Ok(bytes) => LoopbackNic::count(nic.counters.single_copy_bytes, bytes),
            Err(CopyError::Closed | CopyError::Later) => return Step::Wait,
            Err(CopyError::Gone) => {
                self.lose_reach();
                return self.rdma(nic, port, outgoing);
            }
            Err(CopyError::Fault) if !mem::is_accessible(&local, true) => {
                return self.local_error(port, VIP_STATUS_PROTECTION_ERROR | opcode);
            }
            Err(CopyError::Fault) if !self.outstanding.is_empty() => return Step::Wait,
            Err(CopyError::Fault) => {
                self.close(Closed::READ_REFUSED);
                let status = VIP_STATUS_RDMA_PROT_ERROR | opcode;
                return self.in_turn(port, status, Some(VIPL_CAUSE_REPORTED));
            }
        }
        self.in_turn(port, opcode, None)
    }

    /// An RDMA Write through the payload area; the target checks and places it.
    fn write_pieces(&mut self, nic: &LoopbackNic, port: &Port, outgoing: &Outgoing) -> Step {
        let opcode = VIP_STATUS_OP_RDMA_WRITE;
        let Ok(segments) = outgoing.segments.to_vec() else {
            return self.local_error(port, VIP_STATUS_PROTECTION_ERROR | opcode);
        };
        let total = outgoing.length;
        let start = ticks();
        loop {
            let offset = self.sending.as_ref().map_or(0, |pieces| pieces.offset);
            let bytes = mem::portion((total - offset).into(), PIECE.into()) as u32;
            if total > 0 && offset == total {
                break;
            }
            let piece = Extra {
                address: outgoing.remote.address,
                handle: outgoing.remote.handle,
                offset,
                bytes,
                ..Extra::default()
            };
            let Some(put) = self.put_piece_soon(&segments, total, piece, start) else {
                return Step::Wait;
            };
            let Ok((flags, place)) = put else {
                return self.local_error(port, VIP_STATUS_PROTECTION_ERROR | opcode);
            };
            let flags = flags | if outgoing.flagged { flag::IMMEDIATE } else { 0 };
            self.publish_slot(port, op::WRITE, flags, total, outgoing.immediate, place);
            self.written = self.outbox.sent;
            LoopbackNic::count(nic.counters.ring_copy_bytes, u64::from(bytes));
            self.sending = Some(Pieces {
                offset: offset + bytes,
                total,
            });
            if offset + bytes == total {
                break;
            }
        }
        self.sending = None;
        if outgoing.flagged {
            // The target counts it if it has a descriptor; so does this side, from the same count.
            if self.messages == self.partner_posted {
                self.learn_posted();
            }
            if self.messages != self.partner_posted {
                self.messages = self.messages.wrapping_add(1);
            }
        }
        self.accepted(port, opcode)
    }

    /// As `put_piece`, but gives a target that is at work a moment to make room.
    #[allow(clippy::type_complexity)]
    fn put_piece_soon(
        &mut self,
        segments: &[Segment],
        total: u32,
        extra: Extra,
        begun: u64,
    ) -> Option<Result<(u8, u32), vipl_guard::Fault>> {
        let start = ticks();
        loop {
            let put = self.put_piece(segments, total, extra);
            let now = ticks();
            let patient =
                now.wrapping_sub(start) < ROOM_TICKS && now.wrapping_sub(begun) < POST_TICKS;
            if put.is_some() || !patient {
                return put;
            }
            std::hint::spin_loop();
        }
    }

    fn ask_to_read(&mut self, port: &Port, outgoing: &Outgoing) -> Step {
        if self.reading {
            return Step::Wait;
        }
        if !self.outbox.has_slot() && !self.learn_consumed() {
            return Step::Wait;
        }
        if outgoing.length == 0 {
            return self.in_turn(port, VIP_STATUS_OP_RDMA_READ, None);
        }
        // Earlier sends complete first, so that the data belongs to the head of the queue.
        if !self.outstanding.is_empty() {
            return Step::Wait;
        }
        let extra = Extra {
            address: outgoing.remote.address,
            handle: outgoing.remote.handle,
            ..Extra::default()
        };
        self.ends.put_extra(self.outbox.sent, extra);
        self.publish_slot(port, op::READ, 0, outgoing.length, 0, 0);
        self.reading = true;
        Step::Wait
    }

    /// A piece of the data that this side asked for.
    #[cold]
    pub(crate) fn data_arrived(&mut self, port: &Port, arrival: &Arrival) {
        let opcode = VIP_STATUS_OP_RDMA_READ;
        let extra = arrival.extra();
        let from = self.ends.payload_in(arrival.payload, extra.bytes);
        let (Some(from), true) = (from, self.reading) else {
            return self.die(port, Closed::LOST, CONN_LOST, 0);
        };
        // SAFETY: posted and not complete.
        let entry = unsafe { port.entry(Queue::Send, port.completed(Queue::Send)) };
        let placed = vipl_plugin_sdk::descriptor::outgoing(port, &entry, crate::nic::READ_LEVELS)
            .ok()
            .and_then(|outgoing| outgoing.segments.to_vec().ok())
            .is_some_and(|segments| scatter(&segments, extra.offset, from, extra.bytes));
        if !placed {
            self.reading = false;
            self.local_error(port, VIP_STATUS_PROTECTION_ERROR | opcode);
            return;
        }
        if arrival.flags & flag::LAST != 0 {
            self.reading = false;
            if !port.complete(Queue::Send, opcode, None) {
                self.broken(port);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{DONE, HANDLE, Pair, RD, RR, Told, U, code, pair, told};

    /// As often as both sides may have to learn how the other one's memory is reached, and to make room.
    fn settle(pair: &mut Pair) {
        for _ in 0..40 {
            pair.right.progress();
            pair.left.progress();
        }
    }

    /// How RDMA goes from the left to the right.
    #[derive(Clone, Copy, Debug)]
    enum Road {
        /// By the copy within this process.
        Within,
        /// By the kernel, as to another process.
        Across,
        Ring,
    }

    const ROADS: [Road; 3] = [Road::Within, Road::Across, Road::Ring];

    fn pair_with(level: u16, road: Road) -> Pair {
        let mut pair = pair(level, !matches!(road, Road::Ring));
        if matches!(road, Road::Across) {
            let own = Reach::Process(std::process::id() as i32);
            pair.left.link().reach.set(own);
        }
        pair
    }

    #[test]
    fn data_gets_there_and_back_on_each_road() {
        for road in ROADS {
            for length in [0, 1, 8, 9, 40_000, 65_536] {
                let mut pair = pair_with(RD, road);
                let data = pair.left.fill(0, length, 3);
                let far = (pair.right.address(1000), HANDLE);
                let bytes = length as u32;
                let write = pair.left.rdma(VIP_CONTROL_OP_RDMAWRITE, 0, bytes, far);
                settle(&mut pair);
                let written = DONE | VIP_STATUS_OP_RDMA_WRITE;
                assert_eq!(pair.left.status(write), written, "{road:?} {length}");
                assert_eq!(pair.right.bytes(1000, length), data);
                let read = pair.left.rdma(VIP_CONTROL_OP_RDMAREAD, 100_000, bytes, far);
                settle(&mut pair);
                let done = DONE | VIP_STATUS_OP_RDMA_READ;
                assert_eq!(pair.left.status(read), done, "{length} bytes");
                assert_eq!(pair.left.bytes(100_000, length), data);
                assert_eq!(told(), []);
            }
        }
    }

    #[test]
    fn immediate_data_of_a_write_uses_a_receive_descriptor() {
        for single_copy in [true, false] {
            let mut pair = pair(RD, single_copy);
            let receive = pair.right.receive(0, 8);
            let far = (pair.right.address(1000), HANDLE);
            let control = VIP_CONTROL_OP_RDMAWRITE | VIP_CONTROL_IMMEDIATE;
            pair.left.rdma(control, 0, 16, far);
            settle(&mut pair);
            let status = DONE | VIP_STATUS_OP_REMOTE_RDMA_WRITE | VIP_STATUS_IMMEDIATE;
            assert_eq!(pair.right.status(receive), status);
            assert_eq!(pair.right.result(receive), (16, 0x1234_5678));
        }
    }

    #[test]
    fn a_write_waits_when_the_partner_has_left() {
        let mut pair = pair_with(RD, Road::Across);
        pair.right.link().close(Closed::DISCONNECTED);
        let far = (pair.right.address(1000), HANDLE);
        let write = pair.left.rdma(VIP_CONTROL_OP_RDMAWRITE, 0, 16, far);
        assert_eq!(pair.left.status(write) & DONE, 0);
        assert_eq!(pair.right.bytes(1000, 16), [0; 16]);
    }

    /// E9.
    #[test]
    fn a_write_that_the_target_does_not_permit() {
        let refused = code(VIP_ERROR_CODE::VIP_ERROR_RDMAW_PROT);
        for road in ROADS {
            for level in [U, RD, RR] {
                let mut pair = pair_with(level, road);
                let far = (pair.right.address(1000), HANDLE);
                pair.right.deregister();
                let write = pair.left.rdma(VIP_CONTROL_OP_RDMAWRITE, 0, 16, far);
                settle(&mut pair);
                assert_eq!(pair.right.bytes(1000, 16), [0; 16]);
                let error = if level == RR {
                    VIP_STATUS_RDMA_PROT_ERROR
                } else {
                    0
                };
                let status = DONE | VIP_STATUS_OP_RDMA_WRITE | error;
                assert_eq!(pair.left.status(write), status, "level {level}");
                let here = if level == U {
                    Told::Raised(1, refused)
                } else {
                    Told::Failed(1, refused)
                };
                assert!(told().contains(&here), "level {level}");
                assert_eq!(pair.left.is_connected(), level == U, "level {level}");
                assert_eq!(pair.right.is_connected(), level == U, "level {level}");
            }
        }
    }

    /// E13.
    #[test]
    fn a_read_that_the_target_does_not_permit() {
        let refused = code(VIP_ERROR_CODE::VIP_ERROR_RDMAR_PROT);
        for single_copy in [true, false] {
            let mut pair = pair(RD, single_copy);
            let far = (pair.right.address(1000), HANDLE + 1);
            let read = pair.left.rdma(VIP_CONTROL_OP_RDMAREAD, 0, 16, far);
            settle(&mut pair);
            let status = DONE | VIP_STATUS_RDMA_PROT_ERROR | VIP_STATUS_OP_RDMA_READ;
            assert_eq!(pair.left.status(read), status);
            let heard = told();
            assert!(
                heard.contains(&Told::Failed(0, VIPL_CAUSE_REPORTED)),
                "{heard:?}"
            );
            assert!(heard.contains(&Told::Failed(1, refused)), "{heard:?}");
        }
    }
}
