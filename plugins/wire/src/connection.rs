//! One end of a connection between two VIs: its inputs, its deadlines, and the state that all of it shares.
//!
//! What an input changes is in the modules below this one, by subject:
//!
//! | module | subject |
//! | --- | --- |
//! | `send` | what is sent next |
//! | `alone` | one small message, sent or received while nothing else is in progress: the usual case |
//! | `build`, `resend` | frames of posted operations, and lost frames once more |
//! | `path` | what the path carries: the size of frames |
//! | `complete` | acknowledgements, and the sends that they complete |
//! | `receive`, `deliver` | frames into order, and their parts into receive descriptors and memory |
//! | `unreliable` | both of these for Unreliable connections |
//! | `read` | RDMA Read, both sides |
//! | `end` | the end of the connection |

mod alone;
mod build;
mod complete;
mod deliver;
mod end;
mod path;
mod read;
mod receive;
mod resend;
mod send;
mod unreliable;

pub use path::ASKS;

use crate::ack::Acks;
use crate::arrivals::Arrivals;
use crate::closing::{Body, Closing, Reason, send_empty};
use crate::config::{Config, NEVER, Received, Stats};
use crate::env::{Cause, Env, Level, Transmit};
use crate::frame::{FLAG_SEALED, HEADER, Header, Kind, MTU_MIN, Refused, key_check};
use crate::keepalive::{Keepalive, Verdict};
use crate::receiver::Receiver;
use crate::seal::Seals;
use crate::search::Search;
use crate::sender::Sender;

/// How long to wait for the CLOSE after the agent has reported an orderly end. The peer repeats the CLOSE, and may have
/// to wait for a processor before it sends the first one, while the agents have exchanged theirs already.
const CLOSE_WAIT_NS: u64 = 500_000_000;

/// State of the connection.
#[derive(Clone, Copy, Debug)]
enum Phase {
    Open,
    /// The peer has left; frames that its CLOSE has overtaken may still come.
    Leaving {
        body: Body,
        last: u32,
        until_ns: u64,
    },
    /// The VI is in Error. The lingering close may still be in progress.
    Ended,
}

/// One end of a connection.
pub struct Connection {
    config: Config,
    phase: Phase,
    now_ns: u64,
    /// Key checks: what this side sends, what the peer sends.
    check: u64,
    peer_check: u64,
    sender: Sender,
    receiver: Receiver,
    arrivals: Arrivals,
    acks: Acks,
    stats: Stats,
    closing: Option<Closing>,
    /// Those of `closing`, once it is there.
    seals: Option<Box<Seals>>,
    keepalive: Keepalive,
    /// Until when the CLOSE is awaited after the agent has reported an orderly end.
    gone_at_ns: u64,
    search: Search,
    /// The earlier one of `gone_at_ns` and the search's deadline.
    rare_at_ns: u64,
    /// Bytes for the parts of one DATA frame.
    room: usize,
    /// The largest frame in use, and the one that the owner knows of.
    size: u16,
    size_told: u16,
    /// The length of a TRY that was answered.
    answered: Option<u16>,
    blocked: bool,
}

impl Connection {
    /// A new connection. The peer creates its end from the mirrored configuration.
    ///
    /// # Panics
    /// If `mtu` is below [`MTU_MIN`]: the device has made sure of it.
    pub fn new(config: &Config) -> Connection {
        assert!(usize::from(config.mtu) >= MTU_MIN, "mtu {}", config.mtu);
        let side = config.side & 1;
        let blind = config.level == Level::Unreliable;
        let search = Search::new(config.mtu, config.shared_path, blind, config.now_ns);
        let mut connection = Connection {
            config: *config,
            phase: Phase::Open,
            now_ns: config.now_ns,
            check: key_check(config.key, side),
            peer_check: key_check(config.key, side ^ 1),
            sender: Sender::new(config, side),
            receiver: Receiver::new(config.first(side ^ 1), config.count_from),
            arrivals: Arrivals::default(),
            acks: Acks::new(config.ack_delay_ns),
            stats: Stats::default(),
            closing: None,
            seals: config.seal.as_ref().map(|key| Box::new(Seals::new(key))),
            keepalive: Keepalive::new(config.now_ns, config.probes_max),
            gone_at_ns: NEVER,
            search,
            rare_at_ns: search.deadline(),
            room: 0,
            size: search.size(),
            size_told: search.size(),
            answered: None,
            blocked: false,
        };
        connection.room = connection.room_of(search.size());
        connection
    }

    /// Whether the connection still carries data. If not, the VI is in Error.
    #[inline(always)]
    pub fn is_open(&self) -> bool {
        !matches!(self.phase, Phase::Ended)
    }

    /// Whether the device was full at the last attempt to send. Call [`Connection::flush`] when it has room.
    #[inline(always)]
    pub fn is_blocked(&self) -> bool {
        self.blocked
    }

