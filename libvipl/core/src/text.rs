//! Formatting of values for the log: addresses; and, from `vipl-rules`, discriminators, the bits of Status, Control and
//! reliability levels.

use std::net::{IpAddr, SocketAddr};

pub(crate) use vipl_rules::words::{control, discriminator, hexadecimal, levels, quoted, status};

/// The address of a host: of an IP network with its port, else bytes.
pub(crate) fn host(bytes: &[u8], is_ip: bool) -> String {
    let socket = match bytes.split_last_chunk::<2>() {
        Some((ip, port)) if is_ip => {
            let v4 = <[u8; 4]>::try_from(ip).map(IpAddr::from);
            let ip = v4.or_else(|_| <[u8; 16]>::try_from(ip).map(IpAddr::from));
            ip.ok()
                .map(|ip| SocketAddr::new(ip, u16::from_be_bytes(*port)))
        }
        _ => None,
    };
    socket.map_or_else(|| hexadecimal(bytes), |socket| socket.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_those_of_the_network() {
        let six = [10, 0, 0, 2, 0x88, 0xb6];
        assert_eq!(host(&six, true), "10.0.0.2:34998");
        assert_eq!(host(&six, false), "0a:00:00:02:88:b6");
        let mut v6 = [0; 18];
        (v6[0], v6[15], v6[17]) = (0xfd, 1, 80);
        assert_eq!(host(&v6, true), "[fd00::1]:80");
        assert_eq!(host(&[1], true), "01");
        assert_eq!(host(&[], true), "");
    }
}
