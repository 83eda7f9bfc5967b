//! The send side: from posted descriptors to frames, and from acknowledgements to completions.
//!
//! Operations are taken from the send queue in order and cut into frames. Several small ones that are
//! queued together share a frame. An operation stays in `operations` until it is complete; its data stays
//! in the program's memory and is gathered once more should a frame be lost.

use std::collections::VecDeque;

use vipl_abi::*;

use crate::connection::{Connection, NEVER, Phase, WINDOW};
use crate::env::{Env, Level, Operation, Outgoing};
use crate::inflight::Inflight;
use crate::pace::{MOST, Pace};
use crate::read::Serving;
use crate::rtt::Rtt;

/// Operations that are begun and not complete.
const OPERATIONS_MAX: usize = 1024;
/// RDMA Reads under way.
pub(crate) const READS_MAX: u32 = 16;

/// How far an operation is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// Not all of it has been sent.
    Sending,
    /// Everything has been sent; complete when that is acknowledged, a read when it is answered.
    Sent,
    /// An RDMA Read has its data.
    Answered,
    /// It ends with this status when its turn comes, and the connection with it.
    Failed(u32),
}

/// An operation that is begun and not complete.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Begun {
    pub(crate) operation: Operation,
    pub(crate) stage: Stage,
    pub(crate) flagged: bool,
    pub(crate) immediate: u32,
    pub(crate) length: u32,
    /// Bytes sent so far.
    pub(crate) offset: u32,
    /// Number among its kind, as the parts say it.
    pub(crate) number: u32,
    /// Sequence number behind its last frame.
    pub(crate) end: u32,
    pub(crate) address: u64,
    pub(crate) handle: u32,
}

/// What became of an attempt to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// A frame has left, or something else has moved.
    Moved,
    /// Nothing to do.
    Idle,
    /// The device is full.
    Full,
}

/// The next thing to send.
pub(crate) enum Next<S> {
    /// This descriptor, whose operation is the last of the list.
    Go(Outgoing<S>),
    /// Its descriptor is faulty.
    Fault(u32),
    /// Nothing, or it waits for an RDMA Read.
    Nothing,
}

/// The send side of a connection.
pub(crate) struct Sender {
    /// Begun operations, the oldest first; it is the head of the send queue.
    pub(crate) operations: VecDeque<Begun>,
    /// Number of the oldest one since the connection began.
    pub(crate) base: u32,
    messages: u32,
    writes: u32,
    reads: u32,
    /// RDMA Reads that are not answered.
    pub(crate) reads_open: u32,
    pub(crate) inflight: Inflight,
    pub(crate) rtt: Rtt,
    pub(crate) pace: Pace,
    /// Frames beyond the acknowledged one that the partner takes.
    pub(crate) window: u32,
    /// Nothing new is sent: an error waits for its turn.
    pub(crate) halted: bool,
    pub(crate) retry_at_ns: u64,
    /// How long the oldest frame has been waited for in vain.
    pub(crate) stuck_ns: u64,
    /// A wait has been in vain, and nothing was sent again since.
    pub(crate) overdue: bool,
    pace_at_ns: u64,
    /// RDMA Reads of the partner that this side answers.
    pub(crate) serving: VecDeque<Serving>,
    /// Answers and own operations take turns.
    answered_last: bool,
}

impl Sender {
    pub(crate) fn new(first: u32) -> Sender {
        Sender {
            operations: VecDeque::new(),
            base: 0,
            messages: 0,
            writes: 0,
            reads: 0,
            reads_open: 0,
            inflight: Inflight::new(first),
            rtt: Rtt::default(),
            pace: Pace::new(),
            window: u32::from(WINDOW),
            halted: false,
            retry_at_ns: NEVER,
            stuck_ns: 0,
            overdue: false,
            pace_at_ns: NEVER,
            serving: VecDeque::new(),
            answered_last: false,
        }
    }

    #[inline(always)]
    pub(crate) fn deadline(&self) -> u64 {
        let lost = self.inflight.lost_at_ns;
        self.retry_at_ns.min(self.pace_at_ns).min(lost)
    }

    /// A frame with this sequence number has left.
    #[inline(always)]
    pub(crate) fn note_sent(&mut self, sequence: u32, now_ns: u64) {
        self.inflight.left(sequence, now_ns);
        self.pace.sent(now_ns, self.rtt.smoothed_ns());
        if self.retry_at_ns == NEVER {
            self.retry_at_ns = now_ns + self.rtt.timeout_ns();
        }
    }

    /// Number of the operation that was begun last.
    #[inline(always)]
    pub(crate) fn last_number(&self) -> u32 {
        self.base
            .wrapping_add(self.operations.len() as u32)
            .wrapping_sub(1)
    }

