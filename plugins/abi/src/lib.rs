//! The C tables between the library (the *host*) and a plug-in; `headers/vipl_plugin.h` is made from it.
//!
//! A plug-in exports one data symbol, [`vipl_plugin`] under the name `vipl_plugin_v1`. The host checks it
//! before any code of the plug-in runs, then calls `init` once per process with its own table
//! ([`vipl_host`]); the plug-in fills a [`vipl_provider`] table. Every table starts with its size in bytes and
//! only grows at its end, so that an older plug-in works under a newer library and the other way round.
//!
//! Who owns what: the host owns VIs, the queues of posted descriptors, completion queues, waiters,
//! regions, tags and the connection manager. The plug-in owns the transport: it takes posted
//! descriptors from the queues in order and completes them, as VIA hardware does.
//!
//! ```text
//!            host                                            plug-in
//!   VipPostSend ── lock VI ── queue[posted++] ── post_send ──▶ sends what it can
//!   VipRecvDone ── lock VI ── nothing done? ──── progress ───▶ takes what has arrived
//!                     ◀── completed (only if queue.signal) ──  status, DONE last, completed++
//!   agent: connected ─ lock VI ───────────────── attach ─────▶ maps the segment
//! ```
//!
//! Rules for every operation: the host holds the VI's lock during operations that take a `vipl_vi`, and
//! the plug-in calls the host functions that take a `vipl_vi` only from within such an operation. No
//! operation may unwind, use `errno` as a result, keep a pointer past the call unless its text says so,
//! or call a `Vip…` function. Unless its text says so an operation does not block.

#![no_std]
#![allow(non_camel_case_types)]

use core::ffi::{c_char, c_int, c_void};
use core::sync::atomic::{AtomicU32, AtomicU64};

use vipl_abi::VIP_DESCRIPTOR;

pub mod text;

/// "VIPLPLUG" read as little-endian.
pub const VIPL_PLUGIN_MAGIC: u64 = 0x4755_4C50_4C50_4956;
/// A new major version is a new symbol and a new directory.
pub const VIPL_PLUGIN_ABI_MAJOR: u16 = 1;
/// Counts what was appended to the tables.
pub const VIPL_PLUGIN_ABI_MINOR: u16 = 3;
/// Covers the frozen structures (`vipl_queue`, `vipl_entry`, `vipl_region`, `vipl_vi`) and the pointer width.
pub const VIPL_PLUGIN_FINGERPRINT: u64 = ((core::mem::size_of::<vipl_vi>() as u64) << 40)
    | ((core::mem::size_of::<vipl_nic>() as u64) << 24)
    | ((core::mem::size_of::<vipl_entry>() as u64) << 16)
    | ((core::mem::size_of::<vipl_region>() as u64) << 8)
    | core::mem::size_of::<usize>() as u64;
/// Feature bit of `vipl_plugin.required`: the plug-in reaches other hosts. The host has `link`, reads
/// `vipl_nic_info.link`, and fills what `vipl_connection` says of a remote partner.
pub const VIPL_FEATURE_LINK: u64 = 1;
/// Feature bit of `vipl_plugin.required`: the plug-in's NIC is a process of its own. The host has `device`.
pub const VIPL_FEATURE_DEVICE: u64 = 2;
/// Kind of a plug-in that serves devices.
pub const VIPL_KIND_PROVIDER: u32 = 1;

/// Status of an operation: it worked.
pub const VIPL_OK: c_int = 0;
/// Status of an operation: out of something.
pub const VIPL_E_RESOURCE: c_int = -1;
/// Status of an operation: an argument (a device name, say) makes no sense to the plug-in.
pub const VIPL_E_INVALID: c_int = -2;
/// Status of an operation: not part of this plug-in.
pub const VIPL_E_NOT_SUPPORTED: c_int = -3;
/// Status of an operation: the user may not do that; the log says what would help.
pub const VIPL_E_NOT_PERMITTED: c_int = -4;

