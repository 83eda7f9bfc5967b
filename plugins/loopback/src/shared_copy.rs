//! Large copies that both sides work on: the owner offers, the helper takes parts (`board`).
//!
//! The owner makes the copy: the receiver of a large message, or the initiator of RDMA. On two processors it takes half the
//! time if the peer works on it too (1 MiB messages ÷ `memcpy`: 0.65 to 1.32, decision 28), which a peer that polls does: the sender of a
//! message, which waits for it to complete, or a target. A peer that does not poll takes nothing, and the owner copies alone.
//!
//! | function | side | what |
//! | --- | --- | --- |
//! | `offer` | owner | describes a copy, copies parts of it, waits a moment for the helper's part |
//! | `poll` | owner | whether the helper has finished |
//! | `help` | helper | copies a bounded part of what the peer offers |
//! | `withdraw` | owner | the connection ends: waits until the helper does not touch this side's buffers |
//!
//! The helper judges nothing. If an address is bad, a region is deregistered or the connection has ended, it gives up, and the
//! owner makes the whole copy alone and finds the reason by the rules that hold without a helper.
//!
//! Both sides access memory of the other by the protocol of `copying`, so deregistration and the end of a connection wait for a
//! helper as for an owner. The helper may write to buffers of *posted descriptors* of the owner, which are returned to the program
//! when the connection breaks, without a word from the peer. So an owner whose connection breaks publishes that it closes and
//! waits for a copy in progress, as at a disconnect (`withdraw`).

use std::ops::Range;

use vipl_guard::Segment;
use vipl_plugin_sdk::abi::{VIPL_REGION_RDMA_READ, VIPL_REGION_RDMA_WRITE};
use vipl_plugin_sdk::descriptor::Operation;
use vipl_plugin_sdk::{Port, Queue};
use vipl_sys::process_vm::Way;
use vipl_sys::wrap;

use crate::board::{self, Asked, Job, Report, SEGMENTS, UNIT};
use crate::buffers::List;
use crate::copy;
use crate::nic;
use crate::peer::{Call, Peer, Reach};
use crate::request::Request;
use crate::send::Sender;
use crate::ticks::ticks;

/// How long the owner waits for the helper's last part before it returns to its program.
const PATIENCE_TICKS: u64 = 100_000;
/// Copies that are made alone after one with which the peer did not help. Table line "64 KiB messages, stream": 25.0 GB/s with 15,
/// 26.2 with 3, 25.9 with 1.
const ALONE: u32 = 3;
/// Units that one `help` copies at most, 64 KiB: a poll stays a poll.
const HELP_UNITS: u32 = (64 << 10) / UNIT;

/// What a copy is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Of {
    /// The message in this slot.
    Message(u32),
    /// An RDMA operation of this length, at the head of the send queue.
    Rdma(u32),
}

/// What became of a shared copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shared {
    /// All of it is there.
    Done,
    /// The helper still copies.
    Later,
    /// It was not shared, or that failed: this side copies all of it.
    Alone,
}

/// A copy that the peer may help with.
pub(crate) struct Offer<'a> {
    pub(crate) of: Of,
    pub(crate) way: Way,
    pub(crate) local: &'a [Segment],
    pub(crate) remote: &'a [Segment],
    /// Bytes that are shared, from the first one on.
    pub(crate) bytes: u32,
}

impl Offer<'_> {
    fn job(&self) -> Job {
        match (self.of, self.way) {
            (Of::Message(slot), _) => Job::Message(slot),
            (Of::Rdma(_), Way::Write) => Job::Write(self.remote[0]),
            (Of::Rdma(_), Way::Read) => Job::Read(self.remote[0]),
        }
    }
}

/// An offered copy whose helper has not finished.
#[derive(Clone, Copy)]
struct Open {
    /// Units that the helper took at most.
    theirs: u32,
    /// This side could not copy a part: the copy is void.
    failed: bool,
    of: Of,
}

/// The copies of a connection that both sides work on, at most one of each side at a time.
#[repr(C)]
pub(crate) struct SharedCopy {
    /// As the helper: the generation of the peer's board that is done with.
    seen: u32,
    /// As the helper: how far it is with the generation that it helps with.
    helping: (u32, Report),
    /// As the owner: the generation of the last offer.
    generation: u32,
    open: Option<Open>,
    /// What became of the RDMA operation of this length at the head of the send queue.
    settled: Option<(u32, Shared)>,
    /// So many copies are made alone.
    alone: u32,
}

