//! Messages that are larger than `eager_max`: fetched by the receiver from the sender's memory in one copy, or sent through
//! the payload area in pieces, where that is faster (`road`) or the kernel does not permit the other way.

use std::sync::atomic::Ordering;

use vipl_abi::*;
use vipl_guard::Segment;
use vipl_plugin_sdk::descriptor::{self, Outgoing};
use vipl_plugin_sdk::region::Table;
use vipl_plugin_sdk::{Port, Queue};
use vipl_sys::process_vm::Way;

use crate::cm::Closed;
use crate::link::{Assembly, Link, Pieces, Reach, Shared};
use crate::mem::{self, CopyError};
use crate::nic::LoopbackNic;
use crate::progress::{CONN_LOST, Taken};
use crate::queue::Step;
use crate::ring::{Arrival, Extra, LINE, PIECE, flag, op};
use crate::road::Road;
use crate::segments::{cut, gather, scatter};
use crate::ticks::ticks;
use crate::watch;

/// Segments of one message.
const SEGMENTS_MAX: u32 = 4096;

impl Link {
    /// A message that stays where it is until the receiver fetches it.
    #[cold]
    pub(crate) fn send_large(
        &mut self,
        nic: &LoopbackNic,
        port: &Port,
        outgoing: &Outgoing,
    ) -> Step {
        self.find_reach(nic);
        match self.ends.partner().reach.load(Ordering::Acquire) {
            0 => {
                self.alert();
                return Step::Wait;
            }
            1 if self.road_of(outgoing.length) == Road::Fetch => {}
            _ => {
                self.sending = Some(Pieces {
                    offset: 0,
                    total: outgoing.length,
                });
                return self.send_pieces(nic, port, outgoing);
            }
        }
        let Ok(segments) = outgoing.segments.to_vec() else {
            return self.local_error(port, VIP_STATUS_PROTECTION_ERROR);
        };
        if !mem::is_accessible(&segments, false) {
            return self.local_error(port, VIP_STATUS_PROTECTION_ERROR);
        }
        let bytes = size_of_val(segments.as_slice()) as u32;
        let Some(place) = self.reserve(bytes) else {
            return Step::Wait;
        };
        let extra = Extra {
            bytes: segments.len() as u32,
            ..Extra::default()
        };
        self.ends.put_extra(self.outbox.sent, extra);
        // SAFETY: the place has room for the list.
        unsafe {
            let from = segments.as_ptr().cast::<u8>();
            std::ptr::copy_nonoverlapping(from, self.ends.payload_out(place), bytes as usize);
        }
        self.publish(port, op::FETCH, outgoing, place);
        self.road.sent();
        self.messages = self.messages.wrapping_add(1);
        self.when_consumed(VIP_STATUS_OP_SEND)
    }

    /// The road of a large message whose receiver can fetch it. Within a process that is a plain copy.
    fn road_of(&mut self, bytes: u32) -> Road {
        if self.reach.get() == Reach::Same || bytes <= PIECE {
            Road::Fetch
        } else {
            self.road.next(&self.ends.partner().costs)
        }
    }

    /// The receiver has all of a large message.
    fn measured(&mut self, road: Road, bytes: u32) {
        if bytes > PIECE {
            self.gauge.end(ticks(), road, bytes, &self.ends.own().costs);
        }
    }

