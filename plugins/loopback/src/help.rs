//! Large copies that both sides work on, each its part: the owner and the helper (`board`).
//!
//! The receiver of a large message, or the initiator of RDMA, has to make the copy, and makes it alone if it must. On two
//! processors the copy takes half the time if the partner works on it too, and a partner that polls does: the sender of
//! a message, which waits for it to complete, and a target that waits for something else.
//!
//! The helper copies what the owner would have copied, and judges nothing: if an address is bad, a region has gone or
//! the connection has ended, it gives up, and the owner makes the whole copy alone, and finds the reason by the rules
//! that hold without a helper.
//!
//! Both sides touch memory of the other one here. Each says so before every part (`Side::copying`) and looks afterwards
//! whether the other side has left or has taken the region away, so deregistration and the end of a connection wait for
//! a helper as for an owner. One thing is new: the helper may write to buffers of *posted descriptors* of the owner,
//! which are handed back to the program when the connection breaks, without a word from the partner. So an owner whose
//! connection breaks says that it leaves and waits for a copy that has begun, as at a disconnect (`end_help`).

use std::sync::atomic::{Ordering, fence};

use vipl_guard::Segment;
use vipl_plugin_sdk::abi::{VIPL_REGION_RDMA_READ, VIPL_REGION_RDMA_WRITE};
use vipl_plugin_sdk::descriptor::{self, Operation};
use vipl_plugin_sdk::{Port, Queue};
use vipl_sys::process_vm::Way;

use crate::board::{self, Asked, Job, Report, SEGMENTS, UNIT};
use crate::large::is_live;
use crate::link::{Link, Of, Open, Reach, Settled, Shared};
use crate::nic::{LoopbackNic, READ_LEVELS};
use crate::ring::Extra;
use crate::segments::List;
use crate::target::is_target;
use crate::ticks::ticks;

/// Smallest message that is shared.
const MESSAGE_MIN: u32 = 64 << 10;
/// Smallest RDMA operation that is shared: it takes one system call more, for its last bytes.
pub(crate) const RDMA_MIN: u32 = 96 << 10;
/// Bytes at the end of RDMA that the initiator copies when all others are there: they become visible last (spec §5.4).
pub(crate) const SHARED_TAIL: u64 = 8;
/// How long the owner waits for the helper's last part before it goes back to its program.
const PATIENCE_TICKS: u64 = 100_000;
/// How many copies in a row are made without asking a partner that did not help, at most.
const ALONE_MAX: u32 = 31;

impl Link {
    /// Copies a message with the partner's help: the one in the slot that is next.
    pub(crate) fn share_message(
        &mut self,
        local: &[Segment],
        remote: &[Segment],
        bytes: u32,
    ) -> Shared {
        if bytes < MESSAGE_MIN {
            return Shared::Alone;
        }
        let slot = self.arrived;
        // SAFETY: the NIC stays mapped as long as the connection.
        let table = unsafe { self.partner_nic.lasting_table() };
        let live = || remote.iter().all(|segment| is_live(table, segment));
        let job = Job::Message(slot);
        self.share(
            Of::Message(slot),
            job,
            Way::Read,
            local,
            remote,
            bytes,
            live,
        )
    }

    /// What became of the message in the slot that is next, if the partner helps with it.
    pub(crate) fn shared_message(&mut self) -> Option<Shared> {
        let slot = self.arrived;
        let open = self.help.open.filter(|open| open.of == Of::Message(slot))?;
        Some(self.settle(open, 0))
    }

    /// Copies all of RDMA but the last bytes (`SHARED_TAIL`) with the partner's help.
    pub(crate) fn share_rdma(
        &mut self,
        way: Way,
        remote: Segment,
        local: &[Segment],
        permitted: impl FnMut() -> bool,
    ) -> Shared {
        if let Some(settled) = self.help.settled.take()
            && settled.length == remote.length
        {
            return settled.shared;
        }
        let job = match way {
            Way::Write => Job::Write(remote),
            Way::Read => Job::Read(remote),
        };
        let of = Of::Rdma(remote.length);
        let bytes = remote.length - SHARED_TAIL as u32;
        self.share(of, job, way, local, &[remote], bytes, permitted)
    }

