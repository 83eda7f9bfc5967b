//! One end of a connection between two VIs: its phase, its inputs and its deadlines.
//!
//! A connection consists of a [`SendSide`] and a [`ReceiveSide`]. The receive side passes the requests and the answers
//! of RDMA Reads to the send side, which does not know the receive side. A step of either side that ends the connection
//! returns an [`End`], which is carried out here.

mod end;
mod path;

use crate::closing::{Body, Closing, End, Reason};
use crate::config::{Config, NEVER, Received, Stats};
use crate::env::{Cause, Env, Level, Transmit};
use crate::frame::{HEADER, Header, Kind, MTU_MIN, Refused, is_intact, key_check, split};
use crate::framing::{Framing, Output};
use crate::keepalive::{Keepalive, Verdict};
use crate::part::Parts;
use crate::receive::ReceiveSide;
use crate::send::{SendSide, send_tried};

/// How long to wait for the CLOSE after the agent has reported an orderly end. The peer repeats the CLOSE, and may
/// have to wait for a processor before it sends the first one, while the agents have exchanged theirs already.
const CLOSE_WAIT_NS: u64 = 500_000_000;

/// State of the connection.
enum Phase {
    Open,
    /// The peer has closed. Frames that its CLOSE has overtaken may still arrive.
    Leaving {
        body: Body,
        /// Number of the first frame that the peer has not sent.
        last: u32,
        until_ns: u64,
    },
    /// The VI is in Error. The lingering close may still be in progress.
    Ended(Closing),
}

/// One end of a connection.
pub struct Connection {
    phase: Phase,
    own_vi: u32,
    /// Key check in the peer's frames.
    peer_check: u64,
    reliable: bool,
    framing: Framing,
    send: SendSide,
    receive: ReceiveSide,
    keepalive: Keepalive,
    /// Until when to wait for the CLOSE after the agent has reported an orderly end.
    close_until_ns: u64,
    blocked: bool,
    /// Those that neither side counts.
    stats: Stats,
}

impl Connection {
    /// A new connection. The peer creates its end from the mirrored configuration.
    ///
    /// # Panics
    /// If `mtu` is below [`MTU_MIN`], which the device must prevent.
    pub fn new(config: &Config) -> Connection {
        assert!(usize::from(config.mtu) >= MTU_MIN, "mtu {}", config.mtu);
        Connection {
            phase: Phase::Open,
            own_vi: config.own_vi,
            peer_check: key_check(config.key, config.side ^ 1),
            reliable: config.level != Level::Unreliable,
            framing: Framing::new(config),
            send: SendSide::new(config),
            receive: ReceiveSide::new(config),
            keepalive: Keepalive::new(config.now_ns, config.side, config.patience_ns),
            close_until_ns: NEVER,
            blocked: false,
            stats: Stats::default(),
        }
    }

    /// Whether the connection still carries data. If not, the VI is in Error.
    pub fn is_open(&self) -> bool {
        !matches!(self.phase, Phase::Ended(_))
    }

    /// Whether the device was full at the last attempt to send. Call [`Connection::flush`] when it has room.
    pub fn is_blocked(&self) -> bool {
        self.blocked
    }

    /// Whether the last frame that was received has a seal and is the peer's newest. Unless it is a copy that took
    /// another way, the peer is where it came from.
    pub fn is_newest(&self) -> bool {
        self.framing.is_newest()
    }

    /// Whether everything that was sent has been acknowledged. Always false on an Unreliable connection, which does
    /// not know.
    pub fn is_quiet(&self) -> bool {
        self.reliable && self.send.inflight().in_flight() == 0
    }

    /// Returns the counters.
    #[inline(always)]
    pub fn stats(&self) -> Stats {
        let mut stats = Stats {
            frames_sent: self.framing.sent(),
            ..self.stats
        };
        self.send.count(&mut stats);
        self.receive.count(&mut stats);
        stats
    }

    /// Whether an acknowledgement is owed that has not been sent.
    pub fn ack_owed(&self) -> bool {
        self.receive.owes_ack()
    }