/// Bit of [`vipl_region`]'s access word: may be written by RDMA.
pub const VIPL_REGION_RDMA_WRITE: u32 = 1;
/// Bit of [`vipl_region`]'s access word: may be read by RDMA.
pub const VIPL_REGION_RDMA_READ: u32 = 2;
/// Tag of a VI that matches every region of its NIC (compatible mode).
pub const VIPL_PTAG_ANY: u32 = 0;
/// Tag of a region without one: matches every VI of its NIC (compatible mode).
pub const VIPL_PTAG_NONE: u32 = u32::MAX;

/// Option bit of [`vipl_nic`]: immediate data travels also when the flag is not set.
pub const VIPL_OPTION_CARRY_IMMEDIATE: u32 = 1;
/// Option bit of [`vipl_nic`]: the memory handle of a descriptor is checked, also at its completion.
pub const VIPL_OPTION_CHECK_DESCRIPTOR: u32 = 2;
/// Option bit of [`vipl_nic`]: the data segments of a receive descriptor are checked whole. Else they are
/// checked as far as the message reaches.
pub const VIPL_OPTION_CHECK_RECEIVE_WHOLE: u32 = 4;

/// `fail`: a descriptor tells the cause, no asynchronous error.
pub const VIPL_CAUSE_TOLD: c_int = -1;
/// `fail`: the partner disconnected in good order.
pub const VIPL_CAUSE_DISCONNECTED: c_int = -2;

/// `poll`: nothing completed.
pub const VIPL_POLL_NOTHING: c_int = 0;
/// `poll`: some descriptor completed.
pub const VIPL_POLL_PROGRESS: c_int = 1;
/// `poll`: nothing was done, because the program is at work on the VI itself. Ask again before sleeping.
pub const VIPL_POLL_BUSY: c_int = 2;

/// Log level of `log`.
pub const VIPL_LOG_ERROR: c_int = 1;
/// Log level of `log`.
pub const VIPL_LOG_WARN: c_int = 2;
/// Log level of `log`.
pub const VIPL_LOG_INFO: c_int = 3;
/// Log level of `log`.
pub const VIPL_LOG_DEBUG: c_int = 4;

/// What a plug-in is; exported as `vipl_plugin_v1`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct vipl_plugin {
    /// `VIPL_PLUGIN_MAGIC`.
    pub magic: u64,
    /// `sizeof(vipl_plugin)` as the plug-in knows it.
    pub size: u32,
    /// `VIPL_PLUGIN_ABI_MAJOR`.
    pub abi_major: u16,
    /// `VIPL_PLUGIN_ABI_MINOR`.
    pub abi_minor: u16,
    /// `VIPL_PLUGIN_FINGERPRINT`.
    pub fingerprint: u64,
    /// `VIPL_KIND_PROVIDER`.
    pub kind: u32,
    /// 0.
    pub reserved: u32,
    /// Name; the file is `libvipl_NAME.so`.
    pub name: *const c_char,
    /// Version, for people.
    pub version: *const c_char,
    /// Feature bits the host must know; unknown ones refuse the plug-in.
    pub required: u64,
    /// Feature bits the host may ignore.
    pub optional: u64,
    /// Called once per process. `out->size` is the host's; the plug-in sets its own, if smaller.
    pub init:
        Option<unsafe extern "C" fn(host: *const vipl_host, out: *mut vipl_provider) -> c_int>,
}
// SAFETY: constant data.
unsafe impl Sync for vipl_plugin {}

/// One posted descriptor.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct vipl_entry {
    /// The program's descriptor. Its memory is the program's: read each field once, trust none.
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

/// One registered region; the host writes it, anybody may read it without a lock (see `vipl_region_check`
/// in the guide): the handle is 0 while the entry changes.
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
    /// 1: the partner may write by RDMA.
    pub rdma_write: u8,
    /// 1: the partner may read by RDMA.
    pub rdma_read: u8,
}

