//! The C functions as they are: for programs that manage descriptors and memory themselves.
//!
//! A [`RawVi`](crate::RawVi) is a handle with the functions of its data path. Each operation is one indirect call; nothing
//! is allocated, checked or counted. The safe [`Vi`](crate::Vi) is built on it.
//!
//! Codes are plain integers: another VIPL may return codes that this one does not know.

#![allow(non_snake_case)]

use std::ffi::{c_char, c_int, c_ulong, c_void};

pub use vipl_abi as abi;
use vipl_abi::*;

/// VipPostSend or VipPostRecv.
pub type Post = unsafe extern "C" fn(VIP_VI_HANDLE, *mut VIP_DESCRIPTOR, VIP_MEM_HANDLE) -> c_int;
/// VipSendDone or VipRecvDone.
pub type Done = unsafe extern "C" fn(VIP_VI_HANDLE, *mut *mut VIP_DESCRIPTOR) -> c_int;
/// VipSendWait or VipRecvWait.
pub type Wait = unsafe extern "C" fn(VIP_VI_HANDLE, VIP_ULONG, *mut *mut VIP_DESCRIPTOR) -> c_int;

macro_rules! functions {
    (
        required { $($name:ident($($type:ty),* $(,)?);)* }
        optional { $($more:ident($($argument:ty),* $(,)?) $(-> $result:ty)?;)* }
    ) => {
        /// The C functions, by their names in the headers. Those that are an `Option` may be missing in another VIPL.
        #[allow(missing_docs)]
        pub struct Functions {
            $(pub $name: unsafe extern "C" fn($($type),*) -> c_int,)*
            $(pub $more: Option<unsafe extern "C" fn($($argument),*) $(-> $result)?>,)*
        }

        impl Functions {
            /// # Safety
            /// `library` is a VIPL: its functions have the types of the headers.
            pub(crate) unsafe fn load(
                library: &libloading::os::unix::Library,
            ) -> Result<Self, libloading::Error> {
                Ok(Self {
                    $($name: {
                        let name = concat!(stringify!($name), "\0").as_bytes();
                        // SAFETY: the caller's promise.
                        *unsafe { library.get::<unsafe extern "C" fn($($type),*) -> c_int>(name) }?
                    },)*
                    $($more: {
                        let name = concat!(stringify!($more), "\0").as_bytes();
                        // SAFETY: the caller's promise.
                        unsafe {
                            library.get::<unsafe extern "C" fn($($argument),*) $(-> $result)?>(name)
                        }
                        .ok()
                        .map(|function| *function)
                    },)*
                })
            }

            /// The functions that the program is linked with.
            #[cfg(feature = "link")]
            pub(crate) fn linked() -> Self {
                #[link(name = "vipl")]
                unsafe extern "C" {
                    $(fn $name($(_: $type),*) -> c_int;)*
                    $(fn $more($(_: $argument),*) $(-> $result)?;)*
                }
                Self { $($name,)* $($more: Some($more),)* }
            }
        }
    };
}

