//! The process's side of the Kernel Agent: finding or starting it, calls, replies, events.
//!
//! One socket per process and one thread that reads it. A call waits for its reply on a ticket; a
//! connection that comes about is attached by the reading thread itself, so that nothing which the agent
//! says later about it can arrive before the VI is ready.

use std::collections::HashMap;
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::sync::{Condvar, Mutex};
use kagent_proto::*;
use nix::sys::socket::{ControlMessage, ControlMessageOwned, MsgFlags, UnixAddr, recvmsg, sendmsg};
use vipl_plugin_abi::vipl_nic_info;
use zerocopy::{FromBytes, Immutable, IntoBytes};

use crate::connection::Attempt;
use crate::error::Error;
use crate::process::Process;
use crate::table::Slot;
use crate::vi::Vi;

mod launch;

pub(crate) use launch::library_path;

/// How often the agent is greeted anew.
const HELLO_TRIES: usize = 5;

/// What the agent said to a call.
pub(crate) struct Reply {
    pub(crate) op: Op,
    pub(crate) status: Status,
    body: Vec<u8>,
    pub(crate) fds: Vec<OwnedFd>,
}

impl Reply {
    /// The body, if it is of this kind.
    pub(crate) fn body<B: FromBytes>(&self) -> Option<B> {
        B::read_from_bytes(&self.body).ok()
    }

    fn failed(status: Status) -> Reply {
        Reply {
            op: Op::DONE,
            status,
            body: Vec::new(),
            fds: Vec::new(),
        }
    }
}

/// A place where one result will be.
pub(crate) struct Ticket<T> {
    result: Mutex<Outcome<T>>,
    ready: Condvar,
}

/// A result is given once.
enum Outcome<T> {
    Open,
    Ready(T),
    Taken,
}

impl<T> Ticket<T> {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Ticket {
            result: Mutex::new(Outcome::Open),
            ready: Condvar::new(),
        })
    }

    pub(crate) fn complete(&self, result: T) {
        let mut outcome = self.result.lock();
        if matches!(*outcome, Outcome::Open) {
            *outcome = Outcome::Ready(result);
        }
        self.ready.notify_all();
    }

    /// The result, if it is there. An error: somebody else has taken it.
    pub(crate) fn try_take(&self) -> Result<Option<T>, Error> {
        let mut outcome = self.result.lock();
        if matches!(*outcome, Outcome::Open) {
            return Ok(None);
        }
        match std::mem::replace(&mut *outcome, Outcome::Taken) {
            Outcome::Ready(result) => {
                self.ready.notify_all();
                Ok(Some(result))
            }
            _ => Err(Error::State),
        }
    }

    /// Waits for the result. An error: somebody else has taken it.
    pub(crate) fn wait(&self) -> Result<T, Error> {
        loop {
            if let Some(result) = self.try_take()? {
                return Ok(result);
            }
            let mut outcome = self.result.lock();
            if matches!(*outcome, Outcome::Open) {
                self.ready.wait(&mut outcome);
            }
        }
    }
}

enum Call {
    Reply(Arc<Ticket<Reply>>),
    Connect(Attempt),
}

