//! State of the send side: operations in progress, and the frames in flight.
//!
//! An operation stays in `operations` until it is complete. Its data stays in the application's memory, from which lost
//! frames are rebuilt.

use std::collections::VecDeque;

use crate::config::{Config, NEVER, WINDOW};
use crate::ecn::{Marks, Meaning};
use crate::env::{Operation, Outgoing, Remote};
use crate::inflight::Inflight;
use crate::pace::Pace;
use crate::part::{Part, PartKind};
use crate::rtt::Rtt;

/// Limit of operations in progress.
pub(crate) const OPERATIONS_MAX: usize = 1024;
/// Limit of open RDMA Reads.
pub(crate) const READS_MAX: u32 = 16;

/// Progress of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// Some of it has not been sent.
    Sending,
    /// All of it has been sent. It is complete when that is acknowledged, an RDMA Read when it is answered.
    Sent,
    /// The data of an RDMA Read has arrived.
    Answered,
    /// It completes with this status when it is the oldest, and the connection ends.
    Failed(u32),
}

/// An operation in progress.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Begun {
    pub(crate) operation: Operation,
    pub(crate) stage: Stage,
    pub(crate) flagged: bool,
    pub(crate) immediate: u32,
    pub(crate) length: u32,
    /// Bytes sent so far.
    pub(crate) offset: u32,
    /// Number among its kind, as in the parts.
    pub(crate) number: u32,
    /// Sequence number after that of its last frame.
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

    /// Notes that more bytes of it are in the frame with this sequence number.
    #[inline(always)]
    pub(crate) fn note_left(&mut self, bytes: u32, sequence: u32) {
        self.offset += bytes;
        self.end = sequence.wrapping_add(1);
        if self.operation == Operation::Read || self.offset == self.length {
            self.stage = Stage::Sent;
        }
    }

    /// Whether this is an RDMA Read that waits for its data.
    pub(crate) fn is_open_read(&self) -> bool {
        self.operation == Operation::Read && self.stage == Stage::Sent
    }
}

/// An RDMA Read of the peer whose data this side sends.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Serving {
    /// Its number among the peer's reads.
    pub(crate) number: u32,
    /// Its number among the operations of the peer, for a CLOSE.
    pub(crate) operation: u32,
    pub(crate) range: Remote,
    pub(crate) offset: u32,
}

/// The send side of a connection.
pub(crate) struct Sender {
    /// Operations in progress, the oldest first. They are the head of the send queue.
    pub(crate) operations: VecDeque<Begun>,
    /// Number of the oldest one since the connection began.
    pub(crate) base: u32,
    /// Operations begun so far that use a receive descriptor.
    pub(crate) messages: u32,
    writes: u32,
    reads: u32,
    /// RDMA Reads that are not answered.
    pub(crate) reads_open: u32,
    pub(crate) inflight: Inflight,
    pub(crate) rtt: Rtt,
    pub(crate) pace: Pace,
    pub(crate) marks: Marks,
    /// Window of the peer, as far as this side uses it.
    pub(crate) window: u32,
    /// No new operations: one has failed.
    pub(crate) halted: bool,
    pub(crate) retry_at_ns: u64,
    /// Sum of the timeouts of the oldest frame.
    pub(crate) stuck_ns: u64,
    /// The timeout has expired, and nothing has been retransmitted since.
    pub(crate) overdue: bool,
    pub(crate) pace_at_ns: u64,
    /// RDMA Reads of the peer that this side answers.
    pub(crate) serving: VecDeque<Serving>,
    /// A lost frame of which slices have been sent, and up to where.
    pub(crate) sliced: Option<(u32, usize)>,
    /// Answers and own operations alternate.
    pub(crate) answered_last: bool,
}

impl Sender {
    pub(crate) fn new(config: &Config, side: u32) -> Sender {
        let (first, shared_path) = (config.first(side), config.shared_path);
        Sender {
            operations: VecDeque::new(),
            base: config.count_from,
            messages: config.count_from,
            writes: config.count_from,
            reads: config.count_from,
            reads_open: 0,
            inflight: Inflight::new(first, shared_path),
            rtt: Rtt::new(shared_path),
            pace: Pace::new(shared_path),
            marks: Marks::new(first),
            window: u32::from(WINDOW),
            halted: false,
            retry_at_ns: NEVER,
            stuck_ns: 0,
            overdue: false,
            pace_at_ns: NEVER,
            serving: VecDeque::new(),
            sliced: None,
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
                // Its immediate data consumes a receive descriptor, too.
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

    /// A frame with this sequence number was sent.
    #[inline(always)]
    pub(crate) fn note_sent(&mut self, sequence: u32, now_ns: u64) {
        self.inflight.left(sequence, now_ns);
        self.pace.sent(now_ns, self.rtt.smoothed_ns());
        if self.retry_at_ns == NEVER {
            self.retry_at_ns = now_ns + self.rtt.timeout_ns();
        }
    }

    /// Finds lost frames, and lets the window know.
    #[inline(always)]
    pub(crate) fn find_lost(&mut self, now_ns: u64) {
        let reduced_ns = self.pace.reduced_ns();
        let (lost, sent_ns) = self.inflight.find_lost(now_ns, &self.rtt, reduced_ns);
        self.pace.lost(lost, sent_ns, now_ns);
    }

    /// The peer's count of marked frames has changed.
    #[cold]
    pub(crate) fn hear_marks(&mut self, count: u8, now_ns: u64) {
        let meaning = self.marks.hear(count, self.inflight.first());
        if meaning == Meaning::All && self.pace.forget_marks(now_ns) {
            self.marks.ignore();
        } else if meaning != Meaning::Nothing {
            let sent_ns = now_ns.saturating_sub(self.inflight.latest_took_ns());
            self.pace.marked(sent_ns, now_ns);
        }
    }

    /// Number of the last operation.
    #[inline(always)]
    pub(crate) fn last_number(&self) -> u32 {
        self.base
            .wrapping_add(self.operations.len() as u32)
            .wrapping_sub(1)
    }

    /// Whether a part of the last operation has not been sent.
    #[inline(always)]
    pub(crate) fn is_in_the_midst(&self) -> bool {
        let last = self.operations.back();
        last.is_some_and(|last| last.stage == Stage::Sending)
    }

    /// Whether the window takes a new frame.
    #[inline(always)]
    pub(crate) fn has_window(&self) -> bool {
        self.inflight.span() < self.window
    }
}