    /// A message that goes through the payload area in pieces, as room comes free.
    #[cold]
    pub(crate) fn send_pieces(
        &mut self,
        nic: &LoopbackNic,
        port: &Port,
        outgoing: &Outgoing,
    ) -> Step {
        let Ok(segments) = outgoing.segments.to_vec() else {
            return self.local_error(port, VIP_STATUS_PROTECTION_ERROR);
        };
        let total = outgoing.length;
        let watching = watch::is_this_thread();
        self.road.looks(ticks(), watching);
        loop {
            let offset = self.sending.as_ref().map_or(0, |pieces| pieces.offset);
            let bytes = (total - offset).min(piece_of(total));
            let piece = Extra {
                offset,
                bytes,
                ..Extra::default()
            };
            let Some(flags) = self.put_piece(&segments, total, piece) else {
                self.road.waits(ticks());
                return Step::Wait;
            };
            let Ok((flags, place)) = flags else {
                return self.local_error(port, VIP_STATUS_PROTECTION_ERROR);
            };
            let flags = flags | if outgoing.flagged { flag::IMMEDIATE } else { 0 };
            self.publish_slot(port, op::PIECE, flags, total, outgoing.immediate, place);
            LoopbackNic::count(nic.counters.ring_copy_bytes, u64::from(bytes));
            self.sending = Some(Pieces {
                offset: offset + bytes,
                total,
            });
            if offset + bytes == total {
                break;
            }
            // A receiver that sleeps shall take pieces while the others are copied.
            self.wake_partner();
            watch::note_arrival();
        }
        self.sending = None;
        self.road.sent();
        self.messages = self.messages.wrapping_add(1);
        self.accepted(port, VIP_STATUS_OP_SEND)
    }

    /// Puts the piece that `extra` describes into the payload area, and `extra` into the next slot. `None`:
    /// no room yet. Gives the slot's flags and the place.
    #[allow(clippy::type_complexity)]
    pub(crate) fn put_piece(
        &mut self,
        segments: &[Segment],
        total: u32,
        extra: Extra,
    ) -> Option<Result<(u8, u32), vipl_guard::Fault>> {
        let Extra { offset, bytes, .. } = extra;
        if !self.outbox.has_slot() && !self.learn_consumed() {
            return None;
        }
        let place = self.reserve(bytes)?;
        let copied = gather(segments, offset, bytes, self.ends.payload_out(place));
        if copied.is_err() {
            self.outbox.give_back();
        }
        self.ends.put_extra(self.outbox.sent, extra);
        let first = if offset == 0 { flag::FIRST } else { 0 };
        let last = if offset + bytes == total {
            flag::LAST
        } else {
            0
        };
        Some(copied.map(|()| (first | last, place)))
    }

    /// Unreliable: what has left in pieces cannot be taken back; the partner learns that the rest will
    /// not come (spec §6.2).
    #[cold]
    pub(crate) fn abort_pieces(&mut self, port: &Port, status: u32, begun: &Pieces) {
        let op = match status & VIP_STATUS_OP_MASK {
            VIP_STATUS_OP_RDMA_WRITE => op::WRITE,
            _ => op::PIECE,
        };
        if op == op::PIECE {
            self.messages = self.messages.wrapping_add(1);
        }
        if self.outbox.has_slot() || self.learn_consumed() {
            let extra = Extra {
                offset: begun.offset,
                ..Extra::default()
            };
            self.ends.put_extra(self.outbox.sent, extra);
            self.publish_slot(port, op, flag::LAST | flag::ABORTED, begun.total, 0, 0);
        }
    }

    /// Whether the partner's memory can be touched; `None` when that is not known yet.
    pub(crate) fn reaches(&mut self, nic: &LoopbackNic) -> Option<bool> {
        self.find_reach(nic);
        match self.reach.get() {
            Reach::Unknown => None,
            Reach::None => Some(false),
            Reach::Same | Reach::Process(_) => Some(true),
        }
    }

