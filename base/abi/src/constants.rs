//! Named values (spec §2.5, §2.8).

#![allow(missing_docs)]

use crate::{VIP_BOOLEAN, VIP_RELIABILITY_LEVEL, VIP_UINT16, VIP_UINT32, VIP_ULONG};

/// Declares constants, and lists them for the check of `constants.h`, which has them for C.
#[doc(hidden)]
#[macro_export]
macro_rules! constants {
    ($($(#[$about:meta])* pub const $name:ident: $kind:ty = $value:expr;)*) => {
        $($(#[$about])* pub const $name: $kind = $value;)*

        #[doc(hidden)]
        pub const CONSTANTS: &[(&str, i64)] = &[$((stringify!($name), $name as i64)),*];
    };
}

crate::constants! {
    pub const VIP_TRUE: VIP_BOOLEAN = 1;
    pub const VIP_FALSE: VIP_BOOLEAN = 0;
    /// No time limit.
    pub const VIP_INFINITE: VIP_ULONG = VIP_ULONG::MAX;
    /// Descriptors begin at multiples of this many bytes.
    pub const VIP_DESCRIPTOR_ALIGNMENT: usize = 64;
    pub const VIP_SMI_AUTODISCOVERY: VIP_ULONG = 1;

    pub const VIP_SERVICE_UNRELIABLE: VIP_RELIABILITY_LEVEL = 0x01;
    pub const VIP_SERVICE_RELIABLE_DELIVERY: VIP_RELIABILITY_LEVEL = 0x02;
    pub const VIP_SERVICE_RELIABLE_RECEPTION: VIP_RELIABILITY_LEVEL = 0x04;
    /// The three levels together (cLAN).
    pub const VIP_BASE_SERVICES: VIP_RELIABILITY_LEVEL = 0x07;
    /// cLAN's "acknowledged" service bit.
    pub const VIP_SERVICE_ACK: VIP_RELIABILITY_LEVEL = 1 << 14;
    /// cLAN's "deferred" service bit.
    pub const VIP_SERVICE_DFC: VIP_RELIABILITY_LEVEL = 1 << 15;

    pub const VIP_CONTROL_OP_SENDRECV: VIP_UINT16 = 0x0000;
    pub const VIP_CONTROL_OP_RDMAWRITE: VIP_UINT16 = 0x0001;
    pub const VIP_CONTROL_OP_RDMAREAD: VIP_UINT16 = 0x0002;
    pub const VIP_CONTROL_OP_RESERVED: VIP_UINT16 = 0x0003;
    pub const VIP_CONTROL_OP_MASK: VIP_UINT16 = 0x0003;
    pub const VIP_CONTROL_IMMEDIATE: VIP_UINT16 = 0x0004;
    pub const VIP_CONTROL_QFENCE: VIP_UINT16 = 0x0008;
    pub const VIP_CONTROL_RESERVED: VIP_UINT16 = 0xFFF0;

    pub const VIP_STATUS_DONE: VIP_UINT32 = 0x0000_0001;
    pub const VIP_STATUS_FORMAT_ERROR: VIP_UINT32 = 0x0000_0002;
    pub const VIP_STATUS_PROTECTION_ERROR: VIP_UINT32 = 0x0000_0004;
    pub const VIP_STATUS_LENGTH_ERROR: VIP_UINT32 = 0x0000_0008;
    pub const VIP_STATUS_PARTIAL_ERROR: VIP_UINT32 = 0x0000_0010;
    pub const VIP_STATUS_DESC_FLUSHED_ERROR: VIP_UINT32 = 0x0000_0020;
    pub const VIP_STATUS_TRANSPORT_ERROR: VIP_UINT32 = 0x0000_0040;
    pub const VIP_STATUS_RDMA_PROT_ERROR: VIP_UINT32 = 0x0000_0080;
    pub const VIP_STATUS_REMOTE_DESC_ERROR: VIP_UINT32 = 0x0000_0100;
    pub const VIP_STATUS_ERROR_MASK: VIP_UINT32 = 0x0000_01FE;
    pub const VIP_STATUS_OP_SEND: VIP_UINT32 = 0x0000_0000;
    pub const VIP_STATUS_OP_RECEIVE: VIP_UINT32 = 0x0001_0000;
    pub const VIP_STATUS_OP_RDMA_WRITE: VIP_UINT32 = 0x0002_0000;
    pub const VIP_STATUS_OP_REMOTE_RDMA_WRITE: VIP_UINT32 = 0x0003_0000;
    pub const VIP_STATUS_OP_RDMA_READ: VIP_UINT32 = 0x0004_0000;
    pub const VIP_STATUS_OP_MASK: VIP_UINT32 = 0x0007_0000;
    pub const VIP_STATUS_IMMEDIATE: VIP_UINT32 = 0x0008_0000;
    pub const VIP_STATUS_RESERVED: VIP_UINT32 = 0xFFF0_FE00;
}
