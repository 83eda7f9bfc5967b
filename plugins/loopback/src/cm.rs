//! The beginning and the end of a connection.
//!
//! A side that leaves says why in one word of its own line. The other side first takes every message
//! that arrived before, and every acknowledgement, and then acts on the reason. No message is needed
//! for it, so it works when the ring is full.

use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::time::Duration;
use vipl_sys::clock::Instant;

use vipl_abi::*;
use vipl_plugin_sdk::abi::*;
use vipl_plugin_sdk::{Host, Port, Queue, Status};
use vipl_sys::shm::Mapping;
use vipl_sys::wrap;

use crate::link::{Help, Link, Reach, carries_immediate, ends_here};
use crate::nic::LoopbackNic;
use crate::outbox::Outbox;
use crate::ring::{Ends, SEGMENT, WIDE};
use crate::road::{Choice, Gauge};

/// How long the end of a connection waits for a partner that is copying (spec §3.12).
const COPY_TIME_MAX: Duration = Duration::from_secs(1);

/// Why a side has left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub(crate) struct Closed(pub(crate) u32);

impl Closed {
    /// VipDisconnect.
    pub(crate) const DISCONNECTED: Closed = Closed(1);
    /// An error of its own, which its own descriptor tells.
    pub(crate) const LOST: Closed = Closed(2);
    /// A message could not be received: the next one that is not acknowledged.
    pub(crate) const RECEIVE_FAILED: Closed = Closed(3);
    /// The initiator found its RDMA Write not permitted at the target, which reads this.
    pub(crate) const WRITE_REFUSED: Closed = Closed(4);
    /// The same for an RDMA Read.
    pub(crate) const READ_REFUSED: Closed = Closed(5);
    /// The sender found no receive descriptor at the receiver, which reads this.
    pub(crate) const EMPTY: Closed = Closed(6);
    /// The target refused the RDMA operation that is under way, and reported it itself.
    pub(crate) const TARGET_REFUSED: Closed = Closed(7);
    /// The sender's own memory could not be read, which the receiver found.
    pub(crate) const SENDER_FAULT: Closed = Closed(8);
}

/// A word that partners read to see whether they can read this process at all.
static PROBE: AtomicU64 = AtomicU64::new(0);

pub(crate) fn attach(
    nic: &LoopbackNic,
    port: &Port,
    connection: &vipl_connection,
) -> Result<Link, Status> {
    let failed = |error: std::io::Error| {
        Host::get().log(
            VIPL_LOG_ERROR,
            &format!("loopback: cannot map a connection: {error}"),
        );
        Status::Resource
    };
    if (connection.segment_bytes as usize) < SEGMENT {
        return Err(failed(std::io::Error::other("the segment is too small")));
    }
    let segment = Mapping::open(connection.segment_fd, SEGMENT, true).map_err(failed)?;
    let partner_nic = nic
        .partner(connection.peer_nic, connection.peer_fds)
        .map_err(failed)?;
    // SAFETY: the mapping lives in the link, behind the view.
    let ends = unsafe { Ends::new(segment.base(), connection.side) };
    let posted_base = port.completed(Queue::Recv);
    let reception = port.reliability() == VIP_SERVICE_RELIABLE_RECEPTION;
    let link = Link {
        ends,
        arrived: wrap::start(0),
        expected: None,
        board_seen: 0,
        outbox: Outbox::new(),
        partner_posted: 0,
        messages: 0,
        posted_base,
        outstanding: VecDeque::new(),
        halted: false,
        waiting: false,
        reception,
        fences: nic.fences,
        idle: false,
        takes_one: !reception,
        carry_immediate: carries_immediate(port),
        partner_index: connection.peer_vi,
        partner_pid: connection.peer_pid,
        partner_dead: false,
        given_up: None,
        key: connection.key,
        own_index: port.index(),
        reach: Cell::new(Reach::Unknown),
        wants_marks: false,
        looked: 0,
        partner_nic,
        sending: None,
        reading: false,
        receiving: None,
        writing: None,
        serving: None,
        help: Help {
            generation: wrap::start(0),
            ..Help::default()
        },
        road: Choice::new(),
        gauge: Gauge::default(),
        written: wrap::start(0),
        partner_rdma_write: connection.peer_rdma_write != 0,
        partner_rdma_read: connection.peer_rdma_read != 0,
        watch: nic.watch.clone(),
        _segment: segment,
    };
    *ends_here().entry(link.key).or_insert(0) += 1;
    introduce(&link, port);
    nic.watch.add(link.own_index);
    if link.ends.partner().waiting.load(Ordering::SeqCst) != 0 {
        link.alert();
    }
    Ok(link)
}