    /// Whether the frame that was taken last has a seal and is the newest of the peer: if it has not come from a copy on another
    /// way, the peer is where it came from.
    pub fn is_newest(&self) -> bool {
        self.seals.as_ref().is_some_and(|seals| seals.newest)
    }

    /// Whether everything that was sent has been acknowledged. Never of an Unreliable connection, which does not know.
    #[inline(always)]
    pub fn is_quiet(&self) -> bool {
        self.config.level != Level::Unreliable && self.sender.inflight.under_way() == 0
    }

    /// The counters.
    #[inline(always)]
    pub fn stats(&self) -> Stats {
        self.stats
    }

    /// Whether an acknowledgement is owed that has not been sent.
    #[inline(always)]
    pub fn ack_owed(&self) -> bool {
        self.acks.is_owed()
    }

    /// The send doorbell: descriptors were posted. Sends what window and device permit. `now_ns` may be 0 if
    /// [`Transmit::now`] returns the time.
    #[inline(always)]
    pub fn posted<E: Env>(&mut self, now_ns: u64, env: &mut E) {
        self.now_ns = self.now_ns.max(now_ns);
        // More may have been posted meanwhile, by a program that shares no lock with the device.
        if !self.send_alone(env) || self.has_unsent(env) {
            self.pump(env);
        }
    }

    /// Asks the owner for the time, if it can tell.
    #[inline(always)]
    fn look_at_clock<T: Transmit>(&mut self, out: &mut T) {
        if let Some(now_ns) = out.now() {
            self.now_ns = now_ns;
        }
    }

    /// Handles a frame: everything after the link's own header, padding included.
    #[inline(always)]
    pub fn received<E: Env>(&mut self, frame: &[u8], now_ns: u64, env: &mut E) -> Received {
        self.now_ns = now_ns;
        self.stats.frames_received += 1;
        if self.take_alone(frame, env) {
            Received::Taken
        } else {
            self.take(frame, env)
        }
    }

    #[inline(never)]
    fn take<E: Env>(&mut self, frame: &[u8], env: &mut E) -> Received {
        let (header, body) = match Header::parse(frame) {
            Ok(parsed) => parsed,
            Err(refused) => return self.refuse(refused),
        };
        if header.check != self.peer_check || header.to_vi != self.config.own_vi {
            self.stats.wrong_key += 1;
            return Received::WrongKey;
        }
        if let Some(closing) = &mut self.closing {
            return closing.take_sealed(&header, frame, body, env);
        }
        let body = match &mut self.seals {
            None if header.flags & FLAG_SEALED == 0 => body,
            Some(seals) if header.flags & FLAG_SEALED != 0 => match seals.open(frame, body) {
                Some(body) => body,
                None => return self.refuse(Refused::Seal),
            },
            _ => return self.refuse(Refused::Seal),
        };
        self.keepalive.heard(self.now_ns);
        if self.config.level != Level::Unreliable {
            self.acknowledged(&header, body, env);
        }
        match header.kind {
            Kind::Data if self.is_open() => self.take_data(&header, body, env),
            Kind::Probe => self.acks.hurry(self.now_ns),
            Kind::Close if self.is_open() => self.take_close(&header, body, env),
            Kind::Try => self.take_try(body.len(), env),
            Kind::Tried => self.take_tried(body, env),
            Kind::Slice if self.is_open() => self.take_slice(&header, body, env),
            _ => {}
        }
        Received::Taken
    }

