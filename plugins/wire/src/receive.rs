//! The receive side of a connection: frames into order, and their parts to where they belong.
//!
//! A frame that arrives early is kept. If it is a piece whose destination is known, its bytes are placed at once and
//! only the header is kept; otherwise the whole frame is kept, in a store of limited size.
//!
//! The destination is known for: a piece of a message, in the receive descriptor that it will use, whose content is
//! undefined before completion; a piece of the RDMA Write in progress, which has been permitted; a piece of the
//! answer to an RDMA Read. The piece with the last eight bytes of RDMA waits, since they must be written last. So
//! does an RDMA Write that has not begun: an earlier operation may fail, and then it must not have had an effect.

mod early;

use vipl_abi::VIP_STATUS_OP_RECEIVE;

use crate::closing::End;
use crate::config::{Config, NEVER, Stats};
use crate::delivery::Delivery;
use crate::env::{Env, Level};
use crate::frame::{FLAG_ASK, Header};
use crate::framing::Numbers;
use crate::part::{Part, PartKind, Parts};
use crate::send::SendSide;
use crate::slices::Slices;
use crate::unreliable::Unreliable;
use early::{Early, Kept};

/// Frames that a peer may send before it has an acknowledgement, across routers, and how many of them come twice
/// before the path is taken for one that drops frames with the ECT codepoint.
const FIRST_FRAMES: u32 = 10;
const REFUSED_ACKS: u64 = 3;
/// Received frames after which an acknowledgement is not delayed any longer.
const ACK_EVERY: u16 = 8;

/// Order and delivery of frames.
pub(crate) struct ReceiveSide {
    next: u32,
    early: Early,
    slices: Slices,
    delivery: Delivery,
    /// On an Unreliable connection.
    unreliable: Option<Box<Unreliable>>,
    /// DATA frames from the next one on that are accepted.
    window: u32,
    /// Number of the peer's first frame.
    first: u32,
    /// DATA frames that a router has marked, modulo 256.
    marks: u8,
    /// Frames that have not been acknowledged.
    owed: u16,
    urgent: bool,
    ack_at_ns: u64,
    ack_delay_ns: u64,
    duplicates: u64,
    out_of_order: u64,
}

impl ReceiveSide {
    pub(crate) fn new(config: &Config) -> ReceiveSide {
        let first = config.first(config.side ^ 1);
        ReceiveSide {
            next: first,
            early: Early::default(),
            slices: Slices::default(),
            delivery: Delivery::new(config),
            unreliable: (config.level == Level::Unreliable).then(|| Box::new(Unreliable::new())),
            window: u32::from(config.window()),
            first,
            marks: 0,
            owed: 0,
            urgent: false,
            ack_at_ns: NEVER,
            ack_delay_ns: config.ack_delay_ns,
            duplicates: 0,
            out_of_order: 0,
        }
    }

    /// The numbers in headers; `sequence` is that of the next DATA frame.
    #[inline(always)]
    pub(crate) fn numbers(&self, sequence: u32) -> Numbers {
        Numbers {
            sequence,
            acknowledged: self.next,
            marks: self.marks,
        }
    }

    /// Whether all frames before this number have been processed, and no later ones.
    pub(crate) fn is_at(&self, number: u32) -> bool {
        self.next == number
    }

    /// Operations of the peer that have been processed.
    pub(crate) fn operations(&self) -> u32 {
        self.delivery.operations()
    }

    /// Whether an RDMA Write has arrived in part.
    pub(crate) fn is_writing(&self) -> bool {
        self.delivery.is_writing()
    }

    /// Adds the counters of this side.
    #[inline(always)]
    pub(crate) fn count(&self, stats: &mut Stats) {
        stats.duplicates = self.duplicates;
        stats.out_of_order = self.out_of_order;
    }

    /// When an acknowledgement is due, or an incomplete message is given up.
    #[inline(always)]
    pub(crate) fn deadline(&self) -> u64 {
        match &self.unreliable {
            None => self.ack_at_ns,
            Some(unreliable) => self.ack_at_ns.min(unreliable.deadline()),
        }
    }

