//! The poll loop: waits for sockets, ended processes, signals and deadlines, and passes them to the logic.
//!
//! Events are level-triggered. Each wake-up does a bounded amount of work per source, and the outputs of each
//! input are carried out before the next input.

#![forbid(unsafe_code)]

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::mem::ManuallyDrop;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::rc::Rc;
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::signal::Signal;
use nix::sys::signalfd::SignalFd;
use nix::sys::socket::{Shutdown, shutdown};
use nix::unistd::geteuid;
use vipl_sys::clock::{self, Instant};

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
mod drops;
mod frames;
mod helpers;
mod queued;
mod quota;
pub(crate) mod session;

use drops::Drops;
use queued::Queued;
use quota::Quota;

const NS_PER_MS: u64 = 1_000_000;
/// Maximum packets per process, and accepted connections, in one pass.
const TURN_MAX: usize = 64;
/// Maximum events in one pass. Sockets that have more than their user's share stay ready, and take the places of others.
const EVENTS_MAX: usize = 1024;
/// Interval at which the agent checks that its socket still exists.
const LOOK_NS: u64 = 5_000 * NS_PER_MS;

struct Server<'a> {
    log: &'a Log,
    /// The only user served; `None` for all users.
    only_user: Option<u32>,
    idle_ms: u64,
    epoch: Instant,
    epoll: Epoll,
    signals: SignalFd,
    agent: Agent<SharedFd>,
    sessions: BTreeMap<ClientId, Session>,
    dying: BTreeSet<ClientId>,
    /// The same, of users who have had their share of this pass.
    dying_later: BTreeMap<u32, VecDeque<ClientId>>,
    quota: Quota,
    queued: Queued,
    links: Links,
    drops: Drops,
    devices: Devices,
    helpers: Helpers,
    last_client: u64,
    /// Start of the idle time.
    idle_since: Option<u64>,
    /// Accepting is paused until then, after running out of descriptors.
    pause_until: Option<u64>,
    told_of_pause: bool,
    /// When to check next that our socket still exists.
    look_at: u64,
}

/// Serves until the agent has been idle for long enough or is told to exit.
pub fn serve(options: &Options, log: &Log) -> Result<(), Error> {
    let signals = prepare::prepare()?;
    let uid = geteuid().as_raw();
    let listener = Listener::open(options, uid)?;
    log.info("socket", format_args!("serving {}", listener.name()));
    prepare::leave_starter();
    for what in surroundings::inherited() {
        log.info(
            "start",
            format_args!("the agent and all devices that it starts have {what}"),
        );
    }
    let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).map_err(trying("epoll"))?;
    // Never dropped: what is left is closed by the end of the process, which waits for no descriptor.
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
        dying_later: BTreeMap::new(),
        quota: Quota::default(),
        queued: Queued::new(surroundings::descriptors(), options.system),
        links: Links::new(options),
        drops: Drops::default(),
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

/// The agent's logic, configured for this system.
fn logic(system: bool) -> Result<Agent<SharedFd>, Error> {
    let program = std::env::current_exe().unwrap_or_default();
    let agent = Agent::new(prepare::random_seed()?)
        .with_pid(std::process::id())
        .with_program(env!("CARGO_PKG_VERSION"), program.as_os_str().as_bytes())
        .with_network(surroundings::network())
        .with_surroundings(surroundings::bits(), surroundings::mounts())
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
        let mut events = [EpollEvent::empty(); EVENTS_MAX];
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
                    self.shut_down();
                    return Ok(());
                }
            }
            if self.is_idle() {
                listener = match self.try_to_leave(listener)? {
                    Some(listener) => listener,
                    None => return Ok(()),
                };
            }
            let count = match self.epoll.wait(&mut events, self.next_timeout(&listener)) {
                Err(Errno::EINTR) => continue,
                other => other.map_err(trying("epoll"))?,
            };
            self.agent.handle_timeout(self.now());
            self.quota.begin();
            self.links.close_due(self.now(), &self.epoll);
            self.run_until_settled();
            self.reap_later();
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
                            self.shut_down();
                            return Ok(());
                        }
                    }
                }
                self.run_until_settled();
            }
            if self.pause_until.is_some_and(|until| until <= self.now()) {
                self.pause_until = None;
                self.watch_listener(&listener)?;
            }
        }
    }

    /// Tells all processes that the agent exits. The sockets are closed by the end of the process.
    fn shut_down(&mut self) {
        for session in self.sessions.values() {
            let _ = shutdown(session.socket.as_raw_fd(), Shutdown::Both);
        }
        self.links.open.clear();
        self.devices.shut_down();
        self.helpers.shut_down();
    }

    /// Reads signals. Returns whether one of them asks the agent to exit; the others report ended children.
    fn take_signals(&mut self) -> bool {
        let mut leave = false;
        while let Ok(Some(signal)) = self.signals.read_signal() {
            leave |= signal.ssi_signo != Signal::SIGCHLD as u32;
        }
        self.reap_children();
        leave
    }

    /// Maximum time to sleep.
    fn next_timeout(&self, listener: &Listener) -> EpollTimeout {
        if !self.dying_later.is_empty() {
            return EpollTimeout::ZERO;
        }
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
        let left = Duration::from_nanos(next.saturating_sub(self.now()));
        EpollTimeout::try_from(clock::milliseconds(left)).unwrap_or(EpollTimeout::ZERO)
    }

    fn idle_ns(&self) -> u64 {
        self.idle_ms.saturating_mul(NS_PER_MS)
    }

    /// Carries out outputs and removes processes until neither is left.
    fn run_until_settled(&mut self) {
        self.run_outputs();
        loop {
            while let Some(client) = self.dying.pop_first() {
                self.reap(client);
                self.run_outputs();
            }
            self.tick_helpers();
            if self.dying.is_empty() {
                return;
            }
        }
    }

    /// Removes processes that had to wait for their users' next share.
    fn reap_later(&mut self) {
        let users: Vec<u32> = self.dying_later.keys().copied().collect();
        for user in users {
            while self.quota.has_some(user)
                && let Some(client) = self.next_dying_of(user)
            {
                self.reap(client);
                self.run_until_settled();
            }
        }
    }

    fn next_dying_of(&mut self, user: u32) -> Option<ClientId> {
        let of_user = self.dying_later.get_mut(&user)?;
        let next = of_user.pop_front();
        if of_user.is_empty() {
            self.dying_later.remove(&user);
        }
        next
    }

    fn run_outputs(&mut self) {
        while let Some(output) = self.agent.poll_output() {
            match output {
                Output::Send(message) => self.send(message),
                Output::OpenLink(open) => self.open_link(&open),
                Output::AdoptLink(adopt) => self.adopt_link(adopt),
                Output::AskLink(open) => self.ask_link(&open),
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
