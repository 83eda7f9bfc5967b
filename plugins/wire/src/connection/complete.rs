//! Completion of sends: by an acknowledgement, by an error on this side, or by the reason in the CLOSE of the peer.

use vipl_abi::*;

use super::Connection;
use crate::closing::{Body, Reason};
use crate::config::NEVER;
use crate::env::{Cause, Env, Level, Operation};
use crate::frame::{Header, Kind};
use crate::inflight::Progress;
use crate::sender::Stage;

/// How long the oldest frame may be retransmitted in vain while the peer answers PROBEs. Then the path is broken: it
/// carries PROBEs and not ours, not even the smallest.
const STUCK_NS: u64 = 7_000_000_000;
/// The same for the first frame, until it leaves without the ECT codepoint.
const REFUSED_NS: u64 = 1_000_000_000;

impl Connection {
    /// E1 to E3: the last operation fails. On the reliable levels the connection ends when it is the oldest.
    #[cold]
    pub(super) fn local_error<E: Env>(&mut self, status: u32, env: &mut E) {
        if let Some(last) = self.sender.operations.back_mut() {
            last.stage = Stage::Failed(status);
        }
        self.sender.halted = self.config.level != Level::Unreliable;
        self.reap(env);
    }

    /// Handles an acknowledgement: completes operations and detects lost frames.
    #[inline(never)]
    pub(super) fn acknowledged<E: Env>(&mut self, header: &Header, body: &[u8], env: &mut E) {
        let (now_ns, sender) = (self.now_ns, &mut self.sender);
        let acknowledged = header.acknowledged;
        let Some(mut progress) = sender
            .inflight
            .acknowledged(acknowledged, now_ns, &sender.rtt)
        else {
            return;
        };
        let map = if header.kind == Kind::Ack { body } else { &[] };
        if !map.is_empty() {
            let inflight = &mut sender.inflight;
            inflight.selected(map, now_ns, &sender.rtt, &mut progress);
        }
        self.apply(header, &progress, env);
    }

    /// What follows from an acknowledgement.
    #[inline(always)]
    pub(super) fn apply<E: Env>(&mut self, header: &Header, progress: &Progress, env: &mut E) {
        let (now_ns, sender) = (self.now_ns, &mut self.sender);
        // A window of 0 would stop the connection forever.
        sender.window = u32::from(header.window.clamp(1, self.config.window()));
        if sender.marks.differ(header.marks) {
            sender.hear_marks(header.marks, now_ns);
        }
        if progress.arrived == 0 && !progress.advanced {
            return;
        }
        if progress.spurious {
            sender.pace.undo_timeout();
        }
        if progress.all_late {
            sender.pace.undo_loss();
        }
        sender.rtt.progress();
        progress.measure(&mut sender.rtt);
        let under_way = sender.inflight.under_way();
        let arrived = progress.arrived;
        sender
            .pace
            .delivered(arrived, under_way, now_ns, &sender.rtt);
        if sender.inflight.is_empty() {
            sender.inflight.all_arrived();
            sender.retry_at_ns = NEVER;
        } else {
            sender.retry_at_ns = now_ns + sender.rtt.timeout_ns();
            sender.find_lost(now_ns);
        }
        if progress.advanced {
            sender.stuck_ns = 0;
            self.reap(env);
        }
    }

    /// Completes operations in order.
    #[inline(always)]
    pub(super) fn reap<E: Env>(&mut self, env: &mut E) {
        let unreliable = self.config.level == Level::Unreliable;
        while let Some(first) = self.sender.operations.front() {
            let acknowledged =
                unreliable || (self.sender.inflight.first().wrapping_sub(first.end) as i32) >= 0;
            let status = match first.stage {
                Stage::Sent if acknowledged && first.operation != Operation::Read => {
                    first.operation.status()
                }
                Stage::Answered => first.operation.status(),
                Stage::Failed(status) => return self.complete_failed(status, env),
                _ => return,
            };
            self.sender.operations.pop_front();
            self.sender.base = self.sender.base.wrapping_add(1);
            if !env.complete_send(status) {
                return self.broken(env);
            }
        }
    }