/// Fills in this side's line.
fn introduce(link: &Link, port: &Port) {
    let own = link.ends.own();
    let secret = PROBE.load(Ordering::Relaxed);
    if secret == 0 {
        let fresh = Host::get().now_ns() ^ u64::from(std::process::id()).rotate_left(40) | 1;
        let _ = PROBE.compare_exchange(0, fresh, Ordering::AcqRel, Ordering::Relaxed);
    }
    own.pid.store(std::process::id(), Ordering::Relaxed);
    own.ptag.store(port.ptag(), Ordering::Relaxed);
    let wide = if usize::BITS == 64 { WIDE } else { 0 };
    let probe_at = PROBE.as_ptr().expose_provenance() as u64 | wide;
    own.probe_at.store(probe_at, Ordering::Relaxed);
    own.probe
        .store(PROBE.load(Ordering::Relaxed), Ordering::Relaxed);
    own.posted.store(link.posted_count(port), Ordering::Relaxed);
    own.consumed.store(link.arrived, Ordering::Relaxed);
    // Release: whoever sees it sees the line.
    own.attached.store(1, Ordering::Release);
    fence(Ordering::SeqCst);
}

pub(crate) fn detach(link: Link) {
    link.close(Closed::DISCONNECTED);
    link.wait_for_copies();
}

impl Link {
    /// Waits until the partner does not touch this process's memory.
    pub(crate) fn wait_for_copies(&self) {
        let (mut since, end) = (0, Instant::now() + COPY_TIME_MAX);
        while self.is_copying(&mut since) && Instant::now() < end {
            std::thread::yield_now();
        }
    }

    /// Whether the partner may still touch this process's memory as it was permitted before the first call, which
    /// is the one with 0. It looks whether the connection is closed, and whether a region exists, only after it
    /// has announced that it copies: later copies do not count.
    fn is_copying(&self, since: &mut u64) -> bool {
        if self.partner_dead {
            return false;
        }
        fence(Ordering::SeqCst);
        let copying = self.ends.partner().copying.load(Ordering::SeqCst);
        if *since == 0 && !copying.is_multiple_of(2) {
            *since = u64::from(copying);
        }
        *since != 0 && *since == u64::from(copying)
    }

    /// Whether the partner uses no region that has gone.
    pub(crate) fn quiesced(&mut self, port: &Port, since: &mut u64, left: Duration) -> bool {
        if !self.is_copying(since) || self.given_up == Some(*since as u32) {
            return true;
        }
        if left.is_zero() {
            self.given_up = Some(*since as u32);
            // It shall not take for data what lies there later.
            let lost = VIP_ERROR_CODE::VIP_ERROR_CONN_LOST as i32;
            self.die(port, Closed::LOST, lost, 0);
        }
        false
    }

    /// Says why this side leaves; the first reason counts.
    #[cold]
    pub(crate) fn close(&self, reason: Closed) {
        // What was received counts as received, whoever looks at the reason first.
        self.tell_consumed();
        let closed = &self.ends.own().closed;
        let first = closed.compare_exchange(0, reason.0, Ordering::SeqCst, Ordering::SeqCst);
        if first.is_ok() {
            self.alert();
        }
    }

    /// Ends the connection from this side.
    #[cold]
    pub(crate) fn die(&mut self, port: &Port, reason: Closed, cause: i32, opcode: u32) {
        self.halted = true;
        self.close(reason);
        self.end_help();
        self.set_waiting(false);
        port.fail(cause, opcode, std::ptr::null_mut());
    }

    /// The partner has left, and everything from before has been taken.
    #[cold]
    pub(crate) fn partner_closed(&mut self, port: &Port, reason: Closed) {
        self.refresh(port);
        if !port.is_connected() {
            return;
        }
        let lost = VIP_ERROR_CODE::VIP_ERROR_CONN_LOST as i32;
        let code = |code: VIP_ERROR_CODE| code as i32;
        match reason {
            Closed::DISCONNECTED => self.die(port, Closed::LOST, VIPL_CAUSE_DISCONNECTED, 0),
            Closed::RECEIVE_FAILED => {
                let cause = self.blame_first(port, vipl_rules::receive_failed(port.reliability()));
                self.die(port, Closed::LOST, cause, 0);
            }
            Closed::TARGET_REFUSED => {
                let cause = self.blame_first(port, VIP_STATUS_RDMA_PROT_ERROR);
                self.die(port, Closed::LOST, cause, 0);
            }
            Closed::SENDER_FAULT => {
                let cause = self.blame_first(port, VIP_STATUS_PROTECTION_ERROR);
                self.die(port, Closed::LOST, cause, 0);
            }
            Closed::WRITE_REFUSED => {
                let cause = code(VIP_ERROR_CODE::VIP_ERROR_RDMAW_PROT);
                self.die(port, Closed::LOST, cause, VIP_STATUS_OP_REMOTE_RDMA_WRITE);
            }
            Closed::READ_REFUSED => {
                let cause = code(VIP_ERROR_CODE::VIP_ERROR_RDMAR_PROT);
                self.die(port, Closed::LOST, cause, VIP_STATUS_OP_RDMA_READ);
            }
            Closed::EMPTY => {
                let cause = code(VIP_ERROR_CODE::VIP_ERROR_RECVQ_EMPTY);
                self.die(port, Closed::RECEIVE_FAILED, cause, VIP_STATUS_OP_RECEIVE);
            }
            _ => self.die(port, Closed::LOST, lost, 0),
        }
    }

