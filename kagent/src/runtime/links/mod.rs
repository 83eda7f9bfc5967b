//! The open links, and the permission to have a data socket.

mod interface;
mod raw;

use std::collections::BTreeMap;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use kagent_proto::Status;
use nix::errno::Errno;
use nix::sys::epoll::Epoll;
use nix::sys::socket::{UnixCredentials, getsockopt, sockopt};
use nix::unistd::{Group, geteuid};

use self::raw::SetupSocket;
use crate::OpenLink;
use crate::runtime::log::Log;
use crate::{Interface, LinkId};

/// Socket option: supplementary groups of the peer process (Linux 4.13).
const SO_PEERGROUPS: libc::c_int = 59;
/// No system allows a process more groups.
const GROUPS_MAX: usize = 65_536;

/// Open links.
#[derive(Debug)]
pub(crate) struct Links {
    /// Members of this group may have data sockets; `None`: only root and the agent's own user.
    group: Option<String>,
    pub(crate) open: BTreeMap<LinkId, SetupSocket>,
    /// Unused links, and when they are closed.
    idle: BTreeMap<LinkId, u64>,
}

/// Time for which an unused link stays open. Closing a packet socket takes the kernel some 10 ms, during
/// which the agent serves nobody: a process that opens and closes the only data socket of an interface
/// repeatedly must not cause that each time.
const IDLE_NS: u64 = 1_000_000_000;

impl Links {
    pub(crate) fn new(group: Option<String>) -> Self {
        Self {
            group,
            open: BTreeMap::new(),
            idle: BTreeMap::new(),
        }
    }

    /// Schedules closing an unused link. [`ensure`](Self::ensure) cancels it.
    pub(crate) fn close_later(&mut self, link: LinkId, now: u64) {
        if self.open.contains_key(&link) {
            self.idle.insert(link, now.saturating_add(IDLE_NS));
        }
    }

    /// The next deadline.
    pub(crate) fn next_close(&self) -> Option<u64> {
        self.idle.values().copied().min()
    }

    /// Closes the links that are due.
    pub(crate) fn close_due(&mut self, now: u64, epoll: &Epoll) {
        while let Some((&link, _)) = self.idle.iter().find(|(_, due)| **due <= now) {
            self.close_if_idle(link, epoll);
        }
    }

    /// Closes a link if it is unused.
    pub(crate) fn close_if_idle(&mut self, link: LinkId, epoll: &Epoll) {
        if self.idle.remove(&link).is_some()
            && let Some(socket) = self.open.remove(&link)
        {
            let _ = epoll.delete(&socket);
        }
    }

    /// The interface that a process asks for, if it is permitted.
    pub(crate) fn find(
        &self,
        asker: BorrowedFd<'_>,
        open: &OpenLink,
        log: &Log,
    ) -> Result<Interface, Status> {
        let name = String::from_utf8_lossy(&open.interface);
        let name = name.trim_end_matches('\0');
        if !self.may_have(asker) {
            log.warn(
                "link",
                format_args!("{name}: refused client {}", open.client.0),
            );
            return Err(Status::NOT_PERMITTED);
        }
        match interface::describe(&open.interface) {
            Ok(Some(interface)) => Ok(interface),
            Ok(None) => Err(Status::INVALID),
            Err(cause) => {
                log.warn("link", format_args!("{name}: {cause}"));
                Err(Status::RESOURCE)
            }
        }
    }

    /// Opens the agent's own socket on a link. Returns whether it was newly opened.
    pub(crate) fn ensure(&mut self, link: LinkId, log: &Log) -> Result<bool, Status> {
        self.idle.remove(&link);
        if self.open.contains_key(&link) {
            return Ok(false);
        }
        let socket = SetupSocket::open(link).map_err(|cause| self.failure(cause, link, log))?;
        self.open.insert(link, socket);
        Ok(true)
    }

    /// A data socket.
    pub(crate) fn data(&self, link: LinkId, endpoint: u16, log: &Log) -> Result<OwnedFd, Status> {
        raw::data_socket(link, endpoint).map_err(|cause| self.failure(cause, link, log))
    }

    fn may_have(&self, asker: BorrowedFd<'_>) -> bool {
        let Ok(who) = getsockopt(&asker, sockopt::PeerCredentials) else {
            return false;
        };
        let who: UnixCredentials = who;
        if who.uid() == 0 || who.uid() == geteuid().as_raw() {
            return true;
        }
        let group = self.group.as_deref().map(Group::from_name);
        let Some(Ok(Some(group))) = group else {
            return false;
        };
        let group = group.gid.as_raw();
        who.gid() == group || groups_of(asker).is_ok_and(|groups| groups.contains(&group))
    }

    fn failure(&self, cause: Errno, link: LinkId, log: &Log) -> Status {
        match cause {
            Errno::EADDRINUSE => {
                log.warn("link", format_args!("another agent has interface {link}"));
                Status::BUSY
            }
            Errno::EPERM | Errno::EACCES => {
                log.warn(
                    "link",
                    format_args!(
                        "interface {link}: this agent has no right to raw Ethernet (CAP_NET_RAW)"
                    ),
                );
                if self.group.is_some() {
                    Status::NO_PRIVILEGE
                } else {
                    Status::NO_SYSTEM_AGENT
                }
            }
            cause => {
                log.warn("link", format_args!("interface {link}: {cause}"));
                Status::RESOURCE
            }
        }
    }
}

/// The supplementary groups that a process had when it connected.
fn groups_of(socket: BorrowedFd<'_>) -> Result<Vec<libc::gid_t>, Errno> {
    let mut groups: Vec<libc::gid_t> = vec![0; 64];
    loop {
        let mut bytes = (groups.len() * size_of::<libc::gid_t>()) as libc::socklen_t;
        // SAFETY: the buffer is as large as stated.
        let result = unsafe {
            libc::getsockopt(
                socket.as_raw_fd(),
                libc::SOL_SOCKET,
                SO_PEERGROUPS,
                groups.as_mut_ptr().cast(),
                &raw mut bytes,
            )
        };
        match Errno::result(result) {
            Ok(_) => {
                groups.truncate(bytes as usize / size_of::<libc::gid_t>());
                return Ok(groups);
            }
            Err(Errno::ERANGE) if groups.len() < GROUPS_MAX => groups.resize(GROUPS_MAX, 0),
            Err(cause) => return Err(cause),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};

    use super::*;

    #[test]
    fn the_own_user_may_and_groups_can_be_read() {
        let kind = SockType::SeqPacket;
        let (ours, _theirs) =
            socketpair(AddressFamily::Unix, kind, None, SockFlag::SOCK_CLOEXEC).unwrap();
        assert!(Links::new(None).may_have(ours.as_fd()));
        let own = nix::unistd::getgroups().unwrap();
        let seen = groups_of(ours.as_fd()).unwrap();
        assert_eq!(seen, own.iter().map(|gid| gid.as_raw()).collect::<Vec<_>>());
    }
}