    /// Bytes for the parts of one DATA frame.
    pub fn room(&self) -> usize {
        self.send.room()
    }

    /// The send doorbell: descriptors were posted. Sends what window and device permit. `now_ns` may be 0 if
    /// [`Transmit::now`] returns the time.
    #[inline(always)]
    pub fn posted<E: Env>(&mut self, now_ns: u64, env: &mut E) {
        self.framing.set_now(self.framing.now_ns().max(now_ns));
        // The application may have posted more meanwhile: it shares no lock with the device.
        if !self.send_single(env) || self.send.has_unsent(env) {
            self.pump(env);
        }
    }

    /// The fast path of a message that fits into a frame while nothing else is in progress.
    #[inline(always)]
    fn send_single<E: Env>(&mut self, env: &mut E) -> bool {
        if !self.permits_single() {
            return false;
        }
        let mut out = output(&mut self.framing, &self.send, &self.receive, env);
        let sent = self.send.send_single(&mut out);
        if sent {
            self.blocked = false;
            self.receive.acknowledged(false);
        }
        sent
    }

    /// Whether the fast paths apply: the connection is open and reliable, and its frames have no seals.
    fn permits_single(&self) -> bool {
        matches!(self.phase, Phase::Open) && self.reliable && !self.framing.is_sealed()
    }

    /// Sends what window, pace and device permit.
    #[inline(always)]
    fn pump<E: Env>(&mut self, env: &mut E) {
        self.blocked = false;
        if !matches!(self.phase, Phase::Open) {
            return;
        }
        let sent = self.framing.sent();
        let mut out = output(&mut self.framing, &self.send, &self.receive, env);
        if !self.send.resume(&mut out) {
            return;
        }
        match self.send.pump(&mut out) {
            Ok(full) => self.blocked = full,
            Err(end) => return self.end(end, env),
        }
        if self.reliable && self.framing.sent() != sent {
            self.receive.acknowledged(false);
        }
    }

    /// Handles a frame: everything after the link's own header, padding included.
    #[inline(always)]
    pub fn received<E: Env>(&mut self, frame: &[u8], now_ns: u64, env: &mut E) -> Received {
        self.framing.set_now(now_ns);
        self.stats.frames_received += 1;
        if self.take_single(frame, now_ns, env) {
            Received::Taken
        } else {
            self.take(frame, now_ns, env)
        }
    }

    /// The fast path of a frame with one whole message, the next one, for which a receive descriptor with room is
    /// posted. False: the frame has still to be handled, or its error to be reported.
    #[inline(never)]
    fn take_single<E: Env>(&mut self, frame: &[u8], now_ns: u64, env: &mut E) -> bool {
        let Some((head, body, crc)) = split(frame).filter(|_| Kind::Data.is_of(frame)) else {
            return false;
        };
        let header = Header::read(head, Kind::Data);
        let matches = header.check == self.peer_check
            && header.to_vi == self.own_vi
            && header.flags == 0
            && self.permits_single();
        let Some((part, payload)) = Parts::message(body).filter(|_| matches) else {
            return false;
        };
        let intact = || is_intact(frame, body, crc);
        let message = (&header, &part, payload);
        if !self.receive.place_single(message, intact, env) {
            return false;
        }
        self.keepalive.received(now_ns);
        let acknowledged = self.send.acknowledged_single(&header, now_ns, env);
        let receive = &mut self.receive;
        if let Err(end) = acknowledged.and_then(|()| receive.complete_single(&part, now_ns, env)) {
            self.end(end, env);
        }
        true
    }

