//! The poll loop: device processes.

#![forbid(unsafe_code)]

use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;

use kagent_proto::Status;
use nix::sys::epoll::EpollFlags;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

use super::Server;
use crate::OpenDevice;
use crate::runtime::devices::DeviceId;
use crate::runtime::helpers::held::{Held, SharedFd};
use crate::runtime::processes::spawn::NOT_EXECUTED;
use crate::runtime::token::Token;

impl Server<'_> {
    pub(super) fn open_device(&mut self, open: &OpenDevice) {
        let result = self.reach_device(open);
        self.agent.handle_device_opened(self.now(), open, result);
    }

    fn reach_device(&mut self, open: &OpenDevice) -> Result<(u32, SharedFd), Status> {
        if let Some(device) = self.devices.find(open) {
            match self.devices.introduce(device, open, self.log) {
                Err(Status::NOT_REACHABLE) => self.device_ended(device),
                result => return result.map(|(pid, socket)| (pid, self.given(open, socket))),
            }
        }
        let device = self.start_device(open)?;
        let (pid, socket) = self.devices.introduce(device, open, self.log)?;
        Ok((pid, self.given(open, socket)))
    }

    fn given(&self, open: &OpenDevice, socket: OwnedFd) -> SharedFd {
        Rc::new(Held::shared(socket, open.uid, &self.helpers.to_close))
    }

    fn start_device(&mut self, open: &OpenDevice) -> Result<DeviceId, Status> {
        let session = self.sessions.get(&open.client).ok_or(Status::RESOURCE)?;
        let device = self.devices.start(open, session.socket.as_fd(), self.log)?;
        // A device sends nothing; the only event is its hang-up, which is always reported.
        let event = Token::Device(device).event(EpollFlags::empty());
        let watched = self
            .devices
            .get(device)
            .map(|started| self.epoll.add(&started.control, event));
        if let Some(Err(cause)) = watched {
            self.log.warn("device", format_args!("epoll: {cause}"));
            self.devices.end(device);
            return Err(Status::RESOURCE);
        }
        Ok(device)
    }

    pub(super) fn device_ended(&mut self, device: DeviceId) {
        if let Some(ended) = self.devices.get(device) {
            let _ = self.epoll.delete(&ended.control);
            self.devices.end(device);
        }
    }

    /// Reaps children that have ended. One that a debugger holds is reaped when it is released: the kernel
    /// then sends another SIGCHLD.
    pub(super) fn reap_children(&mut self) {
        let any = Pid::from_raw(-1);
        while let Ok(status) = waitpid(any, Some(WaitPidFlag::WNOHANG)) {
            let (pid, how) = match status {
                WaitStatus::Exited(pid, code) => (pid, exit_text(code)),
                WaitStatus::Signaled(pid, signal, _) => (pid, format!("killed by {signal}")),
                _ => return,
            };
            if let Some(device) = self.devices.with_pid(pid.as_raw()) {
                self.device_ended(device);
            }
            if !self.devices.reaped(pid.as_raw(), &how, self.log) {
                self.helpers.reaped(pid.as_raw(), &how, self.log);
            }
        }
    }
}

fn exit_text(code: i32) -> String {
    match code {
        NOT_EXECUTED => "its program could not be executed by that user".to_owned(),
        code => format!("exit status {code}"),
    }
}
