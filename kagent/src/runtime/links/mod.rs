//! The open links, and the permission to have a data socket.

mod gate;
mod interface;
mod netlink;
mod network;
mod origin;
mod raw;
mod secret;
mod udp;
mod unreached;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;

use kagent_proto::Status;
use nix::errno::Errno;
use nix::sys::epoll::Epoll;
use nix::sys::socket::{UnixCredentials, getsockopt, sockopt};
use nix::unistd::{Group, geteuid};

pub(crate) use self::gate::Dropped;
use self::raw::SetupSocket;
pub(crate) use self::udp::Call;
use self::udp::UdpSetupSocket;
pub(crate) use self::udp::udp_address;
use self::unreached::Unreached;
use crate::OpenLink;
use crate::runtime::log::Log;
use crate::runtime::networks::Networks;
use crate::runtime::options::Options;
use crate::runtime::processes::prepare;
use crate::runtime::server::session::Session;
use crate::{HostAddress, Interface, LinkId, Medium};

/// Socket option: supplementary groups of the peer process (Linux 4.13).
const SO_PEERGROUPS: libc::c_int = 59;
/// No system allows a process more groups.
const GROUPS_MAX: usize = 65_536;

/// The agent's own socket on a link.
#[derive(Debug)]
pub(crate) enum LinkSocket {
    Ethernet(SetupSocket),
    Udp(Box<UdpSetupSocket>),
}

impl AsFd for LinkSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            LinkSocket::Ethernet(socket) => socket.as_fd(),
            LinkSocket::Udp(socket) => socket.as_fd(),
        }
    }
}

/// What came from a link.
#[derive(Debug)]
pub(crate) enum FrameIn<'a> {
    /// A frame, and whether it was sent to all hosts.
    Frame(HostAddress, bool, &'a [u8]),
    /// Something that has been dealt with.
    Handled,
    /// Something that was dropped.
    Dropped(HostAddress, Dropped),
}

/// Why a frame was not sent.
#[derive(Debug)]
pub(crate) enum Unsent {
    /// The interface is down or gone.
    Down(Errno),
    /// The address belongs to another user of this host.
    OtherUser(Option<u32>),
}

/// Room for what one call receives.
pub(crate) type Buffer = [u8; kagent_proto::setup::DATAGRAM_MAX + 1];

impl LinkSocket {
    /// Sends one frame. `call`: it is one.
    pub(crate) fn send(
        &mut self,
        now: u64,
        to: HostAddress,
        bytes: &[u8],
        call: Option<Call>,
    ) -> Result<(), Unsent> {
        match self {
            LinkSocket::Ethernet(socket) => socket.send(to.bytes(), bytes).map_err(Unsent::Down),
            LinkSocket::Udp(socket) => socket.send(now, to, bytes, call).map_err(Unsent::OtherUser),
        }
    }

    /// The hosts that frames have not reached, as the network says.
    pub(crate) fn take_unreached(&mut self) -> Vec<Unreached> {
        match self {
            LinkSocket::Ethernet(_) => Vec::new(),
            LinkSocket::Udp(socket) => socket.take_unreached(),
        }
    }

    /// Receives one frame, if there is one.
    pub(crate) fn receive<'a>(
        &mut self,
        now: u64,
        buffer: &'a mut Buffer,
    ) -> Result<Option<FrameIn<'a>>, Errno> {
        Ok(match self {
            LinkSocket::Ethernet(socket) => {
                let got = socket.receive(&mut buffer[..kagent_proto::setup::FRAME_MAX])?;
                got.map(|(from, to_all, length)| {
                    FrameIn::Frame(from.into(), to_all, &buffer[..length])
                })
            }
            LinkSocket::Udp(socket) => socket.receive(now, buffer),
        })
    }
}

/// Open links.
#[derive(Debug)]
pub(crate) struct Links {
    /// Members of this group may have data sockets; `None`: only root and the agent's own user.
    group: Option<String>,
    /// The agent's UDP port, if it must be this one.
    port: Option<u16>,
    /// The file with the secret for links over UDP.
    secret: Option<PathBuf>,
    /// From where other hosts may call over UDP, without a secret.
    networks: Networks,
    pub(crate) open: BTreeMap<LinkId, LinkSocket>,
    /// The links over UDP by their addresses; each keeps its number.
    udp: BTreeMap<IpAddr, LinkId>,
    /// Unused links, and when they are closed.
    idle: BTreeMap<LinkId, u64>,
    /// Whether this agent has the right to raw Ethernet, once it is known.
    raw: Option<Result<(), Errno>>,
}

