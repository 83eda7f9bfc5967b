//! Whether a process is in the agent's network namespace: what an agent opens is of its own, and a process that was
//! put into another one, or into one without a network, must not get out through the agent.
//!
//! A socket belongs to the namespace of the thread that made it, and the one that an agent accepts to that of the
//! process that connected. Nobody can change that later.

use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;

use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};

/// Socket option: number of the network namespace, never used again (Linux 5.14).
const SO_NETNS_COOKIE: libc::c_int = 71;

/// The number of a socket's network namespace.
fn cookie(socket: BorrowedFd<'_>) -> Result<u64, Errno> {
    let mut cookie = 0u64;
    let mut length = size_of::<u64>() as libc::socklen_t;
    // SAFETY: the buffer is as large as stated.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            SO_NETNS_COOKIE,
            (&raw mut cookie).cast(),
            &raw mut length,
        )
    };
    Errno::result(result).map(|_| cookie)
}

/// Whether the process `pid`, which has connected to this socket, is where this thread is. Where the kernel cannot
/// tell, it is not.
pub(super) fn is_ours(asker: BorrowedFd<'_>, pid: i32) -> bool {
    match cookie(asker) {
        Ok(theirs) => {
            let flags = SockFlag::SOCK_CLOEXEC;
            let own = socket(AddressFamily::Unix, SockType::Datagram, flags, None);
            own.and_then(|own| cookie(std::os::fd::AsFd::as_fd(&own))) == Ok(theirs)
        }
        // An older kernel. The number of a process that has ended may be another one's, but such a process gets nothing.
        Err(_) => {
            let namespace = |whose: &str| {
                let file = std::fs::metadata(format!("/proc/{whose}/ns/net")).ok()?;
                Some((file.dev(), file.ino()))
            };
            let own = namespace("thread-self");
            own.is_some() && namespace(&pid.to_string()) == own
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use nix::sys::socket::socketpair;

    use super::*;

    #[test]
    fn a_socket_of_this_thread_is_ours() {
        let pair = socketpair(
            AddressFamily::Unix,
            SockType::SeqPacket,
            None,
            SockFlag::SOCK_CLOEXEC,
        );
        let (one, _other) = pair.unwrap();
        assert!(is_ours(one.as_fd(), nix::unistd::getpid().as_raw()));
    }
}
