//! Frames into order. A frame that arrives early is kept. If it is a piece whose destination is known, its bytes are
//! placed at once and only the header is kept; otherwise the whole frame is kept, in a store of limited size.
//!
//! The destination is known for: a piece of a message, in the receive descriptor that it will use, whose content is
//! undefined before completion; a piece of the RDMA Write in progress, which has been permitted; a piece of the answer to
//! an RDMA Read. The piece with the last eight bytes of RDMA waits, since they must be written last. So does an RDMA Write
//! that has not begun: an earlier operation may fail, and then it must not have had an effect.

use super::Connection;
use crate::env::{Env, Level};
use crate::frame::{FLAG_ASK, Header};
use crate::part::{Part, PartKind, Parts};
use crate::receiver::Kept;

/// Frames that a peer may send before it has an acknowledgement, across routers, and how many of them come twice before the
/// path is taken for one that drops frames with the ECT codepoint.
const FIRST_FRAMES: u32 = 10;
const REFUSED_ACKS: u64 = 3;

impl Connection {
    /// Handles a DATA frame.
    #[inline(always)]
    pub(super) fn take_data<E: Env>(&mut self, header: &Header, body: &[u8], env: &mut E) {
        if self.config.level == Level::Unreliable {
            return self.take_unreliable(header, body, env);
        }
        let ahead = header.sequence.wrapping_sub(self.receiver.next());
        if ahead != 0 {
            return self.take_early(ahead, body, env);
        }
        self.process(body, env);
        if !self.is_open() {
            return;
        }
        self.receiver.advance();
        self.acks.owe(self.now_ns);
        if header.flags & FLAG_ASK != 0 {
            self.acks.hurry(self.now_ns);
        }
        if self.receiver.has_holes() {
            self.process_kept(env);
        }
        self.check_leaving(env);
    }

    /// Processes the parts of a frame that is in order.
    #[inline(always)]
    fn process<E: Env>(&mut self, body: &[u8], env: &mut E) {
        if body.is_empty() {
            return self.nonsense(env);
        }
        for part in Parts::new(body) {
            match part {
                Ok((part, payload)) => self.deliver(&part, Some(payload), env),
                Err(()) => self.nonsense(env),
            }
            if !self.is_open() {
                return;
            }
        }
    }

    /// A missing frame has arrived: continues with the frames that were kept.
    #[cold]
    fn process_kept<E: Env>(&mut self, env: &mut E) {
        while let Some(kept) = self.receiver.next_kept() {
            match kept {
                Kept::Placed(part) => self.deliver(&part, None, env),
                Kept::Body(body) => {
                    self.process(&body, env);
                    self.receiver.recycle(body);
                }
            }
            if !self.is_open() {
                return;
            }
            self.receiver.advance();
            self.acks.hurry(self.now_ns);
        }
    }

    /// A duplicate, or a frame that is early.
    #[cold]
    fn take_early<E: Env>(&mut self, ahead: u32, body: &[u8], env: &mut E) {
        self.acks.hurry(self.now_ns);
        if (ahead as i32) < 0 || self.receiver.has(ahead as usize) {
            self.stats.duplicates += 1;
            self.check_ect(env);
            return;
        }
        if ahead >= u32::from(self.config.window()) {
            return;
        }
        let placed = Parts::single(body).filter(|(part, bytes)| self.place_early(part, bytes, env));
        let kept = match placed {
            Some((part, _)) => Some(Kept::Placed(part)),
            None => self.receiver.store(body),
        };
        if let Some(kept) = kept {
            self.stats.out_of_order += 1;
            self.receiver.keep(ahead as usize, kept);
        }
    }

    /// The peer sends its first frames again and again: acknowledgements do not reach it.
    fn check_ect<E: Env>(&mut self, env: &mut E) {
        let first = self.config.first(self.config.side ^ 1);
        let came = self.receiver.next().wrapping_sub(first);
        if self.stats.duplicates == REFUSED_ACKS && came <= FIRST_FRAMES {
            env.path_refuses_ect();
        }
    }

    /// Places the bytes of an early part. False: that is not possible now; if there is an error, it is found again when
    /// the part is in order.
    fn place_early<E: Env>(&mut self, part: &Part, payload: &[u8], env: &mut E) -> bool {
        match part.kind {
            PartKind::Send | PartKind::Piece => {
                let ahead = part.number.wrapping_sub(self.receiver.messages);
                let (posted, completed) = (env.receives_posted(), env.receives_completed());
                if ahead >= posted.wrapping_sub(completed) || part.total > self.config.max_transfer
                {
                    return false;
                }
                env.incoming(completed.wrapping_add(ahead), Some(part.total))
                    .is_ok_and(|incoming| {
                        u64::from(part.total) <= incoming.capacity
                            && env
                                .scatter(&incoming.segments, part.offset, payload)
                                .is_ok()
                    })
            }
            PartKind::Write => {
                let under_way = self
                    .receiver
                    .writing
                    .is_some_and(|w| w.number == part.number && w.total == part.total);
                under_way
                    && !part.reaches_end()
                    && env
                        .place(&part.range(), part.offset, payload, false)
                        .is_ok()
            }
            PartKind::Data if part.reaches_end() => false,
            PartKind::Data => self
                .read_of(part)
                .is_some_and(|place| self.place_answer(place, part, payload, env).is_ok()),
            PartKind::Read => false,
        }
    }
}