    /// Whether the partner copies no more for the head of the send queue.
    #[inline(always)]
    pub(crate) fn rdma_is_settled(&mut self) -> bool {
        self.help.open.is_none() || self.settle_rdma()
    }

    /// The descriptor at the head of the send queue is done with.
    pub(crate) fn forget_rdma(&mut self) {
        self.help.settled = None;
    }

    #[cold]
    fn settle_rdma(&mut self) -> bool {
        let Some(open) = self.help.open else {
            return true;
        };
        let Of::Rdma(length) = open.of else {
            return true;
        };
        let shared = self.settle(open, 0);
        if shared == Shared::Later {
            return false;
        }
        self.help.settled = Some(Settled { length, shared });
        true
    }

    #[allow(clippy::too_many_arguments)]
    fn share(
        &mut self,
        of: Of,
        job: Job,
        way: Way,
        local: &[Segment],
        remote: &[Segment],
        bytes: u32,
        mut permitted: impl FnMut() -> bool,
    ) -> Shared {
        if !self.may_ask(local) {
            return Shared::Alone;
        }
        let (generation, units) = (
            self.help.generation.wrapping_add(1).max(1),
            board::units_of(bytes),
        );
        self.help.generation = generation;
        self.ends.own_board().open(generation, job, bytes, local);
        // For a program that polls a completion queue. One that sleeps is not woken for it.
        self.mark();
        let (mut mine, mut failed) = (0, false);
        while mine < units
            && let Some((first, part)) = self.ends.own_board().take(generation, units)
        {
            mine += part;
            let part = part_bytes(first, part, bytes);
            if self
                .copy_part(way, local, remote, part, &mut permitted)
                .is_err()
            {
                failed = true;
                break;
            }
        }
        let taken = self.ends.own_board().close(generation, units);
        let theirs = taken.saturating_sub(mine);
        self.note_help(theirs > 0);
        self.settle(Open { theirs, failed, of }, PATIENCE_TICKS)
    }

    fn may_ask(&mut self, local: &[Segment]) -> bool {
        let help = &mut self.help;
        if help.alone > 0 {
            help.alone -= 1;
            return false;
        }
        self.help.open.is_none()
            && self.can_copy()
            && local.len() <= SEGMENTS
            && self.ends.partner().reach.load(Ordering::Relaxed) == 1
    }

    fn can_copy(&self) -> bool {
        matches!(self.reach.get(), Reach::Same | Reach::Process(_))
    }

    /// A partner that does not look costs little: it is asked more and more seldom.
    fn note_help(&mut self, helped: bool) {
        let help = &mut self.help;
        help.alone_last = if helped {
            0
        } else {
            (help.alone_last * 2 + 1).min(ALONE_MAX)
        };
        help.alone = help.alone_last;
    }

    /// Whether the helper has copied what it took, for which it gets a moment.
    fn settle(&mut self, open: Open, patience: u64) -> Shared {
        let (start, mut last) = (ticks(), patience == 0);
        loop {
            let report = self.ends.partner_board().reported(self.help.generation);
            if report.given_up || report.units >= open.theirs {
                self.help.open = None;
                let whole = !report.given_up && !open.failed;
                return if whole { Shared::Done } else { Shared::Alone };
            }
            if last {
                self.help.open = Some(open);
                return Shared::Later;
            }
            std::hint::spin_loop();
            if ticks().wrapping_sub(start) > patience {
                // The helper does not run. From now on it tells when it has got on; it may just have done so.
                self.help.alone = ALONE_MAX;
                self.set_waiting(true);
                last = true;
            }
        }
    }

