//! The receive side of a connection: frames into order, and their parts to where they belong.
//!
//! A frame that arrives early is kept. If it is a piece whose destination is known, its bytes are placed at once and only
//! the header is kept; otherwise the whole frame is kept, in a store of limited size.
//!
//! The destination is known for: a piece of a message, in the receive descriptor that it will use, whose content is
//! undefined before completion; a piece of the RDMA Write in progress, which has been permitted; a piece of the answer to
//! an RDMA Read. The piece with the last eight bytes of RDMA waits, since they must be written last. So does an RDMA Write
//! that has not begun: an earlier operation may fail, and then it must not have had an effect.

use vipl_abi::VIP_STATUS_OP_RECEIVE;

use crate::closing::End;
use crate::config::Config;
use crate::delivery::Delivery;
use crate::env::{Env, Level};
use crate::frame::{FLAG_ASK, Header};
use crate::framing::Ack;
use crate::order::{Kept, Order};
use crate::part::{Part, PartKind, Parts};
use crate::send::SendSide;
use crate::unreliable::Unreliable;

/// Frames that a peer may send before it has an acknowledgement, across routers, and how many of them come twice before the
/// path is taken for one that drops frames with the ECT codepoint.
const FIRST_FRAMES: u32 = 10;
const REFUSED_ACKS: u64 = 3;

/// Order and delivery of frames.
pub(crate) struct ReceiveSide {
    order: Order,
    delivery: Delivery,
    /// On an Unreliable connection.
    unreliable: Option<Box<Unreliable>>,
    /// DATA frames from the next one on that are accepted.
    window: u16,
    /// Number of the peer's first frame.
    first: u32,
    /// DATA frames that a router has marked, modulo 256.
    marks: u8,
    duplicates: u64,
    out_of_order: u64,
}

impl ReceiveSide {
    pub(crate) fn new(config: &Config) -> ReceiveSide {
        ReceiveSide {
            order: Order::new(config),
            delivery: Delivery::new(config),
            unreliable: (config.level == Level::Unreliable).then(|| Box::new(Unreliable::new())),
            window: config.window(),
            first: config.first(config.side ^ 1),
            marks: 0,
            duplicates: 0,
            out_of_order: 0,
        }
    }

    /// All frames before this number have been processed.
    #[inline(always)]
    pub(crate) fn next(&self) -> u32 {
        self.order.next()
    }

    /// What headers say of this side.
    #[inline(always)]
    pub(crate) fn ack(&self) -> Ack {
        Ack {
            next: self.order.next(),
            marks: self.marks,
        }
    }

    /// Operations of the peer that have been processed.
    pub(crate) fn operations(&self) -> u32 {
        self.delivery.operations()
    }

    /// Whether an RDMA Write has arrived in part.
    pub(crate) fn is_writing(&self) -> bool {
        self.delivery.is_writing()
    }

    /// DATA frames received more than once, and out of order.
    #[inline(always)]
    pub(crate) fn counters(&self) -> (u64, u64) {
        (self.duplicates, self.out_of_order)
    }

    /// When an acknowledgement is due, or an incomplete message is given up.
    #[inline(always)]
    pub(crate) fn deadline(&self) -> u64 {
        let ack_ns = self.order.deadline();
        match &self.unreliable {
            None => ack_ns,
            Some(unreliable) => ack_ns.min(unreliable.deadline()),
        }
    }

    /// Gives up an incomplete message whose next piece has not come in time.
    ///
    /// # Errors
    /// A completion could not be written.
    pub(crate) fn timeout<E: Env>(&mut self, now_ns: u64, env: &mut E) -> Result<(), End> {
        match &mut self.unreliable {
            Some(unreliable) if unreliable.deadline() <= now_ns => unreliable.give_up(env),
            _ => Ok(()),
        }
    }

    /// Whether an acknowledgement is owed.
    #[inline(always)]
    pub(crate) fn owes_ack(&self) -> bool {
        self.order.owes_ack()
    }

    /// Whether an acknowledgement must be sent now.
    #[inline(always)]
    pub(crate) fn is_ack_due(&self, now_ns: u64) -> bool {
        self.order.is_ack_due(now_ns)
    }

    /// Acknowledges without delay.
    pub(crate) fn acknowledge_now(&mut self, now_ns: u64) {
        self.order.acknowledge_now(now_ns);
    }

    /// Writes the map of an ACK and returns its length.
    pub(crate) fn write_map(&self, out: &mut [u8]) -> usize {
        self.order.map(&mut out[..usize::from(self.window) / 8])
    }

    /// A DATA frame, or with `map` an ACK, has carried the acknowledgement.
    #[inline(always)]
    pub(crate) fn acknowledged(&mut self, map: bool) {
        self.order.acknowledged(map || !self.order.has_gap());
    }

