//! The poll loop: waits for sockets, ended processes, signals and deadlines, and passes them to the logic.
//!
//! Events are level-triggered. Each wake-up does a bounded amount of work per source, and the outputs of each
//! input are carried out before the next input.

#![forbid(unsafe_code)]

mod drops;
mod entrance;
mod links;

use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::rc::Rc;
use std::time::Duration;

use kagent_proto::Status;
use nix::errno::Errno;
use nix::sys::epoll::{EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::signal::Signal;
use nix::sys::signalfd::SignalFd;
use nix::sys::socket::{UnixCredentials, getsockopt, sockopt};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{Pid, geteuid};
use vipl_sys::clock;

use self::drops::Drops;
use self::entrance::Entrance;
use crate::runtime::clients::{Clients, Removal, Session};
use crate::runtime::context::Context;
use crate::runtime::devices::Devices;
use crate::runtime::error::{Error, trying};
use crate::runtime::helpers::held::{Held, SharedFd};
use crate::runtime::links::Links;
use crate::runtime::log::Log;
use crate::runtime::options::Options;
use crate::runtime::processes::prepare;
use crate::runtime::processes::spawn::NOT_EXECUTED;
use crate::runtime::processes::watch::{Watch, watch};
use crate::runtime::sockets::packet::{self, PACKET_BYTES};
use crate::runtime::token::Token;
use crate::runtime::{segment, surroundings};
use crate::{Agent, ClientId, Join, OpenDevice, Output};

/// Maximum packets per process, and accepted connections, in one pass.
const TURN_MAX: usize = 64;
/// Maximum events in one pass. Sockets with more packets than their user's share stay ready, and occupy the
/// places of others.
const EVENTS_MAX: usize = 1024;

struct Server<'a> {
    context: Context<'a>,
    /// The only user served; `None` for all users.
    only_user: Option<u32>,
    signals: SignalFd,
    agent: Agent<SharedFd>,
    entrance: Entrance,
    clients: Clients,
    links: Links,
    drops: Drops,
    devices: Devices,
}