    /// Fetches a large message from the sender's memory, straight into the posted buffers.
    pub(crate) fn fetch(&mut self, nic: &LoopbackNic, port: &Port, arrival: &Arrival) -> Taken {
        let begun = self.shared_message();
        match begun {
            Some(Shared::Later) => return Taken::Later,
            Some(Shared::Done) => return self.fetched(nic, port, arrival, arrival.length.into()),
            Some(Shared::Alone) => {}
            None => self.gauge.begin(ticks(), 0),
        }
        let number = port.completed(Queue::Recv);
        if number == port.posted(Queue::Recv) {
            return self.nothing_posted(port);
        }
        let count = arrival.extra().bytes;
        let bytes = count.saturating_mul(size_of::<Segment>() as u32);
        let from = self.ends.payload_in(arrival.payload, bytes);
        let (Some(from), true) = (from, count <= SEGMENTS_MAX) else {
            return self.nonsense(port);
        };
        let mut remote = vec![Segment::default(); count as usize];
        // SAFETY: `bytes` bytes are there; every bit pattern is a segment; checked below.
        unsafe { std::ptr::copy_nonoverlapping(from, remote.as_mut_ptr().cast(), bytes as usize) };
        let total: u64 = remote.iter().map(|segment| u64::from(segment.length)).sum();
        if total != u64::from(arrival.length) {
            return self.nonsense(port);
        }
        // SAFETY: posted and not complete.
        let entry = unsafe { port.entry(Queue::Recv, number) };
        let local = match descriptor::incoming(port, &entry, Some(arrival.length))
            .map_err(|fault| fault.status)
            .and_then(|segments| cut(&segments, arrival.length))
        {
            Ok(local) => local,
            Err(status) => return self.cannot_receive(port, status, 0),
        };
        self.find_reach(nic);
        if begun.is_none() {
            match self.share_message(&local, &remote, arrival.length) {
                Shared::Later => return Taken::Later,
                Shared::Done => return self.fetched(nic, port, arrival, arrival.length.into()),
                Shared::Alone => {}
            }
        }
        let table = self.partner_nic.table();
        let live = || remote.iter().all(|segment| is_live(table, segment));
        match self.copy(Way::Read, &local, &remote, live) {
            Ok(bytes) => self.fetched(nic, port, arrival, bytes),
            // The partner's reason is dealt with next; this message never arrived.
            Err(CopyError::Closed | CopyError::Gone | CopyError::Later) => {
                let closed = Closed(self.ends.partner().closed.load(Ordering::Acquire));
                self.acknowledge();
                self.partner_closed(port, closed);
                Taken::Failed
            }
            Err(CopyError::Fault) if mem::is_accessible(&local, true) => self.sender_fault(port),
            Err(CopyError::Fault) => self.cannot_receive(port, VIP_STATUS_PROTECTION_ERROR, 0),
        }
    }

    /// A large message is in the posted buffers.
    fn fetched(&mut self, nic: &LoopbackNic, port: &Port, arrival: &Arrival, bytes: u64) -> Taken {
        LoopbackNic::count(nic.counters.single_copy_bytes, bytes);
        self.measured(Road::Fetch, arrival.length);
        self.received(port, arrival, VIP_STATUS_OP_RECEIVE)
    }

    /// The sender has taken its buffer away before it was read: its own mistake.
    #[cold]
    fn sender_fault(&mut self, port: &Port) -> Taken {
        if !port.is_reliable() {
            return Taken::Yes;
        }
        self.die(port, Closed::SENDER_FAULT, CONN_LOST, 0);
        Taken::Failed
    }

    /// A piece of a large message.
    pub(crate) fn piece(&mut self, port: &Port, arrival: &Arrival) -> Taken {
        let extra = arrival.extra();
        if arrival.flags & flag::FIRST != 0
            && let Err(taken) = self.begin_assembly(port, arrival)
        {
            return taken;
        }
        let end = u64::from(extra.offset) + u64::from(extra.bytes);
        let from = self.ends.payload_in(arrival.payload, extra.bytes);
        let (Some(assembly), Some(from)) = (&self.receiving, from) else {
            return self.nonsense(port);
        };
        // All pieces are of one message, whose length the program will be told.
        if end > u64::from(arrival.length) || arrival.length != assembly.total {
            return self.nonsense(port);
        }
        let last = arrival.flags & flag::LAST != 0;
        if arrival.flags & flag::ABORTED != 0 && !assembly.dropped {
            self.receiving = None;
            return self.cannot_receive(port, VIP_STATUS_PARTIAL_ERROR, extra.offset);
        }
        if !assembly.dropped && assembly.number != port.completed(Queue::Recv) {
            return self.nonsense(port);
        }
        if assembly.dropped {
            if last {
                self.receiving = None;
            }
            return Taken::Yes;
        }
        // Regions may have gone since the first piece.
        let placed = are_local(port, &assembly.segments)
            && scatter(&assembly.segments, extra.offset, from, extra.bytes);
        if !placed {
            self.receiving = Some(Assembly {
                segments: Vec::new(),
                number: 0,
                total: arrival.length,
                dropped: true,
            });
            return self.cannot_receive(port, VIP_STATUS_PROTECTION_ERROR, 0);
        }
        if arrival.flags & flag::FIRST != 0 {
            self.gauge.begin(ticks(), extra.bytes);
        }
        if !last {
            return Taken::Yes;
        }
        self.receiving = None;
        self.measured(Road::Pieces, arrival.length);
        self.received(port, arrival, VIP_STATUS_OP_RECEIVE)
    }