    #[cold]
    fn complete_failed<E: Env>(&mut self, status: u32, env: &mut E) {
        self.sender.operations.pop_front();
        self.sender.base = self.sender.base.wrapping_add(1);
        if !env.complete_send(status) {
            self.broken(env);
        } else if self.config.level != Level::Unreliable {
            self.end(Reason::Lost, Cause::Reported, 0, env);
        }
    }

    /// Retransmission timeouts.
    pub(super) fn sender_timeout<E: Env>(&mut self, env: &mut E) {
        let (now_ns, sender) = (self.now_ns, &mut self.sender);
        if sender.inflight.lost_at_ns <= now_ns {
            sender.find_lost(now_ns);
        }
        if sender.retry_at_ns <= now_ns {
            // A timeout counts with its nominal duration, however late this function is called. While the peer is
            // silent it does not count: the keepalive handles that.
            if !self.keepalive.is_probing() {
                sender.stuck_ns += sender.rtt.timeout_ns();
            }
            sender.inflight.lose_first();
            sender.overdue = true;
            let again = sender.rtt.back_off();
            sender.pace.timed_out(again, now_ns);
            sender.retry_at_ns = now_ns + sender.rtt.timeout_ns();
            self.stats.timeouts += 1;
            if sender.stuck_ns > REFUSED_NS && sender.rtt.smoothed_ns() == 0 {
                env.path_refuses_ect();
            }
            let stuck = sender.stuck_ns > STUCK_NS;
            if again && !self.keepalive.is_probing() {
                self.suspect_path();
            }
            if stuck {
                self.peer_is_dead(env);
            }
        }
    }

    /// The CLOSE of the peer names the operation that ended the connection: those before it are complete, and it has
    /// failed. Returns the cause that is left to report.
    #[cold]
    pub(super) fn blame<E: Env>(&mut self, body: Body, env: &mut E) -> Cause {
        let error = match (body.reason, self.config.level) {
            (Reason::ReceiveFailed, Level::Reception) => VIP_STATUS_REMOTE_DESC_ERROR,
            (Reason::ReceiveFailed, _) => VIP_STATUS_TRANSPORT_ERROR,
            (Reason::TargetRefused, _) => VIP_STATUS_RDMA_PROT_ERROR,
            _ => return Cause::LOST,
        };
        let mut blamed = self.sender.base;
        while let Some(first) = self.sender.operations.front() {
            let done = (body.operations.wrapping_sub(blamed) as i32) > 0;
            if !done || (first.operation == Operation::Read && first.stage != Stage::Answered) {
                break;
            }
            let status = first.operation.status();
            self.sender.operations.pop_front();
            blamed = blamed.wrapping_add(1);
            if !env.complete_send(status) {
                self.broken(env);
                return Cause::LOST;
            }
        }
        self.sender.base = blamed;
        let error = if body.operations == blamed {
            error
        } else {
            // An RDMA Read that will not be answered.
            VIP_STATUS_TRANSPORT_ERROR
        };
        self.fail_first(error, env)
    }

    /// Completes the oldest operation in progress with an error, if there is one. Returns the cause that is left to
    /// report.
    pub(super) fn fail_first<E: Env>(&mut self, error: u32, env: &mut E) -> Cause {
        let Some(first) = self.sender.operations.pop_front() else {
            return Cause::LOST;
        };
        let status = match first.stage {
            Stage::Failed(status) => status,
            _ => error | first.operation.status(),
        };
        if env.complete_send(status) {
            Cause::Reported
        } else {
            self.broken(env);
            Cause::LOST
        }
    }

    /// The same for a posted descriptor that has not been begun.
    #[cold]
    pub(super) fn fail_unsent<E: Env>(&mut self, error: u32, env: &mut E) -> Cause {
        let status = match env.outgoing(env.sends_completed()) {
            Ok(outgoing) => error | outgoing.operation.status(),
            Err(status) => status,
        };
        if env.complete_send(status) {
            Cause::Reported
        } else {
            self.broken(env);
            Cause::LOST
        }
    }
}
