//! The connection to one agent: calls, replies and events.
//!
//! Each process has one socket and, while it uses it, one thread that reads it (`reader.rs`). A caller waits
//! for its reply on a ticket, or the reading thread runs a continuation: it attaches a VI to its connection
//! before it reads any later message about that connection.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;
use vipl_sys::clock::Instant;
use vipl_sys::thread::Thread;

use kagent_proto::*;
use nix::sys::socket::{MsgFlags, Shutdown, recv, shutdown};
use vipl_sys::fd::{Kept, made};
use zerocopy::{FromBytes, Immutable, IntoBytes};

use super::launch;
use super::outbox::Outbox;
use super::ticket::Ticket;
use crate::settings::Settings;
use crate::sync::{Mutex, OnceLock};

/// Synthetic status: the agent closed the connection before it replied. Never sent.
pub(crate) const GONE: Status = Status(u32::MAX);
/// Synthetic status: the agent received the call and did not reply in time. Never sent.
const SILENT: Status = Status(u32::MAX - 1);
/// Time limit for replies that do not depend on other processes; generous, for loaded machines.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(30);
/// Time limit while the agent has not sent anything since a call reached [`ANSWER_TIME_MAX`].
const SILENT_TIME_MAX: Duration = Duration::from_secs(1);
/// The agent ends a call at its deadline, with the reason. If there is no reply, the library ends it this
/// much later (rule R7 allows 50 ms).
const MARGIN: Duration = Duration::from_millis(25);

/// The reply to a call.
pub(crate) struct Reply {
    /// The number of the call.
    pub(crate) id: u64,
    pub(crate) op: Op,
    pub(crate) status: Status,
    pub(super) body: Vec<u8>,
    pub(crate) fds: Vec<OwnedFd>,
}

impl Reply {
    /// The body, if it has this type.
    pub(crate) fn body<B: FromBytes>(&self) -> Option<B> {
        B::read_from_bytes(&self.body).ok()
    }

    pub(crate) fn failed(status: Status) -> Reply {
        Reply {
            id: 0,
            op: Op::DONE,
            status,
            body: Vec::new(),
            fds: Vec::new(),
        }
    }
}

/// Process id of an agent; 0: it is in another process namespace.
fn process_of(socket: &Kept) -> libc::pid_t {
    let peer = nix::sys::socket::getsockopt(socket, nix::sys::socket::sockopt::PeerCredentials);
    peer.map_or(0, |peer| peer.pid())
}

/// Inode of a process's mount namespace; 0: unknown.
fn mounts_of(process: &str) -> u32 {
    let namespace = std::fs::metadata(format!("/proc/{process}/ns/mnt"));
    namespace.map_or(0, |file| u32::try_from(file.ino()).unwrap_or(0))
}

/// Whether a process has a seccomp filter.
fn is_filtered(process: &str) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    let mode = status
        .lines()
        .find_map(|line| line.strip_prefix("Seccomp:"));
    mode.is_some_and(|mode| mode.trim() != "0")
}

/// Restrictions of the agent that this program does not have, as reported by the agent or shown by the
/// system.
fn runs_with(pid: libc::pid_t, welcome: Option<&Welcome>) -> String {
    let shown = || {
        let process = pid.to_string();
        let bits = match is_filtered(&process) {
            true => Welcome::SECCOMP,
            false => 0,
        };
        (bits, mounts_of(&process))
    };
    let (bits, mounts) = welcome.map_or_else(shown, |shown| (shown.surroundings, shown.mounts));
    let ours = mounts_of("self");
    let mut all = Vec::new();
    if bits & Welcome::SECCOMP != 0 && !is_filtered("self") {
        all.push("a seccomp filter");
    }
    if mounts != 0 && ours != 0 && mounts != ours {
        all.push("another mount namespace than this program");
    }
    if bits & Welcome::NO_PROC != 0 {
        all.push("no /proc");
    }
    all.join(" and ")
}

