//! Scalars and structures (spec §2.1 to §2.7).

use core::ffi::{c_char, c_int, c_uchar, c_ulong, c_ushort, c_void};

use crate::{VIP_ERROR_CODE, VIP_RESOURCE_CODE};

/// A pointer to anything.
pub type VIP_PVOID = *mut c_void;
/// Truth value: VIP_TRUE or VIP_FALSE. The library takes any value but 0 for true.
pub type VIP_BOOLEAN = c_int;
/// Character of a name.
pub type VIP_CHAR = c_char;
/// Unsigned character.
pub type VIP_UCHAR = c_uchar;
/// Unsigned short.
pub type VIP_USHORT = c_ushort;
/// A number or a size: `unsigned long`, 8 bytes in 64-bit programs and 4 in 32-bit ones.
pub type VIP_ULONG = c_ulong;
/// 64 unsigned bits.
pub type VIP_UINT64 = u64;
/// 32 unsigned bits.
pub type VIP_UINT32 = u32;
/// 16 unsigned bits.
pub type VIP_UINT16 = u16;
/// 8 unsigned bits.
pub type VIP_UINT8 = u8;
/// Quality of service. VIPL never defined it; always NULL.
pub type VIP_QOS = VIP_PVOID;
/// An open NIC, of VipOpenNic.
pub type VIP_NIC_HANDLE = VIP_PVOID;
/// A Virtual Interface, of VipCreateVi.
pub type VIP_VI_HANDLE = VIP_PVOID;
/// A protection tag, of VipCreatePtag.
pub type VIP_PROTECTION_HANDLE = VIP_PVOID;
/// A connection request that waits for an answer, of VipConnectWait.
pub type VIP_CONN_HANDLE = VIP_PVOID;
/// A completion queue, of VipCreateCQ.
pub type VIP_CQ_HANDLE = VIP_PVOID;
/// A region of registered memory, of VipRegisterMem; never 0.
pub type VIP_MEM_HANDLE = VIP_UINT32;
/// `VIP_SERVICE_*` bits.
pub type VIP_RELIABILITY_LEVEL = VIP_USHORT;

/// A pointer that has 64 bits on every host.
#[repr(C)]
#[derive(Clone, Copy)]
pub union VIP_PVOID64 {
    /// The address as a number. On 32-bit hosts set it to 0 before storing `Address`.
    pub AddressBits: VIP_UINT64,
    /// The address.
    pub Address: VIP_PVOID,
    /// The address of a descriptor, in the cLAN header's spelling.
    pub Descriptor: *mut VIP_DESCRIPTOR,
}

/// A place to connect to: a host address, followed by a discriminator, which names one service or process of that host.
/// 4 + HostAddressLen + DiscriminatorLen bytes, at any alignment.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct VIP_NET_ADDRESS {
    /// Bytes of host address: `NicAddressLen` of the NIC.
    pub HostAddressLen: VIP_UINT16,
    /// Bytes of discriminator, which follow the host address without a gap: from 0 to `MaxDiscriminatorLen`.
    pub DiscriminatorLen: VIP_UINT16,
    /// The host address and then the discriminator. The program provides the memory behind the structure.
    pub HostAddress: [VIP_UINT8; 1],
}