/// A connection that has come about.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct vipl_connection {
    /// Name of the connection on this host.
    pub id: u64,
    /// Unguessable, the same at both sides.
    pub key: u64,
    /// 0 at one side, 1 at the other.
    pub side: u32,
    /// Process id of the partner as the agent sees it.
    pub partner_pid: u32,
    /// Name of the partner's NIC on this host.
    pub partner_nic: u64,
    /// The partner VI's number within its NIC.
    pub partner_vi: u32,
    /// Zeroed memory that both sides may map; the host closes its descriptor after `attach`.
    pub segment_fd: c_int,
    /// Its size.
    pub segment_bytes: u32,
    /// What the partner's `nic_open` gave in `shared_fds`, or -1; closed after `attach`.
    pub partner_fds: [c_int; 2],
    /// 1: the partner VI admits RDMA Write.
    pub partner_rdma_write: u8,
    /// 1: the partner VI admits RDMA Read.
    pub partner_rdma_read: u8,
    /// 0.
    pub reserved: [u8; 2],
    /// 1: the partner is on another host. Then `segment_fd` and `partner_fds` are -1, `segment_bytes`,
    /// `partner_pid` and `partner_nic` are 0, and `id` and `key` are all that this host knows of it.
    pub remote: u32,
    /// Remote partner: its endpoint, for the frames that it shall get.
    pub remote_endpoint: u16,
    /// Remote partner: bytes of `remote_address`.
    pub remote_address_len: u16,
    /// Remote partner: its host address.
    pub remote_address: [u8; 16],
}

/// A data socket on a network interface, as `vipl_host.link` gives it.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct vipl_link {
    /// `sizeof(vipl_link)` as the plug-in knows it, set by the plug-in before the call.
    pub size: usize,
    /// A socket `AF_PACKET`, `SOCK_RAW`, bound to the interface and ethertype 0x88B5, nonblocking and
    /// close-on-exec. It belongs to the plug-in, which closes it when the NIC closes. Its filter cannot
    /// be changed: it lets in what is addressed to this host and to `endpoint`.
    pub fd: c_int,
    /// Number of the interface.
    pub interface_index: u32,
    /// Largest payload of a frame in bytes, at the time of the call.
    pub mtu: u32,
    /// Speed in Mbit/s; 0 when the interface does not tell.
    pub speed_mbit: u32,
    /// What frames for this process carry, big-endian, at offset 16 (2 bytes after the Ethernet header).
    pub endpoint: u16,
    /// Bytes of `address`.
    pub address_len: u16,
    /// Address of the interface.
    pub address: [u8; 16],
    /// Name of the interface, NUL-terminated.
    pub name: [c_char; 16],
    /// Name of its driver, NUL-terminated; empty when it does not tell.
    pub driver: [c_char; 32],
    /// The agent's name for this endpoint, for `vipl_nic_info.link`; never 0.
    pub id: u64,
}

/// What `nic_open` tells about the device.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct vipl_nic_info {
    /// Name as VipQueryNic shows it, NUL-terminated.
    pub name: [c_char; 64],
    /// Host address.
    pub address: [u8; 16],
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
    /// Descriptors that partners get at `attach`, or -1; the host duplicates them.
    pub shared_fds: [c_int; 2],
    /// Zeroed room for `regions_max` regions, or NULL: the host makes its own.
    pub regions: *mut vipl_region,
    /// `vipl_link.id` of the endpoint on which this NIC sends and receives, or 0: other hosts cannot be
    /// reached. An endpoint is for one NIC, and ends with it.
    pub link: u64,
}