    /// Gives up an incomplete message whose next piece has not come in time.
    pub(crate) fn timeout<E: Env>(&mut self, now_ns: u64, env: &mut E) -> Result<(), End> {
        match &mut self.unreliable {
            Some(unreliable) if unreliable.deadline() <= now_ns => unreliable.give_up(env),
            _ => Ok(()),
        }
    }

    /// Whether an acknowledgement is owed.
    pub(crate) fn owes_ack(&self) -> bool {
        self.ack_at_ns != NEVER
    }

    /// Whether an acknowledgement must be sent now.
    pub(crate) fn is_ack_due(&self, now_ns: u64) -> bool {
        self.urgent || self.ack_at_ns <= now_ns
    }

    /// Acknowledges without delay: the peer has asked for it or sends frames again, or frames are missing.
    pub(crate) fn acknowledge_now(&mut self, now_ns: u64) {
        self.urgent = true;
        self.ack_at_ns = now_ns;
    }

    /// Writes the map of early frames for an ACK. Returns its length in bytes.
    pub(crate) fn write_map(&self, out: &mut [u8]) -> usize {
        self.early.write_map(&mut out[..self.window as usize / 8])
    }

    /// A DATA frame, or with `map` an ACK, has carried the acknowledgement.
    #[inline(always)]
    pub(crate) fn acknowledged(&mut self, map: bool) {
        if map || !self.urgent || self.early.is_empty() {
            (self.owed, self.urgent, self.ack_at_ns) = (0, false, NEVER);
        }
    }

    /// A router has marked a DATA frame.
    #[cold]
    pub(crate) fn count_mark(&mut self, now_ns: u64) {
        self.marks = self.marks.wrapping_add(1);
        self.acknowledge_now(now_ns);
    }

    /// The fast path: copies a whole message if its frame is the next one and `intact`, nothing has arrived in part or
    /// early, and a receive descriptor with room is posted. False: [`ReceiveSide::take_data`] has to do it, or to
    /// report the error.
    #[inline(always)]
    pub(crate) fn place_single<E: Env>(
        &self,
        (header, part, payload): (&Header, &Part, &[u8]),
        intact: impl FnOnce() -> bool,
        env: &mut E,
    ) -> bool {
        let in_order = header.sequence == self.next && self.early.is_empty();
        in_order
            && self.delivery.expects_single(part, env)
            && intact()
            && self
                .delivery
                .place(env.receives_completed(), part, payload, env)
    }

    /// The fast path: completes the receive descriptor of a whole message that was copied.
    #[inline(always)]
    pub(crate) fn complete_single<E: Env>(
        &mut self,
        part: &Part,
        now_ns: u64,
        env: &mut E,
    ) -> Result<(), End> {
        self.delivery.complete(part, VIP_STATUS_OP_RECEIVE, env)?;
        self.advance(now_ns);
        Ok(())
    }

    /// Handles a DATA frame.
    #[inline(always)]
    pub(crate) fn take_data<E: Env>(
        &mut self,
        header: &Header,
        body: &[u8],
        now_ns: u64,
        send: &mut SendSide,
        env: &mut E,
    ) -> Result<(), End> {
        let ahead = header.sequence.wrapping_sub(self.next);
        if self.unreliable.is_some() {
            return self.take_unreliable(ahead, header, body, now_ns, env);
        }
        if ahead != 0 {
            self.take_early(ahead, body, now_ns, send, env);
            return Ok(());
        }
        self.process(body, send, env)?;
        self.advance(now_ns);
        if header.flags & FLAG_ASK != 0 {
            self.acknowledge_now(now_ns);
        }
        if !self.early.is_empty() {
            self.process_kept(now_ns, send, env)?;
        }
        Ok(())
    }

    fn take_unreliable<E: Env>(
        &mut self,
        ahead: u32,
        header: &Header,
        body: &[u8],
        now_ns: u64,
        env: &mut E,
    ) -> Result<(), End> {
        let Some(unreliable) = &mut self.unreliable else {
            return Ok(());
        };
        let Some(in_order) = unreliable.note(ahead as i32) else {
            self.duplicates += 1;
            return Ok(());
        };
        if in_order {
            self.next = header.sequence.wrapping_add(1);
        }
        unreliable.take(body, in_order, now_ns, &mut self.delivery, env)
    }

