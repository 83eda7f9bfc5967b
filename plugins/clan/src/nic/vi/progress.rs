//! From completions to descriptors, when the application polls. The device does the same for an application that does
//! not.

use std::ffi::c_int;
use std::sync::atomic::Ordering::{Acquire, Relaxed};

use vipl_abi::*;
use vipl_clan_proto::claim::{self, Claim};
use vipl_clan_proto::vi::{SMALL, end, event};
use vipl_plugin_sdk::abi::*;
use vipl_plugin_sdk::{Entry, Port, Queue};

use super::ClanVi;
use crate::placing::{fetch, place};

/// Completions of each queue that one poll takes.
const BATCH: u32 = 64;
/// Events of one kind that one poll reports, however far the device counts.
const EVENTS_MAX: u32 = 64;

/// Meaning of a completion's claim.
enum Claimed {
    /// It is not ready, or the device is writing it.
    Wait,
    /// The data is in the sender's memory.
    Offered,
    /// This side writes it into the application's memory.
    Ours,
    /// It is in the application's memory.
    Placed,
}

/// Result of taking a receive.
#[derive(PartialEq, Eq)]
enum Taken {
    Nothing,
    One,
    /// One with a long message: the application may have it before the next one is fetched.
    Long,
}

/// Claims a completion.
#[inline(always)]
fn claim_for_application(word: &Claim, entry: &Entry) -> Claimed {
    match word.take_for_application() {
        Ok(()) => Claimed::Ours,
        Err(claim::DEVICE) if !is_done(entry) => Claimed::Wait,
        Err(claim::OFFERED) => Claimed::Offered,
        Err(claim::REFUSED) => Claimed::Wait,
        Err(_) => Claimed::Placed,
    }
}

/// Whether the device, which has the claim, has written the Status.
#[cold]
fn is_done(entry: &Entry) -> bool {
    let mut status = 0u32;
    let from = entry
        .descriptor()
        .cast_const()
        .cast::<u8>()
        .wrapping_add(28);
    // SAFETY: room for four bytes; faults are caught.
    let read = unsafe { vipl_guard::copy((&raw mut status).cast(), from, 4) };
    std::sync::atomic::fence(Acquire);
    read.is_ok() && status & VIP_STATUS_DONE != 0
}

impl ClanVi {
    /// Takes completions, then the state of the connection.
    #[inline(always)]
    pub(super) fn poll(&mut self, port: &Port) {
        let pages = self.queues.pages();
        // Loaded before the completions: all that precede the end are visible when the end is.
        let word = pages.words().end.load(Acquire);
        let Some(link) = &self.link else { return };
        if link.ended {
            return;
        }
        let over = word as u32 != end::NONE && (word >> 32) as u32 == link.epoch;
        let unreliable = link.unreliable;
        if over {
            self.take_all(port);
        } else {
            self.take(port);
        }
        if unreliable && port.is_connected() {
            self.report_events(port);
        }
        if over && port.is_connected() {
            self.finish(port, word as u32);
        }
    }

    /// Takes all completions, before a connection ends.
    pub(super) fn take_all(&mut self, port: &Port) {
        let mut before = None;
        while port.is_connected() && before != Some(self.queues.done()) {
            before = Some(self.queues.done());
            self.take(port);
        }
    }

    /// Takes completions.
    #[inline(always)]
    fn take(&mut self, port: &Port) {
        for _ in 0..BATCH {
            match self.take_received(port) {
                Taken::Nothing => break,
                Taken::One => {}
                Taken::Long => {
                    self.request_poll();
                    break;
                }
            }
        }
        for _ in 0..BATCH {
            if !port.is_connected() || !self.take_sent(port) {
                break;
            }
        }
    }

    /// Makes the completion queue poll this VI once more.
    fn request_poll(&self) {
        if self.queues.pages().words().watched.load(Relaxed) != 0 {
            self.card.nic().ready.set(self.number);
        }
    }

    #[inline(always)]
    fn take_received(&mut self, port: &Port) -> Taken {
        let Some(number) = self.queues.received().filter(|_| port.is_connected()) else {
            return Taken::Nothing;
        };
        let pages = self.queues.pages();
        let slot = pages.received(number);
        // SAFETY: posted and not complete.
        let entry = unsafe { port.entry(Queue::Recv, port.completed(Queue::Recv)) };
        let mut taken = Taken::One;
        match claim_for_application(&slot.claim, &entry) {
            Claimed::Wait => return Taken::Nothing,
            Claimed::Offered => {
                if !slot.claim.begin_fetch() {
                    return Taken::Nothing;
                }
                let fetched = fetch(port, &entry, slot);
                self.card.kick();
                if !fetched {
                    return Taken::Nothing;
                }
                taken = Taken::Long;
            }
            Claimed::Ours => {
                let small = slot.small.load(Relaxed) as usize;
                if small > 0
                    && let Err(error) = place(port, &entry, slot, small.min(SMALL))
                {
                    self.queues.pass_received();
                    self.cannot_place(port, error);
                    return Taken::Nothing;
                }
            }
            Claimed::Placed => {}
        }
        let (status, length) = (slot.status.load(Relaxed), slot.length.load(Relaxed));
        let immediate = slot.immediate.load(Relaxed);
        self.queues.pass_received();
        if !port.complete(Queue::Recv, status, Some((length, immediate))) {
            self.break_off();
            return Taken::Nothing;
        }
        taken
    }

