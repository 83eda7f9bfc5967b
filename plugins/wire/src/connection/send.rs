//! What is sent next: a lost frame, an answer to an RDMA Read, or the operations of posted descriptors, as far as
//! window, pace and device permit.

use vipl_abi::VIP_STATUS_LENGTH_ERROR;

use super::{Connection, Phase};
use crate::config::NEVER;
use crate::env::{Env, Level, Operation, Outgoing};
use crate::sender::{Begun, OPERATIONS_MAX, READS_MAX};

/// Result of an attempt to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// A frame was sent, or the state has changed.
    Moved,
    /// Nothing to do.
    Idle,
    /// The device is full.
    Full,
}

/// The next operation to send.
pub(super) enum Next<S> {
    /// This descriptor; its operation is the last of the list.
    Go(Outgoing<S>),
    /// Its descriptor is invalid.
    Invalid(u32),
    /// None, or it has to wait for an RDMA Read.
    Nothing,
}

impl Connection {
    /// Sends what window, pace and device permit.
    #[inline(always)]
    pub(super) fn pump<E: Env>(&mut self, env: &mut E) {
        self.blocked = false;
        if !matches!(self.phase, Phase::Open) {
            return;
        }
        let reliable = self.config.level != Level::Unreliable;
        let held_ns = std::mem::replace(&mut self.sender.pace_at_ns, NEVER);
        if held_ns != NEVER {
            self.look_at_clock(env);
            if held_ns <= self.now_ns {
                self.sender.pace.look(self.now_ns, held_ns);
            }
        }
        while self.has_work(env) {
            let step = if reliable {
                self.send_one(env)
            } else {
                self.send_new(env)
            };
            match step {
                Step::Moved if matches!(self.phase, Phase::Open) => {}
                Step::Full => {
                    self.blocked = true;
                    return;
                }
                _ => return,
            }
        }
    }

    /// Whether there is anything to send.
    #[inline(always)]
    fn has_work<E: Env>(&self, env: &E) -> bool {
        let sender = &self.sender;
        self.has_unsent(env)
            || sender.is_in_the_midst()
            || sender.inflight.has_lost()
            || !sender.serving.is_empty()
    }

    /// Sends one frame of a reliable connection, if window and pace permit.
    #[inline(always)]
    fn send_one<E: Env>(&mut self, env: &mut E) -> Step {
        let sender = &mut self.sender;
        if sender.overdue && sender.inflight.has_lost() {
            // Regardless of the window: all frames in flight may be lost.
            return self.send_again(env);
        }
        if sender.inflight.under_way() >= sender.pace.window() {
            return Step::Idle;
        }
        let answers = !sender.serving.is_empty();
        let next_ns = sender.pace.next_ns(sender.rtt.smoothed_ns());
        if next_ns > self.now_ns {
            self.look_at_clock(env);
        }
        if next_ns > self.now_ns {
            // Continues with the next acknowledgement, or else at this time.
            self.sender.pace_at_ns = next_ns;
            return Step::Idle;
        }
        if self.sender.inflight.has_lost() {
            return self.send_again(env);
        }
        if !self.sender.has_window() {
            return Step::Idle;
        }
        if answers && !self.sender.answered_last {
            self.sender.answered_last = true;
            return self.serve_read(env);
        }
        self.sender.answered_last = false;
        match self.send_new(env) {
            Step::Idle if answers => self.serve_read(env),
            step => step,
        }
    }

    /// Whether there is a descriptor whose operation has not been begun.
    #[inline(always)]
    pub(super) fn has_unsent<E: Env>(&self, env: &E) -> bool {
        let begun = self.sender.operations.len() as u32;
        env.sends_completed().wrapping_add(begun) != env.sends_posted()
    }

    /// The next operation with data to send.
    #[inline(always)]
    pub(super) fn next_operation<E: Env>(&mut self, env: &mut E) -> Next<E::Segments> {
        if self.sender.is_in_the_midst() {
            self.go_on(env)
        } else if self.has_unsent(env) {
            self.begin_next(env)
        } else {
            Next::Nothing
        }
    }

    /// The same for an operation that shares a frame with those before it.
    #[inline(never)]
    pub(super) fn next_in_frame<E: Env>(&mut self, env: &mut E) -> Next<E::Segments> {
        self.begin_next(env)
    }

    /// The last operation, of which a part has been sent.
    #[inline(never)]
    fn go_on<E: Env>(&mut self, env: &mut E) -> Next<E::Segments> {
        let operations = &self.sender.operations;
        match operations.back().copied() {
            Some(last) if !self.sender.halted => {
                let begun = operations.len() as u32;
                let number = env.sends_completed().wrapping_add(begun - 1);
                self.read_again(number, &last, env)
            }
            _ => Next::Nothing,
        }
    }

    /// Begins the operation of the next descriptor.
    #[inline(always)]
    fn begin_next<E: Env>(&mut self, env: &mut E) -> Next<E::Segments> {
        let begun = self.sender.operations.len();
        if self.sender.halted || begun == OPERATIONS_MAX {
            return Next::Nothing;
        }
        let number = env.sends_completed().wrapping_add(begun as u32);
        let outgoing = match env.outgoing(number) {
            Ok(outgoing) => outgoing,
            Err(status) => {
                let unknown = Outgoing {
                    operation: Operation::Send,
                    length: 0,
                    immediate: 0,
                    flagged: false,
                    fenced: false,
                    address: 0,
                    handle: 0,
                    segments: (),
                };
                self.sender.begin(&unknown, 0);
                return Next::Invalid(status);
            }
        };
        let operation = outgoing.operation;
        if self.sender.reads_open > 0 {
            // With Reliable Reception no operation takes effect after a read that may fail.
            let held = outgoing.fenced
                || (self.config.level == Level::Reception && operation != Operation::Read)
                || self.sender.reads_open == READS_MAX;
            if held {
                return Next::Nothing;
            }
        }
        self.sender.begin(&outgoing, self.carried(&outgoing));
        Next::Go(outgoing)
    }

    /// The immediate data of an operation as it travels.
    #[inline(always)]
    pub(super) fn carried<S>(&self, outgoing: &Outgoing<S>) -> u32 {
        if outgoing.flagged || self.config.carry_immediate {
            outgoing.immediate
        } else {
            0
        }
    }

    /// Reads a descriptor again, which the application must not have changed since.
    pub(super) fn read_again<E: Env>(
        &self,
        number: u32,
        begun: &Begun,
        env: &mut E,
    ) -> Next<E::Segments> {
        match env.outgoing(number) {
            Ok(outgoing)
                if outgoing.operation == begun.operation && outgoing.length == begun.length =>
            {
                Next::Go(outgoing)
            }
            Ok(_) => Next::Invalid(VIP_STATUS_LENGTH_ERROR | begun.operation.status()),
            Err(status) => Next::Invalid(status),
        }
    }
}