functions! {
    required {
        VipOpenNic(*const VIP_CHAR, *mut VIP_NIC_HANDLE);
        VipCloseNic(VIP_NIC_HANDLE);
        VipQueryNic(VIP_NIC_HANDLE, *mut VIP_NIC_ATTRIBUTES);
        VipErrorCallback(VIP_NIC_HANDLE, VIP_PVOID, ErrorHandler);
        VipCreatePtag(VIP_NIC_HANDLE, *mut VIP_PROTECTION_HANDLE);
        VipDestroyPtag(VIP_NIC_HANDLE, VIP_PROTECTION_HANDLE);
        VipRegisterMem(
            VIP_NIC_HANDLE, VIP_PVOID, VIP_ULONG, *mut VIP_MEM_ATTRIBUTES, *mut VIP_MEM_HANDLE,
        );
        VipDeregisterMem(VIP_NIC_HANDLE, VIP_PVOID, VIP_MEM_HANDLE);
        VipCreateVi(
            VIP_NIC_HANDLE, *mut VIP_VI_ATTRIBUTES, VIP_CQ_HANDLE, VIP_CQ_HANDLE, *mut VIP_VI_HANDLE,
        );
        VipDestroyVi(VIP_VI_HANDLE);
        VipQueryVi(
            VIP_VI_HANDLE, *mut c_int, *mut VIP_VI_ATTRIBUTES, *mut VIP_BOOLEAN, *mut VIP_BOOLEAN,
        );
        VipConnectWait(
            VIP_NIC_HANDLE, *mut VIP_NET_ADDRESS, VIP_ULONG, *mut VIP_NET_ADDRESS,
            *mut VIP_VI_ATTRIBUTES, *mut VIP_CONN_HANDLE,
        );
        VipConnectAccept(VIP_CONN_HANDLE, VIP_VI_HANDLE);
        VipConnectReject(VIP_CONN_HANDLE);
        VipConnectRequest(
            VIP_VI_HANDLE, *mut VIP_NET_ADDRESS, *mut VIP_NET_ADDRESS, VIP_ULONG,
            *mut VIP_VI_ATTRIBUTES,
        );
        VipConnectPeerRequest(
            VIP_VI_HANDLE, *mut VIP_NET_ADDRESS, *mut VIP_NET_ADDRESS, VIP_ULONG,
        );
        VipConnectPeerDone(VIP_VI_HANDLE, *mut VIP_VI_ATTRIBUTES);
        VipConnectPeerWait(VIP_VI_HANDLE, *mut VIP_VI_ATTRIBUTES);
        VipDisconnect(VIP_VI_HANDLE);
        VipPostSend(VIP_VI_HANDLE, *mut VIP_DESCRIPTOR, VIP_MEM_HANDLE);
        VipPostRecv(VIP_VI_HANDLE, *mut VIP_DESCRIPTOR, VIP_MEM_HANDLE);
        VipSendDone(VIP_VI_HANDLE, *mut *mut VIP_DESCRIPTOR);
        VipRecvDone(VIP_VI_HANDLE, *mut *mut VIP_DESCRIPTOR);
        VipSendWait(VIP_VI_HANDLE, VIP_ULONG, *mut *mut VIP_DESCRIPTOR);
        VipRecvWait(VIP_VI_HANDLE, VIP_ULONG, *mut *mut VIP_DESCRIPTOR);
        VipCreateCQ(VIP_NIC_HANDLE, VIP_ULONG, *mut VIP_CQ_HANDLE);
        VipDestroyCQ(VIP_CQ_HANDLE);
        VipCQDone(VIP_CQ_HANDLE, *mut VIP_VI_HANDLE, *mut VIP_BOOLEAN);
        VipCQWait(VIP_CQ_HANDLE, VIP_ULONG, *mut VIP_VI_HANDLE, *mut VIP_BOOLEAN);
        VipNSInit(VIP_NIC_HANDLE, VIP_PVOID);
        VipNSGetHostByName(VIP_NIC_HANDLE, *mut VIP_CHAR, *mut VIP_NET_ADDRESS, VIP_ULONG);
        VipNSShutdown(VIP_NIC_HANDLE);
    }
    optional {
        VipSetViAttributes(VIP_VI_HANDLE, *mut VIP_VI_ATTRIBUTES) -> c_int;
        VipQueryMem(VIP_NIC_HANDLE, VIP_PVOID, VIP_MEM_HANDLE, *mut VIP_MEM_ATTRIBUTES) -> c_int;
        VipSetMemAttributes(
            VIP_NIC_HANDLE, VIP_PVOID, VIP_MEM_HANDLE, *mut VIP_MEM_ATTRIBUTES,
        ) -> c_int;
        VipSendNotify(VIP_VI_HANDLE, VIP_PVOID, DescriptorHandler) -> c_int;
        VipRecvNotify(VIP_VI_HANDLE, VIP_PVOID, DescriptorHandler) -> c_int;
        VipResizeCQ(VIP_CQ_HANDLE, VIP_ULONG) -> c_int;
        VipCQNotify(VIP_CQ_HANDLE, VIP_PVOID, CqHandler) -> c_int;
        VipQuerySystemManagementInfo(VIP_NIC_HANDLE, VIP_ULONG, VIP_PVOID) -> c_int;
        VipNSGetHostByAddr(
            VIP_NIC_HANDLE, *mut VIP_NET_ADDRESS, *mut VIP_CHAR, *mut VIP_ULONG,
        ) -> c_int;
        VipSetUserData(VIP_VI_HANDLE, VIP_PVOID);
        VipGetUserData(VIP_VI_HANDLE) -> VIP_PVOID;
        vipl_alloc(VIP_ULONG, *mut VIP_PVOID) -> c_int;
        vipl_free(VIP_PVOID) -> c_int;
        vipl_cq_fd(VIP_CQ_HANDLE, *mut c_int) -> c_int;
        vipl_cq_arm(VIP_CQ_HANDLE) -> c_int;
        vipl_describe(*const c_char, *mut c_char, *mut c_ulong) -> c_int;
        vipl_may_yield(VIP_BOOLEAN) -> VIP_BOOLEAN;
    }
}

