//! Host names that are not in the table, on IP: resolved as in other programs. The port is that of the host's
//! Kernel Agent; by default the well-known one.

use std::net::{IpAddr, SocketAddr, ToSocketAddrs};

use vipl_sys::thread::with_stack;

use crate::connect::address::socket_bytes;

/// The default port of an agent; see `vipkad --udp-port`.
const PORT: u16 = 34_998;

/// Why a name has no address.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub(crate) enum Unknown {
    #[error("the system's resolver does not know the host {0:?}")]
    Host(String),
    #[error("the host {0:?} has no address of the family of this NIC's own address")]
    Family(String),
}

/// Address of a host for a NIC whose own address is `own`: `NAME` or `NAME:PORT`.
pub(crate) fn find(name: &str, own: &[u8]) -> Result<Vec<u8>, Unknown> {
    let unknown = |_| Unknown::Host(name.to_owned());
    let found: Vec<SocketAddr> = match name.parse::<IpAddr>() {
        Ok(ip) => vec![SocketAddr::new(ip, PORT)],
        Err(_) => match name.rsplit_once(':') {
            Some(_) => with_stack(|| name.to_socket_addrs()),
            None => with_stack(|| (name, PORT).to_socket_addrs()),
        }
        .map_err(unknown)?
        .collect(),
    };
    found
        .into_iter()
        .map(socket_bytes)
        .find(|bytes| bytes.len() == own.len())
        .ok_or_else(|| Unknown::Family(name.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_ports_are_read_without_a_network() {
        let (v4, v6) = ([0; 6], [0; 18]);
        assert_eq!(find("192.0.2.7", &v4), Ok(vec![192, 0, 2, 7, 0x88, 0xB6]));
        assert_eq!(find("192.0.2.7:258", &v4), Ok(vec![192, 0, 2, 7, 1, 2]));
        let six = find("2001:db8::7", &v6).unwrap();
        assert_eq!(find("[2001:db8::7]:34998", &v6), Ok(six.clone()));
        assert_eq!((six.len(), six[0], six[15]), (18, 0x20, 7));
        let family = Unknown::Family("192.0.2.7".into());
        assert_eq!(find("192.0.2.7", &v6), Err(family));
    }
}