    /// A router has marked a DATA frame.
    #[cold]
    pub(crate) fn count_mark(&mut self, now_ns: u64) {
        self.marks = self.marks.wrapping_add(1);
        self.order.acknowledge_now(now_ns);
    }

    /// The fast path: whether a frame is the next one, and nothing has arrived in part or early.
    #[inline(always)]
    pub(crate) fn expects(&self, header: &Header) -> bool {
        header.sequence == self.order.next() && !self.order.has_gap() && self.delivery.is_idle()
    }

    /// The fast path: whether a whole message is the next one, and a receive descriptor is posted for it.
    #[inline(always)]
    pub(crate) fn expects_single<E: Env>(&self, part: &Part, env: &E) -> bool {
        self.delivery.expects(part, env)
    }

    /// The fast path: copies a whole message. False: [`ReceiveSide::take_data`] has to do it, or to report the error.
    #[inline(always)]
    pub(crate) fn place_single<E: Env>(&self, part: &Part, payload: &[u8], env: &mut E) -> bool {
        let number = env.receives_completed();
        self.delivery.place(number, part, payload, env)
    }

    /// The fast path: completes the receive descriptor of a whole message that was copied.
    ///
    /// # Errors
    /// The completion could not be written.
    #[inline(always)]
    pub(crate) fn complete_single<E: Env>(
        &mut self,
        part: &Part,
        now_ns: u64,
        env: &mut E,
    ) -> Result<(), End> {
        self.delivery.complete(part, VIP_STATUS_OP_RECEIVE, env)?;
        self.order.advance(now_ns);
        Ok(())
    }

    /// Handles a DATA frame.
    ///
    /// # Errors
    /// A part violates the protocol, or cannot be delivered on a reliable connection.
    #[inline(always)]
    pub(crate) fn take_data<E: Env>(
        &mut self,
        header: &Header,
        body: &[u8],
        now_ns: u64,
        send: &mut SendSide,
        env: &mut E,
    ) -> Result<(), End> {
        let ahead = header.sequence.wrapping_sub(self.order.next());
        if self.unreliable.is_some() {
            return self.take_unreliable(ahead, header, body, now_ns, env);
        }
        if ahead != 0 {
            self.take_early(ahead, body, now_ns, send, env);
            return Ok(());
        }
        self.process(body, send, env)?;
        self.order.advance(now_ns);
        if header.flags & FLAG_ASK != 0 {
            self.order.acknowledge_now(now_ns);
        }
        if self.order.has_gap() {
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
            self.order.skip_to(header.sequence.wrapping_add(1));
        }
        unreliable.take(body, in_order, now_ns, &mut self.delivery, env)
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
        while let Some(kept) = self.order.next_kept() {
            match kept {
                Kept::Placed(part) => self.deliver(&part, None, send, env)?,
                Kept::Body(body) => {
                    self.process(&body, send, env)?;
                    self.order.recycle(body);
                }
            }
            self.order.advance_kept(now_ns);
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
        send: &SendSide,
        env: &mut E,
    ) {
        self.order.acknowledge_now(now_ns);
        if self.order.has(ahead) {
            self.duplicates += 1;
            self.check_ect(env);
            return;
        }
        if ahead >= u32::from(self.window) {
            return;
        }
        let placed = Parts::single(body).filter(|(part, payload)| match part.kind {
            PartKind::Data => send.place_early(part, payload, env),
            _ => self.delivery.place_early(part, payload, env),
        });
        let kept = match placed {
            Some((part, _)) => Some(Kept::Placed(part)),
            None => self.order.store(body),
        };
        if let Some(kept) = kept {
            self.out_of_order += 1;
            self.order.keep(ahead, kept);
        }
    }

    /// The peer sends its first frames again and again: acknowledgements do not reach it.
    fn check_ect<E: Env>(&self, env: &mut E) {
        let came = self.order.next().wrapping_sub(self.first);
        if self.duplicates == REFUSED_ACKS && came <= FIRST_FRAMES {
            env.path_refuses_ect();
        }
    }

    /// Handles a SLICE.
    ///
    /// # Errors
    /// As for [`ReceiveSide::take_data`], if the frame is complete.
    #[cold]
    pub(crate) fn take_slice<E: Env>(
        &mut self,
        header: &Header,
        body: &[u8],
        now_ns: u64,
        send: &mut SendSide,
        env: &mut E,
    ) -> Result<(), End> {
        let ahead = header.sequence.wrapping_sub(self.order.next());
        if self.unreliable.is_some() || ahead as i32 >= i32::from(self.window) {
            return Ok(());
        }
        if self.order.has(ahead) {
            self.order.acknowledge_now(now_ns);
            self.duplicates += 1;
        } else if let Some(whole) = self.order.slices().add(header.sequence, body) {
            let taken = self.take_data(header, &whole, now_ns, send, env);
            self.order.slices().recycle(whole);
            return taken;
        }
        Ok(())
    }
}