/// Properties of a NIC. VipQueryNic writes them; they never change while the NIC is open. Limits are those of one NIC handle.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct VIP_NIC_ATTRIBUTES {
    /// Device name that the NIC has, NUL-terminated: `via_lo`.
    pub Name: [VIP_CHAR; 64],
    /// Version of the device, as its plug-in states it.
    pub HardwareVersion: VIP_ULONG,
    /// Version of the plug-in, as it states it.
    pub ProviderVersion: VIP_ULONG,
    /// Bytes of a host address on this network, 6 for most. `HostAddressLen` of a remote address must have this value.
    pub NicAddressLen: VIP_UINT16,
    /// The NIC's own host address, of `NicAddressLen` bytes. The memory belongs to the library and is valid until
    /// VipCloseNic.
    pub LocalNicAddress: *const VIP_UINT8,
    /// VIP_TRUE: every function may be called by every thread at any time.
    pub ThreadSafe: VIP_BOOLEAN,
    /// Most bytes of a discriminator, at least 64.
    pub MaxDiscriminatorLen: VIP_UINT16,
    /// Most bytes of all regions together, a byte that is in several regions counted in each. By default as the
    /// plug-in says, often `ulimit -l`; the setting `max_register_bytes` changes it.
    pub MaxRegisterBytes: VIP_ULONG,
    /// Most regions, at least 4096.
    pub MaxRegisterRegions: VIP_ULONG,
    /// Most bytes of one region.
    pub MaxRegisterBlockBytes: VIP_ULONG,
    /// Most VIs, at least 1024.
    pub MaxVI: VIP_ULONG,
    /// Most descriptors on one work queue, at least 1024. A descriptor counts until it is taken off by Done, Wait or
    /// Notify.
    pub MaxDescriptorsPerQueue: VIP_ULONG,
    /// Most segments of one descriptor, at least 252. The address segment counts, the control segment does not.
    pub MaxSegmentsPerDesc: VIP_ULONG,
    /// Most completion queues, at least 1024.
    pub MaxCQ: VIP_ULONG,
    /// Most entries of one completion queue, at least 65536.
    pub MaxCQEntries: VIP_ULONG,
    /// Most bytes of one message or RDMA operation, at least 32768; the setting `max_transfer_size` changes it. A VI may
    /// be created with less.
    pub MaxTransferSize: VIP_ULONG,
    /// Bytes of data that one frame of the network carries, never above `MaxTransferSize`. Messages of up to this size
    /// are not divided.
    pub NativeMTU: VIP_ULONG,
    /// Most protection tags, at least 1024.
    pub MaxPtags: VIP_ULONG,
    /// Reliability levels that a VI may have: `VIP_SERVICE_*` bits.
    pub ReliabilityLevelSupport: VIP_RELIABILITY_LEVEL,
    /// Reliability levels on which RDMA Read works: `VIP_SERVICE_*` bits, 0 if on none. RDMA Write works on all.
    pub RDMAReadSupport: VIP_RELIABILITY_LEVEL,
}

/// Attributes of a VI. The program sets all of them for VipCreateVi and VipSetViAttributes; VipQueryVi writes those of a VI,
/// and the functions that connect write those of the peer's VI.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct VIP_VI_ATTRIBUTES {
    /// Exactly one `VIP_SERVICE_*` level that the NIC supports; the same on both sides of a connection.
    pub ReliabilityLevel: VIP_RELIABILITY_LEVEL,
    /// Most bytes of one message or RDMA operation: from 1 to `MaxTransferSize` of the NIC, and the same on both sides of
    /// a connection.
    pub MaxTransferSize: VIP_ULONG,
    /// NULL. VIPL reserves it for a quality of service, which it never defined.
    pub QoS: VIP_QOS,
    /// Protection tag of VipCreatePtag. Descriptors and buffers that are used on this VI are in regions with this tag.
    /// NULL matches every region, unless the setting `strict` is on. NULL in the attributes of a peer.
    pub Ptag: VIP_PROTECTION_HANDLE,
    /// VIP_TRUE: the peer may write by RDMA into regions that permit it. The VI itself needs no permission to write.
    pub EnableRdmaWrite: VIP_BOOLEAN,
    /// VIP_TRUE: the peer may read by RDMA from regions that permit it. Only where `RDMAReadSupport` has the level.
    pub EnableRdmaRead: VIP_BOOLEAN,
}

/// Who may use a region of memory, and for what. The program sets all fields; VipQueryMem writes them.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct VIP_MEM_ATTRIBUTES {
    /// Protection tag of VipCreatePtag: only VIs with this tag use the region. NULL matches every VI of the NIC handle,
    /// unless the setting `strict` is on.
    pub Ptag: VIP_PROTECTION_HANDLE,
    /// VIP_TRUE: peers may write here by RDMA, if their connection's VI permits it too.
    pub EnableRdmaWrite: VIP_BOOLEAN,
    /// VIP_TRUE: peers may read here by RDMA, if their connection's VI permits it too.
    pub EnableRdmaRead: VIP_BOOLEAN,
}

/// An asynchronous error, as the handler of VipErrorCallback gets it. The library writes all fields; they are valid only
/// during the call of the handler.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct VIP_ERROR_DESCRIPTOR {
    /// The NIC handle; never NULL.
    pub NicHandle: VIP_NIC_HANDLE,
    /// The VI that the error concerns, or NULL.
    pub ViHandle: VIP_VI_HANDLE,
    /// The completion queue that the error concerns, or NULL.
    pub CQHandle: VIP_CQ_HANDLE,
    /// The descriptor that the error concerns, or NULL. It may be one that the library has refused.
    pub DescriptorPtr: *mut VIP_DESCRIPTOR,
    /// Operation that has failed, one of `VIP_STATUS_OP_*`; 0 if there is none.
    pub OpCode: VIP_ULONG,
    /// Kind of object that the error concerns: it tells which of the handles is set.
    pub ResourceCode: VIP_RESOURCE_CODE,
    /// What has happened.
    pub ErrorCode: VIP_ERROR_CODE,
}

