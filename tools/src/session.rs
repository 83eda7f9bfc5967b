//! Two processes that do something together: how they connect, and their requests and answers.
//!
//! ```text
//!   client (measures)                     server (serves)
//!     ask {"op": ...}  ────────────────▶   next_request() ── limits served inside, to own processes
//!                      ◀────────────────   reply {...}
//!     join(vi, channel) ── VipConnect ──   join(vi, channel)
//! ```
//!
//! The client decides which tests there are; the server's loop ends with `{"op":"quit"}` or when the client is
//! gone. A client over a network is a stranger: [`request`](crate::request) has what it may ask for.

#![forbid(unsafe_code)]

use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use vipl_client::{Library, parse_host};

use crate::control::{Control, DOCUMENT_MAX, Patience, SocketControl, ViControl};
use crate::endpoint::{Endpoint, Layout, Vi, ViSpec};
use crate::nic::{Nic, address_text, host_text};
use crate::pin::Pair;
use crate::rendezvous::{CONNECT_MS, Rendezvous, Seat, Side};
use crate::request::{Bounds, Request, number};
use crate::{Error, Result, report, sys};

/// One process's part of the two.
pub struct Session<L = ()> {
    /// The device.
    pub nic: Nic,
    channel: Channel<L>,
    memory: u64,
    side: Side,
    remote_host: Vec<u8>,
    key: Vec<u8>,
    channels: u32,
    child: Option<Child>,
}

/// The channel to the peer. It alone decides which requests the peer may make.
enum Channel<L> {
    /// To a process that this one has started, or that has started it, over a socket pair.
    Own(SocketControl, Box<L>),
    /// To the process that connected.
    Network(ViControl),
}

impl<L> Channel<L> {
    fn control(&mut self) -> &mut dyn Control {
        match self {
            Channel::Own(control, _) => control,
            Channel::Network(control) => control,
        }
    }
}

/// What a process shares with one that it has started, or that has started it.
pub trait Local: Sized {
    /// Bytes of the file that both can map.
    const BYTES: usize;

    /// Sets up this side; `peer` is the other process.
    ///
    /// # Errors
    /// The system refuses.
    fn new(file: &File, peer: u32) -> Result<Self>;

    /// Answers a question that is no request for a test; false if it is one.
    ///
    /// # Errors
    /// The peer has exited, or does not do what it asked for.
    fn serve(&mut self, control: &mut SocketControl, nic: &Nic, question: &Value) -> Result<bool>;
}

/// Nothing but the session.
impl Local for () {
    const BYTES: usize = 0;

    fn new(_file: &File, _peer: u32) -> Result<Self> {
        Ok(())
    }

    fn serve(&mut self, _: &mut SocketControl, _: &Nic, _: &Value) -> Result<bool> {
        Ok(false)
    }
}

/// The error where a peer on this machine is needed.
const NEEDS_SELF: &str = "--limits needs --self: limits are those of one machine";

/// The error of a test that needs both processes on one machine.
#[must_use]
pub fn needs_self() -> Error {
    Error::Usage(NEEDS_SELF.to_owned())
}

/// How a peer process is started: this program with `--peer SOCKET,ARENA`.
pub const PEER_OPTION: &str = "--peer";

const VERSION: &str = env!("CARGO_PKG_VERSION");

impl<L: Local> Session<L> {
    /// Starts this program a second time as the peer, pins both processes unless `cpus` is None, and opens the device in
    /// both. With a network namespace the peer runs in that, as on another host, with an agent of its own.
    ///
    /// # Errors
    /// The peer cannot be started, or a device cannot be opened.
    pub fn with_peer(
        library: &'static Library,
        device: &str,
        cpus: Option<Pair>,
        network: Option<&str>,
    ) -> Result<Self> {
        let file = sys::anonymous_file(L::BYTES)?;
        let (ours, theirs) = UnixStream::pair().map_err(|e| Error::io("socketpair", e))?;
        let child = start_peer(&theirs, &file, network)?;
        drop(theirs);
        // First this process, so that an agent that has to be started is started once.
        let nic = Nic::open(library, device)?;
        let control = SocketControl::new(ours, false)?;
        let key = [b"vipp".as_slice(), &std::process::id().to_ne_bytes()].concat();
        let mut session = Self {
            remote_host: nic.attributes().address.clone(),
            nic,
            channel: Channel::Own(control, Box::new(L::new(&file, child.id())?)),
            memory: u64::MAX,
            side: Side::Driver,
            key,
            channels: 0,
            child: Some(child),
        };
        let hello = json!({"device": device, "cpu": cpus.map(|cpus| cpus.1), "key": session.key});
        let answer = session.ask(&hello)?;
        session.remote_host = bytes_of(&answer["address"]);
        if let Some(cpus) = cpus {
            sys::run_on(cpus.0)?;
        }
        Ok(session)
    }

