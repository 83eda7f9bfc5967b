//! Scalars and structures (spec §2.1 to §2.7).

use core::ffi::{c_char, c_int, c_uchar, c_ulong, c_ushort, c_void};

use crate::{VIP_ERROR_CODE, VIP_RESOURCE_CODE};

/// Generic pointer.
pub type VIP_PVOID = *mut c_void;
/// Truth value; any non-zero value is true.
pub type VIP_BOOLEAN = c_int;
/// Character of a name.
pub type VIP_CHAR = c_char;
/// Unsigned character.
pub type VIP_UCHAR = c_uchar;
/// Unsigned short.
pub type VIP_USHORT = c_ushort;
/// The platform's `unsigned long`: 8 bytes on LP64, 4 on ILP32.
pub type VIP_ULONG = c_ulong;
/// 64 unsigned bits.
pub type VIP_UINT64 = u64;
/// 32 unsigned bits.
pub type VIP_UINT32 = u32;
/// 16 unsigned bits.
pub type VIP_UINT16 = u16;
/// 8 unsigned bits.
pub type VIP_UINT8 = u8;
/// Quality of service; its contents were never defined, so it is always NULL.
pub type VIP_QOS = VIP_PVOID;
/// One opening of one VI NIC by this process.
pub type VIP_NIC_HANDLE = VIP_PVOID;
/// One Virtual Interface.
pub type VIP_VI_HANDLE = VIP_PVOID;
/// One protection tag.
pub type VIP_PROTECTION_HANDLE = VIP_PVOID;
/// One received, unanswered connection request.
pub type VIP_CONN_HANDLE = VIP_PVOID;
/// One completion queue.
pub type VIP_CQ_HANDLE = VIP_PVOID;
/// One registered memory region; never 0.
pub type VIP_MEM_HANDLE = VIP_UINT32;
/// Mask of `VIP_SERVICE_*` bits.
pub type VIP_RELIABILITY_LEVEL = VIP_USHORT;

/// A pointer that has 64 bits on every host.
#[repr(C)]
#[derive(Clone, Copy)]
pub union VIP_PVOID64 {
    /// The bits of the address. On 32-bit hosts clear them before storing `Address`.
    pub AddressBits: VIP_UINT64,
    /// The address.
    pub Address: VIP_PVOID,
    /// The address of a descriptor (cLAN's spelling).
    pub Descriptor: *mut VIP_DESCRIPTOR,
}

/// Host address, immediately followed by the discriminator. Any alignment is accepted.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct VIP_NET_ADDRESS {
    /// Bytes of host address.
    pub HostAddressLen: VIP_UINT16,
    /// Bytes of discriminator after the host address.
    pub DiscriminatorLen: VIP_UINT16,
    /// The bytes themselves; more than one.
    pub HostAddress: [VIP_UINT8; 1],
}

/// Properties of a VI NIC; static while the NIC is open.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct VIP_NIC_ATTRIBUTES {
    /// Device name, NUL-terminated.
    pub Name: [VIP_CHAR; 64],
    /// Version of the hardware.
    pub HardwareVersion: VIP_ULONG,
    /// Version of the provider.
    pub ProviderVersion: VIP_ULONG,
    /// Bytes of the NIC's host address.
    pub NicAddressLen: VIP_UINT16,
    /// The NIC's host address; valid until VipCloseNic.
    pub LocalNicAddress: *const VIP_UINT8,
    /// True: every function may be called from every thread.
    pub ThreadSafe: VIP_BOOLEAN,
    /// Longest discriminator in bytes.
    pub MaxDiscriminatorLen: VIP_UINT16,
    /// Bytes that may be registered in total.
    pub MaxRegisterBytes: VIP_ULONG,
    /// Number of memory regions.
    pub MaxRegisterRegions: VIP_ULONG,
    /// Largest single region in bytes.
    pub MaxRegisterBlockBytes: VIP_ULONG,
    /// Number of VIs.
    pub MaxVI: VIP_ULONG,
    /// Descriptors outstanding on one work queue.
    pub MaxDescriptorsPerQueue: VIP_ULONG,
    /// Segments of one descriptor, the control segment not counted.
    pub MaxSegmentsPerDesc: VIP_ULONG,
    /// Number of completion queues.
    pub MaxCQ: VIP_ULONG,
    /// Entries of one completion queue.
    pub MaxCQEntries: VIP_ULONG,
    /// Largest message in bytes.
    pub MaxTransferSize: VIP_ULONG,
    /// Payload of one link frame in bytes.
    pub NativeMTU: VIP_ULONG,
    /// Number of protection tags.
    pub MaxPtags: VIP_ULONG,
    /// Reliability levels offered.
    pub ReliabilityLevelSupport: VIP_RELIABILITY_LEVEL,
    /// Reliability levels on which RDMA Read works.
    pub RDMAReadSupport: VIP_RELIABILITY_LEVEL,
}

/// Attributes of a VI, and the operations that it permits to its peer.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct VIP_VI_ATTRIBUTES {
    /// Exactly one `VIP_SERVICE_*` level.
    pub ReliabilityLevel: VIP_RELIABILITY_LEVEL,
    /// Largest message in bytes; equal on both sides of a connection.
    pub MaxTransferSize: VIP_ULONG,
    /// Always NULL.
    pub QoS: VIP_QOS,
    /// Protection tag that memory used on this VI must have.
    pub Ptag: VIP_PROTECTION_HANDLE,
    /// The peer may write by RDMA.
    pub EnableRdmaWrite: VIP_BOOLEAN,
    /// The peer may read by RDMA.
    pub EnableRdmaRead: VIP_BOOLEAN,
}