    #[inline(never)]
    fn take<E: Env>(&mut self, frame: &[u8], now_ns: u64, env: &mut E) -> Received {
        let (header, body) = match Header::parse(frame) {
            Ok(parsed) => parsed,
            Err(refused) => return self.refuse(refused),
        };
        if header.check != self.peer_check || header.to_vi != self.own_vi {
            self.stats.wrong_key += 1;
            return Received::WrongKey;
        }
        if let Phase::Ended(closing) = &mut self.phase {
            return closing.take_sealed(&header, frame, body, env);
        }
        let Some(body) = self.framing.open(&header, frame, body) else {
            return self.refuse(Refused::Seal);
        };
        self.keepalive.received(now_ns);
        if let Err(end) = self.process(&header, body, now_ns, env) {
            self.end(end, env);
        }
        Received::Taken
    }

    /// Processes a valid frame of the peer.
    #[inline(always)]
    fn process<E: Env>(
        &mut self,
        header: &Header,
        body: &[u8],
        now_ns: u64,
        env: &mut E,
    ) -> Result<(), End> {
        if self.reliable {
            self.send.acknowledged(header, body, now_ns, env)?;
        }
        let (send, receive) = (&mut self.send, &mut self.receive);
        match header.kind {
            Kind::Data => receive.take_data(header, body, now_ns, send, env)?,
            Kind::Slice => receive.take_slice(header, body, now_ns, send, env)?,
            Kind::Close => self.take_close(header, body, env)?,
            Kind::Probe => {
                receive.acknowledge_now(now_ns);
                self.keepalive.peer_probed(now_ns);
            }
            Kind::Try => {
                let mut out = output(&mut self.framing, send, receive, env);
                send_tried(body.len(), &mut out);
            }
            Kind::Tried => send.path_tried(body, now_ns, env),
            Kind::Ack | Kind::Closed => {}
        }
        if let Phase::Leaving { body, last, .. } = &self.phase
            && self.receive.is_at(*last)
        {
            return Err(self.send.operations().closed_by_peer(body, env));
        }
        Ok(())
    }

    /// A router on the way has marked this frame, which [`Connection::received`] has just processed, instead of
    /// dropping it. The peer is informed, and sends less.
    #[cold]
    pub fn marked(&mut self, frame: &[u8]) {
        // Acknowledgements cannot be fewer.
        if Kind::Data.is_of(frame) {
            self.receive.count_mark(self.framing.now_ns());
        }
    }

    #[cold]
    fn refuse(&mut self, refused: Refused) -> Received {
        match refused {
            Refused::Corrupt => self.stats.corrupt += 1,
            Refused::Seal => self.stats.wrong_seal += 1,
            _ => {}
        }
        Received::Refused(refused)
    }

    /// Call after a batch of frames, or when the device has room again. Continues sending, and sends acknowledgements
    /// that are due.
    #[inline(always)]
    pub fn flush<E: Env>(&mut self, now_ns: u64, env: &mut E) {
        self.framing.set_now(now_ns);
        self.pump(env);
        if self.receive.is_ack_due(now_ns) {
            self.send_ack(env);
        }
    }

    /// Sends an acknowledgement that is owed without further delay.
    pub fn flush_acks<E: Env>(&mut self, now_ns: u64, env: &mut E) {
        self.framing.set_now(now_ns);
        if self.receive.owes_ack() {
            self.send_ack(env);
        }
    }

    fn send_ack<E: Env>(&mut self, env: &mut E) {
        let Some(mut frame) = env.frame() else {
            self.blocked = true;
            return;
        };
        let body = self.receive.write_map(&mut frame.as_mut()[HEADER..]);
        let mut out = output(&mut self.framing, &self.send, &self.receive, env);
        let header = out.header(Kind::Ack);
        out.send(frame, &header, body);
        self.receive.acknowledged(true);
    }

    /// When to call [`Connection::timeout`], in nanoseconds.
    #[inline(always)]
    pub fn deadline(&self) -> u64 {
        match &self.phase {
            Phase::Open => {
                let sides = self.send.deadline().min(self.receive.deadline());
                let peer = self.keepalive.deadline().min(self.close_until_ns);
                sides.min(peer)
            }
            Phase::Leaving { until_ns, .. } => *until_ns,
            Phase::Ended(closing) => closing.deadline(),
        }
    }

