//! Completion of operations: by an acknowledgement, by an error on this side, or by the reason in the CLOSE of the
//! peer.

use vipl_abi::*;

use super::{Operations, Stage};
use crate::closing::{Body, End, Reason};
use crate::env::{Cause, Env, Level, Operation};

impl Operations {
    /// Completes operations in order. All frames before `acknowledged` have arrived.
    #[inline(always)]
    pub(crate) fn complete<E: Env>(&mut self, acknowledged: u32, env: &mut E) -> Result<(), End> {
        while let Some(first) = self.list.front() {
            let arrived = self.level == Level::Unreliable
                || (acknowledged.wrapping_sub(first.end) as i32) >= 0;
            let status = match first.stage {
                Stage::Sent if arrived && first.operation != Operation::Read => {
                    first.operation.status()
                }
                Stage::Answered => first.operation.status(),
                Stage::Failed(status) => {
                    self.complete_failed(status, env)?;
                    continue;
                }
                _ => return Ok(()),
            };
            self.complete_first(status, env)?;
        }
        Ok(())
    }

    #[inline(always)]
    fn complete_first<E: Env>(&mut self, status: u32, env: &mut E) -> Result<(), End> {
        self.list.pop_front();
        self.base = self.base.wrapping_add(1);
        if env.complete_send(status) {
            Ok(())
        } else {
            Err(End::BROKEN)
        }
    }

    #[cold]
    fn complete_failed<E: Env>(&mut self, status: u32, env: &mut E) -> Result<(), End> {
        self.complete_first(status, env)?;
        if self.level == Level::Unreliable {
            Ok(())
        } else {
            Err(End::new(Reason::Lost, Cause::Reported, 0))
        }
    }

    /// E1 to E3: the last operation fails. On the reliable levels the connection ends when it is the oldest.
    #[cold]
    pub(crate) fn fail_last(&mut self, status: u32) {
        if let Some(last) = self.list.back_mut() {
            last.stage = Stage::Failed(status);
        }
        self.halted = self.level != Level::Unreliable;
    }

    /// The CLOSE of the peer names the operation that ended the connection: completes those before it, and fails it.
    #[cold]
    pub(crate) fn closed_by_peer<E: Env>(&mut self, body: &Body, env: &mut E) -> End {
        let error = match (body.reason, self.level) {
            (Reason::Disconnected, _) => {
                return End::new(Reason::Lost, Cause::Disconnected, 0);
            }
            (Reason::Lost, _) => return End::VIOLATION,
            (Reason::ReceiveFailed, Level::Reception) => VIP_STATUS_REMOTE_DESC_ERROR,
            (Reason::ReceiveFailed, _) => VIP_STATUS_TRANSPORT_ERROR,
            (Reason::TargetRefused, _) => VIP_STATUS_RDMA_PROT_ERROR,
        };
        while let Some(first) = self.list.front() {
            let done = (body.operations.wrapping_sub(self.base) as i32) > 0;
            if !done || (first.operation == Operation::Read && first.stage != Stage::Answered) {
                break;
            }
            let status = first.operation.status();
            if let Err(end) = self.complete_first(status, env) {
                return end;
            }
        }
        if body.operations == self.base {
            self.fail_oldest(error, env)
        } else {
            // An RDMA Read that will not be answered.
            self.fail_oldest(VIP_STATUS_TRANSPORT_ERROR, env)
        }
    }

    /// The peer is dead: the oldest operation in progress fails, or else the oldest posted descriptor.
    #[cold]
    pub(crate) fn peer_is_dead<E: Env>(&mut self, env: &mut E) -> End {
        let error = VIP_STATUS_TRANSPORT_ERROR;
        if !self.list.is_empty() || env.sends_posted() == env.sends_completed() {
            return self.fail_oldest(error, env);
        }
        let status = match env.outgoing(env.sends_completed()) {
            Ok(outgoing) => error | outgoing.operation.status(),
            Err(status) => status,
        };
        failed(env.complete_send(status))
    }

    /// Completes the oldest operation in progress with an error, if there is one.
    #[cold]
    fn fail_oldest<E: Env>(&mut self, error: u32, env: &mut E) -> End {
        let Some(first) = self.list.pop_front() else {
            return End::VIOLATION;
        };
        let status = match first.stage {
            Stage::Failed(status) => status,
            _ => error | first.operation.status(),
        };
        failed(env.complete_send(status))
    }
}

/// The end of a connection after the failing operation has been completed.
fn failed(completed: bool) -> End {
    if completed {
        End::new(Reason::Lost, Cause::Reported, 0)
    } else {
        End::BROKEN
    }
}