/// What the library does for a plug-in.
#[repr(C)]
pub struct vipl_host {
    /// `sizeof(vipl_host)` as the host knows it.
    pub size: usize,
    /// Writes one line to the log. Any thread.
    pub log: unsafe extern "C" fn(level: c_int, text: *const c_char),
    /// Value of the setting `plugin.key`, or NULL; valid for ever. Any thread.
    pub setting: unsafe extern "C" fn(plugin: *const c_char, key: *const c_char) -> *const c_char,
    /// A named counter that `vipinfo` shows; valid for ever. Any thread.
    pub counter: unsafe extern "C" fn(plugin: *const c_char, name: *const c_char) -> *mut u64,
    /// Completions were added to a queue whose `signal` is not 0. Within an operation of the VI.
    pub completed: unsafe extern "C" fn(vi: *mut vipl_vi, queue: *mut vipl_queue),
    /// Raises an asynchronous error; the VI stays as it is. Within an operation of the VI.
    pub raise: unsafe extern "C" fn(
        vi: *mut vipl_vi,
        code: c_int,
        opcode: u32,
        descriptor: *mut VIP_DESCRIPTOR,
    ),
    /// Breaks the connection: the VI goes to Error and both queues are flushed. `cause` is the code of
    /// the asynchronous error to raise, or `VIPL_CAUSE_*`. Within an operation of the VI.
    pub fail: unsafe extern "C" fn(
        vi: *mut vipl_vi,
        cause: c_int,
        opcode: u32,
        descriptor: *mut VIP_DESCRIPTOR,
    ),
    /// Locks the VI with this number and calls `progress` on it, if it is connected and the program is
    /// not at work on it anyway. For threads of the plug-in, never from within an operation. Returns a
    /// `VIPL_POLL_*`.
    pub poll: unsafe extern "C" fn(nic: *const vipl_nic, index: u32) -> c_int,
    /// Faults of instructions in `start..end` continue at `fixup`. Any thread.
    pub guard: unsafe extern "C" fn(start: usize, end: usize, fixup: usize) -> c_int,
    /// Monotonic time in nanoseconds. Any thread.
    pub now: unsafe extern "C" fn() -> u64,
    /// Asks the Kernel Agent for a data socket on the interface with this name. `out->size` is the
    /// plug-in's; the host writes no further. From `nic_open` or a thread of the plug-in; blocks until
    /// the agent answers. `VIPL_E_INVALID`: there is no such interface, or it is no Ethernet;
    /// `VIPL_E_NOT_PERMITTED`: the log says what the user can do; `VIPL_E_RESOURCE`.
    pub link: unsafe extern "C" fn(interface: *const c_char, out: *mut vipl_link) -> c_int,
    /// The device of this NIC has failed for good: every VI that is connected goes to Error, its queues
    /// are flushed, and the program gets one `VIP_ERROR_CATASTROPHIC` for the NIC. Further calls for the
    /// same NIC do nothing. For threads of the plug-in, never from within an operation: it takes the lock
    /// of every VI. Operations are still called afterwards, also `detach` for each VI.
    pub catastrophe: unsafe extern "C" fn(nic: *const vipl_nic),
    /// Asks the Kernel Agent for a connection to the device process of this name: the program `vipl-NAME`
    /// beside the agent, which it starts for this user if it does not run. `*fd` is a `SOCK_SEQPACKET`
    /// socket, close-on-exec, and belongs to the plug-in; it hangs up when the device ends. `*pid` is the
    /// device's process id. From `nic_open` or a thread of the plug-in; blocks until the agent answers.
    /// `VIPL_E_INVALID`: there is no such program; `VIPL_E_RESOURCE`. The log says why.
    pub device: unsafe extern "C" fn(name: *const c_char, fd: *mut c_int, pid: *mut u32) -> c_int,
}

