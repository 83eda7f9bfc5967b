//! Addresses of NICs and connection points, and of hosts on a link.
//!
//! An address belongs to a user and a provider: NICs of different users, or of different plug-ins, never
//! connect. Several NICs, of one process or of many, may share one address; they then share its discriminators
//! too (spec §9.1).

#![forbid(unsafe_code)]

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use kagent_proto::{DISCRIMINATOR_BYTES_MAX, HOST_BYTES_MAX, PROVIDER_BYTES, Point};

/// A host address in the name space of one user and one provider.
///
/// The field order matters: addresses of one user and provider are adjacent in a sorted table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Address {
    pub(crate) uid: u32,
    pub(crate) provider: [u8; PROVIDER_BYTES],
    pub(crate) host_len: usize,
    pub(crate) host: [u8; HOST_BYTES_MAX],
}

impl Address {
    /// Bytes after the end of the provider name or of the host are ignored.
    pub(crate) fn new(uid: u32, provider: &[u8; PROVIDER_BYTES], host: &[u8]) -> Self {
        let name_len = provider
            .iter()
            .position(|&byte| byte == 0)
            .unwrap_or(PROVIDER_BYTES);
        let mut address = Self {
            uid,
            provider: [0; PROVIDER_BYTES],
            host_len: host.len(),
            host: [0; HOST_BYTES_MAX],
        };
        address.provider[..name_len].copy_from_slice(&provider[..name_len]);
        address.host[..host.len()].copy_from_slice(host);
        address
    }

    pub(crate) fn host(&self) -> &[u8] {
        &self.host[..self.host_len]
    }
}

/// A discriminator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Discriminator {
    len: usize,
    bytes: [u8; DISCRIMINATOR_BYTES_MAX],
}

impl Discriminator {
    /// Bytes beyond the maximum length are ignored; no valid message has any.
    pub(crate) fn new(bytes: &[u8]) -> Self {
        let len = bytes.len().min(DISCRIMINATOR_BYTES_MAX);
        let mut name = Self {
            len,
            bytes: [0; DISCRIMINATOR_BYTES_MAX],
        };
        name.bytes[..len].copy_from_slice(&bytes[..len]);
        name
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// A connection point: an address and a discriminator there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ConnectionPoint {
    pub(crate) address: Address,
    pub(crate) name: Discriminator,
}

impl ConnectionPoint {
    /// The discriminator of `point` at `address`; the host in `point` is ignored.
    pub(crate) fn local(address: Address, point: &Point) -> Self {
        let name = Discriminator::new(point.discriminator());
        Self { address, name }
    }

    /// The connection point that `point` denotes for a NIC at `from`.
    pub(crate) fn remote(from: Address, point: &Point) -> Self {
        Self::local(Address::new(from.uid, &from.provider, point.host()), point)
    }

    /// The form used in messages.
    pub(crate) fn point(&self) -> Point {
        Point {
            host_len: self.address.host_len as u16,
            discriminator_len: self.name.len as u16,
            host: self.address.host,
            discriminator: self.name.bytes,
        }
    }
}

/// The medium of a link, which determines the format of addresses on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Medium {
    /// An Ethernet interface: addresses are MAC addresses, and frames can be broadcast.
    Ethernet,
    /// A UDP socket of the agent: an address is an IP address and a port, and there is no broadcast.
    Udp,
}

/// Bytes of the longest address, IPv6 and a port.
const BYTES_MAX: usize = 18;
/// Bytes of an Ethernet address, and of IPv4 and a port.
const SHORT: usize = 6;

/// Address of a host on a link. Addresses on one link have the same length.
///
/// The order is that of the bytes: the host with the lower address matches peer requests.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HostAddress {
    length: u8,
    bytes: [u8; BYTES_MAX],
}

impl HostAddress {
    /// Sorts before all addresses.
    pub(crate) const FIRST: HostAddress = HostAddress {
        length: 0,
        bytes: [0; BYTES_MAX],
    };
    /// Sorts after all addresses.
    pub(crate) const LAST: HostAddress = HostAddress {
        length: u8::MAX,
        bytes: [u8::MAX; BYTES_MAX],
    };

    /// The Ethernet broadcast address.
    pub(crate) fn all() -> HostAddress {
        [0xFF; SHORT].into()
    }

    /// Parses an address named by a process. `None` if no host on such a link can have it.
    pub(crate) fn of_host(medium: Medium, bytes: &[u8]) -> Option<HostAddress> {
        if bytes.len() != SHORT && (medium, bytes.len()) != (Medium::Udp, BYTES_MAX) {
            return None;
        }
        let mut address = Self::FIRST;
        address.length = bytes.len() as u8;
        address.bytes[..bytes.len()].copy_from_slice(bytes);
        address.is_host(medium).then_some(address)
    }