    /// A router on the way has marked this frame, which [`Connection::received`] has just taken: it was about to drop
    /// it. The peer is told, and sends less.
    #[cold]
    pub fn marked(&mut self, frame: &[u8]) {
        // Acknowledgements cannot be fewer.
        if Kind::Data.is_of(frame) {
            self.receiver.marks = self.receiver.marks.wrapping_add(1);
            self.acks.hurry(self.now_ns);
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
        self.now_ns = now_ns;
        self.pump(env);
        if self.acks.is_due(now_ns) {
            self.send_ack(env);
        }
    }

    /// Sends an acknowledgement that is owed without further delay.
    pub fn flush_acks<E: Env>(&mut self, now_ns: u64, env: &mut E) {
        self.now_ns = now_ns;
        if self.acks.is_owed() {
            self.send_ack(env);
        }
    }

    /// When to call [`Connection::timeout`], in nanoseconds.
    #[inline(always)]
    pub fn deadline(&self) -> u64 {
        match self.phase {
            Phase::Open => {
                let sender = self.sender.deadline();
                let receiver = self.acks.due_ns().min(self.arrivals.deadline());
                let peer = self.keepalive.deadline().min(self.rare_at_ns);
                sender.min(receiver).min(peer)
            }
            Phase::Leaving { until_ns, .. } => until_ns,
            Phase::Ended => self.closing.as_ref().map_or(NEVER, Closing::deadline),
        }
    }

    /// Runs expired timers; an early call does nothing. All frames that have arrived must have been passed to
    /// [`Connection::received`] before: an expired timer means that the peer has not answered, not that its answer has
    /// not been read.
    pub fn timeout<E: Env>(&mut self, now_ns: u64, env: &mut E) {
        self.now_ns = now_ns;
        match self.phase {
            Phase::Open if self.gone_at_ns <= now_ns => {
                return self.end(Reason::Lost, Cause::Disconnected, 0, env);
            }
            Phase::Open => {}
            Phase::Leaving { body, until_ns, .. } => {
                if until_ns <= now_ns {
                    self.peer_left(body, env);
                }
                return;
            }
            Phase::Ended => {
                if let Some(closing) = &mut self.closing {
                    closing.timeout(now_ns, env);
                }
                return;
            }
        }
        if self.arrivals.deadline() <= now_ns {
            self.give_up_message(env);
        }
        if self.keepalive.deadline() <= now_ns {
            self.check_keepalive(env);
        }
        if self.search.deadline() <= now_ns {
            self.search_path(env);
        }
        if self.is_open() {
            self.sender_timeout(env);
        }
        if self.is_open() {
            self.flush(now_ns, env);
        }
    }

    /// Closes the connection from this side, because of VipDisconnect or because the host has put the VI into Error. No
    /// descriptor is accessed afterwards. The caller keeps the result, and runs it until it is done: it informs the
    /// peer.
    pub fn close<T: Transmit>(mut self, reason: Reason, now_ns: u64, out: &mut T) -> Closing {
        self.now_ns = now_ns;
        self.say_close(reason, self.receiver.operations(), out);
        match self.closing {
            Some(closing) => closing,
            None => unreachable!("say_close makes one"),
        }
    }

    /// The agent has reported that the peer has gone. All frames that have arrived must have been passed to
    /// [`Connection::received`] before.
    pub fn peer_gone<E: Env>(&mut self, orderly: bool, now_ns: u64, env: &mut E) {
        self.now_ns = now_ns;
        match self.phase {
            // The report may have overtaken the last acknowledgement and the CLOSE.
            Phase::Open if orderly => {
                self.gone_at_ns = now_ns + CLOSE_WAIT_NS;
                self.set_rare();
            }
            Phase::Leaving { .. } if orderly => {}
            Phase::Open => self.end(Reason::Lost, Cause::LOST, 0, env),
            Phase::Leaving { body, .. } => self.peer_left(body, env),
            Phase::Ended => {}
        }
    }

    /// The header of a frame that is sent now.
    #[inline(always)]
    fn header(&self, kind: Kind, sequence: u32) -> Header {
        Header {
            kind,
            to_endpoint: self.config.peer_endpoint,
            from_endpoint: self.config.own_endpoint,
            to_vi: self.config.peer_vi,
            check: self.check,
            sequence,
            acknowledged: self.receiver.next(),
            window: self.config.window(),
            flags: 0,
            marks: self.receiver.marks,
        }
    }

    /// Bytes for the parts of one DATA frame.
    #[inline(always)]
    pub fn room(&self) -> usize {
        self.room
    }

    /// The largest frame in use, in bytes.
    pub fn frame_bytes(&self) -> u16 {
        self.size
    }

    #[cold]
    fn set_rare(&mut self) {
        self.rare_at_ns = self.gone_at_ns.min(self.search.deadline());
    }

    fn send_ack<E: Env>(&mut self, env: &mut E) {
        let Some(mut frame) = env.frame() else {
            self.blocked = true;
            return;
        };
        let buffer = frame.as_mut();
        let most = usize::from(self.config.window()) / 8;
        let body = self.receiver.map(&mut buffer[HEADER..HEADER + most]);
        let header = self.header(Kind::Ack, self.sender.inflight.next());
        let bytes = header.emit_sealed(buffer, body, &mut self.seals);
        env.transmit(frame, bytes);
        self.stats.frames_sent += 1;
        self.acks.sent(true);
    }

    /// Checks whether the peer has been silent for too long.
    #[cold]
    fn check_keepalive<E: Env>(&mut self, env: &mut E) {
        let life_ns = env.peer_last_received(self.keepalive.heard_ns());
        match self.keepalive.check(self.now_ns, life_ns) {
            Verdict::Wait => {}
            Verdict::Dead => self.peer_is_dead(env),
            Verdict::Probe => {
                let header = self.header(Kind::Probe, self.sender.inflight.next());
                // If the device is full, the next check sends it.
                if send_empty(&header, &mut self.seals, env) {
                    self.stats.frames_sent += 1;
                    self.keepalive.probed(self.now_ns);
                }
            }
        }
    }
}
