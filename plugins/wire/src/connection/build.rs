//! Frames of operations: as many whole operations as are queued and fit, or one piece of a large one.

use vipl_abi::VIP_STATUS_PROTECTION_ERROR;

use super::Connection;
use super::send::{Next, Step};
use crate::env::{Env, Level, Operation};
use crate::frame::{FLAG_ASK, HEADER, Header, Kind, TRAILER};
use crate::inflight::Load;
use crate::part::{PartKind, WATCHED};
use crate::sender::Begun;

impl Connection {
    /// Builds and sends one frame of operations that have not been sent yet.
    pub(super) fn send_new<E: Env>(&mut self, env: &mut E) -> Step {
        let mut next = self.next_operation(env);
        if matches!(next, Next::Nothing) {
            return Step::Idle;
        }
        let Some(mut frame) = env.frame() else {
            return Step::Full;
        };
        let sequence = self.sender.inflight.next();
        let buffer = frame.as_mut();
        let end = HEADER + self.room();
        let (mut at, mut count, mut piece, mut fault) = (HEADER, 0u16, None, None);
        let first = self.sender.last_number();
        loop {
            let outgoing = match next {
                Next::Nothing => break,
                Next::Invalid(status) => {
                    fault = Some(status);
                    break;
                }
                Next::Go(outgoing) => outgoing,
            };
            let number = self.sender.last_number();
            let Some(begun) = self.sender.operations.back_mut() else {
                break;
            };
            let room = end - at;
            let left = (begun.length - begun.offset) as usize;
            let whole = begun.offset == 0 && fits(begun.operation, left, room);
            if !whole && count > 0 {
                break;
            }
            let kind = PartKind::of(begun.operation, whole);
            let bytes = payload(begun, kind, room);
            let part = begun.part(kind, begun.offset, bytes as u16);
            let to = at + kind.header();
            if env
                .gather(
                    &outgoing.segments,
                    begun.offset,
                    &mut buffer[to..to + bytes],
                )
                .is_err()
            {
                fault = Some(VIP_STATUS_PROTECTION_ERROR | begun.operation.status());
                break;
            }
            part.emit(&mut buffer[at..]);
            at = to + bytes;
            count += 1;
            begun.note_left(bytes as u32, sequence);
            if !whole {
                piece = Some(Load::Piece {
                    number,
                    offset: part.offset,
                    bytes: part.bytes,
                });
                break;
            }
            // Even the smallest part must fit.
            let room = end - at >= PartKind::Send.header() && count < u16::MAX;
            if !room || !self.has_unsent(env) {
                break;
            }
            next = self.next_in_frame(env);
        }
        if count > 0 {
            let load = piece.unwrap_or(Load::Whole { first, count });
            self.finish_new(frame, at, load, env);
        }
        if let Some(status) = fault {
            self.local_error(status, env);
        }
        if self.is_open() {
            self.reap(env);
        }
        Step::Moved
    }

    #[inline(always)]
    fn finish_new<E: Env>(&mut self, mut frame: E::Frame, at: usize, load: Load, env: &mut E) {
        let sequence = self.sender.inflight.next();
        let mut header = self.header(Kind::Data, sequence);
        if self.config.level == Level::Unreliable {
            let bytes = header.emit_sealed(frame.as_mut(), at - HEADER, &mut self.seals);
            env.transmit(frame, bytes);
            self.stats.frames_sent += 1;
            self.sender.inflight.skip();
            return;
        }
        self.sender.inflight.push(load);
        let sender = &self.sender;
        if sender.inflight.under_way() >= sender.pace.window() || !sender.has_window() {
            // No frame can follow before this one is acknowledged.
            header.flags |= FLAG_ASK;
        }
        self.transmit(frame, &header, at, env);
    }

    /// Sends a DATA frame whose body ends at `at`.
    #[inline(always)]
    pub(super) fn transmit<E: Env>(
        &mut self,
        mut frame: E::Frame,
        header: &Header,
        at: usize,
        env: &mut E,
    ) {
        let bytes = header.emit_sealed(frame.as_mut(), at - HEADER, &mut self.seals);
        debug_assert!(bytes >= at + TRAILER);
        env.transmit(frame, bytes);
        self.note_left(header.sequence, env);
    }

    /// Notes that a DATA frame was sent.
    #[inline(always)]
    pub(super) fn note_left<E: Env>(&mut self, sequence: u32, env: &mut E) {
        self.look_at_clock(env);
        self.stats.frames_sent += 1;
        self.acks.sent(!self.receiver.has_holes());
        self.sender.note_sent(sequence, self.now_ns);
    }
}

/// Whether a whole operation fits into the rest of the frame.
#[inline(always)]
fn fits(operation: Operation, bytes: usize, room: usize) -> bool {
    let bytes = if operation == Operation::Read {
        0
    } else {
        bytes
    };
    PartKind::of(operation, true).header() + bytes <= room
}

/// Bytes of the next part of an operation.
#[inline(always)]
fn payload(begun: &Begun, kind: PartKind, room: usize) -> usize {
    if kind == PartKind::Read {
        return 0;
    }
    piece((begun.length - begun.offset) as usize, room - kind.header())
}

/// Bytes of the next piece, where `left` bytes are left and `room` fit. Programs poll the last eight bytes of an RDMA range
/// (spec §5.4), so these are never divided.
#[inline(always)]
pub(super) fn piece(left: usize, room: usize) -> usize {
    if left <= room {
        left
    } else {
        room.min(left - WATCHED)
    }
}