/// The description of an agent in log lines: its process id, its executable if that can be read, and
/// inherited restrictions.
fn describe(socket: &Kept, welcome: Option<&Welcome>) -> String {
    let pid = process_of(socket);
    let text = |bytes: &[u8]| {
        let used = bytes.iter().take_while(|byte| **byte != 0).count();
        String::from_utf8_lossy(&bytes[..used]).into_owned()
    };
    let shown = welcome.map(|shown| (text(&shown.program), text(&shown.version)));
    let described = match shown.filter(|(program, _)| !program.is_empty()) {
        Some((program, version)) => format!("process {pid} ({program}, version {version})"),
        None => std::fs::read_link(format!("/proc/{pid}/exe")).map_or_else(
            |_| format!("process {pid}"),
            |path| format!("process {pid} ({})", path.display()),
        ),
    };
    match &*runs_with(pid, welcome) {
        "" => described,
        inherited => format!("{described}, which runs with {inherited}"),
    }
}

/// Advice about an agent of another version, which other processes may be using.
fn another_protocol(socket: &Kept) -> String {
    let pid = process_of(socket);
    let path = std::fs::read_link(format!("/proc/{pid}/exe"));
    let path = path.map_or_else(
        |_| "of unknown path".to_owned(),
        |path| path.display().to_string(),
    );
    format!(
        "the running Kernel Agent, process {pid} ({path}), has another version than this library and uses another protocol. It exits when its programs have exited; or run `kill {pid}`, or set VIPL_AGENT to an agent of this version"
    )
}

/// The time at which the library itself gives a call up.
pub(crate) fn limit(deadline: Option<Instant>) -> Option<Instant> {
    deadline.map(|deadline| deadline + MARGIN)
}

/// A function that runs on the reading thread with the reply.
pub(super) type Continuation = Box<dyn FnOnce(&Arc<Agent>, Reply) + Send>;

/// Identifies one side of one connection; it does not change with the agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Side {
    /// The connection's key.
    pub(crate) key: u64,
    /// The side, 0 or 1.
    pub(crate) side: u32,
}

/// The VI of a connection, and the function that runs when the peer disconnects or exits.
#[derive(Clone, Copy)]
pub(crate) struct Owner {
    pub(crate) side: Side,
    /// Handle of the VI.
    pub(crate) vi: usize,
    /// Runs on the reading thread; the last argument is true if the peer has disconnected.
    pub(crate) peer_gone: fn(vi: usize, side: Side, orderly: bool),
}

/// The connection to one agent.
pub(crate) struct Agent {
    pub(super) socket: Kept,
    pub(super) outbox: Outbox,
    pub(super) calls: Mutex<BTreeMap<u64, Continuation>>,
    /// Number of the agent in this process, to distinguish identifiers of different agents.
    epoch: u64,
    pub(super) connections: Mutex<BTreeMap<u64, Owner>>,
    /// Its network namespace; 0: unknown.
    network: AtomicU32,
    /// For log lines.
    description: OnceLock<String>,
    pub(super) dead: AtomicBool,
    /// Whether the application has closed the socket.
    was_closed_here: AtomicBool,
    /// Whether a call has reached its limit, and nothing has been received since.
    pub(super) silent: AtomicBool,
}

/// Why there is no agent.
pub(super) enum Introduction {
    /// It closed the connection before it replied. The text describes it.
    Dropped(String),
    /// It refused, for the reason in the text.
    Refused(String),
}

