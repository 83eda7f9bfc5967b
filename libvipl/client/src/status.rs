//! The result of a descriptor.

use std::fmt;

use vipl_abi::*;

/// The result of a descriptor: `VIP_STATUS_*`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status(u32);

/// What a descriptor can fail with (spec §5.8).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Fault {
    Format,
    Protection,
    Length,
    Partial,
    /// The connection ended before the descriptor was processed.
    Flushed,
    Transport,
    RdmaProtection,
    RemoteDescriptor,
}

const FAULTS: [(u32, Fault, &str); 8] = [
    (VIP_STATUS_FORMAT_ERROR, Fault::Format, "FORMAT_ERROR"),
    (
        VIP_STATUS_PROTECTION_ERROR,
        Fault::Protection,
        "PROTECTION_ERROR",
    ),
    (VIP_STATUS_LENGTH_ERROR, Fault::Length, "LENGTH_ERROR"),
    (VIP_STATUS_PARTIAL_ERROR, Fault::Partial, "PARTIAL_ERROR"),
    (
        VIP_STATUS_DESC_FLUSHED_ERROR,
        Fault::Flushed,
        "DESC_FLUSHED_ERROR",
    ),
    (
        VIP_STATUS_TRANSPORT_ERROR,
        Fault::Transport,
        "TRANSPORT_ERROR",
    ),
    (
        VIP_STATUS_RDMA_PROT_ERROR,
        Fault::RdmaProtection,
        "RDMA_PROT_ERROR",
    ),
    (
        VIP_STATUS_REMOTE_DESC_ERROR,
        Fault::RemoteDescriptor,
        "REMOTE_DESC_ERROR",
    ),
];

impl Status {
    /// From bits of the header.
    #[must_use]
    pub const fn from_bits(bits: u32) -> Self {
        Self(bits)
    }

    /// The bits of the header.
    #[must_use]
    pub const fn bits(self) -> u32 {
        self.0
    }

    /// Why it failed; nothing if it did not.
    #[must_use]
    pub fn faults(self) -> Vec<Fault> {
        let bits = FAULTS.iter().filter(|(bit, ..)| self.0 & bit != 0);
        bits.map(|(_, fault, _)| *fault).collect()
    }

    /// The operation: `send`, `receive`, `RDMA Write`, `remote RDMA Write` (one with immediate data, in a receive
    /// descriptor) or `RDMA Read`.
    #[must_use]
    pub fn operation(self) -> &'static str {
        match self.0 & VIP_STATUS_OP_MASK {
            VIP_STATUS_OP_SEND => "send",
            VIP_STATUS_OP_RECEIVE => "receive",
            VIP_STATUS_OP_RDMA_WRITE => "RDMA Write",
            VIP_STATUS_OP_REMOTE_RDMA_WRITE => "remote RDMA Write",
            VIP_STATUS_OP_RDMA_READ => "RDMA Read",
            _ => "unknown",
        }
    }
}

/// The names of all faults in the header.
impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bits = FAULTS.iter().filter(|(bit, ..)| self.0 & bit != 0);
        let names: Vec<&str> = bits.map(|(_, _, name)| *name).collect();
        match names.as_slice() {
            [] => write!(f, "status {:#x}", self.0),
            names => f.write_str(&names.join("+")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_names_its_bits() {
        let status = Status::from_bits(
            VIP_STATUS_DONE
                | VIP_STATUS_OP_RECEIVE
                | VIP_STATUS_PARTIAL_ERROR
                | VIP_STATUS_TRANSPORT_ERROR,
        );
        assert_eq!(status.to_string(), "PARTIAL_ERROR+TRANSPORT_ERROR");
        assert_eq!(status.operation(), "receive");
        assert_eq!(status.faults(), [Fault::Partial, Fault::Transport]);
        assert_eq!(Status::from_bits(1).to_string(), "status 0x1");
    }
}
