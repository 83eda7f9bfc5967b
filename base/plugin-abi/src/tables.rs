//! The tables of functions: the library's for plug-ins, and a plug-in's for the library.

use core::ffi::{c_char, c_int, c_void};

use vipl_abi::{VIP_DATA_SEGMENT, VIP_DESCRIPTOR};

use crate::{
    vipl_connection, vipl_guard_entry, vipl_link, vipl_memory, vipl_nic, vipl_nic_info, vipl_queue,
    vipl_request, vipl_vi,
};

/// What the library does for a plug-in.
#[repr(C)]
pub struct vipl_host {
    /// `sizeof(vipl_host)` as the host knows it.
    pub size: usize,
    /// Writes one line to the log. Any thread.
    pub log: unsafe extern "C" fn(level: c_int, text: *const c_char),
    /// Value of the setting `key` that the plug-in has declared, otherwise of the library's setting of that
    /// name if the user has set it; NULL without a value; valid for ever. The value is of the declared kind: an
    /// invalid one is reported in the log, and the default returned. Any thread.
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
    /// Locks the VI with this number and calls `progress` on it, if it is connected and the application
    /// is not using it. For threads of the plug-in, never from within an operation. Returns a
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
    /// are flushed, and the application gets one `VIP_ERROR_CATASTROPHIC` for the NIC. Further calls for the
    /// same NIC do nothing. For threads of the plug-in, never from within an operation: it takes the lock
    /// of every VI. Operations are still called afterwards, also `detach` for each VI.
    pub catastrophe: unsafe extern "C" fn(nic: *const vipl_nic),
    /// Asks the Kernel Agent for a connection to the device process of this name: the program `vipl-NAME`
    /// beside the agent, which it starts for this user if it does not run. `*fd` is a `SOCK_SEQPACKET`
    /// socket, close-on-exec, and belongs to the plug-in; it hangs up when the device ends. `*pid` is the
    /// device's process id. From `nic_open` or a thread of the plug-in; blocks until the agent answers.
    /// `VIPL_E_INVALID`: there is no such program; `VIPL_E_RESOURCE`. The log says why.
    pub device: unsafe extern "C" fn(name: *const c_char, fd: *mut c_int, pid: *mut u32) -> c_int,
    /// Reads and checks the oldest send descriptor that is not complete; true if there is one. A descriptor that breaks
    /// a rule is completed with its error, which on the reliable levels ends the connection (see `refuse`); the
    /// next one follows. False: nothing is left to send, or `vi->state` is not VIP_STATE_CONNECTED any more. Within
    /// an operation of the VI, like the next six.
    pub next_send: unsafe extern "C" fn(vi: *mut vipl_vi, out: *mut vipl_request) -> bool,
    /// Reads and checks the receive descriptor for a message of this length; true if it has room. Otherwise the error
    /// is reported, which on the reliable levels ends the connection, and the message is to be dropped.
    pub next_receive:
        unsafe extern "C" fn(vi: *mut vipl_vi, length: u32, out: *mut vipl_request) -> bool,
    /// Copies `bytes` bytes of the message, from `offset` on, out of the application's memory. False: an address is bad.
    /// No harm is done, and the oldest descriptor of its queue is completed with PROTECTION_ERROR, like one that breaks a
    /// rule; another one is the plug-in's to refuse when it is the oldest.
    pub gather: unsafe extern "C" fn(
        vi: *mut vipl_vi,
        request: *const vipl_request,
        offset: u32,
        to: *mut c_void,
        bytes: u32,
    ) -> bool,
    /// The same, into the application's memory.
    pub scatter: unsafe extern "C" fn(
        vi: *mut vipl_vi,
        request: *const vipl_request,
        offset: u32,
        from: *const c_void,
        bytes: u32,
    ) -> bool,
    /// Completes the oldest descriptor that is not complete; `status` is without VIP_STATUS_DONE. `length` and
    /// `immediate` are written to receive descriptors only. False: its memory has gone, and the connection has ended.
    pub complete: unsafe extern "C" fn(
        vi: *mut vipl_vi,
        queue: *mut vipl_queue,
        status: u32,
        length: u32,
        immediate: u32,
    ) -> bool,
    /// Completes it with an error, `VIP_STATUS_*_ERROR` and `VIP_STATUS_OP_*`. On the reliable levels this ends the
    /// connection.
    pub refuse: unsafe extern "C" fn(vi: *mut vipl_vi, queue: *mut vipl_queue, status: u32),
    /// Whether this VI may use the range by this memory handle. `flag` is 0, or the `VIPL_REGION_*` bit that the target
    /// of RDMA needs; the VI's own `rdma_write` and `rdma_read` are the plug-in's to check. Any thread.
    pub region_check: unsafe extern "C" fn(
        vi: *const vipl_vi,
        handle: u32,
        base: u64,
        bytes: u64,
        flag: u32,
    ) -> bool,
    /// Copies between memory of this process. False: an address is bad. Any thread.
    pub copy: unsafe extern "C" fn(to: *mut c_void, from: *const c_void, bytes: usize) -> bool,
    /// Asks the Kernel Agent whether `link` would give a data socket, without opening one: `VIPL_OK`,
    /// `VIPL_E_INVALID`, `VIPL_E_NOT_PERMITTED`; `VIPL_E_RESOURCE`: no agent answers. Nothing is logged. From `claim`
    /// too; blocks until the agent answers.
    pub link_ask: unsafe extern "C" fn(interface: *const c_char) -> c_int,
    /// As `guard`, for all instructions of a table, which lives as long as the process. Any thread.
    pub guard_table: unsafe extern "C" fn(entries: *const vipl_guard_entry, count: usize) -> c_int,
    /// Whether there is a receive descriptor for the notice of an RDMA Write with immediate data. Nothing is placed into
    /// its buffers, so its data segments are not checked. False: the error is reported as by `next_receive`. Within an
    /// operation of the VI, like the next three.
    pub next_notice: unsafe extern "C" fn(vi: *mut vipl_vi) -> bool,
    /// Reads and checks the send descriptor with this number, from `send.completed` to below `send.posted`: for a
    /// plug-in that has several in progress. Nothing is completed. False: it cannot be processed, and `out->fault` says
    /// why; 0 there: no such descriptor is posted.
    pub send_at:
        unsafe extern "C" fn(vi: *mut vipl_vi, number: u32, out: *mut vipl_request) -> bool,
    /// The same for the receive descriptor with this number and a message of this length: 0 when the descriptor is
    /// posted to a device, before a message is known.
    pub receive_at: unsafe extern "C" fn(
        vi: *mut vipl_vi,
        number: u32,
        length: u32,
        out: *mut vipl_request,
    ) -> bool,
    /// Reads the data segment with this number, below `segment_count`, again: the application may have changed it since
    /// it was checked. False: its address is bad.
    pub segment: unsafe extern "C" fn(
        request: *const vipl_request,
        number: u32,
        out: *mut VIP_DATA_SEGMENT,
    ) -> bool,
    /// Where a range of memory lies in this process's memory file, so that peers on this host can map it:
    /// `VIPL_E_INVALID` unless it is all inside the memory of one `vipl_alloc` there. The answer holds while a region has this
    /// range. `out->size` is the plug-in's; the host writes no further. Any thread.
    pub memory: unsafe extern "C" fn(base: u64, bytes: u64, out: *mut vipl_memory) -> c_int,
    /// Has the log say that an RDMA operation was refused; nothing else happens. `flag` is the `VIPL_REGION_RDMA_*` that the region
    /// needs, the rest the range in the target's memory. `at_target`: this VI is the target, and the log says which checks fail;
    /// otherwise the peer has refused an operation of this VI, whose range is not known if `bytes` is 0. Before `raise`, `fail` or
    /// a completion, within an operation of the VI.
    pub refused: unsafe extern "C" fn(
        vi: *mut vipl_vi,
        at_target: bool,
        flag: u32,
        handle: u32,
        base: u64,
        bytes: u64,
    ),
}