/// What a plug-in does. Operations marked (optional) may be NULL.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct vipl_provider {
    /// `sizeof(vipl_provider)` as the plug-in knows it.
    pub size: usize,
    /// Whether this plug-in serves the device `name` (without `/dev/`): 0 no, else a rank, the highest
    /// wins. Writes the argument for `nic_open` into `argument` (64 bytes, NUL-terminated). (optional)
    pub claim: Option<unsafe extern "C" fn(name: *const c_char, argument: *mut c_char) -> c_int>,
    /// Name of the device with this number that is present, 64 bytes; `VIPL_E_INVALID` past the last.
    /// (optional)
    pub device: Option<unsafe extern "C" fn(number: u32, name: *mut c_char) -> c_int>,
    /// Opens a device: `argument` is what follows the colon in `plugin:argument`. Sets `nic->context`.
    pub nic_open: Option<
        unsafe extern "C" fn(
            argument: *const c_char,
            nic: *mut vipl_nic,
            info: *mut vipl_nic_info,
        ) -> c_int,
    >,
    /// Closes it; there are no VIs any more. May block for the end of the plug-in's own threads.
    pub nic_close: Option<unsafe extern "C" fn(nic: *mut vipl_nic)>,
    /// Makes the plug-in's part of a VI; sets `vi->context`. (optional)
    pub vi_create: Option<unsafe extern "C" fn(vi: *mut vipl_vi) -> c_int>,
    /// Frees it. (optional)
    pub vi_destroy: Option<unsafe extern "C" fn(vi: *mut vipl_vi)>,
    /// The VI is connected from now on. Receive descriptors may already be posted.
    pub attach:
        Option<unsafe extern "C" fn(vi: *mut vipl_vi, connection: *const vipl_connection) -> c_int>,
    /// The VI is not connected any more. After the return neither this process nor the partner
    /// touches the descriptors and buffers of the VI. Blocks for one second at most.
    pub detach: Option<unsafe extern "C" fn(vi: *mut vipl_vi)>,
    /// The agent says that the partner has gone. Everything that arrived before is to be delivered,
    /// then `fail` is called; for a partner on another host that has gone in good order perhaps later,
    /// since its last frames may still be on their way.
    pub partner_gone: Option<unsafe extern "C" fn(vi: *mut vipl_vi, orderly: c_int)>,
    /// The send doorbell: descriptors were posted.
    pub post_send: Option<unsafe extern "C" fn(vi: *mut vipl_vi)>,
    /// The receive doorbell.
    pub post_recv: Option<unsafe extern "C" fn(vi: *mut vipl_vi)>,
    /// Takes what has arrived and goes on with what was waiting.
    pub progress: Option<unsafe extern "C" fn(vi: *mut vipl_vi)>,
    /// Numbers of VIs for which `progress` may find something; returns how many, `room` at most.
    /// Without it the host asks every connected VI. (optional)
    pub ready:
        Option<unsafe extern "C" fn(nic: *const vipl_nic, indices: *mut u32, room: u32) -> u32>,
    /// Whether `ready` shall report the receive side of this VI. (optional)
    pub watch: Option<unsafe extern "C" fn(vi: *mut vipl_vi, on: c_int)>,
    /// Announces a thread that is about to sleep; from now on anything new ends `sleep`. (optional,
    /// with `sleep` and `wake`; without them the host sleeps in short steps)
    pub arm: Option<unsafe extern "C" fn(nic: *const vipl_nic) -> u32>,
    /// Sleeps until something may have happened since `arm` gave `epoch`, or until the time has run
    /// out; 0 nanoseconds only takes the announcement back. Blocks.
    pub sleep: Option<unsafe extern "C" fn(nic: *const vipl_nic, epoch: u32, timeout_ns: u64)>,
    /// Ends every `sleep` on this NIC. Any thread.
    pub wake: Option<unsafe extern "C" fn(nic: *const vipl_nic)>,
    /// A region was taken out of the table: returns when no transfer uses it any more. Blocks for one
    /// second at most, and so VipDeregisterMem for one second per VI: only a library that does not know
    /// `quiesced` calls it, or for a plug-in without that. (optional)
    pub quiesce: Option<unsafe extern "C" fn(vi: *mut vipl_vi)>,
    /// A region was taken out of the table: 1 if no transfer uses it any more, 0 if one may. The host asks
    /// all connected VIs, then those again that said 0, for one second together. `*since` is the plug-in's:
    /// 0 at first, later what it has left there, so that it knows a transfer of before from a new one. Does
    /// not wait for the partner; for the device it may, `left_ns` at most. With 0 nanoseconds left, which
    /// never is the first call, the host does not ask again: a plug-in that cannot say 1 then calls `fail`
    /// or makes its device break the connection. (optional)
    pub quiesced:
        Option<unsafe extern "C" fn(vi: *mut vipl_vi, since: *mut u64, left_ns: u64) -> c_int>,
}
