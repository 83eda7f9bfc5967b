//! Reliability levels, and the attributes of VIs.

use std::ffi::{c_int, c_ulong};
use std::fmt;
use std::ops::BitOr;

use vipl_abi::*;

use crate::error::{Result, check};

/// Reliability levels: one, or a set of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Reliability(u16);

impl Reliability {
    /// Messages may be lost.
    pub const UNRELIABLE: Self = Self(VIP_SERVICE_UNRELIABLE);
    /// All messages arrive once and in order, or the connection breaks. A send completes when its message is on the
    /// way.
    pub const DELIVERY: Self = Self(VIP_SERVICE_RELIABLE_DELIVERY);
    /// As [`Self::DELIVERY`]; a send completes when its message is in the peer's memory.
    pub const RECEPTION: Self = Self(VIP_SERVICE_RELIABLE_RECEPTION);

    /// From bits of the header.
    #[must_use]
    pub const fn from_bits(bits: u16) -> Self {
        Self(bits)
    }

    /// The bits of the header.
    #[must_use]
    pub const fn bits(self) -> u16 {
        self.0
    }

    /// Whether all levels of `other` are in this set.
    #[must_use]
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Names of the levels in the set; unknown bits are one number.
    #[must_use]
    pub fn names(self) -> Vec<String> {
        let levels = [
            (Self::UNRELIABLE, "unreliable"),
            (Self::DELIVERY, "delivery"),
            (Self::RECEPTION, "reception"),
        ];
        let known = levels.iter().filter(|(level, _)| self.contains(*level));
        let mut names: Vec<String> = known.map(|(_, name)| (*name).to_owned()).collect();
        let rest = self.0 & !VIP_BASE_SERVICES;
        if rest != 0 {
            names.push(format!("{rest:#x}"));
        }
        names
    }
}

impl BitOr for Reliability {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl fmt::Display for Reliability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.names().as_slice() {
            [] => f.write_str("none"),
            names => f.write_str(&names.join(", ")),
        }
    }
}

/// What a VI is like. Level and largest message must be equal on both sides of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ViOptions {
    /// The reliability level.
    pub reliability: Reliability,
    /// Bytes of the largest message.
    pub transfer_max: u64,
    /// The peer may write to regions that permit it.
    pub rdma_write: bool,
    /// The peer may read from regions that permit it.
    pub rdma_read: bool,
}

impl ViOptions {
    /// For messages only; the peer has no RDMA.
    #[must_use]
    pub fn new(reliability: Reliability, transfer_max: u64) -> Self {
        Self {
            reliability,
            transfer_max,
            rdma_write: false,
            rdma_read: false,
        }
    }

    /// The C structure.
    pub(crate) fn attributes(self, ptag: VIP_PROTECTION_HANDLE) -> VIP_VI_ATTRIBUTES {
        VIP_VI_ATTRIBUTES {
            ReliabilityLevel: self.reliability.0,
            MaxTransferSize: c_ulong::try_from(self.transfer_max).unwrap_or(c_ulong::MAX),
            QoS: std::ptr::null_mut(),
            Ptag: ptag,
            EnableRdmaWrite: VIP_BOOLEAN::from(self.rdma_write),
            EnableRdmaRead: VIP_BOOLEAN::from(self.rdma_read),
        }
    }

    /// The attributes that a function writes.
    pub(crate) fn reported(
        function: &'static str,
        call: impl FnOnce(*mut VIP_VI_ATTRIBUTES) -> c_int,
    ) -> Result<Self> {
        let mut raw = std::mem::MaybeUninit::<VIP_VI_ATTRIBUTES>::zeroed();
        check(function, call(raw.as_mut_ptr()))?;
        // SAFETY: integers and pointers, for which all bits zero are valid; the library has written them.
        let raw = unsafe { raw.assume_init() };
        Ok(Self {
            reliability: Reliability(raw.ReliabilityLevel),
            transfer_max: raw.MaxTransferSize as u64,
            rdma_write: raw.EnableRdmaWrite != 0,
            rdma_read: raw.EnableRdmaRead != 0,
        })
    }
}

impl fmt::Display for ViOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (level, transfer_max) = (self.reliability, self.transfer_max);
        write!(f, "level {level}, MaxTransferSize {transfer_max}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_are_spelled_out() {
        assert_eq!(
            Reliability::from_bits(7).to_string(),
            "unreliable, delivery, reception"
        );
        assert_eq!(Reliability::DELIVERY.to_string(), "delivery");
        assert_eq!(Reliability::default().to_string(), "none");
        assert_eq!(Reliability::from_bits(1 << 14).to_string(), "0x4000");
        let both = Reliability::DELIVERY | Reliability::RECEPTION;
        assert!(both.contains(Reliability::DELIVERY));
        assert!(!both.contains(Reliability::UNRELIABLE));
    }
}
