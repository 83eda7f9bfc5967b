//! Operations in progress: the head of the send queue. An operation stays here until it is complete. Its data stays in
//! the application's memory, from which lost frames are rebuilt.

mod complete;
mod read;

use std::collections::VecDeque;

use vipl_abi::{VIP_STATUS_LENGTH_ERROR, VIP_STATUS_PROTECTION_ERROR};

use crate::answers::READS_MAX;
use crate::config::Config;
use crate::env::{Env, Level, Operation, Outgoing};
use crate::part::{Part, PartKind, divide};

/// Limit of operations in progress.
const OPERATIONS_MAX: usize = 1024;

/// Progress of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Some of it has not been sent.
    Sending,
    /// All of it has been sent. It is complete when that is acknowledged; an RDMA Read, when it is answered.
    Sent,
    /// The data of an RDMA Read has arrived.
    Answered,
    /// It completes with this status when it is the oldest, and the connection ends.
    Failed(u32),
}

/// An operation in progress.
#[derive(Clone, Copy, Debug)]
struct Outstanding {
    operation: Operation,
    stage: Stage,
    flagged: bool,
    immediate: u32,
    length: u32,
    /// Bytes sent so far.
    offset: u32,
    /// Number among its kind, as in the parts.
    number: u32,
    /// Sequence number after that of its last frame.
    end: u32,
    address: u64,
    handle: u32,
}