/// What a plug-in does. Operations marked (optional) may be NULL.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct vipl_provider {
    /// `sizeof(vipl_provider)` as the plug-in knows it.
    pub size: usize,
    /// Whether this plug-in serves the device `name` (without `/dev/`): 0 no, else a rank, the highest
    /// wins. Writes the argument for `nic_open` into `argument` (64 bytes, NUL-terminated). Without it the names
    /// that `device` gives have rank 10 and no argument. (optional)
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
    /// Closes it; there are no VIs any more. May block for the end of the plug-in's own threads. (optional)
    pub nic_close: Option<unsafe extern "C" fn(nic: *mut vipl_nic)>,
    /// Makes the plug-in's part of a VI; sets `vi->context`. (optional)
    pub vi_create: Option<unsafe extern "C" fn(vi: *mut vipl_vi) -> c_int>,
    /// Frees it. (optional)
    pub vi_destroy: Option<unsafe extern "C" fn(vi: *mut vipl_vi)>,
    /// The VI is connected from now on. Receive descriptors may already be posted.
    pub attach:
        Option<unsafe extern "C" fn(vi: *mut vipl_vi, connection: *const vipl_connection) -> c_int>,
    /// The VI is not connected any more; what `progress` has left is completed first. After the return neither this process nor the peer
    /// touches the descriptors and buffers of the VI. Blocks for one second at most.
    pub detach: Option<unsafe extern "C" fn(vi: *mut vipl_vi)>,
    /// The agent reports that the peer has exited or closed the connection. Deliver everything that arrived
    /// before, then call `fail`; later, if a peer on another host has left in good order and its last frames
    /// may still be in transit. Without it the host calls `progress` and then fails the
    /// VI itself. (optional)
    pub peer_gone: Option<unsafe extern "C" fn(vi: *mut vipl_vi, orderly: bool)>,
    /// The send doorbell: descriptors were posted.
    pub post_send: Option<unsafe extern "C" fn(vi: *mut vipl_vi)>,
    /// The receive doorbell. (optional)
    pub post_recv: Option<unsafe extern "C" fn(vi: *mut vipl_vi)>,
    /// Processes arrived messages and continues pending sends. A plug-in may leave a part to the next call while no
    /// queue's `signal` is set and the VI is not watched; `detach` then completes what has arrived.
    pub progress: Option<unsafe extern "C" fn(vi: *mut vipl_vi)>,
    /// Writes the numbers of VIs for which `progress` may have work; returns how many, `room` at most.
    /// Without it the host asks every connected VI. (optional)
    pub ready:
        Option<unsafe extern "C" fn(nic: *const vipl_nic, indices: *mut u32, room: u32) -> u32>,
    /// Whether `ready` shall report the receive side of this VI. (optional)
    pub watch: Option<unsafe extern "C" fn(vi: *mut vipl_vi, on: bool)>,
    /// Announces a thread that is about to sleep; from now on every event ends `sleep`. (optional,
    /// with `sleep` and `wake`; without them the host sleeps in short steps)
    pub arm: Option<unsafe extern "C" fn(nic: *const vipl_nic) -> u32>,
    /// Sleeps until something may have happened since `arm` gave `epoch`, or until the time has run
    /// out; 0 nanoseconds only takes the announcement back. Blocks.
    pub sleep: Option<unsafe extern "C" fn(nic: *const vipl_nic, epoch: u32, timeout_ns: u64)>,
    /// Ends every `sleep` on this NIC. Any thread.
    pub wake: Option<unsafe extern "C" fn(nic: *const vipl_nic)>,
    /// A region was taken out of the table: true if no transfer uses it any more, false if one may. The host asks
    /// all connected VIs, then those again that returned false, for one second together. `*since` is the plug-in's:
    /// 0 at first, later what it has left there, so that it knows a transfer of before from a new one. Does
    /// not wait for the peer; for the device it may, `left_ns` at most. With 0 nanoseconds left, which
    /// never is the first call, the host does not ask again: a plug-in that cannot return true then calls `fail`
    /// or makes its device break the connection. (optional)
    pub quiesced:
        Option<unsafe extern "C" fn(vi: *mut vipl_vi, since: *mut u64, left_ns: u64) -> bool>,
    /// A region is being registered; `access` is as in `vipl_region`. Called again with the same handle when
    /// the application changes the access. The application's call returns afterwards, with VIP_ERROR_RESOURCE if
    /// the status is not `VIPL_OK`: the region then does not exist, or keeps its access. May block. (optional)
    pub region_add: Option<
        unsafe extern "C" fn(
            nic: *const vipl_nic,
            handle: u32,
            base: u64,
            bytes: u64,
            access: u64,
        ) -> c_int,
    >,
    /// A region that was added has left the table, and no transfer uses it any more; its place in the table is
    /// not used again before the return. May block. (optional)
    pub region_remove: Option<unsafe extern "C" fn(nic: *const vipl_nic, handle: u32)>,
}