    fn begin_assembly(&mut self, port: &Port, arrival: &Arrival) -> Result<(), Taken> {
        let dropped = || {
            Some(Assembly {
                segments: Vec::new(),
                number: 0,
                total: arrival.length,
                dropped: true,
            })
        };
        let number = port.completed(Queue::Recv);
        if number == port.posted(Queue::Recv) {
            self.receiving = dropped();
            return Err(self.nothing_posted(port));
        }
        // SAFETY: posted and not complete.
        let entry = unsafe { port.entry(Queue::Recv, number) };
        let segments = descriptor::incoming(port, &entry, Some(arrival.length))
            .map_err(|fault| fault.status)
            .and_then(|segments| cut(&segments, arrival.length));
        match segments {
            Ok(segments) => {
                self.receiving = Some(Assembly {
                    segments,
                    number,
                    total: arrival.length,
                    dropped: false,
                });
                Ok(())
            }
            Err(status) => {
                self.receiving = dropped();
                Err(self.cannot_receive(port, status, 0))
            }
        }
    }
}

/// Bytes of one piece of a message: all are of one size, so that both sides copy at the same time.
fn piece_of(total: u32) -> u32 {
    let pieces = total.div_ceil(PIECE).max(1);
    total.div_ceil(pieces).next_multiple_of(LINE).min(PIECE)
}

/// Whether this VI may still use all of these.
fn are_local(port: &Port, segments: &[Segment]) -> bool {
    let (table, tag) = (port.regions(), port.ptag());
    segments.iter().all(|segment| {
        let length = u64::from(segment.length);
        length == 0 || table.is_local(segment.handle, segment.address, length, tag)
    })
}

/// Whether a segment of the sender still lies in a region of its own.
pub(crate) fn is_live(table: Table, segment: &Segment) -> bool {
    let length = u64::from(segment.length);
    length == 0 || table.is_registered(segment.handle, segment.address, length)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{DONE, RD, RR, U, pair};

    #[test]
    fn pieces_of_a_message_are_alike() {
        for (total, piece) in [(16_385, 8256), (20_000, 10_048), (65_536, PIECE), (0, 0)] {
            assert_eq!(piece_of(total), piece);
        }
    }

    /// Messages on both roads arrive in the order in which they were posted, and complete.
    #[test]
    fn both_roads_are_one_queue() {
        const LENGTHS: [usize; 4] = [30_000, 8, 50_000, 17_000];
        const PLACES: [usize; 4] = [0, 30_000, 31_000, 82_000];
        for level in [U, RD, RR] {
            let mut pair = pair(level, true);
            for round in 0..40 {
                let data = [0, 1, 2, 3].map(|at| pair.left.fill(PLACES[at], LENGTHS[at], round));
                let receives =
                    [0, 1, 2, 3].map(|at| pair.right.receive(PLACES[at], LENGTHS[at] as u32));
                let sends = [0, 1, 2, 3].map(|at| pair.left.send(PLACES[at], LENGTHS[at] as u32));
                for _ in 0..16 {
                    pair.right.progress();
                    pair.left.progress();
                }
                // As if the receiver were another process.
                pair.left.link().reach.set(Reach::Process(0));
                for at in 0..4 {
                    let received = DONE | VIP_STATUS_OP_RECEIVE;
                    assert_eq!(pair.left.status(sends[at]), DONE, "round {round}");
                    assert_eq!(pair.right.status(receives[at]), received, "round {round}");
                    let result = (LENGTHS[at] as u32, 0);
                    assert_eq!(pair.right.result(receives[at]), result);
                    assert_eq!(pair.right.bytes(PLACES[at], LENGTHS[at]), data[at]);
                }
            }
        }
    }
}
