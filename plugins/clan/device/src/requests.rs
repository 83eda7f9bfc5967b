//! What processes ask for, and the answers.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::rc::Rc;

use vipl_clan_proto::channel::{self, FDS_MAX};
use vipl_clan_proto::message::{Reply, Request, VERSION, flag, op, status};
use vipl_clan_proto::nic::{NIC_BYTES, VIS_MAX};
use vipl_clan_proto::vi::VI_BYTES;
use vipl_sys::shm::{Mapping, create};
use zerocopy::{FromBytes, IntoBytes};

use crate::client::Verdict;
use crate::device::Device;
use crate::vi::Vi;
use crate::vm::Process;

/// Packets of one process that are taken in one go.
const PACKETS: u32 = 16;
const NIC_NAME: &CStr = c"vipl-clan-nic";
const VI_NAME: &CStr = c"vipl-clan-vi";
/// Longest time that a process may make the device poll, in microseconds.
const SPIN_US_MAX: u32 = 10_000;

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

impl Device {
    /// Reads the socket of a process.
    pub(crate) fn hear(&mut self, place: usize) -> Verdict {
        for _ in 0..PACKETS {
            let Some(client) = &mut self.clients[place] else {
                return Verdict::Stays;
            };
            let sent = client.sent();
            let mut packet = [0; size_of::<Request>()];
            let (bytes, fds) = match channel::receive(client.socket.as_raw_fd(), &mut packet) {
                Ok((0, _)) => return Verdict::Gone,
                Ok(found) => found,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    client.mail = sent;
                    return Verdict::Stays;
                }
                Err(_) => return Verdict::Gone,
            };
            let Ok(request) = Request::read_from_bytes(&packet[..bytes]) else {
                return Verdict::Expelled;
            };
            match self.answer_request(place, &request, fds) {
                Verdict::Stays => {}
                verdict => return verdict,
            }
        }
        // There may be more: it is looked at again in the next round.
        if let Some(client) = &mut self.clients[place] {
            client.mail = client.sent().wrapping_sub(1);
        }
        Verdict::Stays
    }

    fn answer_request(&mut self, place: usize, request: &Request, fds: Vec<OwnedFd>) -> Verdict {
        let done = match request.op {
            op::WAKE => {
                self.processor
                    .called_from(request.vi as usize, self.tools.now);
                return Verdict::Stays;
            }
            op::OPEN => self.open(place, request, fds),
            op::CREATE => self.create(place, request),
            op::DETACH | op::PARTNER_GONE => {
                if let Some(id) = self.vi_of(place, request.vi) {
                    match request.op {
                        op::DETACH => self.detach(id),
                        _ => self.partner_gone(id, request),
                    }
                }
                Ok(Vec::new())
            }
            op::RECALL => match self.vi_of(place, request.vi) {
                Some(id) if !self.recall(id) => Err(Refused(status::BUSY, 0)),
                _ => Ok(Vec::new()),
            },
            op::DESTROY | op::ATTACH | op::BREAK => {
                let Some(id) = self.vi_of(place, request.vi) else {
                    return Verdict::Expelled;
                };
                match request.op {
                    op::DESTROY => self.destroy(place, request.vi, id),
                    op::ATTACH if request.mtu != 0 => self.attach_away(place, id, request),
                    op::ATTACH => self.attach(id, request),
                    _ => self.break_off(id, request.epoch),
                }
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
        let Some(client) = &self.clients[place] else {
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
        let raw: Vec<RawFd> = fds.iter().take(FDS_MAX).map(OwnedFd::as_raw_fd).collect();
        match channel::send(client.socket.as_raw_fd(), reply.as_bytes(), &raw) {
            Ok(()) => Verdict::Stays,
            // It does not read its answers, or has gone; its socket tells which.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Verdict::Expelled,
            Err(_) => Verdict::Gone,
        }
    }

    fn open(
        &mut self,
        place: usize,
        request: &Request,
        fds: Vec<OwnedFd>,
    ) -> Result<Vec<OwnedFd>, Refused> {
        let Some(client) = &self.clients[place] else {
            return Err(Refused(status::INVALID, 0));
        };
        if request.vi != VERSION || client.process.is_some() {
            return Err(Refused(status::INVALID, 0));
        }
        let memory = create(NIC_NAME, NIC_BYTES)?;
        let mapping = Mapping::open(memory.as_raw_fd(), NIC_BYTES, true)?;
        let (ours, theirs) = channel::pair()?;
        let probe = (request.key, request.max_transfer);
        let is_narrow = request.flags & flag::NARROW != 0;
        let process = Process::new(client.pid, mapping, ours, probe, is_narrow)?;
        let link = match request.mtu {
            0 => None,
            _ => Some(self.open_link(place, request, fds)?),
        };
        if let Some(client) = &mut self.clients[place] {
            client.process = Some(Rc::new(process));
            client.link = link;
        }
        self.spin_ns = self
            .spin_ns
            .max(u64::from(request.ptag.min(SPIN_US_MAX)) * 1000);
        Ok(vec![memory, self.page_for_readers()?, theirs])
    }

    fn create(&mut self, place: usize, request: &Request) -> Result<Vec<OwnedFd>, Refused> {
        let number = request.vi as usize;
        let Some(client) = &mut self.clients[place] else {
            return Err(Refused(status::INVALID, 0));
        };
        let taken = client.vis.get(number).is_some_and(Option::is_some);
        let (Some(process), false, true) = (&client.process, taken, request.vi < VIS_MAX) else {
            return Err(Refused(status::INVALID, 0));
        };
        let memory = create(VI_NAME, VI_BYTES)?;
        let mapping = Mapping::open(memory.as_raw_fd(), VI_BYTES, true)?;
        let vi = Vi::new(process.clone(), request.vi, mapping);
        if client.vis.len() <= number {
            client.vis.resize(number + 1, None);
        }
        client.vis[number] = Some(self.vis.add(vi));
        Ok(vec![memory])
    }

    fn destroy(&mut self, place: usize, number: u32, id: usize) {
        self.detach(id);
        self.vis.remove(id);
        if let Some(client) = &mut self.clients[place] {
            client.vis[number as usize] = None;
        }
    }

    /// The VI that a process calls by this number.
    fn vi_of(&self, place: usize, number: u32) -> Option<usize> {
        let client = self.clients[place].as_ref()?;
        *client.vis.get(number as usize)?
    }

    /// A process has gone, or is sent away.
    pub(crate) fn forget(&mut self, place: usize, expelled: bool) {
        let Some(client) = self.clients[place].take() else {
            return;
        };
        for id in client.vis.into_iter().flatten() {
            if let (Some(partner), false) = (self.leave(id, expelled), expelled)
                && let Some(vi) = self.vis.get_mut(partner)
            {
                vi.orphan(&mut self.tools);
            }
            self.vis.remove(id);
        }
        if let Some(Some(link)) = client.link.and_then(|index| self.links.get_mut(index)) {
            link.side.client = None;
        }
    }
}