    /// Completes the oldest descriptor that is under way with an error, if there is one. Gives the cause
    /// that is left to tell.
    fn blame_first(&mut self, port: &Port, error: u32) -> i32 {
        let lost = VIP_ERROR_CODE::VIP_ERROR_CONN_LOST as i32;
        let under_way = !self.outstanding.is_empty() || self.sending.is_some() || self.reading;
        if !under_way {
            return lost;
        }
        // SAFETY: posted and not complete.
        let entry = unsafe { port.entry(Queue::Send, port.completed(Queue::Send)) };
        // SAFETY: a posted descriptor; faults are caught.
        let control = unsafe { vipl_guard::load_descriptor(entry.descriptor().cast()) };
        let opcode = match control.map_or(0, |image| image.control) & VIP_CONTROL_OP_MASK {
            VIP_CONTROL_OP_RDMAWRITE => VIP_STATUS_OP_RDMA_WRITE,
            VIP_CONTROL_OP_RDMAREAD => VIP_STATUS_OP_RDMA_READ,
            _ => VIP_STATUS_OP_SEND,
        };
        self.outstanding.clear();
        if port.complete(Queue::Send, error | opcode, None) {
            VIPL_CAUSE_REPORTED
        } else {
            lost
        }
    }

    /// The agent says so; what lies in the ring still counts.
    pub(crate) fn partner_gone(&mut self, nic: &LoopbackNic, port: &Port, orderly: bool) {
        self.partner_dead = !orderly;
        self.drain(nic, port);
        if port.is_connected() {
            self.refresh(port);
        }
        let closed = Closed(self.ends.partner().closed.load(Ordering::Acquire));
        if port.is_connected() && closed.0 != 0 {
            self.partner_closed(port, closed);
        } else if port.is_connected() {
            let lost = VIP_ERROR_CODE::VIP_ERROR_CONN_LOST as i32;
            let cause = if orderly {
                VIPL_CAUSE_DISCONNECTED
            } else {
                lost
            };
            self.die(port, Closed::LOST, cause, 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::both_ends_are_here;
    use crate::testing::{DONE, RD, RR, Told, U, code, pair, told};

    #[test]
    fn what_was_sent_before_a_disconnect_is_received() {
        for level in [U, RD, RR] {
            let mut pair = pair(level, true);
            let data = pair.left.fill(0, 100, 5);
            let receive = pair.right.receive(0, 100);
            pair.left.send(0, 100);
            pair.left.detach();
            pair.right.progress();
            assert_eq!(pair.right.status(receive), DONE | VIP_STATUS_OP_RECEIVE);
            assert_eq!(pair.right.bytes(0, 100), data);
            assert_eq!(told(), [Told::Failed(1, VIPL_CAUSE_DISCONNECTED)]);
        }
    }

    #[test]
    fn the_first_reason_counts() {
        let mut pair = pair(RD, true);
        let link = pair.left.link();
        link.close(Closed::RECEIVE_FAILED);
        link.close(Closed::DISCONNECTED);
        let closed = &link.ends.own().closed;
        assert_eq!(
            Closed(closed.load(Ordering::Acquire)),
            Closed::RECEIVE_FAILED
        );
        pair.right.progress();
        let lost = code(VIP_ERROR_CODE::VIP_ERROR_CONN_LOST);
        assert_eq!(told(), [Told::Failed(1, lost)], "no send is under way");
    }

    #[test]
    fn a_process_knows_whether_it_has_both_ends() {
        let mut pair = pair(RD, true);
        let key = pair.left.link().key;
        assert!(both_ends_are_here(key));
        pair.left.detach();
        assert!(!both_ends_are_here(key));
        pair.right.detach();
        assert!(!both_ends_are_here(key));
    }

    /// A peer that says that it copies, and does not come to an end.
    #[test]
    fn a_copy_that_does_not_end_costs_the_connection() {
        let mut pair = pair(RD, true);
        let copying = |count| {
            let link = pair.left.link();
            link.ends.own().copying.store(count, Ordering::SeqCst);
        };
        let mut copying = copying;
        copying(1);
        let port = pair.right.port();
        let link = pair.right.link();
        let (mut since, second) = (0, Duration::from_secs(1));
        assert!(!link.quiesced(port, &mut since, second));
        // Another copy began after the region had gone: it does not count.
        copying(3);
        let link = pair.right.link();
        assert!(link.quiesced(port, &mut since, second));
        let mut since = 0;
        assert!(!link.quiesced(port, &mut since, Duration::ZERO));
        let lost = code(VIP_ERROR_CODE::VIP_ERROR_CONN_LOST);
        assert_eq!(told(), [Told::Failed(1, lost)]);
    }
}
