//! Addresses of datagrams in the kernel's form.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Bytes of the longest address.
pub const PEER: usize = size_of::<libc::sockaddr_in6>();
const V4: usize = size_of::<libc::sockaddr_in>();

/// A socket address in the kernel's form; the same address always has the same bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Peer([u8; PEER]);

impl Peer {
    /// The bytes that the kernel reads.
    #[inline(always)]
    pub fn bytes(&self) -> &[u8; PEER] {
        &self.0
    }

    /// Reads what the kernel has written.
    #[inline(always)]
    pub fn of_bytes(bytes: [u8; PEER]) -> Peer {
        Peer(bytes)
    }

    /// Length of the address in these bytes.
    #[inline(always)]
    pub(crate) fn length(bytes: &[u8]) -> usize {
        let family = u16::from_ne_bytes([bytes[0], bytes[1]]);
        if i32::from(family) == libc::AF_INET {
            V4
        } else {
            PEER
        }
    }
}

impl From<SocketAddr> for Peer {
    fn from(address: SocketAddr) -> Peer {
        let mut bytes = [0; PEER];
        let (family, ip_at) = match address.ip() {
            IpAddr::V4(_) => (libc::AF_INET, 4),
            IpAddr::V6(_) => (libc::AF_INET6, 8),
        };
        bytes[..2].copy_from_slice(&(family as u16).to_ne_bytes());
        bytes[2..4].copy_from_slice(&address.port().to_be_bytes());
        match address.ip() {
            IpAddr::V4(ip) => bytes[ip_at..ip_at + 4].copy_from_slice(&ip.octets()),
            IpAddr::V6(ip) => bytes[ip_at..ip_at + 16].copy_from_slice(&ip.octets()),
        }
        Peer(bytes)
    }
}

impl From<Peer> for SocketAddr {
    fn from(peer: Peer) -> SocketAddr {
        let port = u16::from_be_bytes([peer.0[2], peer.0[3]]);
        let ip: IpAddr = if Peer::length(&peer.0) == V4 {
            let mut ip = [0; 4];
            ip.copy_from_slice(&peer.0[4..8]);
            Ipv4Addr::from(ip).into()
        } else {
            let mut ip = [0; 16];
            ip.copy_from_slice(&peer.0[8..24]);
            Ipv6Addr::from(ip).into()
        };
        SocketAddr::new(ip, port)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_survive() {
        for text in ["192.0.2.7:34997", "[2001:db8::7]:9"] {
            let address: SocketAddr = text.parse().unwrap();
            let peer = Peer::from(address);
            assert_eq!(SocketAddr::from(peer), address);
            assert_eq!(Peer::of_bytes(*peer.bytes()), peer);
        }
    }
}