    #[inline(always)]
    fn take_sent(&mut self, port: &Port) -> bool {
        let Some(number) = self.queues.sent() else {
            return false;
        };
        let pages = self.queues.pages();
        let slot = pages.sent(number);
        // SAFETY: posted and not complete.
        let entry = unsafe { port.entry(Queue::Send, port.completed(Queue::Send)) };
        if let Claimed::Wait | Claimed::Offered = claim_for_application(&slot.claim, &entry) {
            return false;
        }
        let status = slot.status.load(Relaxed);
        self.queues.pass_sent();
        if !port.complete(Queue::Send, status, None) {
            self.break_off();
            return false;
        }
        true
    }

    /// E8, found by this side: the memory has been deregistered or unmapped since the device checked it.
    #[cold]
    fn cannot_place(&mut self, port: &Port, error: u32) {
        let status = error | VIP_STATUS_OP_RECEIVE;
        if !port.complete(Queue::Recv, status, Some((0, 0))) {
            self.break_off();
        } else if port.is_reliable() {
            self.break_off();
            port.fail(VIPL_CAUSE_REPORTED, 0, std::ptr::null_mut());
        }
    }

    /// Reports events that do not end the connection.
    fn report_events(&mut self, port: &Port) {
        use VIP_ERROR_CODE::*;
        const KINDS: [(usize, VIP_ERROR_CODE, u32); event::KINDS] = [
            (event::EMPTY, VIP_ERROR_RECVQ_EMPTY, VIP_STATUS_OP_RECEIVE),
            (
                event::REFUSED,
                VIP_ERROR_RDMAW_PROT,
                VIP_STATUS_OP_REMOTE_RDMA_WRITE,
            ),
            (
                event::CUT,
                VIP_ERROR_RDMAW_ABORT,
                VIP_STATUS_OP_REMOTE_RDMA_WRITE,
            ),
        ];
        let Some(link) = &mut self.link else { return };
        for (kind, code, opcode) in KINDS {
            let count = self.queues.pages().words().events[kind].load(Acquire);
            let fresh = count.wrapping_sub(link.reported[kind]);
            link.reported[kind] = count;
            if kind == event::REFUSED
                && fresh != 0
                && let Some(refusal) = self.queues.pages().words().refused.take()
            {
                port.refused(&refusal);
            }
            for _ in 0..fresh.min(EVENTS_MAX) {
                port.raise(code, opcode);
            }
        }
    }

    /// The device has ended the connection, for this reason.
    #[cold]
    fn finish(&mut self, port: &Port, reason: u32) {
        use VIP_ERROR_CODE::*;
        if let Some(refusal) = self.queues.pages().words().refused.take() {
            port.refused(&refusal);
        }
        let (cause, opcode) = match reason {
            end::REPORTED => (VIPL_CAUSE_REPORTED, 0),
            end::DISCONNECTED => (VIPL_CAUSE_DISCONNECTED, 0),
            end::EMPTY => (VIP_ERROR_RECVQ_EMPTY as c_int, VIP_STATUS_OP_RECEIVE),
            end::WRITE_REFUSED => (
                VIP_ERROR_RDMAW_PROT as c_int,
                VIP_STATUS_OP_REMOTE_RDMA_WRITE,
            ),
            end::READ_REFUSED => (VIP_ERROR_RDMAR_PROT as c_int, VIP_STATUS_OP_RDMA_READ),
            end::WRITE_CUT => (
                VIP_ERROR_RDMAW_ABORT as c_int,
                VIP_STATUS_OP_REMOTE_RDMA_WRITE,
            ),
            end::READ_CUT => (VIP_ERROR_RDMA_TRANSPORT as c_int, VIP_STATUS_OP_RDMA_READ),
            _ => (VIP_ERROR_CONN_LOST as c_int, 0),
        };
        self.end(port, cause, opcode);
    }

    /// Reports the end of the connection to the host.
    #[cold]
    pub(super) fn end(&mut self, port: &Port, cause: c_int, opcode: u32) {
        if let Some(link) = &mut self.link {
            link.ended = true;
        }
        port.fail(cause, opcode, std::ptr::null_mut());
    }
}
