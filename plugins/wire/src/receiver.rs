//! Order: frames are processed in the order in which they were sent. One that comes before its turn is
//! kept. If it is a piece that can go where it belongs, its bytes go there at once and only the header is
//! kept; otherwise the frame is, in a store of bounded size.
//!
//! What may go to its place before its turn: a piece of a message, into the receive descriptor that it will
//! use, whose contents mean nothing before it is complete; a piece of the RDMA Write that is under way,
//! which is permitted, except its end, since the last eight bytes come last; a piece of the answer to an
//! RDMA Read. An RDMA Write that has not begun waits: something before it may fail, and then it must not
//! have taken effect.

use std::collections::VecDeque;

use crate::connection::{Connection, WINDOW};
use crate::env::{Env, Remote};
use crate::frame::{FLAG_ASK, Header};
use crate::part::{Part, PartKind, Parts};

/// Bytes of frames that are kept.
const KEPT_BYTES_MAX: usize = 256 << 10;

/// A message or RDMA Write whose pieces arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Arriving {
    pub(crate) number: u32,
    pub(crate) total: u32,
    /// Bytes so far.
    pub(crate) offset: u32,
}

/// A frame that came before its turn.
enum Kept {
    /// Its bytes are in place.
    Placed(Part),
    /// Its body.
    Body(Vec<u8>),
}

/// The receive side of a connection.
pub(crate) struct Receiver {
    next: u32,
    /// Frames from `next` on; the first place is empty, since `next` has not come.
    kept: VecDeque<Option<Kept>>,
    kept_bytes: usize,
    /// Memory of bodies that were kept once.
    spare: Vec<Vec<u8>>,
    operations: u32,
    /// Messages that have used a receive descriptor.
    pub(crate) messages: u32,
    pub(crate) writes: u32,
    pub(crate) reads: u32,
    pub(crate) receiving: Option<Arriving>,
    pub(crate) writing: Option<Arriving>,
    /// Bytes of the oldest RDMA Read of this side that have been answered.
    pub(crate) answered: u32,
}

impl Receiver {
    pub(crate) fn new(first: u32) -> Receiver {
        Receiver {
            next: first,
            kept: VecDeque::new(),
            kept_bytes: 0,
            spare: Vec::new(),
            operations: 0,
            messages: 0,
            writes: 0,
            reads: 0,
            receiving: None,
            writing: None,
            answered: 0,
        }
    }

    /// Everything before this number has been processed.
    #[inline(always)]
    pub(crate) fn next(&self) -> u32 {
        self.next
    }

    /// Unreliable: everything before this number is past.
    pub(crate) fn skip_to(&mut self, next: u32) {
        self.next = next;
    }

    /// Operations of the partner that have been processed.
    #[inline(always)]
    pub(crate) fn operations(&self) -> u32 {
        self.operations
    }

    #[inline(always)]
    pub(crate) fn count_operation(&mut self) {
        self.operations = self.operations.wrapping_add(1);
    }

    /// Whether frames are missing before others that have come.
    #[inline(always)]
    pub(crate) fn has_holes(&self) -> bool {
        !self.kept.is_empty()
    }

    /// Writes the map of frames that have come before their turn: bit `i`, lowest first, is frame
    /// `next + 1 + i`. Gives its bytes.
    pub(crate) fn map(&self, out: &mut [u8]) -> usize {
        let bytes = self.kept.len().saturating_sub(1).div_ceil(8).min(out.len());
        out[..bytes].fill(0);
        for (bit, kept) in self.kept.iter().skip(1).enumerate().take(8 * bytes) {
            if kept.is_some() {
                out[bit / 8] |= 1 << (bit % 8);
            }
        }
        bytes
    }

    /// Keeps something that came `ahead` frames before its turn.
    fn keep(&mut self, ahead: usize, kept: Kept) {
        if self.kept.len() <= ahead {
            self.kept.resize_with(ahead + 1, || None);
        }
        self.kept[ahead] = Some(kept);
    }

    /// Whether the frame this far ahead has come.
    fn has(&self, ahead: usize) -> bool {
        self.kept.get(ahead).is_some_and(Option::is_some)
    }

    /// Copies a body to keep it. `None`: the store is full.
    fn store(&mut self, body: &[u8]) -> Option<Kept> {
        if self.kept_bytes + body.len() > KEPT_BYTES_MAX {
            return None;
        }
        self.kept_bytes += body.len();
        let mut copy = self.spare.pop().unwrap_or_default();
        copy.extend_from_slice(body);
        Some(Kept::Body(copy))
    }

    /// The memory of a kept body is free again.
    fn recycle(&mut self, mut body: Vec<u8>) {
        self.kept_bytes -= body.len();
        body.clear();
        self.spare.push(body);
    }
}

impl Connection {
    /// Takes a DATA frame.
    #[inline(always)]
    pub(crate) fn take_data<E: Env>(&mut self, header: &Header, body: &[u8], env: &mut E) {
        if self.config.level == crate::env::Level::Unreliable {
            return self.take_unreliable(header, body, env);
        }
        let ahead = header.sequence.wrapping_sub(self.receiver.next);
        if ahead != 0 {
            return self.take_early(ahead, body, env);
        }
        self.process(body, env);
        if !self.is_open() {
            return;
        }
        self.receiver.next = self.receiver.next.wrapping_add(1);
        self.acks.owe(self.now_ns);
        if header.flags & FLAG_ASK != 0 {
            self.acks.hurry(self.now_ns);
        }
        if self.receiver.has_holes() {
            self.process_kept(env);
        }
        self.check_leaving(env);
    }

    /// Processes the parts of a frame whose turn it is.
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

    /// A hole has been filled: goes on with what was kept behind it.
    #[cold]
    fn process_kept<E: Env>(&mut self, env: &mut E) {
        self.receiver.kept.pop_front();
        while let Some(kept) = self.receiver.kept.front_mut() {
            match kept.take() {
                None => break,
                Some(Kept::Placed(part)) => self.deliver(&part, None, env),
                Some(Kept::Body(body)) => {
                    self.process(&body, env);
                    self.receiver.recycle(body);
                }
            }
            if !self.is_open() {
                return;
            }
            self.receiver.kept.pop_front();
            self.receiver.next = self.receiver.next.wrapping_add(1);
            self.acks.hurry(self.now_ns);
        }
    }

    /// A frame that has come before, or comes too early.
    #[cold]
    fn take_early<E: Env>(&mut self, ahead: u32, body: &[u8], env: &mut E) {
        self.acks.hurry(self.now_ns);
        if (ahead as i32) < 0 || self.receiver.has(ahead as usize) {
            self.stats.duplicates += 1;
            return;
        }
        if ahead >= u32::from(WINDOW) {
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

    /// Puts the bytes of a part where they belong although its turn has not come. False: not possible now,
    /// for whatever reason; when its turn has come the reason will show.
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
                    && !reaches_end(part)
                    && env.place(&range(part), part.offset, payload, false).is_ok()
            }
            PartKind::Data => self
                .read_of(part)
                .is_some_and(|place| self.place_answer(place, part, payload, env).is_ok()),
            PartKind::Read => false,
        }
    }
}

/// Whether a piece touches the last eight bytes of its range.
fn reaches_end(part: &Part) -> bool {
    u64::from(part.offset) + u64::from(part.bytes) + 8 > u64::from(part.total)
}

/// The range that an RDMA part is about.
#[inline(always)]
pub(crate) fn range(part: &Part) -> Remote {
    Remote {
        address: part.address,
        handle: part.handle,
        length: part.total,
    }
}
