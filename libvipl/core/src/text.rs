//! Formatting of values for the log: addresses and discriminators; and, from `vipl-rules`, the bits of Status, Control
//! and reliability levels.

use std::net::{IpAddr, SocketAddr};

pub(crate) use vipl_rules::words::{control, levels, status};

pub(crate) fn quoted(bytes: &[u8]) -> String {
    format!("\"{}\"", bytes.escape_ascii())
}

/// Bytes with `:` between them.
pub(crate) fn hexadecimal(bytes: &[u8]) -> String {
    let words: Vec<String> = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    words.join(":")
}

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

/// A discriminator, as text if it is printable.
pub(crate) fn discriminator(bytes: &[u8]) -> String {
    let plain = bytes.strip_suffix(&[0]).unwrap_or(bytes);
    if (!plain.is_empty() || bytes.is_empty())
        && plain.iter().all(|b| b.is_ascii_graphic() || *b == b' ')
    {
        quoted(bytes)
    } else {
        hexadecimal(bytes)
    }
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

    #[test]
    fn discriminators_are_shown_as_text_where_they_are_text() {
        assert_eq!(discriminator(b"rank 7"), "\"rank 7\"");
        assert_eq!(discriminator(&[7, 0, 255]), "07:00:ff");
        assert_eq!(discriminator(&[0, 1]), "00:01");
        assert_eq!(discriminator(b""), "\"\"");
    }
}
