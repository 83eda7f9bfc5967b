//! Requests of processes, and the replies.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use vipl_clan_proto::channel;
use vipl_clan_proto::message::{Reply, Request, VERSION, flag, op, status};
use vipl_clan_proto::nic::{NIC_BYTES, VIS_MAX};
use vipl_clan_proto::vi::VI_BYTES;
use vipl_sys::shm::{Mapping, create};

use super::Device;
use crate::client::Verdict;
use crate::process::Process;
use crate::vi::Vi;

/// Packets of a process that are read at a time.
const PACKETS: u32 = 16;
const NIC_NAME: &CStr = c"vipl-clan-nic";
const VI_NAME: &CStr = c"vipl-clan-vi";

/// Why a request is refused.
struct Refused(u32, i32);

impl From<io::Error> for Refused {
    fn from(error: io::Error) -> Refused {
        let why = match error.kind() {
            io::ErrorKind::PermissionDenied => status::NOT_PERMITTED,
            _ => status::RESOURCE,
        };
        Refused(why, error.raw_os_error().unwrap_or(0))
    }
}

const INVALID: Refused = Refused(status::INVALID, 0);

impl Device {
    /// Serves the requests of a process.
    pub(super) fn serve(&mut self, place: usize) -> Verdict {
        for _ in 0..PACKETS {
            let Some(client) = self.clients.get_mut(place) else {
                return Verdict::Stays;
            };
            let verdict = match client.receive() {
                Ok((request, fds)) => self.answer_request(place, &request, fds),
                Err(verdict) => return verdict,
            };
            if !matches!(verdict, Verdict::Stays) {
                return verdict;
            }
        }
        if let Some(client) = self.clients.get_mut(place) {
            client.expect_messages();
        }
        Verdict::Stays
    }

    fn answer_request(&mut self, place: usize, request: &Request, fds: Vec<OwnedFd>) -> Verdict {
        let vi = self.clients.get(place);
        let vi = vi.and_then(|client| client.vi(request.vi));
        let done = match (request.op, vi) {
            (op::WAKE, _) => {
                let now = self.connections.now();
                self.processor.called_from(request.vi as usize, now);
                return Verdict::Stays;
            }
            (op::OPEN, _) => self.open(place, request, fds),
            (op::CREATE, _) => self.create(place, request),
            (op::DETACH | op::PEER_GONE | op::RECALL, None) => Ok(Vec::new()),
            (op::DETACH, Some(id)) => {
                self.connections.detach(id);
                Ok(Vec::new())
            }
            (op::PEER_GONE, Some(id)) => {
                self.connections.peer_gone(id, &self.clients, request);
                Ok(Vec::new())
            }
            (op::RECALL, Some(id)) => match self.connections.recall(id) {
                true => Ok(Vec::new()),
                false => Err(Refused(status::BUSY, 0)),
            },
            (op::DESTROY, Some(id)) => {
                self.connections.destroy(id);
                if let Some(client) = self.clients.get_mut(place) {
                    client.set_vi(request.vi, None);
                }
                return Verdict::Stays;
            }
            (op::ATTACH, Some(id)) => {
                let link = self.clients.get(place).and_then(|client| client.link());
                self.connections.attach(id, link, request);
                return Verdict::Stays;
            }
            (op::BREAK, Some(id)) => {
                self.connections.break_off(id, request.epoch);
                return Verdict::Stays;
            }
            _ => return Verdict::Expelled,
        };
        self.answer(place, request.number, done)
    }

    fn answer(
        &mut self,
        place: usize,
        number: u32,
        done: Result<Vec<OwnedFd>, Refused>,
    ) -> Verdict {
        let Some(client) = self.clients.get(place) else {
            return Verdict::Stays;
        };
        let (fds, Refused(status, errno)) = match done {
            Ok(fds) => (fds, Refused(status::OK, 0)),
            Err(refused) => (Vec::new(), refused),
        };
        let reply = Reply {
            number,
            status,
            errno: errno as u32,
            version: VERSION,
        };
        client.reply(&reply, &fds)
    }

    fn open(
        &mut self,
        place: usize,
        request: &Request,
        mut fds: Vec<OwnedFd>,
    ) -> Result<Vec<OwnedFd>, Refused> {
        let client = self.clients.get_mut(place).ok_or(INVALID)?;
        if request.vi != VERSION || client.process().is_some() {
            return Err(INVALID);
        }
        let memory = create(NIC_NAME, NIC_BYTES)?;
        let mapping = Mapping::open(memory.as_raw_fd(), NIC_BYTES, true)?;
        let (ours, theirs) = channel::pair()?;
        let probe = (request.key, request.max_transfer);
        let is_narrow = request.flags & flag::NARROW != 0;
        let process = Process::new(client.pid(), mapping, ours, probe, is_narrow)?;
        let link = match request.mtu {
            0 => None,
            _ => {
                let (connections, events) = (&mut self.connections, &self.events);
                Some(connections.open_link(place, request, fds.pop(), events)?)
            }
        };
        client.open(process, link);
        self.pace.ask_to_poll(request.ptag);
        Ok(vec![memory, self.page.for_readers()?, theirs])
    }

    fn create(&mut self, place: usize, request: &Request) -> Result<Vec<OwnedFd>, Refused> {
        let client = self.clients.get_mut(place).ok_or(INVALID)?;
        let is_free = client.vi(request.vi).is_none() && request.vi < VIS_MAX;
        let process = client.process().filter(|_| is_free).ok_or(INVALID)?;
        let memory = create(VI_NAME, VI_BYTES)?;
        let mapping = Mapping::open(memory.as_raw_fd(), VI_BYTES, true)?;
        let vi = Vi::new(process.clone(), request.vi, mapping);
        client.set_vi(request.vi, Some(self.connections.add(vi)));
        Ok(vec![memory])
    }
}
