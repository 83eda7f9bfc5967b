//! Formatting of values for the log: addresses, discriminators, and the bits of Status, Control and
//! reliability levels.

use std::fmt::Write;
use std::net::{IpAddr, SocketAddr};

use vipl_abi::*;

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

/// Names of the bits of a mask, with `|` between them.
fn names(bits: u32, known: &[(u32, &str)]) -> String {
    let mut text = String::new();
    let mut rest = bits;
    for (bit, name) in known.iter().filter(|(bit, _)| bits & bit == *bit) {
        let _ = write!(text, "{}{name}", if text.is_empty() { "" } else { "|" });
        rest &= !bit;
    }
    if rest != 0 || text.is_empty() {
        let _ = write!(text, "{}{rest:#x}", if text.is_empty() { "" } else { "|" });
    }
    text
}

/// Names of reliability levels.
pub(crate) fn levels(levels: VIP_RELIABILITY_LEVEL) -> String {
    names(
        levels.into(),
        &[
            (VIP_SERVICE_UNRELIABLE.into(), "unreliable"),
            (VIP_SERVICE_RELIABLE_DELIVERY.into(), "delivery"),
            (VIP_SERVICE_RELIABLE_RECEPTION.into(), "reception"),
        ],
    )
}

/// Names of the bits of a descriptor's Status.
pub(crate) fn status(status: u32) -> String {
    let operation = match status & VIP_STATUS_OP_MASK {
        VIP_STATUS_OP_SEND => "OP_SEND",
        VIP_STATUS_OP_RECEIVE => "OP_RECEIVE",
        VIP_STATUS_OP_RDMA_WRITE => "OP_RDMA_WRITE",
        VIP_STATUS_OP_REMOTE_RDMA_WRITE => "OP_REMOTE_RDMA_WRITE",
        VIP_STATUS_OP_RDMA_READ => "OP_RDMA_READ",
        _ => "OP_?",
    };
    let bits = names(
        status & !VIP_STATUS_OP_MASK,
        &[
            (VIP_STATUS_DONE, "DONE"),
            (VIP_STATUS_FORMAT_ERROR, "FORMAT_ERROR"),
            (VIP_STATUS_PROTECTION_ERROR, "PROTECTION_ERROR"),
            (VIP_STATUS_LENGTH_ERROR, "LENGTH_ERROR"),
            (VIP_STATUS_PARTIAL_ERROR, "PARTIAL_ERROR"),
            (VIP_STATUS_DESC_FLUSHED_ERROR, "DESC_FLUSHED_ERROR"),
            (VIP_STATUS_TRANSPORT_ERROR, "TRANSPORT_ERROR"),
            (VIP_STATUS_RDMA_PROT_ERROR, "RDMA_PROT_ERROR"),
            (VIP_STATUS_REMOTE_DESC_ERROR, "REMOTE_DESC_ERROR"),
            (VIP_STATUS_IMMEDIATE, "IMMEDIATE"),
        ],
    );
    format!("{bits}|{operation}")
}

/// Control field of a descriptor.
pub(crate) fn control(control: u16) -> String {
    let operation = match control & VIP_CONTROL_OP_MASK {
        VIP_CONTROL_OP_SENDRECV => "SENDRECV",
        VIP_CONTROL_OP_RDMAWRITE => "RDMAWRITE",
        VIP_CONTROL_OP_RDMAREAD => "RDMAREAD",
        _ => "OP_RESERVED",
    };
    match control & !VIP_CONTROL_OP_MASK {
        0 => operation.to_owned(),
        flags => {
            let known = [
                (VIP_CONTROL_IMMEDIATE.into(), "IMMEDIATE"),
                (VIP_CONTROL_QFENCE.into(), "QFENCE"),
            ];
            format!("{operation}|{}", names(flags.into(), &known))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_have_names() {
        let bits = VIP_STATUS_DONE | VIP_STATUS_LENGTH_ERROR | VIP_STATUS_OP_RECEIVE;
        assert_eq!(status(bits), "DONE|LENGTH_ERROR|OP_RECEIVE");
        assert_eq!(control(VIP_CONTROL_OP_RDMAREAD), "RDMAREAD");
        assert_eq!(control(VIP_CONTROL_QFENCE), "SENDRECV|QFENCE");
        assert_eq!(control(0x18), "SENDRECV|QFENCE|0x10");
        assert_eq!(levels(6), "delivery|reception");
        assert_eq!(levels(0), "0x0");
    }

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
