//! Retransmission: a lost frame is built again from the application's memory, with the parts that it had. If it has
//! become too long for the path, it is sent in slices.

use super::{SendSide, Step};
use crate::closing::End;
use crate::env::Env;
use crate::frame::{FLAG_ASK, HEADER, Kind};
use crate::framing::Output;
use crate::inflight::Load;
use crate::slices::{self, SLICE};

impl SendSide {
    /// Rebuilds and sends the oldest lost frame.
    #[cold]
    pub(super) fn send_again<E: Env>(&mut self, out: &mut Output<'_, E>) -> Result<Step, End> {
        let Some((sequence, load)) = self.flow.inflight().lost() else {
            return Ok(Step::Idle);
        };
        let Some(mut frame) = out.env.frame() else {
            return Ok(Step::Full);
        };
        let buffer = frame.as_mut();
        let rebuilt = self.rebuild(&load, buffer, out.env);
        let Ok(Some(end)) = rebuilt else {
            out.env.take_back(frame);
            rebuilt?;
            self.flow.give_up(sequence);
            let first = self.flow.inflight().first();
            self.operations.complete(first, out.env)?;
            return Ok(Step::Moved);
        };
        let mut header = out.data(sequence);
        header.flags = FLAG_ASK;
        let mut at = end;
        if let Some((end, last)) = self.slice(sequence, at, buffer) {
            header.kind = Kind::Slice;
            if !last {
                self.flow.send_slice(frame, &header, end, out);
                return Ok(Step::Moved);
            }
            at = end;
        }
        self.flow.retransmit(sequence);
        self.flow.send(frame, &header, at, out);
        Ok(Step::Moved)
    }

    /// Builds a frame once more and returns the end of its body. `None`: an operation in it has failed.
    fn rebuild<E: Env>(
        &mut self,
        load: &Load,
        buffer: &mut [u8],
        env: &mut E,
    ) -> Result<Option<usize>, End> {
        let operations = &mut self.operations;
        Ok(match *load {
            Load::Whole { first, count } => (0..u32::from(count)).try_fold(HEADER, |at, place| {
                operations.rewrite_part(first.wrapping_add(place), None, buffer, at, env)
            }),
            Load::Piece {
                number,
                offset,
                bytes,
            } => operations.rewrite_part(number, Some((offset, bytes)), buffer, HEADER, env),
            Load::Answer(answer) => Some(answer.build(buffer, env)?),
        })
    }

    /// If a frame whose body ends at `at` is too long for the path: replaces the body by its next slice, and returns
    /// the end of that and whether it is the last one.
    fn slice(&mut self, sequence: u32, at: usize, buffer: &mut [u8]) -> Option<(usize, bool)> {
        let (room, total) = (self.room(), at - HEADER);
        if total <= room {
            return None;
        }
        let offset = match self.sliced.take() {
            Some((of, offset)) if of == sequence && offset < total => offset,
            _ => 0,
        };
        let bytes = slices::length(room, offset, total);
        let (from, to) = (HEADER + offset, HEADER + SLICE);
        buffer.copy_within(from..from + bytes, to);
        slices::emit(&mut buffer[HEADER..], offset, total);
        let last = offset + bytes == total;
        if !last {
            self.sliced = Some((sequence, offset + bytes));
        }
        Some((to + bytes, last))
    }
}