    /// Whether the operation that was begun last has not been sent to its end.
    #[inline(always)]
    fn is_in_the_midst(&self) -> bool {
        let last = self.operations.back();
        last.is_some_and(|last| last.stage == Stage::Sending)
    }

    /// Whether the window takes a new frame.
    #[inline(always)]
    pub(crate) fn has_window(&self) -> bool {
        self.inflight.span() < self.window.min(MOST)
    }
}

impl Connection {
    /// Sends what may be sent.
    #[inline(always)]
    pub(crate) fn pump<E: Env>(&mut self, env: &mut E) {
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

    /// Whether there is anything to send, if it may be sent.
    #[inline(always)]
    fn has_work<E: Env>(&self, env: &E) -> bool {
        let sender = &self.sender;
        self.has_unsent(env)
            || sender.is_in_the_midst()
            || sender.inflight.has_lost()
            || !sender.serving.is_empty()
    }

    /// One frame on a reliable connection, if the network may take one more.
    #[inline(always)]
    fn send_one<E: Env>(&mut self, env: &mut E) -> Step {
        let sender = &mut self.sender;
        if sender.overdue && sender.inflight.has_lost() {
            // Whatever the window says: what is under way may all be lost.
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
            // What the next acknowledgement does not set going, time does.
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
    pub(crate) fn has_unsent<E: Env>(&self, env: &E) -> bool {
        let begun = self.sender.operations.len() as u32;
        env.sends_completed().wrapping_add(begun) != env.sends_posted()
    }

    /// The next operation that has something to send.
    #[inline(always)]
    pub(crate) fn next_operation<E: Env>(&mut self, env: &mut E) -> Next<E::Segments> {
        if self.sender.is_in_the_midst() {
            self.go_on(env)
        } else if self.has_unsent(env) {
            self.begin_next(env)
        } else {
            Next::Nothing
        }
    }

    /// The same for one that shares a frame with those before it.
    #[inline(never)]
    pub(crate) fn next_in_frame<E: Env>(&mut self, env: &mut E) -> Next<E::Segments> {
        self.begin_next(env)
    }

    /// The operation that was begun last, of which not everything has been sent.
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

    /// Begins the operation of the next descriptor, which is there.
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
                self.begin(Operation::Send, 0, (false, 0), (0, 0));
                return Next::Fault(status);
            }
        };
        let operation = outgoing.operation;
        if self.sender.reads_open > 0 {
            // Under Reliable Reception nothing takes effect behind a read that may fail.
            let held = outgoing.fenced
                || (self.config.level == Level::Reception && operation != Operation::Read)
                || self.sender.reads_open == READS_MAX;
            if held {
                return Next::Nothing;
            }
        }
        self.begin(
            operation,
            outgoing.length,
            (outgoing.flagged, outgoing.immediate),
            (outgoing.address, outgoing.handle),
        );
        Next::Go(outgoing)
    }

    /// Walks a descriptor once more, which the program must not have changed meanwhile.
    pub(crate) fn read_again<E: Env>(
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
            Ok(_) => Next::Fault(VIP_STATUS_LENGTH_ERROR | opcode(begun.operation)),
            Err(status) => Next::Fault(status),
        }
    }

    /// Counts a new operation.
    #[inline(always)]
    fn begin(
        &mut self,
        operation: Operation,
        length: u32,
        (flagged, immediate): (bool, u32),
        (address, handle): (u64, u32),
    ) {
        let sender = &mut self.sender;
        let count = match operation {
            Operation::Send => &mut sender.messages,
            Operation::Write => {
                // Its immediate data uses a receive descriptor too.
                sender.messages = sender.messages.wrapping_add(u32::from(flagged));
                &mut sender.writes
            }
            Operation::Read => {
                sender.reads_open += 1;
                &mut sender.reads
            }
        };
        let number = *count;
        *count = number.wrapping_add(1);
        let carried = flagged || self.config.carry_immediate;
        sender.operations.push_back(Begun {
            operation,
            stage: Stage::Sending,
            flagged,
            immediate: if carried { immediate } else { 0 },
            length,
            offset: 0,
            number,
            end: sender.inflight.next(),
            address,
            handle,
        });
    }
}

/// The operation bits of a status.
#[inline(always)]
pub(crate) fn opcode(operation: Operation) -> u32 {
    match operation {
        Operation::Send => VIP_STATUS_OP_SEND,
        Operation::Write => VIP_STATUS_OP_RDMA_WRITE,
        Operation::Read => VIP_STATUS_OP_RDMA_READ,
    }
}
