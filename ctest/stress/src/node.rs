//! An opened NIC, registered memory, and the record of asynchronous errors.

use std::ffi::CString;
use std::ptr::null_mut;
use std::sync::Mutex;

use vipl_abi::*;

use crate::api::{SUCCESS, vip};
use crate::report::fault;

/// Fails unless a call returned VIP_SUCCESS.
pub(crate) fn must(what: &str, code: i32) {
    if code != SUCCESS {
        fault(&format!("{what} returned {code}"));
    }
}

/// One NIC of this process; lives until the process ends.
pub(crate) struct Node {
    pub(crate) nic: VIP_NIC_HANDLE,
    pub(crate) ptag: VIP_PROTECTION_HANDLE,
    pub(crate) host: Vec<u8>,
    pub(crate) transfer_max: usize,
    pub(crate) levels: u16,
    pub(crate) read_levels: u16,
    /// Peers may be on other hosts.
    on_network: bool,
    /// VIs whose connection was lost, as the error handler was told.
    lost: Mutex<Vec<usize>>,
}

// SAFETY: handles are plain values, and the library is thread-safe.
unsafe impl Send for Node {}
// SAFETY: as above.
unsafe impl Sync for Node {}

extern "C" fn on_error(context: VIP_PVOID, error: *mut VIP_ERROR_DESCRIPTOR) {
    // SAFETY: the context is a node that is never freed; the library passes a descriptor.
    let (node, error) = unsafe { (&*context.cast::<Node>(), &*error) };
    // What a network says of a peer from which nothing arrives any more (spec §6.4, E12 and E17).
    let silence = [
        VIP_ERROR_CODE::VIP_ERROR_RDMAW_ABORT,
        VIP_ERROR_CODE::VIP_ERROR_RDMA_TRANSPORT,
    ];
    let lost = error.ErrorCode == VIP_ERROR_CODE::VIP_ERROR_CONN_LOST
        || node.on_network && silence.contains(&error.ErrorCode);
    if lost {
        let mut lost = node
            .lost
            .lock()
            .unwrap_or_else(|broken| broken.into_inner());
        lost.push(error.ViHandle.addr());
    } else {
        fault(&format!("asynchronous error {}", error.ErrorCode as i32));
    }
}

impl Node {
    /// Opens a device.
    pub(crate) fn open(device: &str, on_network: bool) -> &'static Node {
        let name = CString::new(device).unwrap_or_default();
        let mut nic = null_mut();
        // SAFETY: a NUL-terminated name and room for a handle.
        must("VipOpenNic", unsafe {
            (vip().VipOpenNic)(name.as_ptr(), &raw mut nic)
        });
        let mut attributes = std::mem::MaybeUninit::<VIP_NIC_ATTRIBUTES>::zeroed();
        // SAFETY: a live handle and room for the attributes.
        must("VipQueryNic", unsafe {
            (vip().VipQueryNic)(nic, attributes.as_mut_ptr())
        });
        // SAFETY: filled; all bits zero were valid before.
        let attributes = unsafe { attributes.assume_init() };
        let mut ptag = null_mut();
        // SAFETY: a live handle and room for a tag.
        must("VipCreatePtag", unsafe {
            (vip().VipCreatePtag)(nic, &raw mut ptag)
        });
        let length = usize::from(attributes.NicAddressLen);
        // SAFETY: the address has so many bytes as long as the NIC is open.
        let host = unsafe { std::slice::from_raw_parts(attributes.LocalNicAddress, length) };
        let node: &'static Node = Box::leak(Box::new(Node {
            nic,
            ptag,
            host: host.to_vec(),
            transfer_max: attributes.MaxTransferSize as usize,
            levels: attributes.ReliabilityLevelSupport,
            read_levels: attributes.RDMAReadSupport,
            on_network,
            lost: Mutex::default(),
        }));
        let context = std::ptr::from_ref(node).cast_mut().cast();
        // SAFETY: a live handle; the node is never freed.
        must("VipErrorCallback", unsafe {
            (vip().VipErrorCallback)(nic, context, Some(on_error))
        });
        node
    }

    /// Whether the loss of this VI's connection has been told; once for each.
    pub(crate) fn take_loss(&self, vi: VIP_VI_HANDLE) -> bool {
        let mut lost = self
            .lost
            .lock()
            .unwrap_or_else(|broken| broken.into_inner());
        let before = lost.len();
        lost.retain(|known| *known != vi.addr());
        lost.len() < before
    }

    /// Closes the NIC, which must be empty.
    pub(crate) fn close(&self) {
        // SAFETY: live handles.
        must("VipDestroyPtag", unsafe {
            (vip().VipDestroyPtag)(self.nic, self.ptag)
        });
        // SAFETY: a live handle.
        must("VipCloseNic", unsafe { (vip().VipCloseNic)(self.nic) });
    }
}