    /// The next frame has been processed.
    #[inline(always)]
    fn advance(&mut self, now_ns: u64) {
        self.next = self.next.wrapping_add(1);
        // A peer that ignores the window may send more frames than this can count.
        self.owed = self.owed.saturating_add(1);
        if self.owed == 1 {
            self.ack_at_ns = now_ns + self.ack_delay_ns;
        }
        self.urgent |= self.owed >= ACK_EVERY;
    }

    /// Processes the parts of a frame that is in order.
    #[inline(always)]
    fn process<E: Env>(
        &mut self,
        body: &[u8],
        send: &mut SendSide,
        env: &mut E,
    ) -> Result<(), End> {
        if body.is_empty() {
            return Err(End::VIOLATION);
        }
        for part in Parts::new(body) {
            let (part, payload) = part.map_err(|()| End::VIOLATION)?;
            self.deliver(&part, Some(payload), send, env)?;
        }
        Ok(())
    }

    /// Delivers a part that is in order. `payload` is absent if its bytes have been placed already.
    #[inline(always)]
    fn deliver<E: Env>(
        &mut self,
        part: &Part,
        payload: Option<&[u8]>,
        send: &mut SendSide,
        env: &mut E,
    ) -> Result<(), End> {
        match part.kind {
            PartKind::Send | PartKind::Piece => self.delivery.message(part, payload, env),
            PartKind::Write => self.delivery.write(part, payload, env),
            PartKind::Read => {
                send.read_requested(part, self.delivery.operations(), env)?;
                self.delivery.count_operation();
                Ok(())
            }
            PartKind::Data => send.read_answered(part, payload, env),
        }
    }

    /// A missing frame has arrived: continues with the frames that were kept.
    #[cold]
    fn process_kept<E: Env>(
        &mut self,
        now_ns: u64,
        send: &mut SendSide,
        env: &mut E,
    ) -> Result<(), End> {
        while let Some(kept) = self.early.advance() {
            match kept {
                Kept::Placed(part) => self.deliver(&part, None, send, env)?,
                Kept::Body(body) => {
                    self.process(&body, send, env)?;
                    self.early.recycle(body);
                }
            }
            self.next = self.next.wrapping_add(1);
            self.acknowledge_now(now_ns);
        }
        Ok(())
    }

    /// A duplicate, or a frame that is early.
    #[cold]
    fn take_early<E: Env>(
        &mut self,
        ahead: u32,
        body: &[u8],
        now_ns: u64,
        send: &mut SendSide,
        env: &mut E,
    ) {
        self.acknowledge_now(now_ns);
        if self.has(ahead) {
            self.duplicates += 1;
            self.check_ect(env);
            return;
        }
        if ahead >= self.window {
            return;
        }
        let placed = Parts::single(body).filter(|(part, payload)| match part.kind {
            PartKind::Data => send.operations().place_early(part, payload, env),
            _ => self.delivery.place_early(part, payload, env),
        });
        if self.early.keep(ahead, placed.map(|(part, _)| part), body) {
            self.out_of_order += 1;
        }
    }

    /// The peer sends its first frames again and again: acknowledgements do not reach it.
    fn check_ect<E: Env>(&self, env: &mut E) {
        let came = self.next.wrapping_sub(self.first);
        if self.duplicates == REFUSED_ACKS && came <= FIRST_FRAMES {
            env.path_refuses_ect();
        }
    }

    /// Whether the frame `ahead` of the next one has been received: it was processed, or is kept.
    fn has(&self, ahead: u32) -> bool {
        (ahead as i32) < 0 || self.early.has(ahead)
    }

    /// Handles a SLICE.
    #[cold]
    pub(crate) fn take_slice<E: Env>(
        &mut self,
        header: &Header,
        body: &[u8],
        now_ns: u64,
        send: &mut SendSide,
        env: &mut E,
    ) -> Result<(), End> {
        let ahead = header.sequence.wrapping_sub(self.next);
        if self.unreliable.is_some() || ahead as i32 >= self.window as i32 {
            return Ok(());
        }
        if self.has(ahead) {
            self.acknowledge_now(now_ns);
            self.duplicates += 1;
        } else if let Some(whole) = self.slices.add(header.sequence, body) {
            let taken = self.take_data(header, &whole, now_ns, send, env);
            self.slices.recycle(whole);
            return taken;
        }
        Ok(())
    }
}
