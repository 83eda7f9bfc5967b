//! The send side of a connection: sends a lost frame, an answer to an RDMA Read, or the operations of posted
//! descriptors, as far as window, pace and device permit.

mod again;
mod path;

pub use path::ASKS;
pub(crate) use path::{send_tried, send_try};

use crate::answers::Answers;
use crate::closing::End;
use crate::config::Config;
use crate::env::{Env, Level, Operation};
use crate::flow::{Flow, Permit};
use crate::frame::{FLAG_ASK, HEADER, Header, TRAILER};
use crate::framing::Output;
use crate::inflight::{Inflight, Load};
use crate::operations::{Next, Operations};
use crate::part::{Part, PartKind};
use path::Path;

/// Bytes before the message in a frame with a single one.
const BEFORE: usize = HEADER + PartKind::Send.header();

/// Result of an attempt to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// A frame was sent, or the state has changed.
    Moved,
    /// Nothing to do.
    Idle,
    /// The device is full.
    Full,
}

/// Operations, frames in flight and the path.
pub(crate) struct SendSide {
    operations: Operations,
    flow: Flow,
    answers: Answers,
    path: Path,
    unreliable: bool,
    /// The last frame was an answer. Answers and own operations alternate.
    answered_last: bool,
    /// A lost frame of which slices have been sent, and up to where.
    sliced: Option<(u32, usize)>,
}

impl SendSide {
    pub(crate) fn new(config: &Config) -> SendSide {
        SendSide {
            operations: Operations::new(config),
            flow: Flow::new(config),
            answers: Answers::new(config.count_from, config.max_transfer),
            path: Path::new(config),
            unreliable: config.level == Level::Unreliable,
            answered_last: false,
            sliced: None,
        }
    }

    /// Frames in flight.
    pub(crate) fn inflight(&self) -> &Inflight {
        self.flow.inflight()
    }

    /// How long an answer may take.
    pub(crate) fn answer_ns(&self) -> u64 {
        self.flow.answer_ns()
    }

    pub(crate) fn deadline(&self) -> u64 {
        self.flow.deadline().min(self.path.deadline())
    }

    /// Operations in progress.
    pub(crate) fn operations(&mut self) -> &mut Operations {
        &mut self.operations
    }

    /// Whether an RDMA Read of the peer is being answered.
    pub(crate) fn is_answering(&self) -> bool {
        !self.answers.is_empty() || self.flow.inflight().has_answer()
    }

    /// Whether there is a descriptor whose operation has not been begun.
    #[inline(always)]
    pub(crate) fn has_unsent<E: Env>(&self, env: &E) -> bool {
        self.operations.has_unsent(env)
    }

    /// The fast path: sends the posted operation if it is a message that fits into a frame, and if nothing else is in
    /// progress on a reliable connection without seals. Most of what [`SendSide::pump`] notes before the frame leaves
    /// is noted here while it travels. False: the operation has still to be sent, or its error to be reported.
    #[inline(always)]
    pub(crate) fn send_single<E: Env>(&mut self, out: &mut Output<'_, E>) -> bool {
        let idle = self.operations.is_empty() && self.answers.is_empty() && self.flow.is_idle();
        let env = &mut *out.env;
        let number = env.sends_completed();
        if !idle || env.sends_posted().wrapping_sub(number) != 1 {
            return false;
        }
        let Ok(outgoing) = env.outgoing(number) else {
            return false;
        };
        let length = outgoing.length as usize;
        if outgoing.operation != Operation::Send || length > self.room() - PartKind::Send.header() {
            return false;
        }
        let Some(mut frame) = env.frame() else {
            return false;
        };
        let buffer = &mut frame.as_mut()[..BEFORE + length + TRAILER];
        let payload = &mut buffer[BEFORE..BEFORE + length];
        if env.gather(&outgoing.segments, 0, payload).is_err() {
            env.take_back(frame);
            return false;
        }
        let part = self.operations.single_part(&outgoing);
        part.emit(&mut buffer[HEADER..]);
        let sequence = self.flow.inflight().next();
        let header = out.data(sequence);
        out.send_unsealed(frame, &header, BEFORE - HEADER + length);
        self.answered_last = false;
        self.operations.sent_single(&outgoing, sequence);
        let first = self.operations.last_number();
        self.flow.push(Load::Whole { first, count: 1 });
        out.read_clock();
        self.flow.sent(sequence, out.framing.now_ns());
        true
    }

