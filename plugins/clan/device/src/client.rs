//! Processes that use the device.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::rc::Rc;
use std::sync::atomic::Ordering::Acquire;

use vipl_clan_proto::channel::{self, FDS_MAX};
use vipl_clan_proto::message::{Reply, Request};
use zerocopy::{FromBytes, IntoBytes};

use crate::events::{Events, Source};
use crate::process::Process;

/// Most processes at a time.
const CLIENTS_MAX: usize = 1024;

/// One NIC handle of a process.
pub(crate) struct Client {
    socket: OwnedFd,
    /// A pidfd, readable when the process has exited.
    life: OwnedFd,
    pid: i32,
    process: Option<Rc<Process>>,
    /// Packets that the process had sent when its socket was last found empty.
    messages: u32,
    /// Its interface.
    link: Option<usize>,
    /// Its VIs, by their number.
    vis: Vec<Option<usize>>,
}

/// What becomes of a process.
pub(crate) enum Verdict {
    Stays,
    /// It has exited or closed its socket.
    Gone,
    /// It has made a protocol error.
    Expelled,
}

impl Client {
    /// # Errors
    /// The process has already exited, or the device is out of file descriptors.
    fn new(pid: u32, socket: OwnedFd) -> io::Result<Client> {
        // SAFETY: no pointers; the descriptor is ours.
        let life = unsafe {
            let fd = libc::syscall(libc::SYS_pidfd_open, pid as libc::pid_t, 0);
            if fd < 0 {
                return Err(io::Error::last_os_error());
            }
            OwnedFd::from_raw_fd(fd as RawFd)
        };
        Ok(Client {
            socket,
            life,
            pid: pid as i32,
            process: None,
            messages: 0,
            link: None,
            vis: Vec::new(),
        })
    }

    pub(crate) fn pid(&self) -> i32 {
        self.pid
    }

    /// The process, once it has opened the device.
    pub(crate) fn process(&self) -> Option<&Rc<Process>> {
        self.process.as_ref()
    }

    /// The process has opened the device, with this interface.
    pub(crate) fn open(&mut self, process: Process, link: Option<usize>) {
        self.process = Some(Rc::new(process));
        self.link = link;
    }

    /// Its interface.
    pub(crate) fn link(&self) -> Option<usize> {
        self.link
    }

    /// Packets that it has sent, according to itself.
    fn sent(&self) -> u32 {
        let process = self.process.as_ref();
        process.map_or(self.messages, |process| {
            process.nic().messages.load(Acquire)
        })
    }

    /// Whether it has sent packets that have not been read.
    #[inline(always)]
    pub(crate) fn has_messages(&self) -> bool {
        self.sent() != self.messages
    }

    /// Makes the device poll the socket again in the next round: it may have more packets.
    pub(crate) fn expect_messages(&mut self) {
        self.messages = self.sent().wrapping_sub(1);
    }

    /// Receives the next request.
    ///
    /// # Errors
    /// There is none. The error is what becomes of the process.
    pub(crate) fn receive(&mut self) -> Result<(Request, Vec<OwnedFd>), Verdict> {
        let sent = self.sent();
        let mut packet = [0; size_of::<Request>()];
        match channel::receive(self.socket.as_raw_fd(), &mut packet) {
            Ok((0, _)) => Err(Verdict::Gone),
            Ok((bytes, fds)) => {
                let request = Request::read_from_bytes(&packet[..bytes]);
                let request = request.map_err(|_| Verdict::Expelled)?;
                Ok((request, fds))
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                self.messages = sent;
                Err(Verdict::Stays)
            }
            Err(_) => Err(Verdict::Gone),
        }
    }

    /// Sends a reply.
    pub(crate) fn reply(&self, reply: &Reply, fds: &[OwnedFd]) -> Verdict {
        let raw: Vec<RawFd> = fds.iter().take(FDS_MAX).map(OwnedFd::as_raw_fd).collect();
        match channel::send(self.socket.as_raw_fd(), reply.as_bytes(), &raw) {
            Ok(()) => Verdict::Stays,
            // It does not read its replies, or it has exited, which its socket shows.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Verdict::Expelled,
            Err(_) => Verdict::Gone,
        }
    }

    /// The VI with this number.
    pub(crate) fn vi(&self, number: u32) -> Option<usize> {
        *self.vis.get(number as usize)?
    }

    /// Sets the VI with this number.
    pub(crate) fn set_vi(&mut self, number: u32, vi: Option<usize>) {
        let place = number as usize;
        if self.vis.len() <= place {
            self.vis.resize(place + 1, None);
        }
        self.vis[place] = vi;
    }

    pub(crate) fn vis(&self) -> impl Iterator<Item = usize> {
        self.vis.iter().flatten().copied()
    }
}

/// All processes, by a place that does not change.
#[derive(Default)]
pub(crate) struct Clients(Vec<Option<Client>>);

impl Clients {
    /// Admits a process, with this socket.
    ///
    /// # Errors
    /// There are too many, or as for [`Client::new`].
    pub(crate) fn admit(&mut self, pid: u32, socket: OwnedFd, events: &Events) -> io::Result<()> {
        let client = Client::new(pid, socket)?;
        let free = self.0.iter().position(Option::is_none);
        let place = free.unwrap_or(self.0.len());
        if place >= CLIENTS_MAX {
            return Err(io::Error::other("too many processes"));
        }
        events.listen(client.socket.as_raw_fd(), Source::Messages(place))?;
        events.listen(client.life.as_raw_fd(), Source::End(place))?;
        match free {
            Some(place) => self.0[place] = Some(client),
            None => self.0.push(Some(client)),
        }
        Ok(())
    }

    pub(crate) fn get(&self, place: usize) -> Option<&Client> {
        self.0.get(place)?.as_ref()
    }

    pub(crate) fn get_mut(&mut self, place: usize) -> Option<&mut Client> {
        self.0.get_mut(place)?.as_mut()
    }

    pub(crate) fn remove(&mut self, place: usize) -> Option<Client> {
        self.0.get_mut(place)?.take()
    }

    /// The first process, from this place on, with packets that have not been read.
    #[inline(always)]
    pub(crate) fn with_messages(&self, from: usize) -> Option<usize> {
        let has_messages =
            |client: &Option<Client>| client.as_ref().is_some_and(Client::has_messages);
        let rest = self.0.get(from..)?;
        Some(from + rest.iter().position(has_messages)?)
    }
}
