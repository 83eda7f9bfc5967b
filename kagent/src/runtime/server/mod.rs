//! The poll loop: waits for sockets, dying processes, signals and deadlines, and feeds the core.
//!
//! Descriptors are polled level-triggered, each wake-up does a bounded amount of work for each, and
//! after every input the core's output is carried out before the next input is looked at.

#![forbid(unsafe_code)]

use std::collections::{BTreeMap, BTreeSet};
use std::mem::ManuallyDrop;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::rc::Rc;
use std::time::Instant;

use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::signal::Signal;
use nix::sys::signalfd::SignalFd;
use nix::sys::socket::{Shutdown, shutdown};
use nix::unistd::geteuid;

use crate::Agent;
use crate::ClientId;
use crate::Output;
use crate::runtime::devices::Devices;
use crate::runtime::error::{Error, trying};
use crate::runtime::helpers::held::{Held, SharedFd};
use crate::runtime::helpers::pool::Helpers;
use crate::runtime::links::Links;
use crate::runtime::log::Log;
use crate::runtime::options::Options;
use crate::runtime::processes::prepare;
use crate::runtime::segment;
use crate::runtime::server::session::Session;
use crate::runtime::sockets::listener::Listener;
use crate::runtime::surroundings;
use crate::runtime::token::Token;

mod accept;
mod clients;
mod devices;
mod frames;
mod helpers;
pub(crate) mod session;
mod turns;

use turns::Turns;

const NS_PER_MS: u64 = 1_000_000;
/// Most packets of one process, and most new processes, before the others get their turn.
const TURN_MAX: usize = 64;
/// How often the agent looks whether its address is still there.
const LOOK_NS: u64 = 5_000 * NS_PER_MS;

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
    let signals = prepare::prepare()?;
    let uid = geteuid().as_raw();
    let listener = Listener::open(options, uid)?;
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
        idle_ms: options.idle_ms(),
        epoch: Instant::now(),
        epoll,
        signals,
        agent: logic(options.system)?.with_notes(log.wants_debug("cm")),
        sessions: BTreeMap::new(),
        dying: BTreeSet::new(),
        turns: Turns::default(),
        links: Links::new(options.system.then(|| options.link_group.clone())),
        devices: Devices::default(),
        helpers: Helpers::new(),
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
    let agent = Agent::new(prepare::random_seed()?)
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
        let signal = Token::Signal.event(EpollFlags::EPOLLIN);
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
                match Token::of(event) {
                    Token::Listener => self.accept(&listener, TURN_MAX),
                    Token::Socket(client) => self.socket_ready(client, event.events()),
                    Token::Link(link) => self.link_ready(link),
                    Token::Device(device) => self.device_ended(device),
                    Token::Helper(user) => self.helper_ready(user),
                    Token::Pidfd(client) => self.mark_dying(client, "process ended"),
                    Token::Signal => {
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
}
