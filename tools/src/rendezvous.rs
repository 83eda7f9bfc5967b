//! Two VIs that are to be connected: one side waits, the other asks until it does.

#![forbid(unsafe_code)]

use std::time::{Duration, Instant};

use vipl_client::{Address, Code, Library, Request};

use crate::endpoint::Vi;
use crate::nic::{Nic, host_text};
use crate::{Error, Result};

/// Milliseconds that a connection may take.
pub const CONNECT_MS: u64 = 10_000;

/// What to do where no server answers.
const START: &str = "start this tool without HOST there first, with the same -d and -p";

/// Which side of a measurement this process is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Moves first and measures.
    Driver,
    /// Answers.
    Server,
}

/// How VIs of two processes find each other.
#[derive(Clone, Copy)]
pub struct Rendezvous<'a> {
    /// The NIC of this process.
    pub nic: &'a Nic,
    /// The driver asks for connections, the server waits for them.
    pub side: Side,
    /// The peer's host.
    pub remote_host: &'a [u8],
    /// What all connections of the two processes have in common.
    pub key: &'a [u8],
}

/// The same for a thread that opens the device itself.
#[derive(Clone)]
pub struct Seat {
    pub(crate) library: &'static Library,
    pub(crate) device: String,
    pub(crate) side: Side,
    pub(crate) remote_host: Vec<u8>,
    pub(crate) key: Vec<u8>,
}

impl Seat {
    /// Opens the device for the calling thread.
    ///
    /// # Errors
    /// It cannot be opened.
    pub fn open(&self) -> Result<Nic> {
        Nic::open(self.library, &self.device)
    }

    /// Connects a VI of that NIC with the peer's VI of the same channel.
    ///
    /// # Errors
    /// There is no connection in time.
    pub fn join(&self, nic: &Nic, vi: &Vi, channel: u32) -> Result<()> {
        let rendezvous = Rendezvous {
            nic,
            side: self.side,
            remote_host: &self.remote_host,
            key: &self.key,
        };
        rendezvous.join(vi, channel, Some(Duration::from_millis(CONNECT_MS)))
    }
}

impl Rendezvous<'_> {
    /// Discriminator of the server's side of a channel.
    fn server(&self, channel: u32) -> Vec<u8> {
        [self.key, &channel.to_ne_bytes(), b"s"].concat()
    }

    /// Waits for a client's request on a channel. Without a limit it waits forever.
    ///
    /// # Errors
    /// None comes.
    pub fn wait(&self, channel: u32, limit: Option<Duration>) -> Result<Request> {
        let address = self.nic.address(&self.server(channel));
        let start = Instant::now();
        loop {
            match Request::wait(self.nic, &address, Some(Duration::from_secs(1)))? {
                Some(request) => return Ok(request),
                None if limit.is_some_and(|limit| start.elapsed() > limit) => {
                    return Err(Error::Silence("waiting for a connection"));
                }
                None => {}
            }
        }
    }

    /// Connects a VI with the peer's VI of the same channel. Without a limit the server waits forever.
    ///
    /// # Errors
    /// There is no connection in time.
    pub fn join(&self, vi: &Vi, channel: u32, limit: Option<Duration>) -> Result<()> {
        if self.side == Side::Server {
            return vi.accept(self.wait(channel, limit)?);
        }
        let start = Instant::now();
        let expired = || limit.is_some_and(|limit| start.elapsed() > limit);
        let here = [self.key, &channel.to_ne_bytes(), b"c"].concat();
        let local = self.nic.address(&here);
        let remote = Address::new(self.remote_host, &self.server(channel));
        loop {
            match vi.connect(&local, &remote, CONNECT_MS) {
                Ok(()) => return Ok(()),
                // The server is not waiting yet.
                Err(error) if error.code() == Some(Code::NoMatch) && !expired() => {
                    std::thread::sleep(Duration::from_micros(200));
                }
                Err(error) => {
                    let host = host_text(self.nic.attributes(), self.remote_host);
                    let is_here = self.remote_host == self.nic.attributes().address;
                    let as_user = if is_here { ", as the same user" } else { "" };
                    let advice = match error.code() {
                        Some(Code::Timeout) if !is_here => {
                            format!(": no answer; check that the host can be reached, and {START}")
                        }
                        Some(Code::NoMatch | Code::Timeout) => {
                            format!(": no server is waiting there; {START}{as_user}")
                        }
                        _ => String::new(),
                    };
                    return Err(error.context(format!("to {host}{advice}")));
                }
            }
        }
    }
}