impl Agent {
    /// Connects, starts the reading thread by `read`, and sends HELLO.
    pub(super) fn introduce(
        settings: &Settings,
        read: impl FnOnce(&Arc<Agent>) -> io::Result<Thread>,
    ) -> Result<(Arc<Agent>, Thread), Introduction> {
        static EPOCH: AtomicU64 = AtomicU64::new(0);
        let socket =
            launch::connect(settings).map_err(|error| Introduction::Refused(error.to_string()))?;
        let agent = Arc::new(Agent {
            socket: Kept::new(socket),
            outbox: Outbox::default(),
            calls: Mutex::default(),
            epoch: EPOCH.fetch_add(1, Ordering::Relaxed),
            connections: Mutex::default(),
            network: AtomicU32::new(0),
            description: OnceLock::new(),
            dead: AtomicBool::new(false),
            was_closed_here: AtomicBool::new(false),
            silent: AtomicBool::new(false),
        });
        let thread = read(&agent)
            .map_err(|error| Introduction::Refused(format!("cannot start a thread: {error}")))?;
        let hello = Hello {
            features: Hello::WAITED,
        };
        let welcome = agent.call(Op::HELLO, &hello, &[]);
        if welcome.status == GONE {
            return Err(Introduction::Dropped(agent.description()));
        }
        if welcome.status == SILENT {
            let _ = shutdown(agent.socket.number(), Shutdown::Both);
            return Err(Introduction::Refused(format!(
                "the Kernel Agent does not answer: {}",
                agent.silence(ANSWER_TIME_MAX)
            )));
        }
        if welcome.op != Op::WELCOME || welcome.status != Status::OK {
            // Ends the reading thread.
            let _ = shutdown(agent.socket.number(), Shutdown::Both);
            return Err(Introduction::Refused(another_protocol(&agent.socket)));
        }
        let shown = Welcome::read(&welcome.body);
        agent.network.store(shown.network, Ordering::Relaxed);
        let _ = agent.description.set(describe(&agent.socket, Some(&shown)));
        let version = env!("CARGO_PKG_VERSION").as_bytes();
        let theirs = shown.version.iter().copied().take_while(|byte| *byte != 0);
        if shown.version[0] != 0 && !theirs.eq(version.iter().copied()) {
            log::info!(
                target: "agent",
                "the Kernel Agent has another version than this library ({}): {}",
                env!("CARGO_PKG_VERSION"),
                agent.description()
            );
        }
        launch::say_goodbye_at_exit(agent.socket.number());
        Ok((agent, thread))
    }

    /// Whether the agent still runs; for use while no thread reads its messages.
    pub(super) fn is_connected(&self) -> bool {
        let flags = MsgFlags::MSG_PEEK | MsgFlags::MSG_DONTWAIT;
        match self.socket.fd().map(|fd| recv(fd, &mut [0], flags)) {
            Ok(Ok(bytes)) => bytes > 0,
            Ok(Err(error)) => error == nix::Error::EAGAIN,
            Err(_) => false,
        }
    }

    /// Sends a call that the agent answers by itself, and waits for its reply, whose status is [`GONE`] if the agent
    /// exits first.
    pub(crate) fn call<B>(self: &Arc<Self>, op: Op, body: &B, fds: &[RawFd]) -> Reply
    where
        B: IntoBytes + Immutable,
    {
        self.call_then(op, body, fds, || {})
    }

    /// The same; `then` runs on the reading thread with the reply, unless it arrives too late.
    pub(super) fn call_then<B>(
        self: &Arc<Self>,
        op: Op,
        body: &B,
        fds: &[RawFd],
        then: impl FnOnce() + Send + 'static,
    ) -> Reply
    where
        B: IntoBytes + Immutable,
    {
        let ticket = Ticket::new();
        let answered = ticket.clone();
        let id = Self::next_id();
        self.start(id, op, body, fds, move |_, reply| {
            then();
            answered.complete(reply);
        });
        let asked = Instant::now();
        match ticket.wait_until(asked + self.patience()) {
            Ok(Some(reply)) => reply,
            Ok(None) => {
                self.give_up(id);
                self.log_silence(op, asked.elapsed());
                Reply::failed(SILENT)
            }
            Err(_) => Reply::failed(GONE),
        }
    }

    /// Withdraws a call, unless its reply has arrived.
    pub(super) fn withdraw(&self, call: u64) -> bool {
        let waits = self.calls.lock().remove(&call).is_some();
        if waits {
            self.cancel(call);
        }
        waits
    }