/// Serves until the agent has been idle for long enough or is told to exit.
pub fn serve(options: &Options, log: &Log) -> Result<(), Error> {
    let signals = prepare::prepare()?;
    let uid = geteuid().as_raw();
    let entrance = Entrance::open(options, uid)?;
    log.info("socket", format_args!("serving {}", entrance.name()));
    prepare::leave_starter();
    for what in surroundings::inherited() {
        log.info(
            "start",
            format_args!("the agent and all devices that it starts have {what}"),
        );
    }
    // Never dropped: the end of the process closes all descriptors without waiting for any.
    let mut server = ManuallyDrop::new(Server {
        context: Context::new(log)?,
        only_user: (!options.system).then_some(uid),
        signals,
        agent: logic(options.system)?.with_notes(log.wants_debug("cm")),
        entrance,
        clients: Clients::new(surroundings::descriptors(), options.system),
        links: Links::new(options),
        drops: Drops::default(),
        devices: Devices::default(),
    });
    server.run()
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
        self.context.now()
    }

    fn run(&mut self) -> Result<(), Error> {
        self.context
            .add(&self.signals, Token::Signal, EpollFlags::EPOLLIN)
            .map_err(trying("epoll"))?;
        self.entrance.watch(&self.context)?;
        let mut events = [EpollEvent::empty(); EVENTS_MAX];
        loop {
            if self.entrance.is_lost(&self.context) {
                self.context.log.warn(
                    "socket",
                    format_args!(
                        "{} has been removed, as at a logout; leaving, so that all processes of the user find one agent",
                        self.entrance.name()
                    ),
                );
                self.shut_down();
                return Ok(());
            }
            let busy = !self.clients.is_empty() || self.agent.is_disconnecting();
            if self.entrance.is_idle(&self.context, busy) && self.try_to_leave()? {
                return Ok(());
            }
            let count = match self.context.wait(&mut events, self.next_timeout()) {
                Err(Errno::EINTR) => continue,
                other => other.map_err(trying("epoll"))?,
            };
            self.agent.handle_timeout(self.now());
            self.clients.begin_pass();
            self.links.close_due(&self.context);
            self.run_until_settled();
            while let Some(client) = self.clients.next_postponed() {
                self.remove(client);
                self.run_until_settled();
            }
            for event in &events[..count] {
                match Token::of(event) {
                    Token::Listener => self.accept(TURN_MAX),
                    Token::Socket(client) => self.socket_ready(client, event.events()),
                    Token::Pidfd(client) => {
                        self.clients
                            .mark_dying(&self.context, client, "process ended");
                    }
                    Token::Link(link) => self.link_ready(link),
                    Token::Device(device) => self.devices.end(&self.context, device),
                    Token::Helper(user) => self.helper_ready(user),
                    Token::Signal => {
                        if self.take_signals() {
                            self.context
                                .log
                                .info("socket", format_args!("asked to leave"));
                            self.shut_down();
                            return Ok(());
                        }
                    }
                }
                self.run_until_settled();
            }
            self.entrance.end_pause(&self.context)?;
        }
    }

    /// Maximum time to sleep.
    fn next_timeout(&self) -> EpollTimeout {
        if self.clients.has_postponed() {
            return EpollTimeout::ZERO;
        }
        let next = [
            self.agent.poll_timeout(),
            self.entrance.next(),
            self.links.next_close(),
            self.clients.next_tick(),
        ]
        .into_iter()
        .flatten();
        let Some(next) = next.min() else {
            return EpollTimeout::NONE;
        };
        let left = Duration::from_nanos(next.saturating_sub(self.now()));
        EpollTimeout::try_from(clock::milliseconds(left)).unwrap_or(EpollTimeout::ZERO)
    }

    /// Removes the socket's path, and closes all connections: the agent exits.
    fn shut_down(&mut self) {
        self.entrance.remove();
        self.clients.shut_down();
        self.links.shut_down();
        self.devices.shut_down();
    }

    /// Removes the socket's path unless a process connects at the last moment. Returns whether the agent is
    /// to exit.
    fn try_to_leave(&mut self) -> Result<bool, Error> {
        self.accept(TURN_MAX);
        self.run_until_settled();
        if !self.clients.is_empty() {
            return Ok(false);
        }
        if !self.entrance.shut() {
            return Ok(true);
        }
        // A process that finds the listener shut down starts another agent. One that was accepted before must
        // not be left between two agents: either this agent stays, or the process is dropped and retries.
        self.accept(usize::MAX);
        self.run_until_settled();
        if self.clients.is_empty() {
            self.context
                .log
                .info("socket", format_args!("idle, leaving"));
            self.entrance.remove();
            return Ok(true);
        }
        self.entrance.reopen(&self.context)?;
        Ok(false)
    }

    /// Reads signals. Returns whether one of them asks the agent to exit; SIGCHLD reaps children.
    fn take_signals(&mut self) -> bool {
        let mut leave = false;
        while let Ok(Some(signal)) = self.signals.read_signal() {
            leave |= signal.ssi_signo != Signal::SIGCHLD as u32;
        }
        self.reap_children();
        leave
    }

    /// Reaps children that have exited. One held by a debugger is reaped when it is released: the kernel then
    /// sends another SIGCHLD.
    fn reap_children(&mut self) {
        let any = Pid::from_raw(-1);
        while let Ok(status) = waitpid(any, Some(WaitPidFlag::WNOHANG)) {
            let (pid, how) = match status {
                WaitStatus::Exited(pid, NOT_EXECUTED) => {
                    let how = "its program could not be executed by that user";
                    (pid.as_raw(), how.to_owned())
                }
                WaitStatus::Exited(pid, code) => (pid.as_raw(), format!("exit status {code}")),
                WaitStatus::Signaled(pid, signal, _) => {
                    (pid.as_raw(), format!("killed by {signal}"))
                }
                _ => return,
            };
            if !self.devices.reaped(&self.context, pid, &how) {
                self.clients.reaped(&self.context, pid, &how);
            }
        }
    }

    fn accept(&mut self, most: usize) {
        for _ in 0..most {
            match self.entrance.accept(&self.context) {
                Some(socket) => self.admit(socket),
                None => return,
            }
        }
    }

    fn admit(&mut self, socket: OwnedFd) {
        let log = self.context.log;
        let who: UnixCredentials = match getsockopt(&socket, sockopt::PeerCredentials) {
            Ok(who) => who,
            Err(cause) => {
                return log.warn("client", format_args!("no credentials: {cause}"));
            }
        };
        let (uid, pid) = (who.uid(), who.pid());
        if self.only_user.is_some_and(|only| only != uid) {
            log.warn("client", format_args!("refused pid {pid} of user {uid}"));
            return self.clients.discard(&self.context, uid, socket);
        }
        let client = self.clients.fresh_id();
        let known_pid = u32::try_from(pid).unwrap_or(0);
        if let Err(cause) = self
            .agent
            .handle_connect(self.now(), client, uid, known_pid)
        {
            if let Some(rejection) = cause.rejection() {
                let _ = packet::send(socket.as_fd(), &rejection, &[]);
            }
            log.warn("client", format_args!("refused pid {pid}: {cause}"));
            return self.clients.discard(&self.context, uid, socket);
        }
        packet::allow_descriptors(socket.as_fd(), true);
        let (pidfd, gone) = match watch(socket.as_fd(), pid) {
            Watch::Pidfd(pidfd) => (Some(pidfd), false),
            Watch::Gone => (None, true),
            Watch::SocketOnly => {
                log.info(
                    "client",
                    format_args!("pid {pid} cannot be watched, only its socket"),
                );
                (None, false)
            }
        };
        let session = Session::new(socket, pidfd, pid, uid);
        if let Err(cause) = self.clients.insert(&self.context, client, session) {
            log.warn("client", format_args!("pid {pid}: {cause}"));
            return self.agent.handle_hangup(self.now(), client);
        }
        log.info(
            "client",
            format_args!("client {} is pid {pid} of user {uid}", client.0),
        );
        if gone {
            self.clients
                .mark_dying(&self.context, client, "process ended");
        }
    }

    /// Reads packets of a process and carries out the outputs of each.
    fn socket_ready(&mut self, client: ClientId, events: EpollFlags) {
        if !self.clients.ready(&self.context, client, events) {
            return;
        }
        let mut buffer = [0; PACKET_BYTES];
        for _ in 0..TURN_MAX {
            match self.clients.receive(&self.context, client, &mut buffer) {
                Some(length) => self.deliver(client, &buffer[..length], Some(Vec::new())),
                None => return,
            }
        }
    }

    /// Handles the answers of a helper.
    fn helper_ready(&mut self, uid: u32) {
        for _ in 0..TURN_MAX {
            let Some(message) = self.clients.helper_message(&self.context, uid) else {
                return;
            };
            let client = message.client;
            let Some(bytes) = message.bytes.filter(|_| self.clients.get(client).is_some()) else {
                continue;
            };
            if message.fds.is_none() {
                self.context.log.debug(
                    "client",
                    format_args!(
                        "client {}: descriptors that are neither sealed memory nor an eventfd nor UDP, or too many",
                        client.0
                    ),
                );
            }
            self.deliver(client, &bytes, message.fds);
        }
    }

    /// Passes a packet to the logic. `fds` is `None` if the descriptors were rejected.
    fn deliver(&mut self, client: ClientId, bytes: &[u8], fds: Option<Vec<SharedFd>>) {
        let now = self.now();
        let result = match fds {
            Some(fds) => self.agent.handle_message(now, client, bytes, fds),
            None => Err(self.agent.handle_garbled(now, client, bytes)),
        };
        if let Err(cause) = result {
            self.context
                .log
                .debug("client", format_args!("client {}: {cause}", client.0));
        }
        self.run_outputs();
    }

    /// Removes a process that has ended, as far as its user's share of this pass allows.
    fn remove(&mut self, client: ClientId) {
        let mut buffer = [0; PACKET_BYTES];
        loop {
            match self.clients.remove(&self.context, client, &mut buffer) {
                Removal::Packet(length) => {
                    self.deliver(client, &buffer[..length], Some(Vec::new()));
                }
                Removal::Postponed => return,
                Removal::Done => return self.agent.handle_hangup(self.now(), client),
            }
        }
    }

    /// Carries out outputs and removes processes until neither is left.
    fn run_until_settled(&mut self) {
        self.run_outputs();
        loop {
            while let Some(client) = self.clients.next_dying() {
                self.remove(client);
                self.run_outputs();
            }
            if !self.clients.tick(&self.context) {
                return;
            }
        }
    }

    fn run_outputs(&mut self) {
        while let Some(output) = self.agent.poll_output() {
            match output {
                Output::Send(message) => self.clients.send(&self.context, message),
                Output::OpenLink(open) => self.open_link(&open),
                Output::AdoptLink(adopt) => self.adopt_link(adopt),
                Output::AskLink(open) => self.ask_link(&open),
                Output::OpenDevice(open) => {
                    let result = self.reach_device(&open);
                    self.agent.handle_device_opened(self.now(), &open, result);
                }
                Output::Frame(frame) => self.send_frame(&frame),
                Output::CloseLink(link) => self.links.close_later(link, self.now()),
                Output::Note(line) => self.context.log.debug("cm", format_args!("{line}")),
                Output::Join(join) => self.join(join),
            }
        }
    }

    fn join(&mut self, join: Join<SharedFd>) {
        match segment::create(join.segment_bytes) {
            Ok(segment) => {
                for message in join.with_segment(Rc::new(Held::own(segment))) {
                    self.clients.send(&self.context, message);
                }
            }
            Err(cause) => {
                let bytes = join.segment_bytes;
                self.context
                    .log
                    .warn("segment", format_args!("bytes {bytes}: {cause}"));
                self.agent.handle_join_failed(self.now(), &join);
            }
        }
    }

    /// Connects a process to a device, which is started if it does not run.
    fn reach_device(&mut self, open: &OpenDevice) -> Result<(u32, SharedFd), Status> {
        let introduced = self.devices.find(open).map(|device| {
            (
                device,
                self.devices.introduce(device, open, self.context.log),
            )
        });
        let (pid, socket) = match introduced {
            Some((device, Err(Status::NOT_REACHABLE))) => {
                self.devices.end(&self.context, device);
                self.start_device(open)?
            }
            Some((_, result)) => result?,
            None => self.start_device(open)?,
        };
        Ok((pid, self.clients.share(open.uid, socket)))
    }

    fn start_device(&mut self, open: &OpenDevice) -> Result<(u32, OwnedFd), Status> {
        let session = self.clients.get(open.client).ok_or(Status::RESOURCE)?;
        let device = self
            .devices
            .start(&self.context, open, session.socket.as_fd())?;
        self.devices.introduce(device, open, self.context.log)
    }
}