    /// The connection ends, which the partner can see: waits until it does not touch this side's buffers.
    pub(crate) fn end_help(&mut self) {
        if self.help.open.take().is_some() && self.given_up.is_none() {
            self.wait_for_copies();
        }
    }

    /// Whether the partner asks for help.
    #[inline(always)]
    pub(crate) fn is_asked(&self) -> bool {
        self.ends.partner_board().generation() != self.board_seen
    }

    /// Copies parts of what the partner has to copy.
    #[cold]
    pub(crate) fn help(&mut self, nic: &LoopbackNic, port: &Port) {
        self.board_seen = self.ends.partner_board().generation();
        let Some(asked) = self.ends.partner_board().look() else {
            return;
        };
        let Some((way, own)) = self.own_part(port, &asked) else {
            return;
        };
        if !self.can_copy() {
            return;
        }
        let (theirs, table) = (asked.segments(), self.partner_nic.table());
        let permitted = || theirs.iter().all(|segment| is_live(table, segment));
        let (generation, units) = (asked.generation, board::units_of(asked.bytes));
        let mut report = Report {
            units: 0,
            given_up: false,
        };
        while report.units < units
            && let Some((first, part)) = self.ends.partner_board().take(generation, units)
        {
            let bytes = part_bytes(first, part, asked.bytes);
            match self.copy_part(way, &own, theirs, bytes, permitted) {
                Ok(bytes) => LoopbackNic::count(nic.counters.helped_copy_bytes, bytes),
                Err(_) => report.given_up = true,
            }
            report.units = report.units.saturating_add(part);
            self.ends.own_board().report(generation, report);
            if report.given_up {
                break;
            }
        }
        // The partner may have ceased to wait in the meantime, and sleep: it says so, executes a fence and looks at the
        // report again.
        fence(Ordering::SeqCst);
        if self.ends.partner().waiting.load(Ordering::Relaxed) != 0 {
            self.alert();
        }
    }

    /// This side's memory for a copy of the partner, if this side still permits it, and which way it copies.
    fn own_part(&self, port: &Port, asked: &Asked) -> Option<(Way, List)> {
        let (way, range, enabled, flag) = match asked.job {
            Job::Message(slot) => return Some((Way::Write, self.message_in(port, slot, asked)?)),
            Job::Write(range) => (Way::Read, range, port.rdma_write(), VIPL_REGION_RDMA_WRITE),
            Job::Read(range) => (Way::Write, range, port.rdma_read(), VIPL_REGION_RDMA_READ),
        };
        let extra = Extra {
            address: range.address,
            handle: range.handle,
            ..Extra::default()
        };
        let permitted =
            enabled && asked.bytes <= range.length && is_target(port, &extra, range.length, flag);
        permitted.then_some((way, List::One([range])))
    }

    /// The data of a message that this side has announced in this slot and that the partner has not consumed.
    fn message_in(&self, port: &Port, slot: u32, asked: &Asked) -> Option<List> {
        let need = slot.wrapping_add(1);
        let place = self.outstanding.iter().position(|sent| sent.need == need)?;
        let number = port.completed(Queue::Send).wrapping_add(place as u32);
        // The program must not have changed it since: all checks again.
        // SAFETY: posted and not complete.
        let entry = unsafe { port.entry(Queue::Send, number) };
        let outgoing = descriptor::outgoing(port, &entry, READ_LEVELS).ok()?;
        let same = outgoing.operation == Operation::Send && outgoing.length == asked.bytes;
        if same {
            List::new(&outgoing.segments).ok()
        } else {
            None
        }
    }
}

/// Bytes of a part.
fn part_bytes(first: u32, part: u32, bytes: u32) -> std::ops::Range<u64> {
    let (first, unit) = (u64::from(first), u64::from(UNIT));
    let end = (first + u64::from(part)) * unit;
    first * unit..end.min(u64::from(bytes))
}

#[cfg(test)]
mod tests;