    /// Notifies the agent that no thread waits for this call any more.
    pub(crate) fn cancel(&self, call: u64) {
        if !self.outbox.withdraw(call) {
            self.notify(Op::CANCEL, &Cancel { call });
        }
    }

    /// Withdraws an attempt to connect whose caller returns without a reply. If it was sent, its continuation
    /// undoes the connection that the agent may have made.
    pub(crate) fn take_back(&self, call: u64) {
        if self.outbox.withdraw(call) {
            self.calls.lock().remove(&call);
        } else {
            self.notify(Op::CANCEL, &Cancel { call });
        }
    }

    /// No thread waits for this call any more. What its late reply opens is closed.
    fn give_up(&self, id: u64) {
        let mut calls = self.calls.lock();
        if self.outbox.withdraw(id) {
            calls.remove(&id);
        } else if let Some(then) = calls.get_mut(&id) {
            *then = Box::new(|agent, reply| {
                if let (Op::NIC_OPENED, Some(NicOpened { nic })) = (reply.op, reply.body()) {
                    agent.notify(Op::NIC_CLOSE, &NicClose { nic });
                }
            });
        }
    }

    /// Time limit of a call whose reply does not depend on other processes.
    pub(crate) fn patience(&self) -> Duration {
        match self.silent.load(Ordering::Relaxed) {
            false => ANSWER_TIME_MAX,
            true => SILENT_TIME_MAX,
        }
    }

    /// Logs that a call has reached the time limit for replies.
    pub(crate) fn log_silence(&self, op: Op, waited: Duration) {
        let again = self.silent.swap(true, Ordering::Relaxed);
        if op != Op::HELLO && !again {
            log::error!(target: "agent", "the Kernel Agent does not answer: {}", self.silence(waited));
        }
    }

    /// Logs that the agent did not reply at the deadline of the application's call.
    pub(crate) fn log_late(&self) {
        log::info!(
            target: "agent",
            "the Kernel Agent, {}, has not replied within the time of a call; it may be stopped",
            self.description()
        );
    }

    /// The description for log lines.
    pub(crate) fn description(&self) -> String {
        let known = self.description.get().cloned();
        known.unwrap_or_else(|| describe(&self.socket, None))
    }

    /// The owner: the system, or a user.
    pub(crate) fn owner(&self) -> String {
        use nix::sys::socket::{UnixAddr, getpeername, getsockopt, sockopt};
        let place = getpeername::<UnixAddr>(self.socket.as_fd().as_raw_fd());
        let is_system = place.is_ok_and(|place| place.path() == Some(SYSTEM_SOCKET.as_ref()));
        let user = getsockopt(&self.socket, sockopt::PeerCredentials).map(|peer| peer.uid());
        match user {
            _ if is_system => "the system's, for all users".to_owned(),
            Ok(user) if user == nix::unistd::getuid().as_raw() => "this user's own".to_owned(),
            Ok(user) => format!("of user {user}"),
            Err(_) => "of an unknown user".to_owned(),
        }
    }

    /// Advice about an agent that does not reply.
    fn silence(&self, waited: Duration) -> String {
        format!(
            "{} has not replied for {} s; it is stopped (`kill -CONT` resumes it) or hangs (kill it, and another one takes over)",
            self.description(),
            waited.as_secs()
        )
    }