/// The connection to one agent.
pub(crate) struct Agent {
    socket: OwnedFd,
    calls: Mutex<HashMap<u64, Call>>,
    last_call: AtomicU64,
    connections: Mutex<HashMap<u64, (&'static Slot<Vi>, u32)>>,
    dead: AtomicBool,
}

/// The agent of this process, connected when it is first needed.
#[derive(Default)]
pub(crate) struct Agents(Mutex<Option<Arc<Agent>>>);

impl Agents {
    /// The agent, found or started.
    pub(crate) fn get(&self, process: &'static Process) -> Result<Arc<Agent>, Error> {
        let mut current = self.0.lock();
        if let Some(agent) = &*current
            && !agent.dead.load(Ordering::Acquire)
        {
            return Ok(agent.clone());
        }
        // An agent that is about to leave may still take the connection: then there soon is another.
        let mut agent = Err(Introduction::Dropped);
        for _ in 0..HELLO_TRIES {
            agent = Agent::introduce(process);
            if !matches!(agent, Err(Introduction::Dropped)) {
                break;
            }
        }
        let agent = agent.map_err(|why| {
            if matches!(why, Introduction::Dropped) {
                log::error!(target: "agent", "the Kernel Agent hangs up at once; it may have reached its limits");
            }
            Error::Resource
        })?;
        *current = Some(agent.clone());
        Ok(agent)
    }
}

/// Why there is no agent.
enum Introduction {
    /// It went away before it answered.
    Dropped,
    /// Somebody has been told why.
    Refused,
}

impl Agent {
    /// Connects, starts the reading thread, and says hello.
    fn introduce(process: &'static Process) -> Result<Arc<Agent>, Introduction> {
        let socket = launch::connect(&process.settings).map_err(|error| {
            log::error!(target: "agent", "{error}");
            Introduction::Refused
        })?;
        let agent = Arc::new(Agent {
            socket,
            calls: Mutex::default(),
            last_call: AtomicU64::new(0),
            connections: Mutex::default(),
            dead: AtomicBool::new(false),
        });
        let reader = agent.clone();
        crate::start::thread("vipl-agent", move || reader.read()).map_err(|error| {
            log::error!(target: "agent", "cannot start a thread: {error}");
            Introduction::Refused
        })?;
        let welcome = agent.call(Op::HELLO, &Hello { features: 0 }, &[]);
        let welcome = welcome.map_err(|_| Introduction::Dropped)?;
        if welcome.op != Op::WELCOME && agent.dead.load(Ordering::Acquire) {
            return Err(Introduction::Dropped);
        }
        if welcome.op != Op::WELCOME || welcome.status != Status::OK {
            log::error!(
                target: "agent",
                "the running Kernel Agent speaks another protocol; end it (pkill vipkad) and try again"
            );
            agent.dead.store(true, Ordering::Release);
            return Err(Introduction::Refused);
        }
        launch::say_goodbye_at_exit(agent.socket.as_raw_fd());
        Ok(agent)
    }

    /// Sends a call and waits for its reply.
    pub(crate) fn call<B>(&self, op: Op, body: &B, fds: &[RawFd]) -> Result<Reply, Error>
    where
        B: IntoBytes + Immutable,
    {
        let ticket = Ticket::new();
        let id = self.next_id();
        self.start(id, Call::Reply(ticket.clone()), op, body, fds)?;
        ticket.wait()
    }