impl Functions {
    /// An address of code in the library.
    pub(crate) fn address(&self) -> *const c_void {
        self.VipOpenNic as *const c_void
    }
}

/// Bytes that a descriptor with this many segments takes.
#[must_use]
pub const fn descriptor_bytes(segments: usize) -> usize {
    size_of::<VIP_CONTROL_SEGMENT>() + segments * size_of::<VIP_DATA_SEGMENT>()
}

/// Writes a descriptor: `VIP_CONTROL_*`, the address and handle of remote memory for RDMA, and address, handle and length
/// of each piece of local memory.
///
/// # Safety
/// Aligned memory with room for all segments, which is not posted.
pub unsafe fn write_descriptor(
    at: *mut VIP_DESCRIPTOR,
    control: VIP_UINT16,
    remote: Option<(u64, VIP_MEM_HANDLE)>,
    local: impl IntoIterator<Item = (u64, VIP_MEM_HANDLE, u32)>,
) {
    // SAFETY: the segments follow the control segment; by contract there is room for them.
    let segments = unsafe { at.cast::<VIP_CONTROL_SEGMENT>().add(1) };
    let segments = segments.cast::<VIP_DESCRIPTOR_SEGMENT>();
    let (mut count, mut total) = (0, 0u32);
    if let Some((address, handle)) = remote {
        let segment = VIP_ADDRESS_SEGMENT {
            Data: VIP_PVOID64 {
                AddressBits: address,
            },
            Handle: handle,
            Reserved: 0,
        };
        // SAFETY: as above.
        unsafe { segments.write(VIP_DESCRIPTOR_SEGMENT { Remote: segment }) };
        count = 1;
    }
    for (address, handle, length) in local {
        let segment = VIP_DATA_SEGMENT {
            Data: VIP_PVOID64 {
                AddressBits: address,
            },
            Handle: handle,
            Length: length,
        };
        // SAFETY: as above.
        unsafe {
            segments
                .add(count)
                .write(VIP_DESCRIPTOR_SEGMENT { Local: segment })
        };
        count += 1;
        total = total.saturating_add(length);
    }
    let head = VIP_CONTROL_SEGMENT {
        Next: VIP_PVOID64 { AddressBits: 0 },
        NextHandle: 0,
        SegCount: count as VIP_UINT16,
        Control: control,
        Reserved: 0,
        ImmediateData: 0,
        Length: total,
        Status: 0,
    };
    // SAFETY: as above.
    unsafe { at.cast::<VIP_CONTROL_SEGMENT>().write(head) };
}
