//! The structures that the library and a plug-in share: queues, regions, VIs, connections.

use core::ffi::{c_char, c_int, c_void};
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicU32, AtomicU64};

use vipl_abi::VIP_DESCRIPTOR;

use crate::{VIPL_ADDRESS_MAX, VIPL_DATA_ADDRESS_MAX};

/// One posted descriptor.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct vipl_entry {
    /// The application's descriptor. The application may change it at any time: read each field once, check the copy.
    pub descriptor: *mut VIP_DESCRIPTOR,
    /// Memory handle given at the post.
    pub memory: u32,
    /// Set by `complete`: the final status.
    pub status: u32,
}

/// One work queue. Descriptors `completed..posted` are the plug-in's; counters wrap.
#[repr(C)]
pub struct vipl_queue {
    /// Ring of entries, index `n & mask`; the host may replace it inside a post.
    pub entries: *mut vipl_entry,
    /// Size of the ring less one.
    pub mask: u32,
    /// Host: descriptors posted so far.
    pub posted: u32,
    /// Plug-in: descriptors completed so far.
    pub completed: u32,
    /// Host: descriptors taken off so far.
    pub taken: u32,
    /// Host: not 0 asks for `host->completed` after completions.
    pub signal: u32,
    /// 0 on the send queue, 1 on the receive queue.
    pub which: u32,
}

/// One registered region; the host writes it, and any thread may read it without a lock, as
/// `vipl_host.region_check` does: the handle is 0 while the entry changes.
#[repr(C)]
pub struct vipl_region {
    /// First byte.
    pub base: AtomicU64,
    /// One past the last byte.
    pub end: AtomicU64,
    /// Protection tag in the upper half, `VIPL_REGION_*` bits in the lower.
    pub access: AtomicU64,
    /// The handle; the entry's index is `handle & (region_count - 1)`. 0: free.
    pub handle: AtomicU32,
    /// 0.
    pub reserved: u32,
}

/// Instructions of a plug-in that may fault, and where they continue then. Each field is the distance from its own
/// address, so that a table of these needs no relocation.
#[repr(C)]
pub struct vipl_guard_entry {
    /// To the first instruction.
    pub start: i32,
    /// To the end of the last one.
    pub end: i32,
    /// To where they continue.
    pub fixup: i32,
}

/// One opening of a device.
#[repr(C)]
pub struct vipl_nic {
    /// The plug-in's own.
    pub context: *mut c_void,
    /// The host's own.
    pub host: *mut c_void,
    /// Table of regions.
    pub regions: *const vipl_region,
    /// Entries of the table, a power of two.
    pub region_count: u32,
    /// `VIPL_OPTION_*`.
    pub options: u32,
    /// Segments of one descriptor.
    pub segments_max: u32,
    /// 0.
    pub reserved: u32,
}

/// One VI.
#[repr(C)]
pub struct vipl_vi {
    /// The plug-in's own.
    pub context: *mut c_void,
    /// Where it belongs.
    pub nic: *const vipl_nic,
    /// Send queue.
    pub send: vipl_queue,
    /// Receive queue.
    pub recv: vipl_queue,
    /// The host's own.
    pub host: *mut c_void,
    /// Largest message in bytes.
    pub max_transfer_size: u64,
    /// Number within the NIC, below MaxVI.
    pub index: u32,
    /// Tag, or `VIPL_PTAG_ANY`.
    pub ptag: u32,
    /// `VIP_STATE_*`.
    pub state: u32,
    /// One `VIP_SERVICE_*` bit.
    pub reliability: u16,
    /// 1: the peer may write by RDMA.
    pub rdma_write: u8,
    /// 1: the peer may read by RDMA.
    pub rdma_read: u8,
}