    /// A number for the next call.
    pub(crate) fn next_id(&self) -> u64 {
        self.last_call.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Starts an attempt to connect a VI; the result goes to the attempt.
    pub(crate) fn connect<B>(
        &self,
        id: u64,
        attempt: Attempt,
        op: Op,
        body: &B,
    ) -> Result<(), Error>
    where
        B: IntoBytes + Immutable,
    {
        self.start(id, Call::Connect(attempt), op, body, &[])
    }

    /// Sends a call whose reply nobody waits for.
    pub(crate) fn tell<B: IntoBytes + Immutable>(&self, op: Op, body: &B) {
        let _ = self.send(self.next_id(), op, body.as_bytes(), &[]);
    }

    fn start<B>(&self, id: u64, call: Call, op: Op, body: &B, fds: &[RawFd]) -> Result<(), Error>
    where
        B: IntoBytes + Immutable,
    {
        self.calls.lock().insert(id, call);
        if self.dead.load(Ordering::Acquire) || self.send(id, op, body.as_bytes(), fds).is_err() {
            self.calls.lock().remove(&id);
            log::warn!(target: "agent", "the Kernel Agent has gone");
            return Err(Error::Resource);
        }
        Ok(())
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
        let parts = [IoSlice::new(header.as_bytes()), IoSlice::new(body)];
        let rights = [ControlMessage::ScmRights(fds)];
        let control: &[ControlMessage<'_>] = if fds.is_empty() { &[] } else { &rights };
        loop {
            let flags = MsgFlags::MSG_NOSIGNAL;
            match sendmsg::<UnixAddr>(self.socket.as_raw_fd(), &parts, control, flags, None) {
                Ok(_) => return Ok(()),
                Err(nix::Error::EINTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Remembers which VI a connection belongs to.
    pub(crate) fn connected(&self, connection: u64, slot: &'static Slot<Vi>, generation: u32) {
        self.connections
            .lock()
            .insert(connection, (slot, generation));
    }

    /// Ends a connection at the agent.
    pub(crate) fn disconnect(&self, connection: u64) {
        self.connections.lock().remove(&connection);
        self.tell(Op::DISCONNECT, &ConnectionRef { connection });
    }

    /// Registers an opened NIC.
    pub(crate) fn open_nic(
        self: &Arc<Self>,
        provider: &str,
        info: &vipl_nic_info,
    ) -> Result<NicRegistration, Error> {
        let mut body = NicOpen {
            provider: [0; PROVIDER_BYTES],
            host_len: info.address_len,
            reserved: [0; 3],
            host: info.address,
            link: info.link,
        };
        let name = provider.as_bytes();
        let kept = name.len().min(PROVIDER_BYTES - 1);
        body.provider[..kept].copy_from_slice(&name[..kept]);
        let fds: Vec<RawFd> = info.shared_fds.into_iter().filter(|fd| *fd >= 0).collect();
        let reply = self.call(Op::NIC_OPEN, &body, &fds)?;
        let opened: NicOpened = match reply.status {
            Status::OK => reply.body().ok_or(Error::Resource)?,
            _ => return Err(Error::Resource),
        };
        Ok(NicRegistration {
            agent: self.clone(),
            nic: opened.nic,
        })
    }

    /// The reading thread.
    fn read(&self) {
        let mut buffer = [0u8; MESSAGE_BYTES_MAX];
        while let Some((length, fds)) = self.receive(&mut buffer) {
            self.dispatch(&buffer[..length], fds);
        }
        self.dead.store(true, Ordering::Release);
        let calls = std::mem::take(&mut *self.calls.lock());
        for call in calls.into_values() {
            finish(self, call, Reply::failed(Status::RESOURCE));
        }
    }

    fn receive(&self, buffer: &mut [u8]) -> Option<(usize, Vec<OwnedFd>)> {
        loop {
            let mut parts = [IoSliceMut::new(buffer)];
            let mut control = nix::cmsg_space!([RawFd; FDS_MAX]);
            let flags = MsgFlags::MSG_CMSG_CLOEXEC;
            let raw = self.socket.as_raw_fd();
            match recvmsg::<UnixAddr>(raw, &mut parts, Some(&mut control), flags) {
                Ok(message) if message.bytes == 0 => return None,
                Ok(message) => {
                    let mut fds = Vec::new();
                    for part in message.cmsgs().into_iter().flatten() {
                        if let ControlMessageOwned::ScmRights(received) = part {
                            // SAFETY: the kernel has just given them to us.
                            fds.extend(
                                received
                                    .into_iter()
                                    .map(|fd| unsafe { OwnedFd::from_raw_fd(fd) }),
                            );
                        }
                    }
                    return Some((message.bytes, fds));
                }
                Err(nix::Error::EINTR) => {}
                Err(_) => return None,
            }
        }
    }

    fn dispatch(&self, message: &[u8], fds: Vec<OwnedFd>) {
        let Ok((header, body)) = Header::read_from_prefix(message) else {
            return;
        };
        if header.magic != MAGIC {
            return;
        }
        if header.length as usize != body.len() {
            log::error!(target: "agent", "the Kernel Agent sent a garbled message");
            let call = self.calls.lock().remove(&header.id);
            if let Some(call) = call {
                finish(self, call, Reply::failed(Status::RESOURCE));
            }
            return;
        }
        let op = Op(header.op);
        if op == Op::PARTNER_GONE {
            if let Ok(gone) = PartnerGone::read_from_bytes(body) {
                self.partner_gone(&gone);
            }
            return;
        }
        let call = self.calls.lock().remove(&header.id);
        if let Some(call) = call {
            let status = Status(header.status);
            finish(
                self,
                call,
                Reply {
                    op,
                    status,
                    body: body.to_vec(),
                    fds,
                },
            );
        }
    }

    fn partner_gone(&self, gone: &PartnerGone) {
        let found = self.connections.lock().get(&gone.connection).copied();
        if let Some(mut vi) = found.and_then(|(slot, generation)| slot.lock(generation)) {
            vi.partner_gone(gone.connection, gone.orderly != 0);
        }
    }
}

fn finish(agent: &Agent, call: Call, reply: Reply) {
    match call {
        Call::Reply(ticket) => ticket.complete(reply),
        Call::Connect(attempt) => attempt.finish(agent, reply),
    }
}

/// A NIC as the agent knows it.
pub(crate) struct NicRegistration {
    pub(crate) agent: Arc<Agent>,
    pub(crate) nic: u64,
}

impl NicRegistration {
    /// The NIC is closed: waits end, unanswered requests are rejected.
    pub(crate) fn close(&self) {
        let _ = self
            .agent
            .call(Op::NIC_CLOSE, &NicClose { nic: self.nic }, &[]);
    }
}