    /// The peer's side of `with_peer`: `numbers` is what follows `PEER_OPTION`.
    ///
    /// # Errors
    /// Something that the client requested is not available; the error is reported to the client as well.
    pub fn as_peer(numbers: &str, open: impl Fn() -> Result<&'static Library>) -> Result<Self> {
        sys::die_with_parent();
        let bad = || Error::Usage(format!("{PEER_OPTION} is internal"));
        let (socket, file) = numbers.split_once(',').ok_or_else(bad)?;
        let socket = sys::adopt(socket.parse().map_err(|_| bad())?)?;
        let file = File::from(sys::adopt(file.parse().map_err(|_| bad())?)?);
        let mut control = SocketControl::new(UnixStream::from(socket), true)?;
        let hello = control
            .receive()?
            .ok_or_else(|| Error::Peer("gone".to_owned()))?;
        let begin = || {
            let nic = Nic::open(open()?, hello["device"].as_str().unwrap_or_default())?;
            if let Some(cpu) = hello["cpu"].as_u64() {
                sys::run_on(cpu as usize)?;
            }
            Ok((
                nic,
                Box::new(L::new(&file, std::os::unix::process::parent_id())?),
            ))
        };
        match begin() {
            Ok((nic, own)) => {
                control.send(&json!({"address": nic.attributes().address}))?;
                Ok(Self {
                    remote_host: nic.attributes().address.clone(),
                    nic,
                    channel: Channel::Own(control, own),
                    memory: u64::MAX,
                    side: Side::Server,
                    key: bytes_of(&hello["key"]),
                    channels: 0,
                    child: None,
                })
            }
            Err(error) => {
                let error: Error = error;
                control.send(&json!({"error": error.to_string()}))?;
                Err(error)
            }
        }
    }

    /// Connects to a server on `host` that waits on `port`.
    ///
    /// # Errors
    /// The name is unknown, or no process answers.
    pub fn connect(library: &'static Library, device: &str, host: &str, port: u16) -> Result<Self> {
        let nic = Nic::open(library, device)?;
        let remote_host = match parse_host(host) {
            Some(address) => address,
            None => nic.host_by_name(host)?,
        };
        report::note(&format!(
            "connecting to {host} (address {}) on {device}, port {port}; waiting up to {} s for a server ...",
            host_text(nic.attributes(), &remote_host),
            CONNECT_MS / 1000
        ));
        let mut session = Self::over_vi(nic, Side::Driver, remote_host, port, u64::MAX, || {})?;
        let hello = session.ask(&json!({"op": "hello", "version": VERSION}))?;
        session.name(number(&hello, "session", 0..=u64::from(u32::MAX))? as u32);
        Ok(session)
    }

    /// Waits for one client on `port`, and grants it `memory` bytes for each test. Calls `came` when one has connected.
    ///
    /// # Errors
    /// The device cannot be opened, or the connection fails.
    pub fn listen(
        library: &'static Library,
        device: &str,
        port: u16,
        memory: u64,
        came: impl FnOnce(),
    ) -> Result<Self> {
        let nic = Nic::open(library, device)?;
        let address = nic.attributes().address.clone();
        let shown = address_text(nic.attributes());
        report::note(&format!(
            "waiting for a client on {device} (address {shown}), port {port} ..."
        ));
        let mut session = Self::over_vi(nic, Side::Server, address, port, memory, came)?;
        let greeted = match session.next_request() {
            Ok(Some(Request::Hello)) => Ok(()),
            Ok(_) => Err(Error::Refused("the first request is hello".to_owned())),
            Err(error) => Err(error),
        };
        greeted.or_else(|error| session.refuse(error))?;
        // Other clients have other connections.
        let own = std::process::id();
        session.reply(&json!({"session": own, "version": VERSION}))?;
        session.name(own);
        Ok(session)
    }