/// The number of the first link over UDP: no interface has one as high.
const FIRST_UDP: LinkId = 1 << 31;
/// Links over UDP: addresses that a host has had during the life of its agent.
const UDP_MAX: usize = 4096;

/// Time for which an unused link stays open. Closing a packet socket takes the kernel some 10 ms, during
/// which the agent serves nobody: a process that opens and closes the only data socket of an interface
/// repeatedly must not cause that each time.
const IDLE_NS: u64 = 1_000_000_000;

impl Links {
    pub(crate) fn new(options: &Options) -> Self {
        Self {
            group: options.system.then(|| options.link_group.clone()),
            port: options.udp_port,
            secret: options.secret_file.clone(),
            networks: options.udp_from.clone(),
            open: BTreeMap::new(),
            udp: BTreeMap::new(),
            idle: BTreeMap::new(),
            raw: None,
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

    /// The interface of the link that a process asks for, if it is permitted.
    pub(crate) fn find(
        &mut self,
        asker: &Session,
        open: &OpenLink,
        log: &Log,
    ) -> Result<Interface, Status> {
        let (socket, pid) = (asker.socket.as_fd(), asker.pid);
        if !network::is_ours(socket, pid) {
            log.warn(
                "link",
                format_args!(
                    "pid {pid} is in another network namespace, and gets no socket of this one"
                ),
            );
            return Err(Status::OTHER_NETWORK);
        }
        if let Some(wanted) = udp::wanted(&open.interface) {
            return self.find_udp(wanted);
        }
        let name = String::from_utf8_lossy(&open.interface);
        let name = name.trim_end_matches('\0');
        if !self.may_have(socket) {
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

    /// Whether a process may have a link, without opening one.
    pub(crate) fn ask(&mut self, asker: &Session, open: &OpenLink) -> Status {
        let socket = asker.socket.as_fd();
        if !network::is_ours(socket, asker.pid) {
            return Status::OTHER_NETWORK;
        }
        if let Some(wanted) = udp::wanted(&open.interface) {
            return self
                .find_udp(wanted)
                .map_or_else(|status| status, |_| Status::OK);
        }
        if !self.may_have(socket) {
            return Status::NOT_PERMITTED;
        }
        match interface::describe(&open.interface) {
            Ok(Some(interface)) if self.open.contains_key(&interface.index) => Status::OK,
            Ok(Some(_)) => match *self.raw.get_or_insert_with(raw::probe) {
                Ok(()) => Status::OK,
                Err(cause) => self.status_of(cause),
            },
            Ok(None) => Status::INVALID,
            Err(_) => Status::RESOURCE,
        }
    }

    /// A link over UDP. Every process may have one: it could open such a socket itself.
    fn find_udp(&mut self, wanted: udp::Wanted<'_>) -> Result<Interface, Status> {
        if wanted.sealed && self.secret.is_none() {
            return Err(Status::NOT_SEALED);
        }
        let next = FIRST_UDP + self.udp.len() as LinkId;
        let mut found = udp::describe(wanted.argument, next).ok_or(Status::INVALID)?;
        let ip = found.address.socket().ip();
        if !self.udp.contains_key(&ip) && self.udp.len() >= UDP_MAX {
            return Err(Status::RESOURCE);
        }
        found.index = *self.udp.entry(ip).or_insert(next);
        Ok(found)
    }

    /// Opens the agent's own socket on a link, and completes the address. Returns whether it was newly opened.
    /// Over UDP it has the port that is given, if one is.
    pub(crate) fn ensure(
        &mut self,
        interface: &mut Interface,
        port: Option<u16>,
        log: &Log,
    ) -> Result<bool, Status> {
        let link = interface.index;
        self.idle.remove(&link);
        let fresh = !self.open.contains_key(&link);
        if fresh {
            let socket = match interface.medium {
                Medium::Ethernet => SetupSocket::open(link)
                    .map(LinkSocket::Ethernet)
                    .map_err(|cause| self.failure(cause, link, log))?,
                Medium::Udp => LinkSocket::Udp(Box::new(self.open_udp(interface, port, log)?)),
            };
            self.open.insert(link, socket);
        }
        if let Some(LinkSocket::Udp(socket)) = self.open.get(&link) {
            interface.address = socket.address();
            interface.seals = socket.data_key();
            if fresh {
                let address = interface.address.socket();
                log.info("link", format_args!("this host is {address}"));
            }
        }
        Ok(fresh)
    }

    fn open_udp(
        &self,
        interface: &Interface,
        wanted: Option<u16>,
        log: &Log,
    ) -> Result<UdpSetupSocket, Status> {
        // Without its secret nothing must be open to others.
        let keys = match &self.secret {
            None => None,
            Some(path) => Some(secret::read(path).map_err(|cause| {
                let path = path.display();
                log.error("link", format_args!("the secret {path}: {cause}"));
                Status::NO_SECRET
            })?),
        };
        let cookies = prepare::random_seed().map_err(|_| Status::RESOURCE)?;
        let ip = interface.address.socket().ip();
        // Whoever has the usual port of a host is taken for its agent.
        let own = self.port.or(self.group.is_some().then_some(udp::PORT));
        if wanted.is_some() && own.is_some() && wanted != own {
            return Err(Status::BUSY);
        }
        let port = own.or(wanted);
        let opened = UdpSetupSocket::open(ip, port, cookies, keys, &self.networks);
        if let (Ok(socket), None) = (&opened, port)
            && socket.address().socket().port() != udp::PORT
        {
            let (usual, own) = (udp::PORT, socket.address().socket());
            let holders = netlink::holders(usual, Some(ip)).unwrap_or_default();
            let other = holders.iter().find(|user| **user != geteuid().as_raw());
            if let Some(user) = other {
                log.warn(
                    "link",
                    format_args!(
                        "UDP port {usual} of {ip} is taken; a program of user {user} has it; this agent is {own}"
                    ),
                );
            }
        }
        opened.map_err(|cause| {
            let port = port.unwrap_or(0);
            log.error(
                "link",
                format_args!("UDP port {port} of {ip}: {cause}{}", holder(port, ip)),
            );
            match cause {
                Errno::EADDRINUSE => Status::BUSY,
                Errno::EACCES => Status::NO_PRIVILEGE,
                _ => Status::RESOURCE,
            }
        })
    }

    /// A data socket, and the number of its endpoint. `free` is a number that is free; over UDP the kernel chooses.
    pub(crate) fn data(
        &self,
        interface: &Interface,
        free: u16,
        log: &Log,
    ) -> Result<(OwnedFd, u16), Status> {
        let link = interface.index;
        match interface.medium {
            Medium::Ethernet => raw::data_socket(link, free)
                .map(|socket| (socket, free))
                .map_err(|cause| self.failure(cause, link, log)),
            Medium::Udp => udp::data_socket(interface.address.socket().ip()).map_err(|cause| {
                log.warn("link", format_args!("a data socket: {cause}"));
                Status::RESOURCE
            }),
        }
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
            }
            Errno::EPERM | Errno::EACCES => {
                log.warn(
                    "link",
                    format_args!(
                        "interface {link}: this agent has no right to raw Ethernet (CAP_NET_RAW)"
                    ),
                );
            }
            cause => log.warn("link", format_args!("interface {link}: {cause}")),
        }
        self.status_of(cause)
    }

    fn status_of(&self, cause: Errno) -> Status {
        match cause {
            Errno::EADDRINUSE => Status::BUSY,
            Errno::EPERM | Errno::EACCES if self.group.is_some() => Status::NO_PRIVILEGE,
            Errno::EPERM | Errno::EACCES => Status::NO_SYSTEM_AGENT,
            _ => Status::RESOURCE,
        }
    }
}

/// Who has a port, for a message.
fn holder(port: u16, ip: IpAddr) -> String {
    match netlink::holders(port, Some(ip)).as_deref() {
        Ok([user, ..]) => format!("; a program of user {user} has it"),
        _ => String::new(),
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
    use clap::Parser;
    use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};

    use super::*;

    #[test]
    fn the_own_user_may_and_groups_can_be_read() {
        let kind = SockType::SeqPacket;
        let (ours, _theirs) =
            socketpair(AddressFamily::Unix, kind, None, SockFlag::SOCK_CLOEXEC).unwrap();
        let links = Links::new(&Options::parse_from(["vipkad"]));
        assert!(links.may_have(ours.as_fd()));
        let own = nix::unistd::getgroups().unwrap();
        let seen = groups_of(ours.as_fd()).unwrap();
        assert_eq!(seen, own.iter().map(|gid| gid.as_raw()).collect::<Vec<_>>());
    }
}
