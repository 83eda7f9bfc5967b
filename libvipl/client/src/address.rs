//! Connection points: a host's address on the network of a NIC, and a discriminator.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

/// Address of a connection point.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Address {
    /// The host: 6 bytes on most networks ([`Attributes::address`](crate::Attributes) is the own one).
    pub host: Vec<u8>,
    /// What the server waits for: any bytes.
    pub discriminator: Vec<u8>,
}

/// Bytes of the two lengths.
const LENGTHS: usize = 4;

impl Address {
    /// A connection point of a host.
    #[must_use]
    pub fn new(host: &[u8], discriminator: &[u8]) -> Self {
        Self {
            host: host.to_vec(),
            discriminator: discriminator.to_vec(),
        }
    }

    /// As the library reads it: both lengths, then the host at once followed by the discriminator.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let length = |bytes: &[u8]| u16::try_from(bytes.len()).unwrap_or(u16::MAX);
        // What is too long for a length is refused by the library, which reads no more bytes than there are.
        let (host, discriminator) = (length(&self.host), length(&self.discriminator));
        let mut bytes = Vec::with_capacity(LENGTHS + self.host.len() + self.discriminator.len());
        bytes.extend_from_slice(&host.to_ne_bytes());
        bytes.extend_from_slice(&discriminator.to_ne_bytes());
        bytes.extend_from_slice(&self.host);
        bytes.extend_from_slice(&self.discriminator);
        bytes
    }

    /// Zeroed room for what the library writes.
    pub(crate) fn room(host: usize, discriminator: usize) -> Vec<u8> {
        vec![0; LENGTHS + host + discriminator]
    }

    /// What the library wrote.
    pub(crate) fn decode(bytes: &[u8]) -> Self {
        let length = |at: usize| {
            let bytes = bytes.get(at..at + 2).and_then(|two| two.try_into().ok());
            usize::from(bytes.map_or(0, u16::from_ne_bytes))
        };
        let (host, discriminator) = (length(0), length(2));
        let end = (LENGTHS + host).min(bytes.len());
        Self {
            host: bytes[LENGTHS.min(end)..end].to_vec(),
            discriminator: bytes[end..(end + discriminator).min(bytes.len())].to_vec(),
        }
    }
}

/// The host, and the discriminator with printable characters as they are.
impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (host, discriminator) = (host_text(&self.host), self.discriminator.escape_ascii());
        write!(f, "{host} \"{discriminator}\"")
    }
}

/// A host's address as people write it: bytes in hexadecimal.
#[must_use]
pub fn host_text(host: &[u8]) -> String {
    let bytes: Vec<String> = host.iter().map(|byte| format!("{byte:02x}")).collect();
    bytes.join(":")
}

/// The IP address and port in a host's address of 6 or 18 bytes, as on NICs of `ip`.
#[must_use]
pub fn host_socket(host: &[u8]) -> Option<SocketAddr> {
    let (ip, port) = host.split_last_chunk::<2>()?;
    let v4 = <[u8; 4]>::try_from(ip).map(IpAddr::from);
    let ip = v4.or_else(|_| <[u8; 16]>::try_from(ip).map(IpAddr::from));
    Some(SocketAddr::new(ip.ok()?, u16::from_be_bytes(*port)))
}

/// Reads a host's address: six or more bytes in hexadecimal with `:` or `-` between them, or an IP address and a port.
#[must_use]
pub fn parse_host(text: &str) -> Option<Vec<u8>> {
    if let Ok(socket) = text.parse::<SocketAddr>() {
        let port = socket.port().to_be_bytes();
        return Some(match socket.ip() {
            IpAddr::V4(ip) => [&ip.octets()[..], &port].concat(),
            IpAddr::V6(ip) => [&ip.octets()[..], &port].concat(),
        });
    }
    let parts: Vec<&str> = text.split([':', '-']).collect();
    if parts.len() < 6 {
        return None;
    }
    let byte = |part: &str| {
        (matches!(part.len(), 1 | 2))
            .then(|| u8::from_str_radix(part, 16).ok())
            .flatten()
    };
    parts.into_iter().map(byte).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_discriminator_follows_the_host_at_once() {
        let address = Address::new(&[1, 2, 3, 4, 5, 6], b"ab");
        let lengths = [6u16.to_ne_bytes(), 2u16.to_ne_bytes()].concat();
        let bytes = address.encode();
        assert_eq!(
            bytes,
            [&lengths[..], &[1, 2, 3, 4, 5, 6, b'a', b'b']].concat()
        );
        assert_eq!(Address::decode(&bytes), address);
        assert_eq!(address.to_string(), "01:02:03:04:05:06 \"ab\"");
    }

    #[test]
    fn lengths_beyond_the_room_are_cut() {
        assert_eq!(Address::decode(&[]), Address::default());
        let bytes = [&u16::MAX.to_ne_bytes()[..], &u16::MAX.to_ne_bytes(), b"abc"].concat();
        assert_eq!(Address::decode(&bytes), Address::new(b"abc", b""));
    }

    #[test]
    fn hosts_are_read_as_they_are_written() {
        let bytes = vec![0x02, 0, 0xff, 0x10, 0, 1];
        assert_eq!(parse_host(&host_text(&bytes)), Some(bytes.clone()));
        assert_eq!(parse_host("2-0-ff-10-0-1"), Some(bytes));
        for text in ["192.0.2.7:34998", "[2001:db8::7]:9"] {
            let socket = host_socket(&parse_host(text).unwrap()).unwrap();
            assert_eq!(socket.to_string(), text);
        }
        assert_eq!(parse_host("localhost"), None);
        assert_eq!(parse_host("1:2:3:4:5"), None);
        assert_eq!(parse_host("1:2:3:4:5:100"), None);
    }
}
