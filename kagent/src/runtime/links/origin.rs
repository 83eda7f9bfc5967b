//! Whose datagrams are read, without a secret: those of this host's own user, and those of near hosts.
//!
//! - An address of this host says nothing about the user: anybody here may have a socket there. The kernel tells whose
//!   socket it is that gets an answer, so a cookie goes to this user's agents and root's only, and nobody else has one.
//! - Other hosts are trusted to be what they say, and begin connections from this host's subnets only, unless the agent
//!   was told of other networks. A host that a process of this one has called may answer from anywhere.
//!
//! With a secret the seal of a datagram says more than its address does, and nothing of this is asked.

#![forbid(unsafe_code)]

use std::net::{IpAddr, SocketAddr};

use nix::ifaddrs::getifaddrs;
use nix::net::if_::InterfaceFlags;
use nix::sys::socket::SockaddrStorage;
use nix::unistd::geteuid;

use super::netlink;
use crate::runtime::networks::{Network, Networks};

/// How long this host's subnets are not read again.
const FRESH_NS: u64 = 1_000_000_000;
/// Users without a name in a user namespace all have this number.
const NOBODY: u32 = 65_534;

/// Where a datagram comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    /// A host that may begin connections, or an agent of this user.
    Trusted,
    /// A host that may answer.
    Far,
    /// A socket of this host that belongs to another user; `None`: to nobody who is known.
    Stranger(Option<u32>),
}

/// Tells where datagrams come from.
#[derive(Debug)]
pub(super) struct Origins {
    networks: Networks,
    subnets: Vec<Network>,
    /// When they were read.
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

    /// Where a datagram to this address of ours comes from.
    pub(super) fn of(&mut self, now: u64, own: SocketAddr, from: SocketAddr) -> Origin {
        let ip = from.ip();
        if is_own(ip) {
            let user = netlink::receiver(own, from);
            return match user {
                Some(user) if is_trusted(user) => Origin::Trusted,
                other => Origin::Stranger(other),
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
            false => Origin::Far,
        }
    }

    /// Whether `caller`'s process may call an agent at this address: there, another user's agent would answer, or none
    /// that takes the call. An agent that serves several users calls its own host for its own user only, since the
    /// other agent learns nobody else's name. An error names the user who has the address.
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
            // Nobody is there: the call finds out by itself.
            None => Ok(()),
            Some(user) if user == ours && caller == ours && is_known(user) => Ok(()),
            other => Err(other),
        }
    }

    /// Whether anything may be sent to an address.
    pub(super) fn may_send(own: SocketAddr, to: SocketAddr) -> bool {
        !is_own(to.ip()) || netlink::receiver(own, to).is_some_and(is_trusted)
    }
}

/// Where the kernel does not say, it may be one.
fn is_own(ip: IpAddr) -> bool {
    ip.is_loopback() || netlink::is_own(ip).unwrap_or(true)
}

fn is_trusted(user: u32) -> bool {
    user == 0 || (user == geteuid().as_raw() && is_known(user))
}

/// Whether this number is one user's. In a user namespace all users that it does not know have the same one.
fn is_known(user: u32) -> bool {
    let all = |map: String| map.split_ascii_whitespace().eq(["0", "0", "4294967295"]);
    user != NOBODY || std::fs::read_to_string("/proc/self/uid_map").is_ok_and(all)
}

/// The subnets of this host's addresses, with what is at the other end of its tunnels.
fn subnets() -> Vec<Network> {
    let ip = |address: &SockaddrStorage| -> Option<IpAddr> {
        let v4 = address.as_sockaddr_in().map(|found| IpAddr::V4(found.ip()));
        v4.or_else(|| address.as_sockaddr_in6().map(|found| found.ip().into()))
    };
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
        assert_eq!(origins.of(0, one, far), Origin::Far);
        assert_eq!(Origins::may_call(one, far, own + 1), Ok(()));
        let mut open = Origins::new("198.51.100.0/24".parse().unwrap());
        assert_eq!(open.of(0, one, far), Origin::Trusted);
        drop(other);
        assert_eq!(origins.of(0, one, to), Origin::Stranger(None));
        assert!(!Origins::may_send(one, to));
    }
}
