//! A process that uses the device.

use std::io;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::rc::Rc;
use std::sync::atomic::Ordering::Acquire;

use crate::vm::Process;

/// One NIC handle of a process.
pub(crate) struct Client {
    pub(crate) socket: OwnedFd,
    /// Tells of the end of the process.
    pub(crate) life: OwnedFd,
    pub(crate) pid: i32,
    pub(crate) process: Option<Rc<Process>>,
    /// Packets that the process had sent when its socket was found empty.
    pub(crate) mail: u32,
    /// Its interface.
    pub(crate) link: Option<usize>,
    /// Its VIs, by their number.
    pub(crate) vis: Vec<Option<usize>>,
}

/// The process goes on, or has lost its device.
pub(crate) enum Verdict {
    Stays,
    /// It has gone.
    Gone,
    /// It does not keep to the protocol.
    Expelled,
}

impl Client {
    /// # Errors
    /// The process has ended already, or the device is out of descriptors.
    pub(crate) fn new(pid: u32, socket: OwnedFd) -> io::Result<Client> {
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
            mail: 0,
            link: None,
            vis: Vec::new(),
        })
    }

    /// Packets that it has sent, as it says.
    pub(crate) fn sent(&self) -> u32 {
        let process = self.process.as_ref();
        process.map_or(self.mail, |process| process.nic().mail.load(Acquire))
    }

    /// Whether it has sent packets that have not been read.
    pub(crate) fn has_mail(&self) -> bool {
        self.sent() != self.mail
    }
}