    /// All further connections have this number in their names.
    fn name(&mut self, session: u32) {
        self.key.truncate(4);
        self.key.extend_from_slice(&session.to_be_bytes());
        self.key[..4].copy_from_slice(b"vips");
    }

    fn over_vi(
        nic: Nic,
        side: Side,
        remote_host: Vec<u8>,
        port: u16,
        memory: u64,
        came: impl FnOnce(),
    ) -> Result<Self> {
        let key = [b"vipp".as_slice(), &u32::from(port).to_ne_bytes()].concat();
        let levels = nic.attributes().reliability.bits();
        let level = [2u16, 4, 1]
            .into_iter()
            .find(|level| levels & level != 0)
            .unwrap_or(2);
        let transfer_max = nic.attributes().transfer_max.min(DOCUMENT_MAX as u64);
        let spec = ViSpec {
            level,
            transfer_max,
        };
        let layout = Layout {
            sends: 4,
            receives: 4,
            bytes: DOCUMENT_MAX,
            separate: true,
        };
        let endpoint = Endpoint::new(&nic, spec, layout, None)?;
        let rendezvous = Rendezvous {
            nic: &nic,
            side,
            remote_host: &remote_host,
            key: &key,
        };
        let patience = match side {
            Side::Driver => {
                rendezvous.join(&endpoint.vi, 0, Some(Duration::from_millis(CONNECT_MS)))?;
                Patience::CLIENT
            }
            Side::Server => {
                let request = rendezvous.wait(0, None)?;
                came();
                endpoint.vi.accept(request)?;
                Patience::SERVER
            }
        };
        Ok(Self {
            nic,
            channel: Channel::Network(ViControl::new(endpoint, patience)),
            memory,
            side,
            remote_host,
            key,
            channels: 0,
            child: None,
        })
    }

    /// Asks the server something and waits for its answer.
    ///
    /// # Errors
    /// The server has exited, or reports an error.
    pub fn ask(&mut self, question: &Value) -> Result<Value> {
        let control = self.channel.control();
        control.send(question)?;
        let answer = control.receive()?;
        let answer = answer.ok_or_else(|| Error::Peer("exited early".to_owned()))?;
        match answer.get("error") {
            Some(error) => Err(Error::Peer(error.as_str().unwrap_or("?").to_owned())),
            None => Ok(answer),
        }
    }

    /// Asks the server for `n` turns of what is open.
    ///
    /// # Errors
    /// As `ask`.
    pub fn go(&mut self, n: u64) -> Result<()> {
        self.ask(&json!({"op": "go", "n": n})).map(|_| ())
    }

    /// Ends the open test at the server.
    ///
    /// # Errors
    /// As `ask`.
    pub fn end(&mut self) -> Result<()> {
        self.ask(&json!({"op": "end"})).map(|_| ())
    }

    /// The server's answer.
    ///
    /// # Errors
    /// The client has exited.
    pub fn reply(&mut self, answer: &Value) -> Result<()> {
        self.channel.control().send(answer)
    }

    /// Reports to the client why it is not served; returns the error.
    ///
    /// # Errors
    /// This one.
    pub fn refuse<T>(&mut self, error: Error) -> Result<T> {
        let _ = self.reply(&json!({"error": error.to_string()}));
        Err(error)
    }

    /// The server's next request; None when there will be no more. A process that has been started by the client
    /// answers questions about the machine's limits here.
    ///
    /// # Errors
    /// The connection broke, or the client asks for what it does not get.
    pub fn next_request(&mut self) -> Result<Option<Request>> {
        let bounds = Bounds::of(self.nic.attributes(), self.memory);
        loop {
            let Some(question) = self.channel.control().receive()? else {
                return Ok(None);
            };
            if let Channel::Own(control, own) = &mut self.channel
                && own.serve(control, &self.nic, &question)?
            {
                continue;
            }
            return match Request::read(&question, &bounds)? {
                Request::Quit => Ok(None),
                request => Ok(Some(request)),
            };
        }
    }

