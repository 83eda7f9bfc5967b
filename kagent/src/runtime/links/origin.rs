//! Which datagrams are accepted without a secret, by their origin.
//!
//! - A local address does not identify a user: any local process may have a socket there. The kernel reports
//!   the user of the socket that would receive an answer, so cookies go to agents of this user and of root
//!   only.
//! - Other hosts are trusted by their address, and may start connections from this host's subnets only,
//!   unless the agent is configured with other networks. A host that a local process has called may answer
//!   from anywhere.
//!
//! With a secret, the seal of a datagram authenticates it, and none of this applies.

#![forbid(unsafe_code)]

use std::net::{IpAddr, SocketAddr};

use nix::ifaddrs::getifaddrs;
use nix::net::if_::InterfaceFlags;
use nix::sys::socket::SockaddrStorage;
use nix::unistd::geteuid;

use super::netlink;
use crate::runtime::networks::{Network, Networks};
use crate::runtime::sockets::option;

/// Time for which the list of this host's subnets is cached.
const FRESH_NS: u64 = 1_000_000_000;
/// The overflow user id: in a user namespace, all unmapped users have it.
const OVERFLOW_UID: u32 = 65_534;

/// The origin of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    /// A host that may start connections, or an agent of this user or root.
    Trusted,
    /// A host that may only answer.
    OtherNetwork,
    /// A local socket of another user; `None` if the user is unknown.
    OtherUser(Option<u32>),
}

/// Classifies datagrams by origin.
#[derive(Debug)]
pub(super) struct Origins {
    networks: Networks,
    subnets: Vec<Network>,
    /// Time of the last read.
    read: Option<u64>,
}

impl Origins {
    pub(super) fn new(networks: Networks) -> Origins {
        Origins {
            networks,
            subnets: Vec::new(),
            read: None,
        }
    }

    /// The origin of a datagram to the local address `own`.
    pub(super) fn of(&mut self, now: u64, own: SocketAddr, from: SocketAddr) -> Origin {
        let ip = from.ip();
        if is_own(ip) {
            let user = netlink::receiver(own, from);
            return match user {
                Some(user) if is_trusted(user) => Origin::Trusted,
                other => Origin::OtherUser(other),
            };
        }
        if self.networks.has(ip) {
            return Origin::Trusted;
        }
        if self.read.is_none_or(|read| now >= read + FRESH_NS) {
            self.read = Some(now);
            self.subnets = subnets();
        }
        match self.subnets.iter().any(|subnet| subnet.has(ip)) {
            true => Origin::Trusted,
            false => Origin::OtherNetwork,
        }
    }

    /// Whether a process of user `caller` may call an agent at this address. A local address may belong to an
    /// agent of another user, or to one that does not accept the call. An agent that serves several users
    /// calls local addresses for its own user only, since the other agent cannot authenticate other users.
    pub(super) fn may_call(
        own: SocketAddr,
        to: SocketAddr,
        caller: u32,
    ) -> Result<(), Option<u32>> {
        if !is_own(to.ip()) {
            return Ok(());
        }
        let user = netlink::receiver(own, to);
        let ours = geteuid().as_raw();
        match user {
            // There is no socket: the call will fail by itself.
            None => Ok(()),
            Some(user) if user == ours && caller == ours && is_known(user) => Ok(()),
            other => Err(other),
        }
    }

    /// Whether frames other than calls may be sent to an address.
    pub(super) fn may_send(own: SocketAddr, to: SocketAddr) -> bool {
        !is_own(to.ip()) || netlink::receiver(own, to).is_some_and(is_trusted)
    }
}

/// True if the kernel does not report it.
fn is_own(ip: IpAddr) -> bool {
    ip.is_loopback() || netlink::is_own(ip).unwrap_or(true)
}

fn is_trusted(user: u32) -> bool {
    user == 0 || (user == geteuid().as_raw() && is_known(user))
}

/// Whether this number identifies one user. In a user namespace, all unmapped users have the same number.
fn is_known(user: u32) -> bool {
    let all = |map: String| map.split_ascii_whitespace().eq(["0", "0", "4294967295"]);
    user != OVERFLOW_UID || std::fs::read_to_string("/proc/self/uid_map").is_ok_and(all)
}

/// The subnets of the local addresses, and the remote ends of point-to-point interfaces.
fn subnets() -> Vec<Network> {
    let ip = |from: &SockaddrStorage| Some(option::address(from)?.ip());
    let mut all = Vec::new();
    for one in getifaddrs().into_iter().flatten() {
        let Some(address) = one.address.as_ref().and_then(ip) else {
            continue;
        };
        let mask = one.netmask.as_ref().and_then(ip);
        let bits = match mask {
            Some(IpAddr::V4(mask)) => u32::from(mask).leading_ones(),
            Some(IpAddr::V6(mask)) => u128::from(mask).leading_ones(),
            None => continue,
        };
        if one.flags.contains(InterfaceFlags::IFF_UP) {
            all.push(Network { address, bits });
            let tunnel = one.flags.contains(InterfaceFlags::IFF_POINTOPOINT);
            if let (true, Some(address)) = (tunnel, one.destination.as_ref().and_then(ip)) {
                let bits = if address.is_ipv4() { 32 } else { 128 };
                all.push(Network { address, bits });
            }
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_sockets_are_trusted_and_far_hosts_answer_only() {
        let one = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let other = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let [one, to] = [&one, &other].map(|socket| socket.local_addr().unwrap());
        let mut origins = Origins::new(Networks::default());
        assert_eq!(origins.of(0, one, to), Origin::Trusted);
        assert!(Origins::may_send(one, to));
        let own = geteuid().as_raw();
        assert_eq!(Origins::may_call(one, to, own), Ok(()));
        assert_eq!(Origins::may_call(one, to, own + 1), Err(Some(own)));
        let far = "198.51.100.1:9".parse().unwrap();
        assert_eq!(origins.of(0, one, far), Origin::OtherNetwork);
        assert_eq!(Origins::may_call(one, far, own + 1), Ok(()));
        let mut open = Origins::new("198.51.100.0/24".parse().unwrap());
        assert_eq!(open.of(0, one, far), Origin::Trusted);
        drop(other);
        assert_eq!(origins.of(0, one, to), Origin::OtherUser(None));
        assert!(!Origins::may_send(one, to));
    }
}