/// Access rights of a memory region.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct VIP_MEM_ATTRIBUTES {
    /// Protection tag of the region.
    pub Ptag: VIP_PROTECTION_HANDLE,
    /// The region may be the target of an RDMA Write.
    pub EnableRdmaWrite: VIP_BOOLEAN,
    /// The region may be the source of an RDMA Read.
    pub EnableRdmaRead: VIP_BOOLEAN,
}

/// Description of an asynchronous error; valid only during the handler's call.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct VIP_ERROR_DESCRIPTOR {
    /// The NIC handle; always set.
    pub NicHandle: VIP_NIC_HANDLE,
    /// The VI concerned, or NULL.
    pub ViHandle: VIP_VI_HANDLE,
    /// The completion queue concerned, or NULL.
    pub CQHandle: VIP_CQ_HANDLE,
    /// The descriptor concerned, or NULL.
    pub DescriptorPtr: *mut VIP_DESCRIPTOR,
    /// `VIP_STATUS_OP_*` of the operation, or 0.
    pub OpCode: VIP_ULONG,
    /// Kind of object that the error concerns.
    pub ResourceCode: VIP_RESOURCE_CODE,
    /// The error.
    pub ErrorCode: VIP_ERROR_CODE,
}

/// Argument of VipQuerySystemManagementInfo for VIP_SMI_AUTODISCOVERY.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct VIP_AUTODISCOVERY_LIST {
    /// In: maximum distance in hops; 0 lists the own NIC only.
    pub NumberOfHops: VIP_ULONG,
    /// In: buffers for the addresses, `4 + NicAddressLen` bytes each.
    pub ADAddrArray: *mut *mut VIP_NET_ADDRESS,
    /// In: elements of the array; out: addresses found.
    pub NumAdAddrs: VIP_ULONG,
}

/// First 32 bytes of every descriptor.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct VIP_CONTROL_SEGMENT {
    /// Owned by the provider between post and completion.
    pub Next: VIP_PVOID64,
    /// Owned by the provider between post and completion.
    pub NextHandle: VIP_MEM_HANDLE,
    /// Segments that follow, the address segment included.
    pub SegCount: VIP_UINT16,
    /// Operation and flags (`VIP_CONTROL_*`).
    pub Control: VIP_UINT16,
    /// 0.
    pub Reserved: VIP_UINT32,
    /// 32 bits that travel with the message.
    pub ImmediateData: VIP_UINT32,
    /// Bytes of data.
    pub Length: VIP_UINT32,
    /// Result (`VIP_STATUS_*`); complete when VIP_STATUS_DONE is set.
    pub Status: VIP_UINT32,
}

/// The remote side of an RDMA operation.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct VIP_ADDRESS_SEGMENT {
    /// Remote virtual address.
    pub Data: VIP_PVOID64,
    /// Remote memory handle.
    pub Handle: VIP_MEM_HANDLE,
    /// 0.
    pub Reserved: VIP_UINT32,
}

/// One piece of a local buffer.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct VIP_DATA_SEGMENT {
    /// Local virtual address.
    pub Data: VIP_PVOID64,
    /// Memory handle of the region that holds the piece.
    pub Handle: VIP_MEM_HANDLE,
    /// Bytes.
    pub Length: VIP_UINT32,
}

/// One segment of the Intel dialect: address or data.
#[repr(C)]
#[derive(Clone, Copy)]
pub union VIP_DESCRIPTOR_SEGMENT {
    /// Read as address segment.
    pub Remote: VIP_ADDRESS_SEGMENT,
    /// Read as data segment.
    pub Local: VIP_DATA_SEGMENT,
}

/// One transfer and, later, its result. Aligned to VIP_DESCRIPTOR_ALIGNMENT; more segments may follow
/// directly in memory.
#[cfg(not(feature = "clan-dialect"))]
#[repr(C)]
#[derive(Clone, Copy)]
pub struct VIP_DESCRIPTOR {
    /// Control segment.
    pub CS: VIP_CONTROL_SEGMENT,
    /// The first two segments.
    pub DS: [VIP_DESCRIPTOR_SEGMENT; 2],
}

/// One transfer and, later, its result, in the spelling of the cLAN header. The layout is the same.
#[cfg(feature = "clan-dialect")]
#[repr(C)]
#[derive(Clone, Copy)]
pub struct VIP_DESCRIPTOR {
    /// Control segment.
    pub Control: VIP_CONTROL_SEGMENT,
    /// The first segment.
    pub Data: [VIP_DATA_SEGMENT; 1],
}

/// Handler of VipErrorCallback.
pub type ErrorHandler =
    Option<unsafe extern "C" fn(Context: VIP_PVOID, ErrorDesc: *mut VIP_ERROR_DESCRIPTOR)>;
/// Handler of VipSendNotify and VipRecvNotify.
pub type DescriptorHandler = Option<
    unsafe extern "C" fn(
        Context: VIP_PVOID,
        NicHandle: VIP_NIC_HANDLE,
        ViHandle: VIP_VI_HANDLE,
        DescriptorPtr: *mut VIP_DESCRIPTOR,
    ),
>;
/// Handler of VipCQNotify.
pub type CqHandler = Option<
    unsafe extern "C" fn(
        Context: VIP_PVOID,
        NicHandle: VIP_NIC_HANDLE,
        ViHandle: VIP_VI_HANDLE,
        RecvQueue: VIP_BOOLEAN,
    ),
>;