/// A descriptor that `vipl_host.next_send`, `next_receive`, `send_at` or `receive_at` has read and checked. It is valid
/// until the descriptor is completed.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct vipl_request {
    /// `sizeof(vipl_request)` as the plug-in knows it, set by the plug-in before the call.
    pub size: usize,
    /// What it asks for, one `VIP_STATUS_OP_*`.
    pub operation: u32,
    /// Why it cannot be processed, `VIP_STATUS_*_ERROR` and `VIP_STATUS_OP_*`: the status for `refuse` when it is the
    /// oldest one. 0: it can be.
    pub fault: u32,
    /// Its number on its queue, as in `vipl_queue.posted`.
    pub number: u32,
    /// Data segments, for `vipl_host.segment`.
    pub segment_count: u32,
    /// Bytes of the message.
    pub length: u32,
    /// Sends: the immediate data as it travels.
    pub immediate: u32,
    /// Sends: 1 if the flag VIP_CONTROL_IMMEDIATE is set.
    pub flagged: u32,
    /// Sends: 1 if the flag VIP_CONTROL_QFENCE is set.
    pub fenced: u32,
    /// RDMA: memory handle of the peer.
    pub remote_handle: u32,
    /// RDMA: address at the peer.
    pub remote_address: u64,
    /// The host's own.
    pub host: [MaybeUninit<u64>; 6],
}

/// A new connection.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct vipl_connection {
    /// `sizeof(vipl_connection)` as the host knows it. Do not read beyond.
    pub size: usize,
    /// Name of the connection on this host.
    pub id: u64,
    /// Secret, the same at both sides.
    pub key: u64,
    /// 0 at one side, 1 at the other.
    pub side: u32,
    /// Process id of the peer as the agent sees it.
    pub peer_pid: u32,
    /// Name of the peer's NIC on this host.
    pub peer_nic: u64,
    /// The peer VI's number within its NIC.
    pub peer_vi: u32,
    /// Zeroed memory that both sides may map; the host closes its descriptor after `attach`.
    pub segment_fd: c_int,
    /// Its size.
    pub segment_bytes: u32,
    /// What the peer's `nic_open` gave in `shared_fds`, or -1; closed after `attach`.
    pub peer_fds: [c_int; 2],
    /// 1: the peer VI admits RDMA Write.
    pub peer_rdma_write: u8,
    /// 1: the peer VI admits RDMA Read.
    pub peer_rdma_read: u8,
    /// 0.
    pub reserved: [u8; 2],
    /// 1: the peer is on another host. Then `segment_fd` and `peer_fds` are -1, `segment_bytes`,
    /// `peer_pid` and `peer_nic` are 0, and `id` and `key` are all that this host knows of it.
    pub remote: u32,
    /// Remote peer: its endpoint, for the frames that it shall get.
    pub remote_endpoint: u16,
    /// Remote peer: bytes of `remote_address`.
    pub remote_address_len: u16,
    /// Remote peer: its host address.
    pub remote_address: [u8; VIPL_ADDRESS_MAX],
    /// Bytes of `data_address`.
    pub data_address_len: u32,
    /// What the peer's `nic_open` gave as its data address, wherever the peer is.
    pub data_address: [u8; VIPL_DATA_ADDRESS_MAX],
    /// 1: the hosts have a secret in common, and `seal` is one that only the two sides of this connection have. What
    /// arrives without a keyed hash that was made with it is then not from the peer.
    pub sealed: u32,
    /// Only with `sealed`.
    pub seal: [u8; 32],
}

/// A data socket on a link, as `vipl_host.link` gives it. A link's name is that of an Ethernet interface, or
/// `udp:` and an address of this host or an interface; `udp:` alone is the address that reaches other networks.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct vipl_link {
    /// `sizeof(vipl_link)` as the plug-in knows it, set by the plug-in before the call.
    pub size: usize,
    /// Ethernet: a socket `AF_PACKET`, `SOCK_RAW`, bound to the interface and ethertype 0x88B5, whose filter
    /// cannot be changed: it lets in what is addressed to this host and to `endpoint`. UDP: a socket bound to
    /// the host's address and to the port `endpoint`. Both are nonblocking and close-on-exec, and belong to the
    /// plug-in, which closes them when the NIC closes.
    pub fd: c_int,
    /// Number of the interface; UDP: one of the agent's own.
    pub interface_index: u32,
    /// Largest payload of a frame in bytes, at the time of the call.
    pub mtu: u32,
    /// Speed in Mbit/s; 0 if the interface does not report it.
    pub speed_mbit: u32,
    /// What frames for this process carry, big-endian, 2 bytes after the header of Ethernet or UDP.
    pub endpoint: u16,
    /// Bytes of `address`.
    pub address_len: u16,
    /// Address of the host there: that of the interface; UDP: the IP address of 4 or 16 bytes and the UDP port
    /// of the host's agent, big-endian.
    pub address: [u8; VIPL_ADDRESS_MAX],
    /// Name of the interface, NUL-terminated.
    pub name: [c_char; 16],
    /// Name of its driver, NUL-terminated; empty if unknown.
    pub driver: [c_char; 32],
    /// The agent's name for this endpoint, for `vipl_nic_info.link`; never 0.
    pub id: u64,
    /// Ethernet: a second socket of the same kind, which belongs to the plug-in, too. It is bound to the ethertype of IPv6
    /// and lets in the trains for `endpoint`, see docs/WIRE.md; or -1, if there is none.
    pub trains: c_int,
}

