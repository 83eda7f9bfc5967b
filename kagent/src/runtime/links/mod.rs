//! The open links: the agent's own sockets, and data sockets for processes.

mod gate;
mod interface;
mod netlink;
mod origin;
mod permission;
mod raw;
mod secret;
mod socket;
mod udp;
mod unreached;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;

use kagent_proto::Status;
use nix::errno::Errno;
use nix::sys::epoll::EpollFlags;
use nix::unistd::geteuid;

pub(crate) use self::gate::Dropped;
use self::raw::SetupSocket;
pub(crate) use self::socket::{Buffer, FrameIn, LinkSocket, Unsent};
pub(crate) use self::udp::Call;
use self::udp::UdpSetupSocket;
use crate::runtime::clients::Session;
use crate::runtime::context::Context;
use crate::runtime::log::Log;
use crate::runtime::networks::Networks;
use crate::runtime::options::Options;
use crate::runtime::processes::prepare;
use crate::runtime::token::Token;
use crate::{Interface, LinkId, Medium, OpenLink};

/// Open links.
#[derive(Debug)]
pub(crate) struct Links {
    /// Members of this group may have packet sockets; `None`: only root and the agent's own user.
    group: Option<String>,
    /// The configured UDP port of the agent, if any.
    port: Option<u16>,
    /// The file with the secret for links over UDP.
    secret: Option<PathBuf>,
    /// Networks whose hosts may call over UDP without a secret.
    networks: Networks,
    open: BTreeMap<LinkId, LinkSocket>,
    /// Links over UDP by address; each keeps its number.
    udp: BTreeMap<IpAddr, LinkId>,
    /// Unused links and the time to close them.
    idle: BTreeMap<LinkId, u64>,
    /// Whether this agent may open packet sockets, once known.
    raw: Option<Result<(), Errno>>,
}

/// Number of the first link over UDP, above those of interfaces.
const FIRST_UDP: LinkId = 1 << 31;
/// Maximum links over UDP: addresses that the host has had during the life of its agent.
const UDP_MAX: usize = 4096;

/// Time for which an unused link stays open. Closing a packet socket takes the kernel some 10 ms, during
/// which the agent serves no process: a process that repeatedly opens and closes the only data socket of an
/// interface must not cause that each time.
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
    pub(crate) fn close_due(&mut self, context: &Context<'_>) {
        let now = context.now();
        while let Some((&link, _)) = self.idle.iter().find(|(_, due)| **due <= now) {
            self.close_if_idle(context, link);
        }
    }

    /// Closes a link if it is unused.
    pub(crate) fn close_if_idle(&mut self, context: &Context<'_>, link: LinkId) {
        if self.idle.remove(&link).is_some()
            && let Some(socket) = self.open.remove(&link)
        {
            context.remove(&socket);
        }
    }

    /// Closes all links when the agent exits.
    pub(crate) fn shut_down(&mut self) {
        self.open.clear();
    }

    /// The agent's own socket on a link.
    pub(crate) fn socket(&mut self, link: LinkId) -> Option<&mut LinkSocket> {
        self.open.get_mut(&link)
    }

    /// Whether an open link is one over UDP.
    pub(crate) fn is_udp(&self, link: LinkId) -> bool {
        matches!(self.open.get(&link), Some(LinkSocket::Udp(_)))
    }

    /// The interface of the link that a process requests, if the process may have a data socket there.
    pub(crate) fn find(
        &mut self,
        asker: &Session,
        open: &OpenLink,
        log: &Log,
    ) -> Result<Interface, Status> {
        let (socket, pid) = (asker.socket.as_fd(), asker.pid);
        if !permission::is_ours(socket, pid) {
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
        if !permission::may_have_packets(socket, self.group.as_deref()) {
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

    /// Whether a process may have a data socket, without opening one.
    pub(crate) fn ask(&mut self, asker: &Session, open: &OpenLink) -> Status {
        let socket = asker.socket.as_fd();
        if !permission::is_ours(socket, asker.pid) {
            return Status::OTHER_NETWORK;
        }
        if let Some(wanted) = udp::wanted(&open.interface) {
            return self
                .find_udp(wanted)
                .map_or_else(|status| status, |_| Status::OK);
        }
        if !permission::may_have_packets(socket, self.group.as_deref()) {
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

    /// A link over UDP. Every process may have a data socket there: it could open such a socket itself.
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

    /// Opens the agent's own socket on a link if it is not open, and completes the address. `port`: the port
    /// that it must have over UDP.
    pub(crate) fn ensure(
        &mut self,
        context: &Context<'_>,
        interface: &mut Interface,
        port: Option<u16>,
    ) -> Result<(), Status> {
        let (link, log) = (interface.index, context.log);
        self.idle.remove(&link);
        let fresh = !self.open.contains_key(&link);
        if fresh {
            let socket = match interface.medium {
                Medium::Ethernet => SetupSocket::open(link)
                    .map(LinkSocket::Ethernet)
                    .map_err(|cause| self.failure(cause, link, log))?,
                Medium::Udp => LinkSocket::Udp(Box::new(self.open_udp(interface, port, log)?)),
            };
            if let Err(cause) = context.add(&socket, Token::Link(link), EpollFlags::EPOLLIN) {
                log.warn("link", format_args!("epoll: {cause}"));
                return Err(Status::RESOURCE);
            }
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
        Ok(())
    }

    fn open_udp(
        &self,
        interface: &Interface,
        wanted: Option<u16>,
        log: &Log,
    ) -> Result<UdpSetupSocket, Status> {
        // Without the configured secret the agent must not be reachable.
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
        // The holder of the well-known port of a host is taken for its agent.
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

    /// Opens a data socket; returns it and the number of its endpoint. `free` is an unused number; over UDP
    /// the kernel chooses the number.
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

    /// Opens the socket for the trains of an endpoint on Ethernet. Without it frames travel one by one.
    pub(crate) fn trains(
        &self,
        interface: &Interface,
        endpoint: u16,
        log: &Log,
    ) -> Option<OwnedFd> {
        let link = interface.index;
        match interface.medium {
            Medium::Ethernet => raw::train_socket(link, endpoint)
                .inspect_err(|cause| {
                    log.debug("link", format_args!("interface {link}: no trains: {cause}"));
                })
                .ok(),
            Medium::Udp => None,
        }
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

/// The holder of a port, for a message.
fn holder(port: u16, ip: IpAddr) -> String {
    match netlink::holders(port, Some(ip)).as_deref() {
        Ok([user, ..]) => format!("; a program of user {user} has it"),
        _ => String::new(),
    }
}
