//! Device processes: started on request, connected to the processes that ask, and reaped when they end.
//!
//! A device process belongs to its user, who may stop, trace and kill it, so nothing here waits for one. A
//! device that has hung up is removed at once, and the next request starts a new one; the dead process is
//! reaped when the kernel reports it, which a debugger may delay.

#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;

use kagent_proto::{DEVICE_BYTES, Introduction, Status};
use nix::errno::Errno;
use nix::sys::epoll::EpollFlags;
use nix::sys::signal::{Signal, kill};
use nix::sys::socket::{Shutdown, UnixCredentials, getsockopt, shutdown, sockopt};
use nix::unistd::{Pid, geteuid};
use vipl_sys::seqpacket;
use zerocopy::IntoBytes;

use crate::OpenDevice;
use crate::runtime::context::Context;
use crate::runtime::log::Log;
use crate::runtime::processes::spawn::{self, Owner};
use crate::runtime::sockets::packet;
use crate::runtime::token::{DeviceId, Token};

/// Prefix of the program name of a device, beside the agent's own program.
const PROGRAM_PREFIX: &str = "vipl-";
/// Maximum devices of one user that were killed and cannot be reaped.
const DEAD_PER_USER_MAX: usize = 16;

/// One running device.
#[derive(Debug)]
struct Device {
    uid: u32,
    name: [u8; DEVICE_BYTES],
    pid: i32,
    /// Hangs up when the device exits. It is shut down for reading: closing a socket discards its queue, and
    /// the sender determines how long that takes.
    control: OwnedFd,
}

/// All device processes.
#[derive(Debug, Default)]
pub(crate) struct Devices {
    running: BTreeMap<DeviceId, Device>,
    /// Killed, not yet reaped: user and name by process id.
    dead: BTreeMap<i32, (u32, [u8; DEVICE_BYTES])>,
    last: DeviceId,
}

impl Devices {
    /// The running device with this user and name.
    pub(crate) fn find(&self, open: &OpenDevice) -> Option<DeviceId> {
        let is_it = |device: &Device| device.uid == open.uid && device.name == open.device;
        self.running
            .iter()
            .find_map(|(id, device)| is_it(device).then_some(*id))
    }

    /// Starts a device. `asker` is the socket of the requesting process.
    pub(crate) fn start(
        &mut self,
        context: &Context<'_>,
        open: &OpenDevice,
        asker: BorrowedFd<'_>,
    ) -> Result<DeviceId, Status> {
        let log = context.log;
        let name = text(&open.device);
        let program = beside_us(&name).map_err(|cause| failure(&name, &cause, log))?;
        if !spawn::is_program(&program) {
            log.warn(
                "device",
                format_args!("there is no program {}", program.display()),
            );
            return Err(Status::INVALID);
        }
        let dead = self.dead.values().filter(|(uid, _)| *uid == open.uid);
        if dead.count() >= DEAD_PER_USER_MAX {
            log.warn(
                "device",
                format_args!(
                    "{name}: {DEAD_PER_USER_MAX} devices of user {} have ended and a debugger holds them; \
                     end it first",
                    open.uid
                ),
            );
            return Err(Status::RESOURCE);
        }
        let (ours, theirs) = seqpacket::pair().map_err(|cause| failure(&name, &cause, log))?;
        shutdown(ours.as_raw_fd(), Shutdown::Read)
            .map_err(|cause| failure(&name, &cause.into(), log))?;
        let owner = if open.uid == geteuid().as_raw() {
            Owner::Agent
        } else {
            let who: UnixCredentials = getsockopt(&asker, sockopt::PeerCredentials)
                .map_err(|cause| failure(&name, &cause.into(), log))?;
            Owner::User {
                uid: open.uid,
                gid: who.gid(),
                asker: who.pid(),
            }
        };
        let pid = spawn::spawn(&program, &[], theirs.as_fd(), owner)
            .map_err(|cause| failure(&name, &cause.into(), log))?;
        log.info(
            "device",
            format_args!("{name} of user {} is process {pid}", open.uid),
        );
        self.last += 1;
        let device = Device {
            uid: open.uid,
            name: open.device,
            pid,
            control: ours,
        };
        // A device sends nothing; the only event is its hang-up, which is always reported.
        let watched = context.add(
            &device.control,
            Token::Device(self.last),
            EpollFlags::empty(),
        );
        self.running.insert(self.last, device);
        if let Err(cause) = watched {
            log.warn("device", format_args!("epoll: {cause}"));
            self.end(context, self.last);
            return Err(Status::RESOURCE);
        }
        Ok(self.last)
    }

    /// Connects a process to a device; returns the device's process id and the socket of the process.
    /// `NOT_REACHABLE`: the device has just exited.
    pub(crate) fn introduce(
        &self,
        id: DeviceId,
        open: &OpenDevice,
        log: &Log,
    ) -> Result<(u32, OwnedFd), Status> {
        let name = text(&open.device);
        let device = self.running.get(&id).ok_or(Status::RESOURCE)?;
        let (process, other) = seqpacket::pair().map_err(|cause| failure(&name, &cause, log))?;
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
            Ok(true) => Ok((device.pid as u32, process)),
            Ok(false) => {
                let (pid, uid) = (device.pid, device.uid);
                log.warn(
                    "device",
                    format_args!(
                        "{name} of user {uid} does not read: is process {pid} stopped? Try kill -CONT {pid}"
                    ),
                );
                Err(Status::RESOURCE)
            }
            Err(Errno::EPIPE | Errno::ECONNRESET) => Err(Status::NOT_REACHABLE),
            Err(cause) => Err(failure(&name, &cause.into(), log)),
        }
    }

    /// Kills a device that hung up or is no longer wanted. [`reaped`](Self::reaped) follows, at once or when
    /// a debugger releases it.
    pub(crate) fn end(&mut self, context: &Context<'_>, id: DeviceId) {
        if let Some(device) = self.running.remove(&id) {
            context.remove(&device.control);
            // Not reaped yet, so the process id has not been reused.
            let _ = kill(Pid::from_raw(device.pid), Signal::SIGKILL);
            self.dead.insert(device.pid, (device.uid, device.name));
        }
    }

    /// Hangs up on all devices: the agent exits.
    pub(crate) fn shut_down(&self) {
        for device in self.running.values() {
            let _ = shutdown(device.control.as_raw_fd(), Shutdown::Both);
        }
    }

    /// A child was reaped. Returns false if it was no device.
    pub(crate) fn reaped(&mut self, context: &Context<'_>, pid: i32, how: &str) -> bool {
        let mut all = self.running.iter();
        let running = all.find_map(|(id, device)| (device.pid == pid).then_some(*id));
        let ended = match running.and_then(|id| self.running.remove(&id)) {
            Some(device) => {
                context.remove(&device.control);
                Some((device.uid, device.name))
            }
            None => self.dead.remove(&pid),
        };
        let Some((uid, name)) = ended else {
            return false;
        };
        let name = text(&name);
        context.log.warn(
            "device",
            format_args!("{name} of user {uid}, process {pid}, has ended: {how}"),
        );
        true
    }
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
