//! The poll loop: waits for sockets, dying processes, signals and deadlines, and feeds the core.
//!
//! Descriptors are polled level-triggered, each wake-up does a bounded amount of work for each, and
//! after every input the core's output is carried out before the next input is looked at.

#![forbid(unsafe_code)]

use std::collections::{BTreeMap, BTreeSet};
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::rc::Rc;
use std::time::Instant;

use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::signal::Signal;
use nix::sys::signalfd::SignalFd;
use nix::sys::socket::{Shutdown, UnixCredentials, getsockopt, shutdown, sockopt};
use nix::unistd::geteuid;

use super::devices::Devices;
use super::error::{Error, trying};
use super::helpers::Helpers;
use super::links::Links;
use super::listener::Listener;
use super::log::Log;
use super::options::Options;
use super::packet::{self, Beside, PACKET_BYTES, Received};
use super::process::{self, Watch};
use super::segment;
use super::session::{Held, Session, SharedFd, Unsendable};
use super::surroundings;
use crate::agent::Agent;
use crate::client::ClientId;
use crate::link::LinkId;
use crate::output::{Message, Output};

mod devices;
mod frames;
mod helpers;
mod turns;

use turns::Turns;

const NS_PER_MS: u64 = 1_000_000;
/// Most packets of one process, and most new processes, before the others get their turn.
const TURN_MAX: usize = 64;
/// Most packets that are still read of a process that has died.
const LAST_WORDS_MAX: usize = 1024;
/// How long the agent does not accept after it ran out of descriptors.
const ACCEPT_PAUSE_MS: u64 = 100;

/// How often the agent looks whether its address is still there.
const LOOK_NS: u64 = 5_000 * NS_PER_MS;

/// What a poll event is about: a process's socket or pidfd by its number, or one of two of our own.
const KIND_LISTENER: u64 = 0;
const KIND_SIGNAL: u64 = 1;
const KIND_SOCKET: u64 = 2;
const KIND_PIDFD: u64 = 3;
const KIND_LINK: u64 = 4;
const KIND_DEVICE: u64 = 5;
const KIND_HELPER: u64 = 6;
const KIND_BITS: u32 = 3;

struct Server<'a> {
    log: &'a Log,
    /// The only user served, unless all are.
    only_user: Option<u32>,
    idle_ms: u64,
    epoch: Instant,
    epoll: Epoll,
    signals: SignalFd,
    agent: Agent<SharedFd>,
    sessions: BTreeMap<ClientId, Session>,
    dying: BTreeSet<ClientId>,
    turns: Turns,
    links: Links,
    devices: Devices,
    helpers: Helpers,
    last_client: u64,
    /// Since when there has been no process.
    idle_since: Option<u64>,
    /// Until when nobody is accepted, for want of descriptors.
    pause_until: Option<u64>,
    told_of_pause: bool,
    /// When to look next whether our address is still there.
    look_at: u64,
}

/// Serves until nobody has needed the agent for a while, or somebody asks it to leave.
pub fn serve(options: &Options, log: &Log) -> Result<(), Error> {
    let mut options = options.clone();
    if let Some(path) = options.socket.take() {
        let absolute = std::path::absolute(&path)
            .map_err(|_| Error::Usage(format!("--socket {} is no path", path.display())))?;
        options.socket = Some(absolute);
    }
    let signals = process::prepare()?;
    let uid = geteuid().as_raw();
    let listener = Listener::open(&options, uid)?;
    log.info("socket", format_args!("serving {}", listener.name()));
    for what in surroundings::inherited() {
        log.info(
            "start",
            format_args!("the agent and all devices that it starts have {what}"),
        );
    }
    let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).map_err(trying("epoll"))?;
    // Never dropped: what is left is closed by the end of the process, which waits for nobody's descriptors.
    let mut server = ManuallyDrop::new(Server {
        log,
        only_user: (!options.system).then_some(uid),
        idle_ms: options.idle_ms,
        epoch: Instant::now(),
        epoll,
        signals,
        agent: logic(options.system)?.with_notes(log.wants_debug("cm")),
        sessions: BTreeMap::new(),
        dying: BTreeSet::new(),
        turns: Turns::default(),
        links: Links::new(options.system.then(|| options.link_group.clone())),
        devices: Devices::default(),
        helpers: Helpers::new(KIND_HELPER, KIND_BITS),
        last_client: 0,
        idle_since: None,
        pause_until: None,
        told_of_pause: false,
        look_at: 0,
    });
    server.run(listener)
}