/// Registered memory, open to RDMA. It is touched by raw copies only, since peers write it.
pub(crate) struct Region {
    node: &'static Node,
    base: *mut u8,
    bytes: usize,
    pub(crate) handle: VIP_MEM_HANDLE,
}

impl Region {
    pub(crate) fn new(node: &'static Node, bytes: usize) -> Region {
        let bytes = bytes.next_multiple_of(4096);
        // SAFETY: a fresh mapping.
        let base = unsafe {
            libc::mmap(
                null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        if base == libc::MAP_FAILED {
            fault("no memory");
        }
        let mut attributes = VIP_MEM_ATTRIBUTES {
            Ptag: node.ptag,
            EnableRdmaWrite: VIP_TRUE,
            EnableRdmaRead: VIP_BOOLEAN::from(node.read_levels != 0),
        };
        let mut handle = 0;
        // SAFETY: a live NIC, mapped memory, room for the handle.
        must("VipRegisterMem", unsafe {
            (vip().VipRegisterMem)(
                node.nic,
                base,
                bytes as VIP_ULONG,
                &raw mut attributes,
                &raw mut handle,
            )
        });
        Region {
            node,
            base: base.cast(),
            bytes,
            handle,
        }
    }

    /// Address of `bytes` bytes at `offset`.
    pub(crate) fn at(&self, offset: usize, bytes: usize) -> *mut u8 {
        assert!(offset + bytes <= self.bytes);
        // SAFETY: inside the mapping.
        unsafe { self.base.add(offset) }
    }

    pub(crate) fn write(&self, offset: usize, bytes: &[u8]) {
        // SAFETY: inside the mapping; `bytes` is Rust's own memory.
        unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.at(offset, bytes.len()), bytes.len())
        }
    }

    pub(crate) fn read(&self, offset: usize, bytes: &mut [u8]) {
        // SAFETY: inside the mapping; `bytes` is Rust's own memory.
        unsafe {
            std::ptr::copy_nonoverlapping(
                self.at(offset, bytes.len()),
                bytes.as_mut_ptr(),
                bytes.len(),
            )
        }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: live handles; the memory is unmapped only when no transfer uses it any more.
        unsafe {
            must(
                "VipDeregisterMem",
                (vip().VipDeregisterMem)(self.node.nic, self.base.cast(), self.handle),
            );
            libc::munmap(self.base.cast(), self.bytes);
        }
    }
}

/// A network address as the library reads it: lengths, host, discriminator.
pub(crate) fn address(host: &[u8], discriminator: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    bytes.extend_from_slice(&(host.len() as u16).to_ne_bytes());
    bytes.extend_from_slice(&(discriminator.len() as u16).to_ne_bytes());
    bytes.extend_from_slice(host);
    bytes.extend_from_slice(discriminator.as_bytes());
    // Room for what the library may write there.
    bytes.resize(4 + 16 + 64, 0);
    bytes
}
