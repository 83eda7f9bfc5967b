//! Watching other processes for their death.

use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use nix::errno::Errno;

/// Gives a descriptor for the process at the other end of a socket (Linux 6.5).
const SO_PEERPIDFD: libc::c_int = 77;

/// What we can know about the end of a process.
#[derive(Debug)]
pub(crate) enum Watch {
    /// This becomes readable when the process ends.
    Pidfd(OwnedFd),
    /// It has ended already.
    Gone,
    /// It lives where we cannot see it, in another process-id namespace, or the kernel has no such
    /// descriptors: its socket has to do.
    SocketOnly,
}

/// Begins to watch the process that connected `socket`.
pub(crate) fn watch(socket: BorrowedFd<'_>, pid: i32) -> Watch {
    // The socket knows its process for sure; a process id might belong to somebody else by now.
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
    let mut pidfd: RawFd = -1;
    let mut len = size_of::<RawFd>() as libc::socklen_t;
    // SAFETY: the option writes one integer, for which there is room.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            SO_PEERPIDFD,
            (&raw mut pidfd).cast(),
            &raw mut len,
        )
    };
    Errno::result(result)?;
    // SAFETY: the kernel has just made this descriptor for us.
    Ok(unsafe { OwnedFd::from_raw_fd(pidfd) })
}

fn pidfd_open(pid: i32) -> Result<OwnedFd, Errno> {
    // SAFETY: the call takes two integers.
    let pidfd = Errno::result(unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) })?;
    // SAFETY: the kernel has just made this descriptor for us; descriptors are ints.
    Ok(unsafe { OwnedFd::from_raw_fd(pidfd as RawFd) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_process_can_be_watched_and_a_dead_one_is_gone() {
        assert!(pidfd_open(std::process::id() as i32).is_ok());
        let mut child = std::process::Command::new("true").spawn().unwrap();
        child.wait().unwrap();
        assert_eq!(pidfd_open(child.id() as i32).err(), Some(Errno::ESRCH));
    }
}
