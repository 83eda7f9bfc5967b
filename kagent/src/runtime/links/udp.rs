//! UDP sockets: the agent's own, and data sockets for processes. Neither requires a privilege.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use kagent_proto::setup::{Body, DATAGRAM_MAX, Frame};
use kagent_proto::{INTERFACE_BYTES, LINK_BYTES};
use nix::errno::Errno;
use nix::ifaddrs::getifaddrs;
use nix::net::if_::InterfaceFlags;
use nix::sys::socket::{setsockopt, sockopt};
use vipl_sys::clock;

use super::gate::{Arrived, Dropped, Gate, Key};
use super::origin::{Origin, Origins};
use super::secret::Keys;
use super::unreached::{self, Unreached};
use super::{FrameIn, interface};
use crate::runtime::error::errno;
use crate::runtime::networks::Networks;
use crate::runtime::sockets::option;
use crate::{HostAddress, Interface, LinkId, Medium};

/// Prefix of the names of links over UDP.
const PREFIX: &str = "udp:";
/// The same, if the agent must have a secret.
const SEALED_PREFIX: &str = "sealed-udp:";
/// The default port of the agent, equal to the ethertype of set-up frames. If it is taken, an agent of one
/// user binds any port.
pub(super) const PORT: u16 = kagent_proto::setup::SETUP_ETHERTYPE;
/// Requested size of the receive buffer; the kernel limits it.
const ROOM: usize = 1 << 20;
/// Bytes of the headers before a datagram.
const HEADERS_V4: u32 = 20 + 8;
const HEADERS_V6: u32 = 40 + 8;
/// Longest datagram of the data protocol, even if the interface allows more (the loopback interface has
/// 65536).
const MTU_MAX: u32 = 9000;

/// The name of a link over UDP.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted<'a> {
    /// The part after the prefix.
    pub(crate) argument: &'a str,
    /// The agent must have a secret.
    pub(crate) sealed: bool,
}

/// Parses the name of a link. `None` if it is not a link over UDP.
pub(crate) fn wanted(name: &[u8; LINK_BYTES]) -> Option<Wanted<'_>> {
    let name = name.split(|byte| *byte == 0).next()?;
    let name = std::str::from_utf8(name).ok()?;
    let plain = name.strip_prefix(PREFIX);
    let argument = plain.or_else(|| name.strip_prefix(SEALED_PREFIX))?;
    Some(Wanted {
        argument,
        sealed: plain.is_none(),
    })
}

/// A local address that other hosts can reach.
struct Local {
    ip: IpAddr,
    interface: String,
}

/// Describes the link of this name; the port is not known yet. `None` if this host has no such address.
pub(crate) fn describe(argument: &str, index: LinkId) -> Option<Interface> {
    let local = find(argument)?;
    let mut name = [0; INTERFACE_BYTES];
    let bytes = local.interface.as_bytes();
    name.get_mut(..bytes.len())?.copy_from_slice(bytes);
    let (mtu, speed_mbit, driver) = interface::properties(&name).ok()?;
    let headers = if local.ip.is_ipv4() {
        HEADERS_V4
    } else {
        HEADERS_V6
    };
    Some(Interface {
        index,
        name,
        medium: Medium::Udp,
        address: SocketAddr::new(local.ip, 0).into(),
        mtu: mtu.saturating_sub(headers).min(MTU_MAX),
        speed_mbit,
        driver,
        seals: None,
    })
}

/// Resolves an argument: an address, the name of an interface, or empty for the address from which this host
/// reaches others.
fn find(argument: &str) -> Option<Local> {
    let all: Vec<Local> = getifaddrs().ok()?.filter_map(|one| local(&one)).collect();
    let wanted: Box<dyn Fn(&Local) -> bool> = if argument.is_empty() {
        let ip = outward().or_else(|| {
            all.iter()
                .map(|local| local.ip)
                .find(|ip| !ip.is_loopback())
        });
        let ip = ip.unwrap_or(Ipv4Addr::LOCALHOST.into());
        Box::new(move |local| local.ip == ip)
    } else if let Ok(ip) = argument.parse::<IpAddr>() {
        Box::new(move |local| local.ip == ip)
    } else {
        Box::new(move |local| local.interface == argument)
    };
    // IPv4 first: its addresses fit into six bytes, as some programs expect.
    let mut fitting: Vec<Local> = all.into_iter().filter(|local| wanted(local)).collect();
    fitting.sort_by_key(|local| local.ip.is_ipv6());
    fitting.into_iter().next()
}

/// An address of an interface that is up. Link-local addresses are excluded: they need an interface, for
/// which an address has no room.
fn local(one: &nix::ifaddrs::InterfaceAddress) -> Option<Local> {
    let ip = option::address(one.address.as_ref()?)?.ip();
    let on_link = matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local());
    (one.flags.contains(InterfaceFlags::IFF_UP) && !on_link).then(|| Local {
        ip,
        interface: one.interface_name.clone(),
    })
}

/// The source address of packets to other networks. Connecting a UDP socket sends nothing; the destinations
/// are reserved for documentation.
fn outward() -> Option<IpAddr> {
    let from = |any: IpAddr, to: IpAddr| {
        let socket = UdpSocket::bind((any, 0)).ok()?;
        socket.connect((to, 9)).ok()?;
        Some(socket.local_addr().ok()?.ip())
    };
    let v4 = from(
        Ipv4Addr::UNSPECIFIED.into(),
        Ipv4Addr::new(192, 0, 2, 1).into(),
    );
    let there = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1);
    v4.or_else(|| from(Ipv6Addr::UNSPECIFIED.into(), there.into()))
}