    /// Whether this is a unicast address that a host can have.
    pub(crate) fn is_host(&self, medium: Medium) -> bool {
        match medium {
            Medium::Ethernet => self.bytes[0] & 1 == 0,
            Medium::Udp => {
                let (ip, port) = (self.socket().ip(), self.socket().port());
                let all = ip == IpAddr::V4(Ipv4Addr::BROADCAST);
                port != 0 && !all && !ip.is_multicast() && !ip.is_unspecified()
            }
        }
    }

    /// The source whose share of the agent's tables the host uses. A host with an IP address has all of its
    /// ports; with IPv6, a whole 64-bit subnet.
    pub(crate) fn source(&self, medium: Medium) -> HostAddress {
        let mut source = *self;
        if medium == Medium::Udp {
            let kept = if self.bytes().len() == SHORT { 4 } else { 8 };
            source.bytes[kept..].fill(0);
        }
        source
    }

    /// The bytes, as applications use them.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.length).min(BYTES_MAX)]
    }

    /// The address on a UDP link.
    pub fn socket(&self) -> SocketAddr {
        let (ip, port) = self.bytes().split_at(self.bytes().len().saturating_sub(2));
        let port = port.try_into().map_or(0, u16::from_be_bytes);
        let ip = match <[u8; 16]>::try_from(ip) {
            Ok(ip) => Ipv6Addr::from(ip).into(),
            Err(_) => <[u8; 4]>::try_from(ip)
                .map_or(Ipv4Addr::UNSPECIFIED, Ipv4Addr::from)
                .into(),
        };
        SocketAddr::new(ip, port)
    }
}

impl From<[u8; SHORT]> for HostAddress {
    fn from(bytes: [u8; SHORT]) -> Self {
        let mut address = Self::FIRST;
        address.length = SHORT as u8;
        address.bytes[..SHORT].copy_from_slice(&bytes);
        address
    }
}

impl From<SocketAddr> for HostAddress {
    fn from(socket: SocketAddr) -> Self {
        let mut address = Self::FIRST;
        let length = match socket.ip() {
            IpAddr::V4(ip) => {
                address.bytes[..4].copy_from_slice(&ip.octets());
                4
            }
            IpAddr::V6(ip) => {
                address.bytes[..16].copy_from_slice(&ip.octets());
                16
            }
        };
        address.bytes[length..length + 2].copy_from_slice(&socket.port().to_be_bytes());
        address.length = length as u8 + 2;
        address
    }
}

impl fmt::Display for HostAddress {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, byte) in self.bytes().iter().enumerate() {
            let colon = if place == 0 { "" } else { ":" };
            write!(to, "{colon}{byte:02x}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for HostAddress {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, to)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sockets_survive() {
        for text in ["192.0.2.7:34998", "[2001:db8::7]:9"] {
            let socket: SocketAddr = text.parse().unwrap();
            let address = HostAddress::from(socket);
            assert_eq!(address.socket(), socket);
            let read = HostAddress::of_host(Medium::Udp, address.bytes());
            assert_eq!(read, Some(address));
            assert!(HostAddress::FIRST < address && address < HostAddress::LAST);
        }
        let address: HostAddress = "192.0.2.7:258".parse::<SocketAddr>().unwrap().into();
        assert_eq!(address.bytes(), [192, 0, 2, 7, 1, 2]);
    }

    #[test]
    fn what_no_host_can_have() {
        let udp = |text: &str| {
            let address = HostAddress::from(text.parse::<SocketAddr>().unwrap());
            HostAddress::of_host(Medium::Udp, address.bytes())
        };
        for text in [
            "192.0.2.7:0",
            "0.0.0.0:9",
            "255.255.255.255:9",
            "224.0.0.1:9",
            "[ff02::1]:9",
            "[::]:9",
        ] {
            assert_eq!(udp(text), None, "{text}");
        }
        let ethernet = |bytes: &[u8]| HostAddress::of_host(Medium::Ethernet, bytes);
        assert_eq!(ethernet(&[1, 0, 0, 0, 0, 7]), None, "a group");
        assert_eq!(ethernet(&[2; 18]), None);
        assert_eq!(HostAddress::of_host(Medium::Udp, &[2; 7]), None);
        assert_eq!(ethernet(&[2; 6]), Some([2; 6].into()));
    }

    #[test]
    fn all_ports_of_one_address_are_one_source() {
        let source = |text: &str| {
            let address = HostAddress::from(text.parse::<SocketAddr>().unwrap());
            address.source(Medium::Udp)
        };
        assert_eq!(source("192.0.2.7:1"), source("192.0.2.7:2"));
        assert_ne!(source("192.0.2.7:1"), source("192.0.2.8:1"));
        assert_eq!(source("[2001:db8::7]:1"), source("[2001:db8::9:0:0:1]:2"));
        assert_ne!(source("[2001:db8::7]:1"), source("[2001:db8:0:1::7]:1"));
        let mac = HostAddress::from([2, 0, 0, 0, 0, 9]);
        assert_eq!(mac.source(Medium::Ethernet), mac);
    }
}
