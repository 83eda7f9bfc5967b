//! Two processes that do something together: how they find each other, and what they tell each other.
//!
//! ```text
//!   client (measures)                     server (serves)
//!     ask {"op": ...}  ────────────────▶   next_question() ── limits served inside
//!                      ◀────────────────   reply {...}
//!     join(vi, channel) ── VipConnect ──   join(vi, channel)
//! ```
//!
//! The client decides everything; the server's loop ends with `{"op":"quit"}` or when the client is gone.

#![forbid(unsafe_code)]

use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::arena::{ARENA_BYTES, Arena, Side};
use crate::cable::{self, Cable};
use crate::control::{Control, DOCUMENT_MAX, SocketControl, ViControl};
use crate::endpoint::{Endpoint, Layout, Vi, ViSpec};
use crate::limits::Buffers;
use crate::nic::{Nic, parse_address};
use crate::peers::Peers;
use crate::pin::Pair;
use crate::rendezvous::{CONNECT_MS, Rendezvous};
use crate::vipl::Vipl;
use crate::{Error, Result, machine, report, sys};

/// One process's part of the two.
pub struct Session {
    /// The device.
    pub nic: Nic,
    /// Memory shared with the partner, when it runs on this machine and was started by us.
    pub arena: Option<Arena>,
    /// Buffers for measuring limits.
    pub buffers: Buffers,
    /// The cable between two hosts, when its limits are measured.
    pub cable: Option<Cable>,
    /// Other libraries, when they are measured, too.
    pub peers: Option<Peers>,
    control: Box<dyn Control>,
    side: Side,
    remote_host: Vec<u8>,
    key: Vec<u8>,
    channels: u32,
    child: Option<Child>,
}

/// How a partner process is started: this program with `--partner SOCKET,ARENA`.
pub const PARTNER_OPTION: &str = "--partner";

