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
use std::str::FromStr;

use nix::ifaddrs::getifaddrs;
use nix::net::if_::InterfaceFlags;
use nix::sys::socket::SockaddrStorage;
use nix::unistd::geteuid;

use super::netlink;

/// How long this host's subnets are not read again.
const FRESH_NS: u64 = 1_000_000_000;
/// Users without a name in a user namespace all have this number.
const NOBODY: u32 = 65_534;

/// From where other hosts may begin connections.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Networks {
    any: bool,
    /// Besides the host's own subnets.
    more: Vec<Network>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Network {
    address: IpAddr,
    bits: u32,
}

impl Network {
    fn has(&self, other: IpAddr) -> bool {
        let differ = match (self.address, other) {
            (IpAddr::V4(own), IpAddr::V4(other)) => {
                (u128::from(u32::from(own) ^ u32::from(other))) << 96
            }
            (IpAddr::V6(own), IpAddr::V6(other)) => u128::from(own) ^ u128::from(other),
            _ => return false,
        };
        differ.leading_zeros() >= self.bits
    }
}

impl FromStr for Network {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (address, bits) = text.split_once('/').unzip();
        let wrong = || format!("{text:?} is no network: 10.0.0.0/8 or fd00::/8 is one");
        let address: IpAddr = address.unwrap_or(text).parse().map_err(|_| wrong())?;
        let most = if address.is_ipv4() { 32 } else { 128 };
        let bits = bits.map_or(Ok(most), str::parse).map_err(|_| wrong())?;
        (bits <= most)
            .then_some(Network { address, bits })
            .ok_or_else(wrong)
    }
}

impl FromStr for Networks {
    type Err = String;

    /// `subnets`, `any`, or networks beside the subnets, separated by commas.
    fn from_str(text: &str) -> Result<Self, String> {
        let mut all = Networks::default();
        for word in text.split(',').map(str::trim) {
            match word {
                "" | "subnets" => {}
                "any" => all.any = true,
                network => all.more.push(network.parse()?),
            }
        }
        Ok(all)
    }
}

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
        if self.networks.any || self.networks.more.iter().any(|one| one.has(ip)) {
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
    fn networks() {
        for (text, ip, has) in [
            ("10.0.0.0/8", "10.9.9.9", true),
            ("10.0.0.0/8", "11.0.0.0", false),
            ("10.0.0.0/8", "a00::", false),
            ("0.0.0.0/0", "192.0.2.1", true),
            ("192.0.2.1", "192.0.2.1", true),
            ("192.0.2.1", "192.0.2.2", false),
            ("fd00::/8", "fdff::1", true),
            ("fd00::/8", "fe00::1", false),
        ] {
            let network: Network = text.parse().unwrap();
            assert_eq!(network.has(ip.parse().unwrap()), has, "{text} {ip}");
        }
        for wrong in [
            "10.0.0.0/33",
            "fd00::/129",
            "10/8",
            "every",
            "10.0.0.0/",
            "/8",
        ] {
            assert!(wrong.parse::<Networks>().is_err(), "{wrong}");
        }
        assert_eq!("subnets".parse(), Ok(Networks::default()));
        assert_eq!("".parse(), Ok(Networks::default()));
        let all: Networks = "10.0.0.0/8, any".parse().unwrap();
        assert!(all.any && all.more.len() == 1);
    }

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
