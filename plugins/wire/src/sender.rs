//! The state of the send side: operations that are begun and not complete, and the frames under way.
//!
//! An operation stays in `operations` until it is complete. Its data stays in the application's memory and is
//! gathered once more if a frame is lost.

use std::collections::VecDeque;

use crate::config::{NEVER, WINDOW};
use crate::env::{Operation, Outgoing, Remote};
use crate::inflight::Inflight;
use crate::pace::{MOST, Pace};
use crate::part::{Part, PartKind};
use crate::rtt::Rtt;

/// Operations that are begun and not complete.
pub(crate) const OPERATIONS_MAX: usize = 1024;
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

impl Begun {
    /// A part of the operation.
    #[inline(always)]
    pub(crate) fn part(&self, kind: PartKind, offset: u32, bytes: u16) -> Part {
        Part {
            kind,
            flagged: self.flagged,
            bytes,
            number: self.number,
            immediate: self.immediate,
            total: self.length,
            offset,
            address: self.address,
            handle: self.handle,
        }
    }

    /// Whether this is an RDMA Read that waits for its data.
    pub(crate) fn is_open_read(&self) -> bool {
        self.operation == Operation::Read && self.stage == Stage::Sent
    }
}

/// An RDMA Read of the partner whose data this side sends.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Serving {
    /// Its number among the partner's reads.
    pub(crate) number: u32,
    /// Its number among the partner's operations, to blame it.
    pub(crate) operation: u32,
    pub(crate) range: Remote,
    pub(crate) offset: u32,
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
    pub(crate) pace_at_ns: u64,
    /// RDMA Reads of the partner that this side answers.
    pub(crate) serving: VecDeque<Serving>,
    /// Answers and own operations take turns.
    pub(crate) answered_last: bool,
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

    /// Begins an operation and numbers it. `immediate` is what its parts carry.
    #[inline(always)]
    pub(crate) fn begin<S>(&mut self, outgoing: &Outgoing<S>, immediate: u32) {
        let (operation, flagged) = (outgoing.operation, outgoing.flagged);
        let count = match operation {
            Operation::Send => &mut self.messages,
            Operation::Write => {
                // Its immediate data uses a receive descriptor too.
                self.messages = self.messages.wrapping_add(u32::from(flagged));
                &mut self.writes
            }
            Operation::Read => {
                self.reads_open += 1;
                &mut self.reads
            }
        };
        let number = *count;
        *count = number.wrapping_add(1);
        self.operations.push_back(Begun {
            operation,
            stage: Stage::Sending,
            flagged,
            immediate,
            length: outgoing.length,
            offset: 0,
            number,
            end: self.inflight.next(),
            address: outgoing.address,
            handle: outgoing.handle,
        });
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
    pub(crate) fn is_in_the_midst(&self) -> bool {
        let last = self.operations.back();
        last.is_some_and(|last| last.stage == Stage::Sending)
    }

    /// Whether the window takes a new frame.
    #[inline(always)]
    pub(crate) fn has_window(&self) -> bool {
        self.inflight.span() < self.window.min(MOST)
    }
}
