//! Addresses of the two media that carry frames to other hosts: packet sockets of an interface, and UDP.

use std::io;
use std::net::{IpAddr, SocketAddr};

use vipl_netio::datagram::Peer;
use vipl_netio::{Address, Header};
use vipl_plugin_sdk::Link;
use vipl_plugin_sdk::abi::VIPL_DATA_ETHERTYPE as ETHERTYPE;

use crate::interface::{self, Subnet};

/// The medium of a link, and this side's address on it.
#[derive(Clone, Debug)]
pub(crate) enum Medium {
    Ethernet([u8; 6]),
    Udp(Subnet),
}

impl Medium {
    /// The medium of a link that the agent has opened.
    pub(crate) fn of(link: &Link, datagrams: bool) -> io::Result<Medium> {
        if datagrams {
            let own = ip_of_host(&link.address);
            return own.map(|own| Medium::Udp(interface::subnet(own)));
        }
        let address = link.address.as_slice().try_into();
        let wrong = |_| io::Error::other("the interface's address does not have 6 bytes");
        address.map(Medium::Ethernet).map_err(wrong)
    }

    /// The header of frames to an endpoint of a host. Over UDP the endpoint is a port at the host's IP address; the
    /// port in the host's address is its agent's.
    pub(crate) fn header(&self, host: &[u8], endpoint: u16) -> io::Result<Header> {
        match self {
            Medium::Ethernet(own) => {
                let to = host.try_into().map_err(|_| wrong_length())?;
                Ok(Header::ethernet(to, *own, ETHERTYPE))
            }
            Medium::Udp(_) => {
                let ip = ip_of_host(host)?;
                Ok(Header::udp(Peer::from(SocketAddr::new(ip, endpoint))))
            }
        }
    }

    /// Whether frames are datagrams.
    pub(crate) fn is_udp(&self) -> bool {
        matches!(self, Medium::Udp(_))
    }

    /// Whether the path to a host crosses routers, and is shared with other traffic.
    pub(crate) fn is_shared(&self, host: &[u8]) -> bool {
        match self {
            Medium::Ethernet(_) => false,
            Medium::Udp(subnet) => ip_of_host(host).is_ok_and(|ip| !subnet.has(ip)),
        }
    }

    /// The header of an answer. `None`: the sender cannot be answered.
    pub(crate) fn answer(&self, sender: Address) -> Option<Header> {
        match (self, sender) {
            // A group address never sends.
            (Medium::Ethernet(own), Address::Ethernet(to)) if to[0] & 1 == 0 => {
                Some(Header::ethernet(to, *own, ETHERTYPE))
            }
            (Medium::Udp(_), Address::Udp(peer)) => Some(Header::udp(peer)),
            _ => None,
        }
    }
}

fn wrong_length() -> io::Error {
    io::Error::other("the address of the peer has another length")
}

/// The IP address in the address of a host; a port follows it.
pub(crate) fn ip_of_host(host: &[u8]) -> io::Result<IpAddr> {
    let (ip, _port) = host.split_last_chunk::<2>().ok_or_else(wrong_length)?;
    let v4 = <[u8; 4]>::try_from(ip).map(IpAddr::from);
    v4.or_else(|_| <[u8; 16]>::try_from(ip).map(IpAddr::from))
        .map_err(|_| wrong_length())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_endpoint_is_the_port() {
        let udp = Medium::Udp(interface::subnet([192, 0, 2, 1].into()));
        let header = udp.header(&[192, 0, 2, 7, 1, 2], 9).unwrap();
        let peer = Peer::from("192.0.2.7:9".parse::<SocketAddr>().unwrap());
        assert_eq!(header, Header::udp(peer));
        assert_eq!(udp.answer(Address::Udp(peer)), Some(header));
        let mut v6 = [0; 18];
        v6[15] = 1;
        let header = udp.header(&v6, 9).unwrap();
        let peer = Peer::from("[::1]:9".parse::<SocketAddr>().unwrap());
        assert_eq!(header, Header::udp(peer));
        for length in [0, 1, 2, 5, 7, 17, 32] {
            assert!(udp.header(&vec![1; length], 9).is_err());
        }
    }

    #[test]
    fn groups_are_not_answered() {
        let ethernet = Medium::Ethernet([2; 6]);
        assert!(
            ethernet
                .answer(Address::Ethernet([2, 0, 0, 0, 0, 1]))
                .is_some()
        );
        assert!(ethernet.answer(Address::Ethernet([0xFF; 6])).is_none());
    }
}