impl SharedCopy {
    pub(crate) fn new() -> SharedCopy {
        let none = Report {
            units: 0,
            given_up: false,
        };
        SharedCopy {
            seen: 0,
            helping: (0, none),
            generation: wrap::start(0),
            open: None,
            settled: None,
            alone: 0,
        }
    }

    /// Whether a copy is offered whose helper has not finished.
    #[inline(always)]
    pub(crate) fn is_open(&self) -> bool {
        self.open.is_some()
    }

    /// Copies with the peer's help: offers the copy, copies parts of it until none is left, waits a moment for the helper.
    pub(crate) fn offer(
        &mut self,
        peer: &Peer,
        offer: &Offer,
        mut permitted: impl FnMut() -> bool,
    ) -> Shared {
        if !self.may_offer(peer, offer.local) {
            return Shared::Alone;
        }
        let (board, units) = (peer.words().own_board(), board::units_of(offer.bytes));
        let generation = self.generation.wrapping_add(1).max(1);
        self.generation = generation;
        board.open(generation, offer.job(), offer.bytes, offer.local);
        // For a program that polls a completion queue. One that sleeps is not woken for it.
        peer.set_ready_bit();
        let (mut mine, mut failed) = (0, false);
        while mine < units
            && let Some((first, part)) = board.take(generation, units, units)
        {
            mine += part;
            let part = bytes_of(first, part, offer.bytes);
            let (local, remote) = (offer.local, offer.remote);
            if copy::copy_part(peer, offer.way, local, remote, part, &mut permitted).is_err() {
                failed = true;
                break;
            }
        }
        let taken = board.close(generation, units);
        let theirs = taken.saturating_sub(mine);
        self.alone = if theirs > 0 { 0 } else { ALONE };
        let of = offer.of;
        self.settle(peer, Open { theirs, failed, of }, PATIENCE_TICKS)
    }

    fn may_offer(&mut self, peer: &Peer, local: &[Segment]) -> bool {
        if self.alone > 0 {
            self.alone -= 1;
            return false;
        }
        self.open.is_none()
            && can_copy(peer)
            && local.len() <= SEGMENTS
            && peer.side().reach.load(std::sync::atomic::Ordering::Relaxed) == 1
    }

    /// What became of this copy, if it was offered and is open.
    pub(crate) fn poll(&mut self, peer: &Peer, of: Of) -> Option<Shared> {
        let open = self.open.filter(|open| open.of == of)?;
        Some(self.settle(peer, open, 0))
    }

    /// Whether the peer copies no more for the head of the send queue.
    #[inline(always)]
    pub(crate) fn rdma_is_settled(&mut self, peer: &Peer) -> bool {
        match self.open {
            Some(open) => self.settle_rdma(peer, open),
            None => true,
        }
    }

    #[cold]
    fn settle_rdma(&mut self, peer: &Peer, open: Open) -> bool {
        let Of::Rdma(length) = open.of else {
            return true;
        };
        let shared = self.settle(peer, open, 0);
        if shared != Shared::Later {
            self.settled = Some((length, shared));
        }
        shared != Shared::Later
    }

    /// What became of the RDMA operation of this length at the head of the send queue, if it was offered.
    pub(crate) fn take_settled(&mut self, length: u32) -> Option<Shared> {
        let (settled, shared) = self.settled.take()?;
        (settled == length).then_some(shared)
    }

    /// The RDMA operation at the head of the send queue has ended.
    pub(crate) fn forget_settled(&mut self) {
        self.settled = None;
    }

    /// Whether the helper has copied what it took, for which it gets `patience`.
    fn settle(&mut self, peer: &Peer, open: Open, patience: u64) -> Shared {
        let (start, mut last) = (ticks(), patience == 0);
        loop {
            let report = peer.words().peer_board().reported(self.generation);
            if report.given_up || report.units >= open.theirs {
                self.open = None;
                let whole = !report.given_up && !open.failed;
                return if whole { Shared::Done } else { Shared::Alone };
            }
            if last {
                self.open = Some(open);
                return Shared::Later;
            }
            std::hint::spin_loop();
            if ticks().wrapping_sub(start) > patience {
                // The helper is preempted. From now on it alerts this side; it may just have finished.
                self.alone = ALONE;
                peer.set_waiting(true);
                last = true;
            }
        }
    }

