//! Permission to have a data socket.
//!
//! A process must be in the agent's network namespace: the agent opens sockets in its own, and a process
//! confined to another namespace, or to one without a network, must not escape through the agent. A socket
//! belongs to the namespace of the thread that made it, and an accepted socket to that of the process that
//! connected. This cannot change later.
//!
//! A packet socket is for root, the agent's own user, and the members of a group.

#![forbid(unsafe_code)]

use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;

use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, UnixCredentials, getsockopt, socket, sockopt,
};
use nix::unistd::{Group, geteuid};
use zerocopy::IntoBytes;

use crate::runtime::sockets::option;

/// Socket option: number of the network namespace, never reused (Linux 5.14).
const SO_NETNS_COOKIE: libc::c_int = 71;
/// Socket option: supplementary groups of the peer process (Linux 4.13).
const SO_PEERGROUPS: libc::c_int = 59;
/// Maximum groups of a process on any system.
const GROUPS_MAX: usize = 65_536;

/// The number of a socket's network namespace.
fn cookie(socket: BorrowedFd<'_>) -> Result<u64, Errno> {
    let mut cookie = [0; 8];
    option::get(socket, SO_NETNS_COOKIE, &mut cookie)?;
    Ok(u64::from_ne_bytes(cookie))
}

/// Whether the process `pid`, which connected to this socket, is in the network namespace of this thread.
/// False if the kernel does not report it.
pub(super) fn is_ours(asker: BorrowedFd<'_>, pid: i32) -> bool {
    match cookie(asker) {
        Ok(theirs) => {
            let flags = SockFlag::SOCK_CLOEXEC;
            let own = socket(AddressFamily::Unix, SockType::Datagram, flags, None);
            own.and_then(|own| cookie(own.as_fd())) == Ok(theirs)
        }
        // An older kernel. The process id may have been reused after the process exited, but then the process
        // receives nothing.
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

/// Whether a process may have a packet socket. `group`: a group whose members may.
pub(super) fn may_have_packets(asker: BorrowedFd<'_>, group: Option<&str>) -> bool {
    let Ok(who) = getsockopt(&asker, sockopt::PeerCredentials) else {
        return false;
    };
    let who: UnixCredentials = who;
    if who.uid() == 0 || who.uid() == geteuid().as_raw() {
        return true;
    }
    let group = group.map(Group::from_name);
    let Some(Ok(Some(group))) = group else {
        return false;
    };
    let group = group.gid.as_raw();
    who.gid() == group || groups_of(asker).is_ok_and(|groups| groups.contains(&group))
}

/// The supplementary groups that a process had when it connected.
fn groups_of(socket: BorrowedFd<'_>) -> Result<Vec<libc::gid_t>, Errno> {
    let mut groups: Vec<libc::gid_t> = vec![0; 64];
    loop {
        match option::get(socket, SO_PEERGROUPS, groups.as_mut_bytes()) {
            Ok(bytes) => {
                groups.truncate(bytes / size_of::<libc::gid_t>());
                return Ok(groups);
            }
            Err(Errno::ERANGE) if groups.len() < GROUPS_MAX => groups.resize(GROUPS_MAX, 0),
            Err(cause) => return Err(cause),
        }
    }
}

#[cfg(test)]
mod tests {
    use nix::sys::socket::socketpair;

    use super::*;

    #[test]
    fn the_own_user_may_and_groups_can_be_read() {
        let kind = SockType::SeqPacket;
        let (ours, _theirs) =
            socketpair(AddressFamily::Unix, kind, None, SockFlag::SOCK_CLOEXEC).unwrap();
        assert!(may_have_packets(ours.as_fd(), None));
        let own = nix::unistd::getgroups().unwrap();
        let seen = groups_of(ours.as_fd()).unwrap();
        assert_eq!(seen, own.iter().map(|gid| gid.as_raw()).collect::<Vec<_>>());
    }

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