    /// Whether a PROBE or the answer to one has put the deadline off since the last call: the one that the owner knows may
    /// be early by seconds.
    #[inline(always)]
    pub fn take_put_off(&mut self) -> bool {
        self.keepalive.take_put_off()
    }

    /// Runs expired timers; an early call does nothing. All frames that have arrived must have been passed to
    /// [`Connection::received`] before: an expired timer means that the peer has not answered, not that its answer has
    /// not been read.
    pub fn timeout<E: Env>(&mut self, now_ns: u64, env: &mut E) {
        self.framing.set_now(now_ns);
        let end = match &mut self.phase {
            Phase::Open => self.run_timers(now_ns, env).err(),
            Phase::Leaving { until_ns, .. } if *until_ns > now_ns => return,
            Phase::Leaving { body, .. } => Some(self.send.operations().closed_by_peer(body, env)),
            Phase::Ended(closing) => return closing.timeout(now_ns, env),
        };
        match end {
            Some(end) => self.end(end, env),
            None => self.flush(now_ns, env),
        }
    }

    fn run_timers<E: Env>(&mut self, now_ns: u64, env: &mut E) -> Result<(), End> {
        if self.close_until_ns <= now_ns {
            return Err(End::new(Reason::Lost, Cause::Disconnected, 0));
        }
        self.receive.timeout(now_ns, env)?;
        if self.keepalive.deadline() <= now_ns {
            self.check_keepalive(now_ns, env)?;
        }
        let mut out = output(&mut self.framing, &self.send, &self.receive, env);
        self.send.search_path(&mut out);
        if self.send.timeout(self.keepalive.is_probing(), now_ns, env) {
            return Err(self.peer_is_dead(env));
        }
        Ok(())
    }

    /// Checks whether the peer has been silent for too long.
    #[cold]
    fn check_keepalive<E: Env>(&mut self, now_ns: u64, env: &mut E) -> Result<(), End> {
        let process_ns = env.peer_last_received(self.keepalive.last_ns());
        match self.keepalive.check(now_ns, process_ns) {
            Verdict::Wait => {}
            Verdict::Dead => return Err(self.peer_is_dead(env)),
            Verdict::Probe => {
                let mut out = output(&mut self.framing, &self.send, &self.receive, env);
                // If the device is full, the next check sends it.
                if out.send_empty(Kind::Probe) {
                    self.keepalive.probed(now_ns);
                }
            }
        }
        Ok(())
    }

    /// Closes the connection from this side, because of VipDisconnect or because the host has put the VI into Error.
    /// No descriptor is accessed afterwards. The caller runs the result until it is done: it informs the peer.
    pub fn close<T: Transmit>(mut self, reason: Reason, now_ns: u64, out: &mut T) -> Closing {
        self.framing.set_now(now_ns);
        match self.phase {
            Phase::Ended(closing) => closing,
            _ => self.send_close(reason, self.receive.operations(), out),
        }
    }

    /// The agent has reported that the peer has exited or closed. All frames that have arrived must have been passed
    /// to [`Connection::received`] before.
    pub fn peer_gone<E: Env>(&mut self, orderly: bool, now_ns: u64, env: &mut E) {
        self.framing.set_now(now_ns);
        let end = match &self.phase {
            // The report may have overtaken the last acknowledgement and the CLOSE.
            Phase::Open if orderly => {
                self.close_until_ns = now_ns + CLOSE_WAIT_NS;
                return;
            }
            Phase::Leaving { .. } if orderly => return,
            Phase::Ended(_) => return,
            Phase::Open => End::LOST,
            Phase::Leaving { body, .. } => self.send.operations().closed_by_peer(body, env),
        };
        self.end(end, env);
    }
}

/// The way out during one call.
#[inline(always)]
fn output<'a, T: Transmit>(
    framing: &'a mut Framing,
    send: &SendSide,
    receive: &ReceiveSide,
    out: &'a mut T,
) -> Output<'a, T> {
    let numbers = receive.numbers(send.inflight().next());
    Output::new(framing, numbers, out)
}
