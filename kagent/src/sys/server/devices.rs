//! The part of the poll loop that is about device processes.

#![forbid(unsafe_code)]

use std::os::fd::AsFd;
use std::rc::Rc;

use kagent_proto::Status;
use nix::sys::epoll::{EpollEvent, EpollFlags};

use super::{KIND_BITS, KIND_DEVICE, Server};
use crate::output::OpenDevice;
use crate::sys::devices::DeviceId;
use crate::sys::session::SharedFd;

impl Server<'_> {
    pub(super) fn open_device(&mut self, open: &OpenDevice) {
        let result = self.reach_device(open);
        self.agent.handle_device_opened(self.now(), open, result);
    }

    fn reach_device(&mut self, open: &OpenDevice) -> Result<(u32, SharedFd), Status> {
        if let Some(device) = self.devices.find(open) {
            match self.devices.introduce(device, open, self.log) {
                Err(Status::NOT_REACHABLE) => self.device_ended(device),
                result => return result.map(|(pid, socket)| (pid, Rc::new(socket))),
            }
        }
        let device = self.start_device(open)?;
        let (pid, socket) = self.devices.introduce(device, open, self.log)?;
        Ok((pid, Rc::new(socket)))
    }

    fn start_device(&mut self, open: &OpenDevice) -> Result<DeviceId, Status> {
        let session = self.sessions.get(&open.client).ok_or(Status::RESOURCE)?;
        let device = self.devices.start(open, session.socket.as_fd(), self.log)?;
        // A device says nothing; the only event is its end.
        let event = EpollEvent::new(EpollFlags::EPOLLRDHUP, device << KIND_BITS | KIND_DEVICE);
        let watched = self
            .devices
            .get(device)
            .map(|started| self.epoll.add(&started.control, event));
        if let Some(Err(cause)) = watched {
            self.log.warn("device", format_args!("epoll: {cause}"));
            self.devices.bury(device, self.log);
            return Err(Status::RESOURCE);
        }
        Ok(device)
    }

    pub(super) fn device_ended(&mut self, device: DeviceId) {
        if let Some(ended) = self.devices.get(device) {
            let _ = self.epoll.delete(&ended.control);
            self.devices.bury(device, self.log);
        }
    }
}
