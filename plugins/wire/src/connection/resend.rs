//! Retransmission: a lost frame is built again from the application's memory, with the parts that it had.

use vipl_abi::VIP_STATUS_PROTECTION_ERROR;

use super::Connection;
use super::send::{Next, Step};
use crate::env::{Env, Operation};
use crate::frame::{FLAG_ASK, HEADER, Header, Kind};
use crate::inflight::Load;
use crate::part::PartKind;
use crate::sender::Stage;
use crate::slices::{self, SLICE};

impl Connection {
    /// Rebuilds and sends the oldest lost frame.
    #[cold]
    pub(super) fn send_again<E: Env>(&mut self, env: &mut E) -> Step {
        let Some((sequence, load)) = self.sender.inflight.lost() else {
            return Step::Idle;
        };
        let Some(mut frame) = env.frame() else {
            return Step::Full;
        };
        let buffer = frame.as_mut();
        let built = match load {
            Load::Whole { first, count } => {
                let mut at = Ok(HEADER);
                for place in 0..u32::from(count) {
                    let number = first.wrapping_add(place);
                    at = at.and_then(|at| self.build_again(number, None, buffer, at, env));
                }
                at
            }
            Load::Piece {
                number,
                offset,
                bytes,
            } => self.build_again(number, Some((offset, bytes)), buffer, HEADER, env),
            Load::Answer { .. } => match self.answer_again(&load, buffer, env) {
                Some(at) => Ok(at),
                None => return Step::Moved,
            },
        };
        let at = match built {
            Ok(at) => at,
            Err(None) => {
                self.sender.inflight.give_up(sequence);
                return Step::Moved;
            }
            Err(Some((place, status))) => {
                self.sender.inflight.give_up(sequence);
                self.sender.operations[place].stage = Stage::Failed(status);
                self.sender.halted = true;
                self.reap(env);
                return Step::Moved;
            }
        };
        let mut header = self.header(Kind::Data, sequence);
        header.flags |= FLAG_ASK;
        let at = match self.slice(sequence, at, buffer) {
            None => at,
            Some((end, last)) => {
                header.kind = Kind::Slice;
                if !last {
                    self.send_slice(frame, &header, end, env);
                    return Step::Moved;
                }
                end
            }
        };
        let sender = &mut self.sender;
        let overdue = std::mem::take(&mut sender.overdue);
        sender.inflight.sent_again(sequence, overdue);
        self.stats.sent_again += 1;
        self.transmit(frame, &header, at, env);
        Step::Moved
    }

    /// If a frame whose body ends at `at` is too long for the path: puts its next slice into its place. Returns where
    /// that ends, and whether it is the last one.
    fn slice(&mut self, sequence: u32, at: usize, buffer: &mut [u8]) -> Option<(usize, bool)> {
        let (room, total) = (self.room(), at - HEADER);
        if total <= room {
            return None;
        }
        let offset = match self.sender.sliced.take() {
            Some((of, offset)) if of == sequence && offset < total => offset,
            _ => 0,
        };
        let bytes = slices::length(room, offset, total);
        let (from, to) = (HEADER + offset, HEADER + SLICE);
        buffer.copy_within(from..from + bytes, to);
        slices::emit(&mut buffer[HEADER..], offset, total);
        let last = offset + bytes == total;
        if !last {
            self.sender.sliced = Some((sequence, offset + bytes));
        }
        Some((to + bytes, last))
    }

    /// Sends a slice after which others follow: the frame stays lost until the last one has left.
    fn send_slice<E: Env>(
        &mut self,
        mut frame: E::Frame,
        header: &Header,
        end: usize,
        env: &mut E,
    ) {
        let bytes = header.emit_sealed(frame.as_mut(), end - HEADER, &mut self.seals);
        env.transmit(frame, bytes);
        self.look_at_clock(env);
        self.stats.frames_sent += 1;
        let sender = &mut self.sender;
        sender.pace.sent(self.now_ns, sender.rtt.smoothed_ns());
    }

    /// Rebuilds one part. The error is the operation that has failed and its status, or `None` if it had failed before.
    #[allow(clippy::type_complexity)]
    fn build_again<E: Env>(
        &mut self,
        number: u32,
        piece: Option<(u32, u16)>,
        buffer: &mut [u8],
        at: usize,
        env: &mut E,
    ) -> Result<usize, Option<(usize, u32)>> {
        let place = number.wrapping_sub(self.sender.base) as usize;
        let Some(begun) = self.sender.operations.get(place).copied() else {
            return Err(None);
        };
        if matches!(begun.stage, Stage::Failed(_)) {
            return Err(None);
        }
        let (offset, bytes) = piece.unwrap_or(match begun.operation {
            Operation::Read => (0, 0),
            _ => (0, begun.length as u16),
        });
        let part = begun.part(
            PartKind::of(begun.operation, piece.is_none()),
            offset,
            bytes,
        );
        let to = at + part.kind.header();
        if bytes > 0 {
            let descriptor = env.sends_completed().wrapping_add(place as u32);
            let status = match self.read_again(descriptor, &begun, env) {
                Next::Go(outgoing) => {
                    let out = &mut buffer[to..to + usize::from(bytes)];
                    let gathered = env.gather(&outgoing.segments, offset, out);
                    gathered
                        .err()
                        .map(|_| VIP_STATUS_PROTECTION_ERROR | begun.operation.status())
                }
                Next::Invalid(status) => Some(status),
                Next::Nothing => None,
            };
            if let Some(status) = status {
                return Err(Some((place, status)));
            }
        }
        part.emit(&mut buffer[at..]);
        Ok(to + usize::from(bytes))
    }
}