    /// The server's next `go`: its number of turns, None at `end`. Both are answered here.
    ///
    /// # Errors
    /// The connection broke, or something else was asked.
    pub fn next_go(&mut self) -> Result<Option<u64>> {
        match self.next_request()? {
            Some(Request::Go(turns)) => {
                self.reply(&json!({}))?;
                Ok(Some(turns))
            }
            // The end is answered when everything is taken down: see `ended`.
            None | Some(Request::End) => Ok(None),
            Some(_) => Err(Error::Refused("a test is open".to_owned())),
        }
    }

    /// Answers `end`.
    ///
    /// # Errors
    /// The client has exited.
    pub fn ended(&mut self) -> Result<()> {
        self.reply(&json!({}))
    }

    /// A number that no other connection of this session has.
    pub fn new_channel(&mut self) -> u32 {
        self.channels += 1;
        self.channels
    }

    /// Connects a VI with the peer's VI of the same channel.
    ///
    /// # Errors
    /// There is no connection in time.
    pub fn join(&self, vi: &Vi, channel: u32) -> Result<()> {
        let rendezvous = Rendezvous {
            nic: &self.nic,
            side: self.side,
            remote_host: &self.remote_host,
            key: &self.key,
        };
        rendezvous.join(vi, channel, Some(Duration::from_millis(CONNECT_MS)))
    }

    /// How a thread of its own connects VIs with the peer's.
    #[must_use]
    pub fn seat(&self) -> Seat {
        Seat {
            library: self.nic.library(),
            device: self.nic.attributes().name.clone(),
            side: self.side,
            remote_host: self.remote_host.clone(),
            key: self.key.clone(),
        }
    }

    /// What this process shares with a peer that it has started, or that has started it.
    ///
    /// # Errors
    /// The peer is another one.
    pub fn own(&mut self) -> Result<&mut L> {
        match &mut self.channel {
            Channel::Own(_, own) => Ok(own),
            Channel::Network(_) => Err(needs_self()),
        }
    }

    /// The same, if there is such a peer.
    #[must_use]
    pub fn local(&self) -> Option<&L> {
        match &self.channel {
            Channel::Own(_, own) => Some(own),
            Channel::Network(_) => None,
        }
    }

    /// Whether the peer was started by this process, or started it.
    #[must_use]
    pub fn is_local(&self) -> bool {
        matches!(self.channel, Channel::Own(..))
    }
}

impl<L> Drop for Session<L> {
    fn drop(&mut self) {
        if self.side == Side::Driver {
            let _ = self.channel.control().send(&json!({"op": "quit"}));
        }
        if let Some(child) = &mut self.child {
            let patience = Instant::now() + Duration::from_secs(5);
            while Instant::now() < patience {
                if !matches!(child.try_wait(), Ok(None)) {
                    return;
                }
                std::thread::sleep(Duration::from_millis(2));
            }
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn start_peer(socket: &UnixStream, file: &File, network: Option<&str>) -> Result<Child> {
    let program = std::env::current_exe()
        .map_err(|error| Error::io("locating this program's file", error))?;
    let (socket, file) = (socket.as_raw_fd(), file.as_raw_fd());
    let mut command = Command::new(&program);
    command.arg(PEER_OPTION).arg(format!("{socket},{file}"));
    let mut what = format!("starting {}", program.display());
    if let Some(name) = network {
        sys::run_in_network(&mut command, name)?;
        // Another host has another agent than the one that this names.
        command.env_remove("VIPL_AGENT");
        what += &format!(" in network namespace {name} (root only)");
    }
    sys::set_inherited(socket, true)?;
    sys::set_inherited(file, true)?;
    let started = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn();
    sys::set_inherited(socket, false)?;
    sys::set_inherited(file, false)?;
    started.map_err(|error| Error::io(what, error))
}

/// The bytes that an array of numbers is.
#[must_use]
pub fn bytes_of(value: &Value) -> Vec<u8> {
    let numbers = value.as_array().into_iter().flatten();
    numbers
        .filter_map(|number| u8::try_from(number.as_u64()?).ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_survive_the_control_channel() {
        let bytes = vec![0u8, 1, 128, 255];
        assert_eq!(bytes_of(&json!(bytes)), bytes);
        assert_eq!(bytes_of(&json!(null)), Vec::<u8>::new());
    }
}
