//! Named values (spec §2.5, §2.8).

use crate::{VIP_BOOLEAN, VIP_RELIABILITY_LEVEL, VIP_UINT16, VIP_UINT32, VIP_ULONG};

/// Declares constants, and lists them for the check of the C header.
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
    /// Yes.
    pub const VIP_TRUE: VIP_BOOLEAN = 1;
    /// No.
    pub const VIP_FALSE: VIP_BOOLEAN = 0;
    /// No time limit. In 64-bit programs 0xFFFFFFFF is none, either.
    pub const VIP_INFINITE: VIP_ULONG = VIP_ULONG::MAX;
    /// Descriptors begin at multiples of this many bytes.
    pub const VIP_DESCRIPTOR_ALIGNMENT: usize = 64;
    /// Which hosts there are: the only InfoType of VipQuerySystemManagementInfo.
    pub const VIP_SMI_AUTODISCOVERY: VIP_ULONG = 1;

    /// Messages arrive once or not at all; nothing tells of one that is lost.
    pub const VIP_SERVICE_UNRELIABLE: VIP_RELIABILITY_LEVEL = 0x01;
    /// Messages arrive once and in order, or the connection breaks. A send is complete when its buffer is
    /// free.
    pub const VIP_SERVICE_RELIABLE_DELIVERY: VIP_RELIABILITY_LEVEL = 0x02;
    /// As delivery; a send is complete when the data is in the peer's memory.
    pub const VIP_SERVICE_RELIABLE_RECEPTION: VIP_RELIABILITY_LEVEL = 0x04;
    /// The three levels together.
    pub const VIP_BASE_SERVICES: VIP_RELIABILITY_LEVEL = 0x07;
    /// cLAN's "acknowledged" service, which no device here has.
    pub const VIP_SERVICE_ACK: VIP_RELIABILITY_LEVEL = 1 << 14;
    /// cLAN's "deferred" service, which no device here has.
    pub const VIP_SERVICE_DFC: VIP_RELIABILITY_LEVEL = 1 << 15;

    /// A send, or on the receive queue a receive.
    pub const VIP_CONTROL_OP_SENDRECV: VIP_UINT16 = 0x0000;
    /// RDMA Write: from local memory to the peer's.
    pub const VIP_CONTROL_OP_RDMAWRITE: VIP_UINT16 = 0x0001;
    /// RDMA Read: from the peer's memory to local memory.
    pub const VIP_CONTROL_OP_RDMAREAD: VIP_UINT16 = 0x0002;
    /// No operation; a format error.
    pub const VIP_CONTROL_OP_RESERVED: VIP_UINT16 = 0x0003;
    /// The bits of the operation.
    pub const VIP_CONTROL_OP_MASK: VIP_UINT16 = 0x0003;
    /// ImmediateData travels with a send or an RDMA Write. The RDMA Write then takes a receive descriptor
    /// of the peer.
    pub const VIP_CONTROL_IMMEDIATE: VIP_UINT16 = 0x0004;
    /// Begin when all earlier RDMA Reads of this send queue are complete.
    pub const VIP_CONTROL_QFENCE: VIP_UINT16 = 0x0008;
    /// Bits that must be 0; else it is a format error.
    pub const VIP_CONTROL_RESERVED: VIP_UINT16 = 0xFFF0;

    /// Complete; until then no other bit counts.
    pub const VIP_STATUS_DONE: VIP_UINT32 = 0x0000_0001;
    /// The descriptor is malformed: Control, SegCount, or RDMA Read where there is none.
    pub const VIP_STATUS_FORMAT_ERROR: VIP_UINT32 = 0x0000_0002;
    /// A data segment is not inside of one region with the handle and the tag, or is not mapped.
    pub const VIP_STATUS_PROTECTION_ERROR: VIP_UINT32 = 0x0000_0004;
    /// Send queue: Length is not the sum of the segments, or above MaxTransferSize. Receive queue: the
    /// message was longer than the buffers.
    pub const VIP_STATUS_LENGTH_ERROR: VIP_UINT32 = 0x0000_0008;
    /// Only a part of the message was transferred.
    pub const VIP_STATUS_PARTIAL_ERROR: VIP_UINT32 = 0x0000_0010;
    /// Not processed, since the VI was disconnected or is in VIP_STATE_ERROR.
    pub const VIP_STATUS_DESC_FLUSHED_ERROR: VIP_UINT32 = 0x0000_0020;
    /// The network could not deliver it, or it arrived damaged.
    pub const VIP_STATUS_TRANSPORT_ERROR: VIP_UINT32 = 0x0000_0040;
    /// The range in the peer's memory is not permitted: address, handle, tag, or EnableRdmaWrite or
    /// EnableRdmaRead of the peer's VI and region.
    pub const VIP_STATUS_RDMA_PROT_ERROR: VIP_UINT32 = 0x0000_0080;
    /// The peer had no receive descriptor for it, or one that is too short or malformed (Reliable
    /// Reception).
    pub const VIP_STATUS_REMOTE_DESC_ERROR: VIP_UINT32 = 0x0000_0100;
    /// All error bits: if none is set, the transfer was successful.
    pub const VIP_STATUS_ERROR_MASK: VIP_UINT32 = 0x0000_01FE;
    /// Operation: a send.
    pub const VIP_STATUS_OP_SEND: VIP_UINT32 = 0x0000_0000;
    /// Operation: a receive.
    pub const VIP_STATUS_OP_RECEIVE: VIP_UINT32 = 0x0001_0000;
    /// Operation: an RDMA Write.
    pub const VIP_STATUS_OP_RDMA_WRITE: VIP_UINT32 = 0x0002_0000;
    /// Operation: an RDMA Write of the peer with immediate data, on the receive queue.
    pub const VIP_STATUS_OP_REMOTE_RDMA_WRITE: VIP_UINT32 = 0x0003_0000;
    /// Operation: an RDMA Read.
    pub const VIP_STATUS_OP_RDMA_READ: VIP_UINT32 = 0x0004_0000;
    /// The bits of the operation.
    pub const VIP_STATUS_OP_MASK: VIP_UINT32 = 0x0007_0000;
    /// ImmediateData is valid; on the receive queue only.
    pub const VIP_STATUS_IMMEDIATE: VIP_UINT32 = 0x0008_0000;
    /// Bits that are always 0.
    pub const VIP_STATUS_RESERVED: VIP_UINT32 = 0xFFF0_FE00;
}
