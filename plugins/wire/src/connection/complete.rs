//! Completion of sends: by an acknowledgement, by an error of this side, or by what the partner says when it leaves.

use vipl_abi::*;

use super::Connection;
use crate::closing::{Body, Reason};
use crate::config::NEVER;
use crate::env::{Cause, Env, Level, Operation};
use crate::frame::{Header, Kind};
use crate::sender::Stage;

/// How long the oldest frame may be waited for in vain while the partner answers. It is as good as dead then: the
/// network carries its small frames and not ours, as after the MTU of an interface has shrunk.
const STUCK_NS: u64 = 7_000_000_000;

impl Connection {
    /// E1 to E3: the descriptor of the last operation tells. On the reliable levels the connection ends
    /// when its turn has come.
    #[cold]
    pub(super) fn local_error<E: Env>(&mut self, status: u32, env: &mut E) {
        if let Some(last) = self.sender.operations.back_mut() {
            last.stage = Stage::Failed(status);
        }
        self.sender.halted = self.config.level != Level::Unreliable;
        self.reap(env);
    }

    /// What an acknowledgement completes, and which frames it shows to be lost.
    #[inline(always)]
    pub(super) fn acknowledged<E: Env>(&mut self, header: &Header, body: &[u8], env: &mut E) {
        let (now_ns, sender) = (self.now_ns, &mut self.sender);
        let acknowledged = header.acknowledged;
        let Some(mut progress) = sender
            .inflight
            .acknowledged(acknowledged, now_ns, &sender.rtt)
        else {
            return;
        };
        // A partner that takes nothing would wait for ever.
        sender.window = u32::from(header.window).max(1);
        let map = if header.kind == Kind::Ack { body } else { &[] };
        if !map.is_empty() {
            let inflight = &mut sender.inflight;
            inflight.selected(map, now_ns, &sender.rtt, &mut progress);
        }
        if progress.arrived == 0 && !progress.advanced {
            return;
        }
        if progress.was_late {
            sender.pace.was_late();
        }
        sender.pace.delivered(progress.arrived);
        sender.rtt.progress();
        progress.measure(&mut sender.rtt);
        if sender.inflight.is_empty() {
            sender.inflight.all_arrived();
            sender.retry_at_ns = NEVER;
        } else {
            sender.retry_at_ns = now_ns + sender.rtt.timeout_ns();
            let lost = sender.inflight.find_lost(now_ns, &sender.rtt);
            sender.pace.lost(lost);
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
            self.end(Reason::Lost, Cause::Told, 0, env);
        }
    }

    /// Waits that have been in vain.
    pub(super) fn sender_timeout<E: Env>(&mut self, env: &mut E) {
        let (now_ns, sender) = (self.now_ns, &mut self.sender);
        if sender.inflight.lost_at_ns <= now_ns {
            let lost = sender.inflight.find_lost(now_ns, &sender.rtt);
            sender.pace.lost(lost);
        }
        if sender.retry_at_ns <= now_ns {
            // A wait counts as long as it was meant to be, however late somebody looks. With a partner that is
            // silent it says nothing; that one is waited for elsewhere.
            if !self.silence.is_asking() {
                sender.stuck_ns += sender.rtt.timeout_ns();
            }
            sender.inflight.lose_first();
            sender.overdue = true;
            sender.pace.timed_out(sender.rtt.back_off());
            sender.retry_at_ns = now_ns + sender.rtt.timeout_ns();
            self.stats.timeouts += 1;
            if sender.stuck_ns > STUCK_NS {
                self.partner_is_dead(env);
            }
        }
    }

    /// The partner tells which operation ended the connection: those before it are complete, it has
    /// failed. Gives the cause that is left to tell.
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
            // A read that will not be answered any more.
            VIP_STATUS_TRANSPORT_ERROR
        };
        self.fail_first(error, env)
    }

    /// Completes the oldest operation that is under way with an error, if there is one. Gives the cause
    /// that is left to tell.
    pub(super) fn fail_first<E: Env>(&mut self, error: u32, env: &mut E) -> Cause {
        let Some(first) = self.sender.operations.pop_front() else {
            return Cause::LOST;
        };
        let status = match first.stage {
            Stage::Failed(status) => status,
            _ => error | first.operation.status(),
        };
        if env.complete_send(status) {
            Cause::Told
        } else {
            self.broken(env);
            Cause::LOST
        }
    }

    /// The same for a descriptor that is posted and was never begun.
    #[cold]
    pub(super) fn fail_unsent<E: Env>(&mut self, error: u32, env: &mut E) -> Cause {
        let status = match env.outgoing(env.sends_completed()) {
            Ok(outgoing) => error | outgoing.operation.status(),
            Err(status) => status,
        };
        if env.complete_send(status) {
            Cause::Told
        } else {
            self.broken(env);
            Cause::LOST
        }
    }
}
