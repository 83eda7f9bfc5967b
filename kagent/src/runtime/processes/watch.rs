//! Detecting the exit of other processes.

use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd, RawFd};

use nix::errno::Errno;

use crate::runtime::sockets::option;

/// Socket option: pidfd of the peer process (Linux 6.5).
const SO_PEERPIDFD: libc::c_int = 77;

/// How the exit of a process is detected.
#[derive(Debug)]
pub(crate) enum Watch {
    /// A pidfd, which becomes readable when the process exits.
    Pidfd(OwnedFd),
    /// The process has already exited.
    Gone,
    /// The process is in another PID namespace, or the kernel has no pidfds: only its socket is watched.
    SocketOnly,
}

/// Watches the process that connected `socket`.
pub(crate) fn watch(socket: BorrowedFd<'_>, pid: i32) -> Watch {
    // The socket identifies its process reliably; the process id may have been reused.
    match peer_pidfd(socket).or_else(|cause| match cause {
        Errno::ESRCH => Err(cause),
        _ if pid <= 0 => Err(cause),
        _ => pidfd_open(pid),
    }) {
        Ok(pidfd) => Watch::Pidfd(pidfd),
        Err(Errno::ESRCH) => Watch::Gone,
        Err(_) => Watch::SocketOnly,
    }
}

fn peer_pidfd(socket: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
    let mut pidfd = [0; size_of::<RawFd>()];
    option::get(socket, SO_PEERPIDFD, &mut pidfd)?;
    let pidfd = RawFd::from_ne_bytes(pidfd);
    // SAFETY: the kernel has just returned this descriptor, which has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(pidfd) })
}

fn pidfd_open(pid: i32) -> Result<OwnedFd, Errno> {
    // SAFETY: the call takes two integers.
    let pidfd = Errno::result(unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) })?;
    // SAFETY: the kernel has just returned this descriptor, which has no other owner; descriptors are ints.
    Ok(unsafe { OwnedFd::from_raw_fd(pidfd as RawFd) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_process_can_be_watched_and_a_dead_one_is_not_found() {
        assert!(pidfd_open(std::process::id() as i32).is_ok());
        let mut child = std::process::Command::new("true").spawn().unwrap();
        child.wait().unwrap();
        assert_eq!(pidfd_open(child.id() as i32).err(), Some(Errno::ESRCH));
    }
}