/// The agent's logic, told of the system around it.
fn logic(system: bool) -> Result<Agent<SharedFd>, Error> {
    let program = std::env::current_exe().unwrap_or_default();
    let agent = Agent::new(process::random_seed()?)
        .with_pid(std::process::id())
        .with_program(env!("CARGO_PKG_VERSION"), program.as_os_str().as_bytes())
        .with_network(surroundings::network())
        .with_descriptors(surroundings::descriptors());
    Ok(if system { agent } else { agent.for_one_user() })
}

impl Server<'_> {
    fn now(&self) -> u64 {
        self.epoch.elapsed().as_nanos() as u64
    }

    fn run(&mut self, mut listener: Listener) -> Result<(), Error> {
        let signal = EpollEvent::new(EpollFlags::EPOLLIN, KIND_SIGNAL);
        self.epoll
            .add(&self.signals, signal)
            .map_err(trying("epoll"))?;
        self.watch_listener(&listener)?;
        let mut events = [EpollEvent::empty(); TURN_MAX];
        loop {
            if listener.may_be_lost() && self.now() >= self.look_at {
                self.look_at = self.now() + LOOK_NS;
                if listener.is_lost() {
                    self.log.warn(
                        "socket",
                        format_args!(
                            "{} has been removed, as at a logout; leaving, so that all processes of the user find one agent",
                            listener.name()
                        ),
                    );
                    listener.remove();
                    self.part();
                    return Ok(());
                }
            }
            if self.is_idle() {
                listener = match self.try_to_leave(listener)? {
                    Some(listener) => listener,
                    None => return Ok(()),
                };
            }
            let count = match self.epoll.wait(&mut events, self.patience(&listener)) {
                Err(Errno::EINTR) => continue,
                other => other.map_err(trying("epoll"))?,
            };
            self.agent.handle_timeout(self.now());
            self.turns.begin();
            self.links.close_due(self.now(), &self.epoll);
            self.settle();
            for event in &events[..count] {
                let client = ClientId(event.data() >> KIND_BITS);
                match event.data() & ((1 << KIND_BITS) - 1) {
                    KIND_LISTENER => self.accept(&listener, TURN_MAX),
                    KIND_SOCKET => self.socket_ready(client, event.events()),
                    KIND_LINK => self.link_ready((event.data() >> KIND_BITS) as LinkId),
                    KIND_DEVICE => self.device_ended(event.data() >> KIND_BITS),
                    KIND_HELPER => self.helper_ready((event.data() >> KIND_BITS) as u32),
                    KIND_PIDFD => self.mark_dying(client, "process ended"),
                    _ => {
                        if self.take_signals() {
                            self.log.info("socket", format_args!("asked to leave"));
                            listener.remove();
                            self.part();
                            return Ok(());
                        }
                    }
                }
                self.settle();
            }
            if self.pause_until.is_some_and(|until| until <= self.now()) {
                self.pause_until = None;
                self.watch_listener(&listener)?;
            }
        }
    }

    /// Says to everybody that the agent leaves. Its sockets themselves are closed by the end of the process.
    fn part(&mut self) {
        for session in self.sessions.values() {
            let _ = shutdown(session.socket.as_raw_fd(), Shutdown::Both);
        }
        self.links.open.clear();
        self.devices.part();
        self.helpers.part();
    }

    /// Whether one of the signals asks us to leave. The others say that children have ended.
    fn take_signals(&mut self) -> bool {
        let mut leave = false;
        while let Ok(Some(signal)) = self.signals.read_signal() {
            leave |= signal.ssi_signo != Signal::SIGCHLD as u32;
        }
        self.reap_children();
        leave
    }

    fn watch_listener(&self, listener: &Listener) -> Result<(), Error> {
        let event = EpollEvent::new(EpollFlags::EPOLLIN, KIND_LISTENER);
        self.epoll.add(listener, event).map_err(trying("epoll"))
    }

    /// How long to sleep at most.
    fn patience(&self, listener: &Listener) -> EpollTimeout {
        let idle_end = self
            .idle_since
            .map(|since| since.saturating_add(self.idle_ns()));
        let next = [
            self.agent.poll_timeout(),
            idle_end,
            self.pause_until,
            self.links.next_close(),
            self.helpers.next(),
            listener.may_be_lost().then_some(self.look_at),
        ]
        .into_iter()
        .flatten();
        let Some(next) = next.min() else {
            return EpollTimeout::NONE;
        };
        // Rounded up, or the loop would turn and turn in the last millisecond.
        let ms = next.saturating_sub(self.now()).div_ceil(NS_PER_MS);
        EpollTimeout::try_from(ms.min(60_000) as i32).unwrap_or(EpollTimeout::ZERO)
    }

    fn idle_ns(&self) -> u64 {
        self.idle_ms.saturating_mul(NS_PER_MS)
    }

    /// Whether there has been no process for long enough.
    fn is_idle(&mut self) -> bool {
        if self.idle_ms == 0 || !self.sessions.is_empty() || self.agent.has_last_words() {
            self.idle_since = None;
            return false;
        }
        let now = self.now();
        now >= self
            .idle_since
            .get_or_insert(now)
            .saturating_add(self.idle_ns())
    }

    /// Leaves, unless somebody comes in the last moment. Gives the listener back in that case.
    fn try_to_leave(&mut self, listener: Listener) -> Result<Option<Listener>, Error> {
        self.accept(&listener, TURN_MAX);
        self.settle();
        if !self.sessions.is_empty() {
            return Ok(Some(listener));
        }
        if !listener.shut() {
            return Ok(None);
        }
        // Whoever finds the door shut starts another agent. Whoever was let in before must not be
        // left between two agents: either we stay, or he is dropped and tries again.
        self.accept(&listener, usize::MAX);
        self.settle();
        if self.sessions.is_empty() {
            self.log.info("socket", format_args!("idle, leaving"));
            listener.remove();
            return Ok(None);
        }
        let _ = self.epoll.delete(&listener);
        let listener = listener.reopen()?;
        self.pause_until = None;
        self.watch_listener(&listener)?;
        Ok(Some(listener))
    }

    fn accept(&mut self, listener: &Listener, most: usize) {
        for _ in 0..most {
            match packet::accept(listener.as_fd()) {
                Ok(socket) => self.admit(socket),
                Err(Errno::EINTR | Errno::ECONNABORTED) => {}
                // After the door was shut, an empty backlog is EINVAL.
                Err(Errno::EAGAIN | Errno::EINVAL) => {
                    self.told_of_pause = false;
                    return;
                }
                Err(cause) => return self.pause(listener, cause),
            }
        }
    }

    /// Out of descriptors or memory: the one who knocks would wake us at once and for ever.
    fn pause(&mut self, listener: &Listener, cause: Errno) {
        if !self.told_of_pause {
            self.log.warn(
                "socket",
                format_args!("cannot accept: {cause}; trying again"),
            );
            self.told_of_pause = true;
        }
        let _ = self.epoll.delete(listener);
        self.pause_until = Some(self.now() + ACCEPT_PAUSE_MS * NS_PER_MS);
    }

    fn admit(&mut self, socket: OwnedFd) {
        let who: UnixCredentials = match getsockopt(&socket, sockopt::PeerCredentials) {
            Ok(who) => who,
            Err(cause) => {
                return self
                    .log
                    .warn("client", format_args!("no credentials: {cause}"));
            }
        };
        let (uid, pid) = (who.uid(), who.pid());
        if self.only_user.is_some_and(|only| only != uid) {
            self.log
                .warn("client", format_args!("refused pid {pid} of user {uid}"));
            return self.discard(uid, socket);
        }
        self.last_client += 1;
        let client = ClientId(self.last_client);
        let told_pid = u32::try_from(pid).unwrap_or(0);
        if let Err(cause) = self.agent.handle_connect(self.now(), client, uid, told_pid) {
            if let Some(farewell) = cause.farewell() {
                let _ = packet::send(socket.as_fd(), &farewell, &[]);
            }
            self.log
                .warn("client", format_args!("refused pid {pid}: {cause}"));
            return self.discard(uid, socket);
        }
        packet::allow_descriptors(socket.as_fd(), true);
        let watch = process::watch(socket.as_fd(), pid);
        let gone = matches!(watch, Watch::Gone);
        if matches!(watch, Watch::SocketOnly) {
            self.log.info(
                "client",
                format_args!("pid {pid} cannot be watched, only its socket"),
            );
        }
        let pidfd = if let Watch::Pidfd(pidfd) = watch {
            Some(pidfd)
        } else {
            None
        };
        let session = Session::new(socket, pidfd, pid, uid);
        if let Err(cause) = self.poll_session(client, &session) {
            self.log.warn("client", format_args!("pid {pid}: {cause}"));
            self.discard(uid, session.socket);
            return self.agent.handle_hangup(self.now(), client);
        }
        self.sessions.insert(client, session);
        self.helpers.process_came(uid);
        self.log.info(
            "client",
            format_args!("client {} is pid {pid} of user {uid}", client.0),
        );
        if gone {
            self.mark_dying(client, "process ended");
        }
    }

    fn poll_session(&self, client: ClientId, session: &Session) -> Result<(), Errno> {
        let name = client.0 << KIND_BITS;
        self.epoll.add(
            &session.socket,
            EpollEvent::new(interest(session), name | KIND_SOCKET),
        )?;
        if let Some(pidfd) = &session.pidfd {
            self.epoll.add(
                pidfd,
                EpollEvent::new(EpollFlags::EPOLLIN, name | KIND_PIDFD),
            )?;
        }
        Ok(())
    }

    fn socket_ready(&mut self, client: ClientId, events: EpollFlags) {
        if events.contains(EpollFlags::EPOLLOUT)
            && let Some(session) = self.sessions.get_mut(&client)
        {
            let sent = session.flush();
            self.after_send(client, sent, true);
        }
        if events.intersects(!EpollFlags::EPOLLOUT) {
            self.read(client, TURN_MAX);
        }
    }

    /// Reads packets of a process and carries out what follows from each.
    fn read(&mut self, client: ClientId, most: usize) {
        let mut buffer = [0; PACKET_BYTES];
        for _ in 0..most {
            let Some(session) = self.sessions.get(&client).filter(|s| !s.at_helper) else {
                return;
            };
            let user = session.uid;
            if !session.dying && (session.is_backed_up() || !self.turns.take(user)) {
                return;
            }
            match packet::receive(session.socket.as_fd(), &mut buffer) {
                Ok(Received::Packet(len, Beside::Nothing)) => {
                    self.hand_over(client, &buffer[..len], Some(Vec::new()));
                }
                Ok(Received::Packet(_, Beside::Descriptors)) => return self.ask_helper(client),
                Ok(Received::Nothing) => return,
                Ok(Received::End) => return self.mark_dying(client, "hung up"),
                // The error that says "it died with mail unread" comes before its own last words.
                Err(Errno::ECONNRESET | Errno::EINTR) => {}
                Err(cause) => return self.mark_dying(client, cause.desc()),
            }
        }
    }

    /// Feeds a packet to the core; without descriptors if they were no good.
    fn hand_over(&mut self, client: ClientId, bytes: &[u8], fds: Option<Vec<SharedFd>>) {
        let now = self.now();
        let result = match fds {
            Some(fds) => self.agent.handle_message(now, client, bytes, fds),
            None => Err(self.agent.handle_garbled(now, client, bytes)),
        };
        if let Err(cause) = result {
            self.log
                .debug("client", format_args!("client {}: {cause}", client.0));
        }
        self.carry_out();
    }

    /// Does what the core wants, and drops who is to be dropped, until there is neither.
    fn settle(&mut self) {
        self.carry_out();
        loop {
            while let Some(client) = self.dying.pop_first() {
                self.bury(client);
                self.carry_out();
            }
            self.look_after_helpers();
            if self.dying.is_empty() {
                return;
            }
        }
    }

    fn carry_out(&mut self) {
        while let Some(output) = self.agent.poll_output() {
            match output {
                Output::Send(message) => self.send(message),
                Output::OpenLink(open) => self.open_link(&open),
                Output::OpenDevice(open) => self.open_device(&open),
                Output::Frame(frame) => self.send_frame(&frame),
                Output::CloseLink(link) => self.close_link(link),
                Output::Note(line) => self.log.debug("cm", format_args!("{line}")),
                Output::Join(join) => match segment::create(join.segment_bytes) {
                    Ok(segment) => {
                        join.with_segment(Rc::new(Held::own(segment)))
                            .into_iter()
                            .for_each(|m| self.send(m));
                    }
                    Err(cause) => {
                        let bytes = join.segment_bytes;
                        self.log
                            .warn("segment", format_args!("bytes {bytes}: {cause}"));
                        self.agent.handle_join_failed(self.now(), &join);
                    }
                },
            }
        }
    }

    fn send(&mut self, message: Message<SharedFd>) {
        let client = message.client;
        let Some(session) = self.sessions.get_mut(&client).filter(|s| !s.dying) else {
            return;
        };
        let was_backed_up = session.is_backed_up();
        let sent = session.send(message);
        self.after_send(client, sent, was_backed_up);
    }

    /// Asks to be told about room in the socket exactly while there is something to send.
    fn after_send(&mut self, client: ClientId, sent: Result<(), Unsendable>, was_backed_up: bool) {
        let Some(session) = self.sessions.get(&client) else {
            return;
        };
        match sent {
            // While the helper is busy, an event comes once only.
            Ok(()) if session.is_backed_up() != was_backed_up || session.at_helper => {
                self.watch_session(client);
            }
            Ok(()) => {}
            Err(Unsendable::Stuck) => {
                let pid = session.pid;
                self.log
                    .warn("client", format_args!("pid {pid} does not read; dropped"));
                self.mark_dying(client, "does not read");
            }
            Err(Unsendable::Broken(cause)) => self.mark_dying(client, cause.desc()),
        }
    }

    /// Asks for the events that matter at present.
    fn watch_session(&mut self, client: ClientId) {
        let Some(session) = self.sessions.get(&client) else {
            return;
        };
        let name = client.0 << KIND_BITS | KIND_SOCKET;
        let mut event = EpollEvent::new(interest(session), name);
        if let Err(cause) = self.epoll.modify(&session.socket, &mut event) {
            self.mark_dying(client, cause.desc());
        }
    }

    fn mark_dying(&mut self, client: ClientId, why: &str) {
        if let Some(session) = self.sessions.get_mut(&client)
            && !session.dying
        {
            session.dying = true;
            self.dying.insert(client);
            self.log
                .info("client", format_args!("client {} leaves: {why}", client.0));
        }
    }

    /// Drops a process. What it said before it died counts, above all that it meant to leave.
    fn bury(&mut self, client: ClientId) {
        self.read(client, LAST_WORDS_MAX);
        if self.sessions.get(&client).is_none_or(|s| s.at_helper) {
            // Again when the helper has answered.
            return;
        }
        let Some(session) = self.sessions.remove(&client) else {
            return;
        };
        let _ = self.epoll.delete(&session.socket);
        if let Some(pidfd) = &session.pidfd {
            let _ = self.epoll.delete(pidfd);
        }
        let uid = session.uid;
        self.discard(uid, session.socket);
        self.helpers.process_left(uid, self.now());
        self.agent.handle_hangup(self.now(), client);
    }
}

/// A process that does not read its replies is not read either, so that it cannot make the agent keep more
/// of them than it had calls.
fn interest(session: &Session) -> EpollFlags {
    // A hang-up cannot be masked: while the helper is busy it is told once, and again afterwards.
    let read = match (session.at_helper, session.is_backed_up()) {
        (true, _) => EpollFlags::EPOLLONESHOT,
        (false, true) => EpollFlags::EPOLLRDHUP,
        (false, false) => EpollFlags::EPOLLIN | EpollFlags::EPOLLRDHUP,
    };
    if session.is_backed_up() {
        read | EpollFlags::EPOLLOUT
    } else {
        read
    }
}
