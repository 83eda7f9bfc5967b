//! Device processes of the users: started when somebody asks, introduced to those who ask, buried when they
//! end.

#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use kagent_proto::{DEVICE_BYTES, Introduction, Status};
use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, UnixCredentials, getsockopt, socketpair, sockopt,
};
use nix::unistd::getuid;
use zerocopy::IntoBytes;

use super::log::Log;
use super::packet;
use crate::output::OpenDevice;

/// Number of a device; never used again.
pub(crate) type DeviceId = u64;

/// The program of device NAME is this and NAME, beside the agent's own.
const PROGRAM_PREFIX: &str = "vipl-";

/// One running device.
#[derive(Debug)]
pub(crate) struct Device {
    uid: u32,
    name: [u8; DEVICE_BYTES],
    child: Child,
    /// Hangs up when the device has ended.
    pub(crate) control: OwnedFd,
}

/// All of them.
#[derive(Debug, Default)]
pub(crate) struct Devices {
    running: BTreeMap<DeviceId, Device>,
    last: DeviceId,
}

impl Devices {
    /// The device of this user and name, if it runs.
    pub(crate) fn find(&self, open: &OpenDevice) -> Option<DeviceId> {
        let is_it = |device: &Device| device.uid == open.uid && device.name == open.device;
        self.running
            .iter()
            .find_map(|(id, device)| is_it(device).then_some(*id))
    }

    /// Starts one. `asker` is the socket of the process that asks.
    pub(crate) fn start(
        &mut self,
        open: &OpenDevice,
        asker: BorrowedFd<'_>,
        log: &Log,
    ) -> Result<DeviceId, Status> {
        let name = text(&open.device);
        let program = beside_us(&name).map_err(|cause| failure(&name, &cause, log))?;
        let (ours, theirs) = pair().map_err(|cause| failure(&name, &cause, log))?;
        let mut command = Command::new(&program);
        command.stdin(theirs).stdout(Stdio::null());
        if open.uid != getuid().as_raw() {
            let who: UnixCredentials = getsockopt(&asker, sockopt::PeerCredentials)
                .map_err(|cause| failure(&name, &cause.into(), log))?;
            command.uid(open.uid).gid(who.gid());
        }
        let child = match command.spawn() {
            Ok(child) => child,
            Err(cause) if cause.kind() == io::ErrorKind::NotFound => {
                let program = program.display();
                log.warn("device", format_args!("there is no program {program}"));
                return Err(Status::INVALID);
            }
            Err(cause) => return Err(failure(&name, &cause, log)),
        };
        let (pid, uid) = (child.id(), open.uid);
        log.info(
            "device",
            format_args!("{name} of user {uid} is process {pid}"),
        );
        self.last += 1;
        let device = Device {
            uid,
            name: open.device,
            child,
            control: ours,
        };
        self.running.insert(self.last, device);
        Ok(self.last)
    }

    /// Introduces a process to a device; gives the device's process id and the process's end.
    /// `NOT_REACHABLE`: the device has just ended.
    pub(crate) fn introduce(
        &self,
        id: DeviceId,
        open: &OpenDevice,
        log: &Log,
    ) -> Result<(u32, OwnedFd), Status> {
        let name = text(&open.device);
        let device = self.running.get(&id).ok_or(Status::RESOURCE)?;
        let (process, other) = pair().map_err(|cause| failure(&name, &cause, log))?;
        let body = Introduction {
            version: Introduction::VERSION,
            pid: open.pid,
            uid: open.uid,
            reserved: 0,
        };
        match packet::send(
            device.control.as_fd(),
            body.as_bytes(),
            &[other.as_raw_fd()],
        ) {
            Ok(true) => Ok((device.child.id(), process)),
            Ok(false) => Err(failure(&name, &Errno::EAGAIN.into(), log)),
            Err(Errno::EPIPE | Errno::ECONNRESET) => Err(Status::NOT_REACHABLE),
            Err(cause) => Err(failure(&name, &cause.into(), log)),
        }
    }

    /// For the poll loop.
    pub(crate) fn get(&self, id: DeviceId) -> Option<&Device> {
        self.running.get(&id)
    }

    /// A device has hung up, or is not wanted any more: it is made to end, and buried.
    pub(crate) fn bury(&mut self, id: DeviceId, log: &Log) {
        let Some(mut device) = self.running.remove(&id) else {
            return;
        };
        let _ = device.child.kill();
        let name = text(&device.name);
        match device.child.wait() {
            Ok(status) => log.warn("device", format_args!("{name} has ended: {status}")),
            Err(cause) => log.warn("device", format_args!("{name}: {cause}")),
        }
    }
}

/// Two ends for packets; neither outlives an `exec`.
fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let flags = SockFlag::SOCK_CLOEXEC;
    Ok(socketpair(
        AddressFamily::Unix,
        SockType::SeqPacket,
        None,
        flags,
    )?)
}

fn beside_us(name: &str) -> io::Result<PathBuf> {
    Ok(std::env::current_exe()?.with_file_name(format!("{PROGRAM_PREFIX}{name}")))
}

fn text(name: &[u8; DEVICE_BYTES]) -> String {
    let used = name.iter().take_while(|byte| **byte != 0).count();
    String::from_utf8_lossy(&name[..used]).into_owned()
}

fn failure(name: &str, cause: &io::Error, log: &Log) -> Status {
    log.warn("device", format_args!("{name}: {cause}"));
    Status::RESOURCE
}