/// A data socket at an address of this host; its port is the number of its endpoint.
pub(crate) fn data_socket(ip: IpAddr) -> io::Result<(OwnedFd, u16)> {
    let socket = UdpSocket::bind((ip, 0))?;
    socket.set_nonblocking(true)?;
    let port = socket.local_addr()?.port();
    Ok((socket.into(), port))
}

/// The agent's own socket at a local address.
#[derive(Debug)]
pub(crate) struct UdpSetupSocket {
    socket: UdpSocket,
    own: SocketAddr,
    gate: Gate,
    data: Option<Key>,
    /// `None` with a secret.
    origins: Option<Origins>,
    /// Hosts reported as unreachable.
    unreached: Vec<Unreached>,
}

/// The call that a frame carries: its exchange and the user who makes it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Call {
    pub(crate) exchange: u64,
    pub(crate) caller: u32,
}

impl UdpSetupSocket {
    /// Binds the given port; without one the default port, or any if it is taken.
    pub(crate) fn open(
        ip: IpAddr,
        port: Option<u16>,
        cookies: Key,
        keys: Option<Keys>,
        networks: &Networks,
    ) -> Result<Self, Errno> {
        let bind = |port| UdpSocket::bind((ip, port)).map_err(|cause| errno(&cause));
        let socket = match port {
            Some(port) => bind(port)?,
            None => match bind(PORT) {
                Err(Errno::EADDRINUSE) => bind(0)?,
                other => other?,
            },
        };
        socket
            .set_nonblocking(true)
            .map_err(|cause| errno(&cause))?;
        let _ = setsockopt(&socket, sockopt::RcvBuf, &ROOM);
        unreached::listen(&socket, ip.is_ipv6());
        let clock_us = clock::since_1970().as_micros() as u64;
        let own = socket.local_addr().map_err(|cause| errno(&cause))?;
        Ok(Self {
            socket,
            own,
            origins: keys.is_none().then(|| Origins::new(networks.clone())),
            gate: Gate::new(cookies, keys.map(|keys| keys.agents), clock_us),
            data: keys.map(|keys| keys.data),
            unreached: Vec::new(),
        })
    }

    /// Its address.
    pub(crate) fn address(&self) -> HostAddress {
        self.own.into()
    }

    /// The key from which those of connections are derived.
    pub(crate) fn data_key(&self) -> Option<Key> {
        self.data
    }

    /// Sends one frame. A report that a host is unreachable concerns that host only, and may be forged; the
    /// exchange will time out by itself. If the address is local and belongs to another user, nothing is
    /// sent, and the error is that user.
    pub(crate) fn send(
        &mut self,
        now: u64,
        to: HostAddress,
        frame: &[u8],
        call: Option<Call>,
    ) -> Result<(), Option<u32>> {
        let to = to.socket();
        if self.origins.is_some() {
            match call {
                Some(call) => Origins::may_call(self.own, to, call.caller)?,
                None if Origins::may_send(self.own, to) => {}
                None => return Ok(()),
            }
        }
        let caller = call.map_or(0, |call| call.caller);
        if let Some(datagram) = self.gate.wrap(now, to, frame, caller) {
            self.pass(to, &datagram);
        }
        Ok(())
    }

    fn pass(&mut self, to: SocketAddr, datagram: &[u8]) {
        let unreached = unreached::send(&self.socket, to, datagram);
        self.unreached.extend(unreached);
    }

    /// Takes the hosts reported as unreachable since the last call.
    pub(crate) fn take_unreached(&mut self) -> Vec<Unreached> {
        std::mem::take(&mut self.unreached)
    }

    /// Receives one datagram; `None` if there is none. The frame borrows from `buffer`.
    pub(crate) fn receive<'a>(
        &mut self,
        now: u64,
        buffer: &'a mut [u8; DATAGRAM_MAX + 1],
    ) -> Option<FrameIn<'a>> {
        let mut reported = false;
        let (length, from) = loop {
            match self.socket.recv_from(buffer) {
                Ok(got) => break got,
                Err(cause) if cause.kind() == io::ErrorKind::Interrupted => {}
                // An ICMP error about an earlier datagram is reported here, and queued.
                Err(cause) if cause.kind() != io::ErrorKind::WouldBlock && !reported => {
                    reported = true;
                    self.unreached.extend(unreached::take(&self.socket));
                }
                Err(_) => {
                    self.unreached.extend(unreached::take(&self.socket));
                    return None;
                }
            }
        };
        let bytes = &buffer[..length];
        let own = self.own;
        let origin = self.origins.as_mut().map(|of| of.of(now, own, from));
        if let Some(Origin::OtherUser(user)) = origin {
            return Some(FrameIn::Dropped(from.into(), Dropped::OtherUser(user)));
        }
        Some(match self.gate.examine(now, from, bytes) {
            Ok(Arrived::Frame(frame)) if origin == Some(Origin::OtherNetwork) && is_call(frame) => {
                FrameIn::Dropped(from.into(), Dropped::OtherNetwork)
            }
            Ok(Arrived::Frame(frame)) => FrameIn::Frame(from.into(), false, frame),
            Ok(Arrived::Nothing) => FrameIn::Handled,
            Ok(Arrived::Answer(answer)) => {
                self.pass(from, &answer);
                FrameIn::Handled
            }
            Err(why) => FrameIn::Dropped(from.into(), why),
        })
    }
}

/// Whether a frame starts an exchange or a search.
fn is_call(frame: &[u8]) -> bool {
    let body = Frame::parse(frame).map(|frame| frame.body);
    matches!(body, Ok(Body::Request(_) | Body::Peer(_) | Body::Who))
}

impl AsFd for UdpSetupSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