    /// Sends what window, pace and device permit. Returns whether the device is full.
    #[inline(always)]
    pub(crate) fn pump<E: Env>(&mut self, out: &mut Output<'_, E>) -> Result<bool, End> {
        loop {
            let step = if self.unreliable {
                self.send_new(out)?
            } else {
                self.send_next(out)?
            };
            if step != Step::Moved || !self.has_work(out.env) {
                return Ok(step == Step::Full);
            }
        }
    }

    /// Ends a pause that the pace has imposed. Returns whether there is anything to send.
    #[inline(always)]
    pub(crate) fn resume<E: Env>(&mut self, out: &mut Output<'_, E>) -> bool {
        self.flow.resume(out);
        self.has_work(out.env)
    }

    #[inline(always)]
    fn has_work<E: Env>(&self, env: &E) -> bool {
        self.has_unsent(env)
            || self.operations.has_rest()
            || self.flow.inflight().has_lost()
            || !self.answers.is_empty()
    }

    /// Sends one frame of a reliable connection, if window and pace permit.
    #[inline(always)]
    fn send_next<E: Env>(&mut self, out: &mut Output<'_, E>) -> Result<Step, End> {
        match self.flow.permit(out) {
            Permit::Nothing => return Ok(Step::Idle),
            Permit::Retransmission => return self.send_again(out),
            Permit::New => {}
        }
        let answers = !self.answers.is_empty();
        if answers && !self.answered_last {
            self.answered_last = true;
            return self.send_answer(out);
        }
        self.answered_last = false;
        match self.send_new(out)? {
            Step::Idle if answers => self.send_answer(out),
            step => Ok(step),
        }
    }

    /// Builds and sends a frame of operations: as many whole ones as are posted and fit, or one piece of a large one.
    fn send_new<E: Env>(&mut self, out: &mut Output<'_, E>) -> Result<Step, End> {
        let sequence = self.flow.inflight().next();
        let mut next = self.operations.next(sequence, out.env);
        if matches!(next, Next::Nothing) {
            return Ok(Step::Idle);
        }
        let Some(mut frame) = out.env.frame() else {
            return Ok(Step::Full);
        };
        let buffer = frame.as_mut();
        let end = HEADER + self.room();
        let (mut at, mut count, mut piece, mut fault) = (HEADER, 0u16, None, None);
        let first = self.operations.last_number();
        loop {
            let segments = match next {
                Next::Nothing => break,
                Next::Invalid(status) => {
                    fault = Some(status);
                    break;
                }
                Next::Segments(segments) => segments,
            };
            let shares = count > 0;
            let operations = &mut self.operations;
            match operations.write_part(&segments, buffer, (at, end), shares, sequence, out.env) {
                Ok(Some((part, whole))) => {
                    at += part.kind.header() + usize::from(part.bytes);
                    count += 1;
                    if !whole {
                        piece = Some(part);
                        break;
                    }
                }
                Ok(None) => break,
                Err(status) => {
                    fault = Some(status);
                    break;
                }
            }
            // Even the smallest part must fit.
            let room = end - at >= PartKind::Send.header() && count < u16::MAX;
            if !room || !self.operations.has_unsent(out.env) {
                break;
            }
            next = self.operations.next_shared(sequence, out.env);
        }
        if count > 0 {
            let load = self.load(first, count, piece);
            self.finish_new(frame, at, load, out);
        } else {
            out.env.take_back(frame);
        }
        if let Some(status) = fault {
            self.operations.fail_last(status);
        }
        self.complete(out.env)?;
        Ok(Step::Moved)
    }