impl Session {
    /// Starts this very program as partner, pins both processes unless `cpus` is None, and opens the device in
    /// both. With a network namespace the partner runs in that, as on another host, with an agent of its own.
    ///
    /// # Errors
    /// The partner cannot be started, or a device cannot be opened.
    pub fn with_partner(
        vipl: &'static Vipl,
        device: &str,
        cpus: Option<Pair>,
        network: Option<&str>,
    ) -> Result<Self> {
        let file = sys::anonymous_file(ARENA_BYTES)?;
        let (ours, theirs) = UnixStream::pair().map_err(|e| Error::io("socketpair", e))?;
        let child = start_partner(&theirs, &file, network)?;
        drop(theirs);
        // First this process, so that an agent that has to be started is started once.
        let nic = Nic::open(vipl, device)?;
        let control = Box::new(SocketControl::new(ours, false)?);
        let key = [b"vipp".as_slice(), &std::process::id().to_ne_bytes()].concat();
        let mut session = Self {
            remote_host: nic.attributes().address.clone(),
            nic,
            arena: Some(Arena::new(&file)?),
            buffers: Buffers::default(),
            cable: None,
            peers: None,
            control,
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

    /// The partner's side of `with_partner`: `numbers` is what follows `PARTNER_OPTION`.
    ///
    /// # Errors
    /// Something the client asked for cannot be had; the client is told, too.
    pub fn as_partner(numbers: &str, open: impl Fn() -> Result<&'static Vipl>) -> Result<Self> {
        sys::die_with_parent();
        let bad = || Error::Usage(format!("{PARTNER_OPTION} is internal"));
        let (socket, file) = numbers.split_once(',').ok_or_else(bad)?;
        let socket = sys::adopt(socket.parse().map_err(|_| bad())?)?;
        let file = File::from(sys::adopt(file.parse().map_err(|_| bad())?)?);
        let mut control = SocketControl::new(UnixStream::from(socket), true)?;
        let hello = control
            .receive()?
            .ok_or_else(|| Error::Partner("gone".to_owned()))?;
        let begin = || {
            let nic = Nic::open(open()?, hello["device"].as_str().unwrap_or_default())?;
            if let Some(cpu) = hello["cpu"].as_u64() {
                sys::run_on(cpu as usize)?;
            }
            Ok((nic, Arena::new(&file)?))
        };
        match begin() {
            Ok((nic, arena)) => {
                control.send(&json!({"address": nic.attributes().address}))?;
                Ok(Self {
                    remote_host: nic.attributes().address.clone(),
                    nic,
                    arena: Some(arena),
                    buffers: Buffers::default(),
                    cable: None,
                    peers: None,
                    control: Box::new(control),
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
    /// The name is unknown, or nobody answers.
    pub fn connect(vipl: &'static Vipl, device: &str, host: &str, port: u16) -> Result<Self> {
        let nic = Nic::open(vipl, device)?;
        let remote_host = match parse_address(host) {
            Some(address) => address,
            None => nic.host_by_name(host)?,
        };
        report::tell(&format!(
            "connecting to {host} (address {}) on {device}, port {port}; waiting up to {} s for a server ...",
            nic.attributes().host_text(&remote_host),
            CONNECT_MS / 1000
        ));
        Self::over_vi(nic, Side::Driver, remote_host, port)
    }

    /// Waits for one client on `port`.
    ///
    /// # Errors
    /// The device cannot be opened, or the connection fails.
    pub fn listen(vipl: &'static Vipl, device: &str, port: u16) -> Result<Self> {
        let nic = Nic::open(vipl, device)?;
        let address = nic.attributes().address.clone();
        let shown = nic.attributes().address_text();
        report::tell(&format!(
            "waiting for a client on {device} (address {shown}), port {port} ..."
        ));
        Self::over_vi(nic, Side::Server, address, port)
    }

    fn over_vi(nic: Nic, side: Side, remote_host: Vec<u8>, port: u16) -> Result<Self> {
        let key = [b"vipp".as_slice(), &u32::from(port).to_ne_bytes()].concat();
        let levels = nic.attributes().reliability_levels;
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
        let limit = (side == Side::Driver).then(|| Duration::from_millis(CONNECT_MS));
        rendezvous.join(&endpoint.vi, 0, limit)?;
        let control = Box::new(ViControl::new(endpoint, side == Side::Server));
        Ok(Self {
            nic,
            arena: None,
            buffers: Buffers::default(),
            cable: None,
            peers: None,
            control,
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
    /// The server is gone, or reports an error.
    pub fn ask(&mut self, question: &Value) -> Result<Value> {
        self.control.send(question)?;
        let answer = self.control.receive()?;
        let answer = answer.ok_or_else(|| Error::Partner("exited early".to_owned()))?;
        match answer.get("error") {
            Some(error) => Err(Error::Partner(error.as_str().unwrap_or("?").to_owned())),
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

    /// Tells the server that what is open has ended.
    ///
    /// # Errors
    /// As `ask`.
    pub fn end(&mut self) -> Result<()> {
        self.ask(&json!({"op": "end"})).map(|_| ())
    }

    /// The server's answer.
    ///
    /// # Errors
    /// The client is gone.
    pub fn reply(&mut self, answer: &Value) -> Result<()> {
        self.control.send(answer)
    }

    /// The server's next question; None when there will be no more. Questions about the machine's
    /// limits are answered here.
    ///
    /// # Errors
    /// The connection broke.
    pub fn next_question(&mut self) -> Result<Option<Value>> {
        loop {
            let Some(question) = self.control.receive()? else {
                return Ok(None);
            };
            match question["op"].as_str().unwrap_or_default() {
                "quit" => return Ok(None),
                op if op.starts_with("limit-") => machine::serve(self, &question)?,
                op if op.starts_with("cable-") => cable::serve(self, &question)?,
                _ => return Ok(Some(question)),
            }
        }
    }

    /// The server's next `go`: its number of turns, None at `end`. Both are answered here.
    ///
    /// # Errors
    /// The connection broke, or something else was asked.
    pub fn next_go(&mut self) -> Result<Option<u64>> {
        let question = self.next_question()?;
        let Some(question) = question else {
            return Ok(None);
        };
        match question["op"].as_str().unwrap_or_default() {
            "go" => {
                self.reply(&json!({}))?;
                Ok(Some(question["n"].as_u64().unwrap_or(0)))
            }
            // The end is answered when everything is taken down: see `ended`.
            "end" => Ok(None),
            other => Err(Error::Partner(format!(
                "unexpected request {other:?} during a test"
            ))),
        }
    }

    /// Answers `end`.
    ///
    /// # Errors
    /// The client is gone.
    pub fn ended(&mut self) -> Result<()> {
        self.reply(&json!({}))
    }

    /// A number that no other connection of this session has.
    pub fn new_channel(&mut self) -> u32 {
        self.channels += 1;
        self.channels
    }

    /// Connects a VI with the partner's VI of the same channel.
    ///
    /// # Errors
    /// They do not come together.
    pub fn join(&self, vi: &Vi, channel: u32) -> Result<()> {
        let rendezvous = Rendezvous {
            nic: &self.nic,
            side: self.side,
            remote_host: &self.remote_host,
            key: &self.key,
        };
        rendezvous.join(vi, channel, Some(Duration::from_millis(CONNECT_MS)))
    }

    /// Whether the partner was started by this process, or started it.
    #[must_use]
    pub fn is_local(&self) -> bool {
        self.arena.is_some()
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if self.side == Side::Driver {
            let _ = self.control.send(&json!({"op": "quit"}));
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

fn start_partner(socket: &UnixStream, file: &File, network: Option<&str>) -> Result<Child> {
    let program = std::env::current_exe()
        .map_err(|error| Error::io("locating this program's file", error))?;
    let (socket, file) = (socket.as_raw_fd(), file.as_raw_fd());
    let mut command = Command::new(&program);
    command.arg(PARTNER_OPTION).arg(format!("{socket},{file}"));
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
pub(crate) fn bytes_of(value: &Value) -> Vec<u8> {
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