    /// The connection ends, and that is published: waits until the helper does not touch this side's buffers.
    pub(crate) fn withdraw(&mut self, peer: &Peer) {
        if self.open.take().is_some() && !peer.has_abandoned() {
            copy::wait_for_peer(peer);
        }
    }

    /// Whether the peer offers a copy.
    #[inline(always)]
    pub(crate) fn is_asked(&self, peer: &Peer) -> bool {
        peer.words().peer_board().generation() != self.seen
    }

    /// Copies a part of what the peer offers, at most `HELP_UNITS`; the next poll goes on.
    #[cold]
    pub(crate) fn help(&mut self, call: Call, sender: &Sender) {
        let peer = call.peer;
        let board = peer.words().peer_board();
        let seen = board.generation();
        let asked = board.read();
        let Some((asked, (way, own))) = asked
            .and_then(|asked| Some((asked.clone(), own_part(call.port, &asked, sender)?)))
            .filter(|_| can_copy(peer))
        else {
            self.seen = seen;
            return;
        };
        let (generation, units) = (asked.generation, board::units_of(asked.bytes));
        if self.helping.0 != generation {
            let none = Report {
                units: 0,
                given_up: false,
            };
            self.helping = (generation, none);
        }
        let report = &mut self.helping.1;
        let taken = (report.units < units)
            .then(|| board.take(generation, units, HELP_UNITS))
            .flatten();
        let Some((first, part)) = taken else {
            self.seen = generation;
            return;
        };
        let (theirs, table) = (asked.segments(), peer.table());
        let permitted = || {
            theirs.iter().all(|segment| {
                let (handle, length) = (segment.handle, u64::from(segment.length));
                length == 0 || table.is_registered(handle, segment.address, length)
            })
        };
        let bytes = bytes_of(first, part, asked.bytes);
        match copy::copy_part(peer, way, &own, theirs, bytes, permitted) {
            Ok(bytes) => nic::count(nic::counters().helped_copy_bytes, bytes),
            Err(_) => report.given_up = true,
        }
        report.units = report.units.saturating_add(part);
        if report.given_up {
            self.seen = generation;
        }
        peer.words().own_board().report(generation, *report);
        // The owner may have begun to wait in the meantime, and sleep: it publishes that, executes a fence and reads the report
        // again.
        peer.alert_if_waiting();
    }
}

fn can_copy(peer: &Peer) -> bool {
    matches!(peer.reach(), Reach::Same | Reach::Process(_))
}

/// This side's memory for a copy of the peer, if this side still permits it, and which way it copies.
fn own_part(port: &Port, asked: &Asked, sender: &Sender) -> Option<(Way, List)> {
    let (way, range, enabled, flag) = match asked.job {
        Job::Message(slot) => {
            return Some((Way::Write, message_in(port, slot, asked, sender)?));
        }
        Job::Write(range) => (Way::Read, range, port.rdma_write(), VIPL_REGION_RDMA_WRITE),
        Job::Read(range) => (Way::Write, range, port.rdma_read(), VIPL_REGION_RDMA_READ),
    };
    let permitted = enabled && asked.bytes <= range.length && copy::is_target(port, &range, flag);
    permitted.then_some((way, List::One([range])))
}

/// The data of a message that this side has announced in this slot and that the peer has not consumed.
fn message_in(port: &Port, slot: u32, asked: &Asked, sender: &Sender) -> Option<List> {
    let number = sender.number_of(port, slot)?;
    // The program must not have changed it since: it is judged again.
    let entry = port.outstanding(Queue::Send, number)?;
    let request = Request::judge(port, entry).ok()?;
    let same = request.operation == Operation::Send && request.length == asked.bytes;
    if same { request.data.list().ok() } else { None }
}

/// Bytes of a part.
fn bytes_of(first: u32, part: u32, bytes: u32) -> Range<u64> {
    let (first, unit) = (u64::from(first), u64::from(UNIT));
    let end = (first + u64::from(part)) * unit;
    first * unit..end.min(u64::from(bytes))
}

#[cfg(test)]
mod tests;