/// Argument of VipQuerySystemManagementInfo for VIP_SMI_AUTODISCOVERY.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct VIP_AUTODISCOVERY_LIST {
    /// In: distance in hops up to which to look. 0: the own NIC only; 1: its own network.
    pub NumberOfHops: VIP_ULONG,
    /// In: array of pointers to room for an address each, of 4 + `NicAddressLen` bytes. NULL: only count.
    pub ADAddrArray: *mut *mut VIP_NET_ADDRESS,
    /// In: elements of the array, 0 if it is NULL. Out: number of addresses that there are, which may be more.
    pub NumAdAddrs: VIP_ULONG,
}

/// First 32 bytes of every descriptor. "In" is what the program writes before it posts the descriptor; "out" is what the
/// library has written when the descriptor is complete. In between all of it belongs to the library.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct VIP_CONTROL_SEGMENT {
    /// Of the library, which may overwrite it. The program sets nothing.
    pub Next: VIP_PVOID64,
    /// Of the library, which may overwrite it. The program sets nothing.
    pub NextHandle: VIP_MEM_HANDLE,
    /// In: segments that follow, the address segment included, up to `MaxSegmentsPerDesc`. 0: no data.
    pub SegCount: VIP_UINT16,
    /// In: one `VIP_CONTROL_OP_*` and flags; all other bits 0. On the receive queue VIP_CONTROL_OP_SENDRECV.
    pub Control: VIP_UINT16,
    /// In: always 0.
    pub Reserved: VIP_UINT32,
    /// 32 bits that travel with the message. In: on the send queue, with VIP_CONTROL_IMMEDIATE. Out: on the receive
    /// queue, valid if Status has VIP_STATUS_IMMEDIATE.
    pub ImmediateData: VIP_UINT32,
    /// Bytes of data. In: on the send queue, the sum of the lengths of the data segments, up to `MaxTransferSize` of the VI.
    /// Out: on the receive queue, the bytes that have arrived.
    pub Length: VIP_UINT32,
    /// Out: result, `VIP_STATUS_*` bits. The descriptor is complete when VIP_STATUS_DONE is set. Posting clears it.
    pub Status: VIP_UINT32,
}

/// Peer's side of an RDMA operation: the first segment of an RDMA Write or RDMA Read. As many bytes as the data segments
/// have together. The program writes all of it; the peer has told it address and handle.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct VIP_ADDRESS_SEGMENT {
    /// Address in the peer's process.
    pub Data: VIP_PVOID64,
    /// Memory handle that the peer's VipRegisterMem has given.
    pub Handle: VIP_MEM_HANDLE,
    /// Always 0.
    pub Reserved: VIP_UINT32,
}

/// A piece of a local buffer. The program writes all of it. Data is gathered and scattered in the order of segments.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct VIP_DATA_SEGMENT {
    /// Address of the piece; any alignment.
    pub Data: VIP_PVOID64,
    /// Memory handle of the region that contains the whole piece, and has the protection tag of the VI.
    pub Handle: VIP_MEM_HANDLE,
    /// Bytes. In a segment of 0 bytes nothing else is looked at.
    pub Length: VIP_UINT32,
}

/// A segment of a descriptor: an address or a data segment.
#[repr(C)]
#[derive(Clone, Copy)]
pub union VIP_DESCRIPTOR_SEGMENT {
    /// As address segment: the first one of an RDMA operation.
    pub Remote: VIP_ADDRESS_SEGMENT,
    /// As data segment.
    pub Local: VIP_DATA_SEGMENT,
}

/// One transfer and, later, its result: a control segment, and as many segments as its SegCount says, without gaps.
/// It begins at a multiple of VIP_DESCRIPTOR_ALIGNMENT bytes, in registered memory.
#[cfg(not(feature = "clan-dialect"))]
#[repr(C)]
#[derive(Clone, Copy)]
pub struct VIP_DESCRIPTOR {
    /// What to do, and the result.
    pub CS: VIP_CONTROL_SEGMENT,
    /// The first two segments. More may follow in memory behind the structure.
    pub DS: [VIP_DESCRIPTOR_SEGMENT; 2],
}

/// The same in the spelling of the cLAN header, with one segment in place of two.
#[cfg(feature = "clan-dialect")]
#[repr(C)]
#[derive(Clone, Copy)]
pub struct VIP_DESCRIPTOR {
    /// What to do, and the result.
    pub Control: VIP_CONTROL_SEGMENT,
    /// The first segment. More may follow in memory behind the structure.
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