    /// A number for the next call, unique in this process for all agents.
    pub(crate) fn next_id() -> u64 {
        static LAST: AtomicU64 = AtomicU64::new(0);
        LAST.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Whether the agent has closed the connection.
    pub(crate) fn is_dead(&self) -> bool {
        self.dead.load(Ordering::Acquire)
    }

    /// Whether its process has exited, as far as this process can see.
    pub(super) fn has_exited(&self) -> bool {
        /// Time between closing its sockets and its exit.
        const MOMENT: Duration = Duration::from_millis(200);
        if self.was_closed_here.load(Ordering::Relaxed) {
            return false;
        }
        let pid = process_of(&self.socket);
        // SAFETY: makes a descriptor for a process, or fails.
        let process = unsafe { made(libc::syscall(libc::SYS_pidfd_open, pid, 0) as RawFd) };
        let Ok(process) = process else {
            return true;
        };
        let mut ends = [libc::pollfd {
            fd: process.as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        }];
        vipl_sys::clock::poll(&mut ends, Some(MOMENT)) != 0
    }

    /// Inode of its network namespace; 0: not reported.
    pub(crate) fn network(&self) -> u32 {
        self.network.load(Ordering::Relaxed)
    }

    /// Makes an identifier of this agent unique among all agents of this process.
    pub(crate) fn unique(&self, name: u64) -> u64 {
        name ^ self.epoch.rotate_right(16)
    }

    /// Sends a call without waiting for the reply.
    pub(crate) fn notify<B: IntoBytes + Immutable>(&self, op: Op, body: &B) {
        let _ = self.send(Self::next_id(), op, body.as_bytes(), &[]);
    }

    /// Sends a call. `then` runs on the reading thread with the reply, or on this one if the call cannot be sent.
    pub(crate) fn start<B>(
        self: &Arc<Self>,
        id: u64,
        op: Op,
        body: &B,
        fds: &[RawFd],
        then: impl FnOnce(&Arc<Agent>, Reply) + Send + 'static,
    ) where
        B: IntoBytes + Immutable,
    {
        self.calls.lock().insert(id, Box::new(then));
        if self.is_dead() || self.send(id, op, body.as_bytes(), fds).is_err() {
            // No effect if the reading thread has just done so.
            self.finish(id, Reply::failed(GONE));
        }
    }

    /// Completes a call, unless it is complete.
    pub(super) fn finish(self: &Arc<Self>, id: u64, reply: Reply) {
        let then = self.calls.lock().remove(&id);
        if let Some(then) = then {
            then(self, reply);
        }
    }

    fn send(&self, id: u64, op: Op, body: &[u8], fds: &[RawFd]) -> io::Result<()> {
        let header = Header {
            magic: MAGIC,
            version: VERSION,
            op: op.0,
            length: body.len() as u32,
            status: 0,
            id,
        };
        let socket = self.socket.fd().inspect_err(|_| self.was_closed())?;
        let sent = self.outbox.send(socket, id, [header.as_bytes(), body], fds);
        sent.inspect_err(|error| {
            // The reading thread reports that the agent has exited.
            let gone = [libc::EPIPE, libc::ECONNRESET, libc::ENOTCONN];
            if !error
                .raw_os_error()
                .is_some_and(|code| gone.contains(&code))
            {
                log::error!(target: "agent", "cannot send to the Kernel Agent: {error}");
            }
        })
    }

    /// Records the owner of a connection.
    pub(crate) fn connected(&self, connection: u64, owner: Owner) {
        self.connections.lock().insert(connection, owner);
    }

    /// Removes a connection that the agent has removed.
    pub(crate) fn forget(&self, connection: u64) {
        self.connections.lock().remove(&connection);
    }

    /// Ends a connection at the agent.
    pub(crate) fn disconnect(&self, connection: u64) {
        self.connections.lock().remove(&connection);
        self.notify(Op::DISCONNECT, &ConnectionRef { connection });
    }

    /// The application has closed the socket: calls end as if the agent had exited. The reading thread still
    /// holds the file; it checks every second.
    #[cold]
    pub(super) fn was_closed(&self) {
        self.was_closed_here.store(true, Ordering::Relaxed);
        if !self.dead.swap(true, Ordering::AcqRel) {
            log::error!(
                target: "agent",
                "the program has closed file descriptor {}, the library's connection to the Kernel Agent: \
                 connections may be lost, and NICs that are open cannot connect; close only descriptors that \
                 the program has opened",
                self.socket.number()
            );
        }
    }
}