/// Where memory of `vipl_alloc` lies in the memory file of this process. No part of the file is used twice, and the file never
/// shrinks (`F_SEAL_SHRINK`).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct vipl_memory {
    /// `sizeof(vipl_memory)` as the plug-in knows it, set by the plug-in before the call.
    pub size: usize,
    /// Descriptor of the file, which stays the host's.
    pub fd: c_int,
    /// 0.
    pub reserved: u32,
    /// Its inode number: whether a descriptor refers to it.
    pub inode: u64,
    /// Where the first byte of the range lies in it.
    pub offset: u64,
}

/// Description of a device, filled by `nic_open`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct vipl_nic_info {
    /// `sizeof(vipl_nic_info)` as the host knows it: the plug-in writes no further. What it does not write
    /// keeps the host's default.
    pub size: usize,
    /// Name as VipQueryNic shows it, NUL-terminated.
    pub name: [c_char; 64],
    /// Host address.
    pub address: [u8; VIPL_ADDRESS_MAX],
    /// Bytes of the host address.
    pub address_len: u16,
    /// Longest discriminator, 64 at most.
    pub discriminator_max: u16,
    /// `VIP_SERVICE_*` levels offered.
    pub reliability_support: u16,
    /// Levels on which RDMA Read works.
    pub rdma_read_support: u16,
    /// Version of the device.
    pub hardware_version: u32,
    /// Version of the provider.
    pub provider_version: u32,
    /// Limits, as in VIP_NIC_ATTRIBUTES.
    pub register_bytes_max: u64,
    /// Largest single region.
    pub register_block_max: u64,
    /// Number of regions, a power of two.
    pub regions_max: u32,
    /// Number of VIs.
    pub vis_max: u32,
    /// Descriptors per queue, a power of two.
    pub descriptors_max: u32,
    /// Segments per descriptor.
    pub segments_max: u32,
    /// Number of CQs.
    pub cqs_max: u32,
    /// Entries per CQ.
    pub cq_entries_max: u32,
    /// Number of tags.
    pub ptags_max: u32,
    /// Payload of one link frame.
    pub native_mtu: u32,
    /// Largest message in bytes.
    pub transfer_max: u64,
    /// Bytes of the segment that each connection wants.
    pub segment_bytes: u32,
    /// Descriptors that peers get at `attach`, or -1; the host duplicates them.
    pub shared_fds: [c_int; 2],
    /// Zeroed room for `regions_max` regions, or NULL: the host makes its own.
    pub regions: *mut vipl_region,
    /// `vipl_link.id` of the endpoint on which this NIC sends and receives, or 0: other hosts cannot be
    /// reached. An endpoint is for one NIC, and ends with it.
    pub link: u64,
    /// Bytes of `data_address`.
    pub data_address_len: u32,
    /// Where peers send data to, in the plug-in's own terms: peers get these bytes at `attach`, as they
    /// are.
    pub data_address: [u8; VIPL_DATA_ADDRESS_MAX],
    /// For plug-ins without a thread of their own: how often the host calls `progress` of every connected VI while
    /// the application may not be calling the library, in microseconds, at most 1000000. 0: never.
    pub poll_us: u32,
    /// How `address` reads: `VIPL_ADDRESS_BYTES` or `VIPL_ADDRESS_IP`.
    pub address_form: u32,
}