    /// Content of a frame with `count` parts from the operation `first` on.
    #[inline(always)]
    fn load(&self, first: u32, count: u16, piece: Option<Part>) -> Load {
        match piece {
            None => Load::Whole { first, count },
            Some(part) => Load::Piece {
                number: self.operations.last_number(),
                offset: part.offset,
                bytes: part.bytes,
            },
        }
    }

    #[inline(always)]
    fn finish_new<E: Env>(
        &mut self,
        frame: E::Frame,
        at: usize,
        load: Load,
        out: &mut Output<'_, E>,
    ) {
        if self.unreliable {
            let header = out.data(self.flow.inflight().next());
            out.send(frame, &header, at - HEADER);
            self.flow.skip();
            return;
        }
        let (sequence, full) = self.flow.push(load);
        let mut header = out.data(sequence);
        if full {
            header.flags = FLAG_ASK;
        }
        self.flow.send(frame, &header, at, out);
    }

    /// Sends one frame of the oldest answer to an RDMA Read.
    #[cold]
    fn send_answer<E: Env>(&mut self, out: &mut Output<'_, E>) -> Result<Step, End> {
        let Some(answer) = self.answers.next(self.room()) else {
            return Ok(Step::Idle);
        };
        let Some(mut frame) = out.env.frame() else {
            return Ok(Step::Full);
        };
        let built = answer.build(frame.as_mut(), out.env);
        let end = match built {
            Ok(end) => end,
            Err(end) => {
                out.env.take_back(frame);
                return Err(end);
            }
        };
        self.answers.advance(&answer);
        let (sequence, _) = self.flow.push(Load::Answer(answer));
        let header = out.data(sequence);
        self.flow.send(frame, &header, end, out);
        Ok(Step::Moved)
    }

    /// Completes operations in order.
    #[inline(always)]
    fn complete<E: Env>(&mut self, env: &mut E) -> Result<(), End> {
        self.operations.complete(self.flow.inflight().first(), env)
    }

    /// Handles the acknowledgement in a header; `body` is the map of an ACK. Completes operations and finds lost
    /// frames.
    #[inline(never)]
    pub(crate) fn acknowledged<E: Env>(
        &mut self,
        header: &Header,
        body: &[u8],
        now_ns: u64,
        env: &mut E,
    ) -> Result<(), End> {
        if self.flow.acknowledged(header, body, now_ns) {
            self.complete(env)?;
        }
        Ok(())
    }

    /// The same, fast if only one frame is in flight.
    #[inline(always)]
    pub(crate) fn acknowledged_single<E: Env>(
        &mut self,
        header: &Header,
        now_ns: u64,
        env: &mut E,
    ) -> Result<(), End> {
        if self.flow.only_one_acknowledged(header, now_ns) {
            self.complete(env)
        } else {
            self.acknowledged(header, &[], now_ns, env)
        }
    }

    /// Handles a request of an RDMA Read, in order, which is the operation `operation` of the peer.
    pub(crate) fn read_requested<E: Env>(
        &mut self,
        part: &Part,
        operation: u32,
        env: &mut E,
    ) -> Result<(), End> {
        self.answers.request(part, operation, env)
    }

    /// Handles a piece of an answer that is in order. `payload` is absent if it has been placed already.
    #[cold]
    pub(crate) fn read_answered<E: Env>(
        &mut self,
        part: &Part,
        payload: Option<&[u8]>,
        env: &mut E,
    ) -> Result<(), End> {
        self.operations.answered(part, payload, env)?;
        self.complete(env)
    }

    /// Runs expired timers. `probing`: a PROBE is unanswered. Returns whether the path is broken.
    pub(crate) fn timeout<E: Env>(&mut self, probing: bool, now_ns: u64, env: &mut E) -> bool {
        let Some(timeout) = self.flow.timeout(probing, now_ns) else {
            return false;
        };
        if timeout.suspect_ect {
            env.path_refuses_ect();
        }
        if timeout.suspect_path {
            self.path.suspect(now_ns);
        }
        timeout.is_stuck
    }
}
