//! Discriminators, and the bits of Status, Control and reliability levels, in words: for the log, for layers and for tools.

use std::fmt::Write;

use vipl_abi::*;

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
pub fn levels(levels: VIP_RELIABILITY_LEVEL) -> String {
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
pub fn status(status: u32) -> String {
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
pub fn control(control: u16) -> String {
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

/// Bytes in quotes, with escapes.
pub fn quoted(bytes: &[u8]) -> String {
    format!("\"{}\"", bytes.escape_ascii())
}

/// Bytes with `:` between them.
pub fn hexadecimal(bytes: &[u8]) -> String {
    let words: Vec<String> = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    words.join(":")
}

/// A discriminator, as text if it is printable.
pub fn discriminator(bytes: &[u8]) -> String {
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
    fn discriminators_are_shown_as_text_where_they_are_text() {
        assert_eq!(discriminator(b"rank 7"), "\"rank 7\"");
        assert_eq!(discriminator(b"orders\0"), "\"orders\\x00\"");
        assert_eq!(discriminator(b"a\x1b[2J"), "61:1b:5b:32:4a");
        assert_eq!(discriminator(&[7, 0, 255]), "07:00:ff");
        assert_eq!(discriminator(&[0, 1]), "00:01");
        assert_eq!(discriminator(b""), "\"\"");
    }

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
}