impl Outstanding {
    #[inline(always)]
    fn part(&self, kind: PartKind, offset: u32, bytes: u16) -> Part {
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

    /// The next part, for a frame with `room` bytes left, and whether it is the whole operation. `None`: the operation
    /// would have to be divided, and must not be because it shares the frame.
    #[inline(always)]
    fn next_part(&self, room: usize, shares: bool) -> Option<(Part, bool)> {
        let left = match self.operation {
            Operation::Read => 0,
            _ => (self.length - self.offset) as usize,
        };
        let fits = PartKind::of(self.operation, true).header() + left <= room;
        let whole = self.offset == 0 && fits;
        if !whole && shares {
            return None;
        }
        let kind = PartKind::of(self.operation, whole);
        let bytes = divide(left, room - kind.header());
        Some((self.part(kind, self.offset, bytes as u16), whole))
    }

    /// Notes that the next `bytes` bytes are in the frame with this number.
    #[inline(always)]
    fn sent(&mut self, bytes: u32, sequence: u32) {
        self.offset += bytes;
        self.end = sequence.wrapping_add(1);
        if self.operation == Operation::Read || self.offset == self.length {
            self.stage = Stage::Sent;
        }
    }

    /// Whether this is the operation of a descriptor that was read again.
    fn is_same<S>(&self, outgoing: &Outgoing<S>) -> bool {
        outgoing.operation == self.operation && outgoing.length == self.length
    }
}

/// The next operation to send.
pub(crate) enum Next<S> {
    /// The last one of the list, with its segments.
    Segments(S),
    /// The last one of the list, whose descriptor is invalid.
    Invalid(u32),
    /// None, or it has to wait for an RDMA Read.
    Nothing,
}

/// The operations of one connection.
pub(crate) struct Operations {
    /// The oldest first.
    list: VecDeque<Outstanding>,
    /// Number of the oldest one since the connection began.
    base: u32,
    /// Number of the next operation that uses a receive descriptor, of the next RDMA Write and RDMA Read.
    messages: u32,
    writes: u32,
    reads: u32,
    /// RDMA Reads that are not answered, and bytes of the oldest one that have arrived.
    reads_open: u32,
    read_bytes: u32,
    /// No new operations: one has failed.
    halted: bool,
    level: Level,
    carry_immediate: bool,
}

impl Operations {
    pub(crate) fn new(config: &Config) -> Operations {
        Operations {
            list: VecDeque::new(),
            base: config.count_from,
            messages: config.count_from,
            writes: config.count_from,
            reads: config.count_from,
            reads_open: 0,
            read_bytes: 0,
            halted: false,
            level: config.level,
            carry_immediate: config.carry_immediate,
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Number of the last operation.
    #[inline(always)]
    pub(crate) fn last_number(&self) -> u32 {
        self.base
            .wrapping_add(self.list.len() as u32)
            .wrapping_sub(1)
    }

    /// Whether there is a descriptor whose operation has not been begun.
    #[inline(always)]
    pub(crate) fn has_unsent<E: Env>(&self, env: &E) -> bool {
        self.next_descriptor(env) != env.sends_posted()
    }

    /// Whether a part of the last operation has not been sent.
    #[inline(always)]
    pub(crate) fn has_rest(&self) -> bool {
        let last = self.list.back();
        last.is_some_and(|last| last.stage == Stage::Sending)
    }

    /// Number of the first descriptor that has not been begun.
    #[inline(always)]
    fn next_descriptor<E: Env>(&self, env: &E) -> u32 {
        env.sends_completed().wrapping_add(self.list.len() as u32)
    }

    /// The next operation with data to send, for a frame with this number.
    #[inline(always)]
    pub(crate) fn next<E: Env>(&mut self, sequence: u32, env: &mut E) -> Next<E::Segments> {
        if self.has_rest() {
            self.resume(env)
        } else if self.has_unsent(env) {
            self.begin_next(sequence, env)
        } else {
            Next::Nothing
        }
    }

    /// The same for an operation that shares the frame with those before it.
    #[inline(never)]
    pub(crate) fn next_shared<E: Env>(&mut self, sequence: u32, env: &mut E) -> Next<E::Segments> {
        self.begin_next(sequence, env)
    }

    /// The last operation, of which a part has been sent.
    #[inline(never)]
    fn resume<E: Env>(&mut self, env: &mut E) -> Next<E::Segments> {
        let number = self.next_descriptor(env).wrapping_sub(1);
        match self.list.back() {
            Some(last) if !self.halted => match read_again(last, number, env) {
                Ok(segments) => Next::Segments(segments),
                Err(status) => Next::Invalid(status),
            },
            _ => Next::Nothing,
        }
    }

    /// Begins the operation of the next descriptor.
    #[inline(always)]
    fn begin_next<E: Env>(&mut self, sequence: u32, env: &mut E) -> Next<E::Segments> {
        if self.halted || self.list.len() == OPERATIONS_MAX {
            return Next::Nothing;
        }
        let outgoing = match env.outgoing(self.next_descriptor(env)) {
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
                self.begin(&unknown, sequence);
                return Next::Invalid(status);
            }
        };
        if self.reads_open > 0 {
            // With Reliable Reception no operation takes effect after a read that may fail.
            let held = outgoing.fenced
                || (self.level == Level::Reception && outgoing.operation != Operation::Read)
                || self.reads_open == READS_MAX;
            if held {
                return Next::Nothing;
            }
        }
        self.begin(&outgoing, sequence);
        Next::Segments(outgoing.segments)
    }

    /// Begins and numbers an operation whose first frame has this number.
    #[inline(always)]
    fn begin<S>(&mut self, outgoing: &Outgoing<S>, sequence: u32) {
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
        self.list.push_back(Outstanding {
            operation,
            stage: Stage::Sending,
            flagged,
            immediate: self.carried(outgoing),
            length: outgoing.length,
            offset: 0,
            number,
            end: sequence,
            address: outgoing.address,
            handle: outgoing.handle,
        });
    }

    /// The immediate data of an operation as it travels.
    #[inline(always)]
    fn carried<S>(&self, outgoing: &Outgoing<S>) -> u32 {
        if outgoing.flagged || self.carry_immediate {
            outgoing.immediate
        } else {
            0
        }
    }

    /// The part of a whole message that is about to be sent with [`Operations::sent_single`].
    #[inline(always)]
    pub(crate) fn single_part<S>(&self, outgoing: &Outgoing<S>) -> Part {
        debug_assert!(!self.halted && self.reads_open == 0);
        Part {
            kind: PartKind::Send,
            flagged: outgoing.flagged,
            bytes: outgoing.length as u16,
            number: self.messages,
            immediate: self.carried(outgoing),
            total: outgoing.length,
            offset: 0,
            address: 0,
            handle: 0,
        }
    }

    /// This message was sent as a whole, in the frame with this number.
    #[inline(always)]
    pub(crate) fn sent_single<S>(&mut self, outgoing: &Outgoing<S>, sequence: u32) {
        self.begin(outgoing, sequence);
        if let Some(last) = self.list.back_mut() {
            last.sent(outgoing.length, sequence);
        }
    }

    /// Writes the next part of the last operation to `at` in a frame whose parts end at `end` at most. Returns the
    /// part and whether it is the whole operation, or `None`: the operation does not fit and must not be divided,
    /// since it `shares` the frame.
    #[inline(always)]
    pub(crate) fn write_part<E: Env>(
        &mut self,
        segments: &E::Segments,
        buffer: &mut [u8],
        (at, end): (usize, usize),
        shares: bool,
        sequence: u32,
        env: &mut E,
    ) -> Result<Option<(Part, bool)>, u32> {
        let Some(last) = self.list.back_mut() else {
            return Ok(None);
        };
        let Some((part, whole)) = last.next_part(end - at, shares) else {
            return Ok(None);
        };
        let from = at + part.kind.header();
        let out = &mut buffer[from..from + usize::from(part.bytes)];
        if env.gather(segments, part.offset, out).is_err() {
            return Err(VIP_STATUS_PROTECTION_ERROR | last.operation.status());
        }
        part.emit(&mut buffer[at..]);
        last.sent(u32::from(part.bytes), sequence);
        Ok(Some((part, whole)))
    }

    /// Writes a part once more: the whole operation with this number, or a `piece` of it. Returns the end of the part.
    /// `None`: the operation has failed, now or before.
    pub(crate) fn rewrite_part<E: Env>(
        &mut self,
        number: u32,
        piece: Option<(u32, u16)>,
        buffer: &mut [u8],
        at: usize,
        env: &mut E,
    ) -> Option<usize> {
        let place = number.wrapping_sub(self.base) as usize;
        let operation = self.list.get_mut(place)?;
        if matches!(operation.stage, Stage::Failed(_)) {
            return None;
        }
        let (offset, bytes) = piece.unwrap_or(match operation.operation {
            Operation::Read => (0, 0),
            _ => (0, operation.length as u16),
        });
        let kind = PartKind::of(operation.operation, piece.is_none());
        let part = operation.part(kind, offset, bytes);
        let from = at + kind.header();
        let end = from + usize::from(bytes);
        if bytes > 0 {
            let descriptor = env.sends_completed().wrapping_add(place as u32);
            let written = read_again(operation, descriptor, env).and_then(|segments| {
                let gathered = env.gather(&segments, offset, &mut buffer[from..end]);
                gathered.map_err(|_| VIP_STATUS_PROTECTION_ERROR | operation.operation.status())
            });
            if let Err(status) = written {
                operation.stage = Stage::Failed(status);
                self.halted = true;
                return None;
            }
        }
        part.emit(&mut buffer[at..]);
        Some(end)
    }
}

/// Reads the descriptor of an operation again, which the application must not have changed since.
fn read_again<E: Env>(
    operation: &Outstanding,
    descriptor: u32,
    env: &mut E,
) -> Result<E::Segments, u32> {
    let outgoing = env.outgoing(descriptor)?;
    if operation.is_same(&outgoing) {
        Ok(outgoing.segments)
    } else {
        Err(VIP_STATUS_LENGTH_ERROR | operation.operation.status())
    }
}
