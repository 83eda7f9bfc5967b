//! A host without the library: enough of it to drive a plug-in by its C table, on one thread.

use std::cell::Cell;
use std::ffi::{CStr, c_char, c_int};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::OnceLock;
use std::sync::atomic::Ordering;

use vipl_abi::*;
use vipl_plugin_abi::*;

/// Places in a work queue.
pub const RING: u32 = 64;

static HOST: vipl_host = vipl_rules::host_table! {
    log,
    setting,
    counter,
    completed,
    raise,
    fail,
    poll,
    now,
    link,
    catastrophe,
    device,
    link_ask,
    memory,
    refused,
};

thread_local! {
    /// Whether NICs that are opened may copy from process to process.
    static SINGLE_COPY: Cell<bool> = const { Cell::new(true) };
}

unsafe extern "C" fn log(level: c_int, text: *const c_char) {
    // SAFETY: a plug-in's text.
    let text = unsafe { CStr::from_ptr(text) }.to_string_lossy();
    // An open device logs an error for a caught panic, for an operation that fails, and for a peer that says it has
    // another layout of the shared memory. A target's peer may say so.
    assert!(
        level != VIPL_LOG_ERROR || text.contains("has another version of this plug-in"),
        "the plug-in logged an error: {text}"
    );
}

unsafe extern "C" fn setting(_plugin: *const c_char, key: *const c_char) -> *const c_char {
    // SAFETY: a plug-in's text.
    let key = unsafe { CStr::from_ptr(key) };
    match (key == c"single_copy", SINGLE_COPY.get()) {
        (true, true) => c"1".as_ptr(),
        (true, false) => c"0".as_ptr(),
        (false, _) => std::ptr::null(),
    }
}

unsafe extern "C" fn counter(_plugin: *const c_char, _name: *const c_char) -> *mut u64 {
    Box::leak(Box::new(0))
}

unsafe extern "C" fn link(_interface: *const c_char, _out: *mut vipl_link) -> c_int {
    // There is no agent here.
    VIPL_E_NOT_SUPPORTED
}

unsafe extern "C" fn device(_name: *const c_char, _fd: *mut c_int, _pid: *mut u32) -> c_int {
    VIPL_E_INVALID
}

unsafe extern "C" fn link_ask(_interface: *const c_char) -> c_int {
    VIPL_E_RESOURCE
}

unsafe extern "C" fn refused(_: *mut vipl_vi, _: bool, _: u32, _: u32, _: u64, _: u64) {}

unsafe extern "C" fn memory(_base: u64, _bytes: u64, _out: *mut vipl_memory) -> c_int {
    VIPL_E_INVALID
}

unsafe extern "C" fn catastrophe(_nic: *const vipl_nic) {
    panic!("the plug-in says that its device has failed");
}

unsafe extern "C" fn completed(_vi: *mut vipl_vi, _queue: *mut vipl_queue) {}

unsafe extern "C" fn raise(_: *mut vipl_vi, _: c_int, _: u32, _: *mut VIP_DESCRIPTOR) {}

/// Error, and both queues are flushed; the descriptors are not written, so that the target can tell.
unsafe extern "C" fn fail(vi: *mut vipl_vi, _: c_int, _: u32, _: *mut VIP_DESCRIPTOR) {
    // SAFETY: called within an operation of a VI that the target made.
    let vi = unsafe { &mut *vi };
    if vi.state != VIP_VI_STATE::VIP_STATE_CONNECTED as u32 {
        return;
    }
    vi.state = VIP_VI_STATE::VIP_STATE_ERROR as u32;
    for queue in [&mut vi.send, &mut vi.recv] {
        while queue.completed != queue.posted {
            // SAFETY: masked, so inside the ring.
            let entry = unsafe { &mut *queue.entries.add((queue.completed & queue.mask) as usize) };
            entry.status = VIP_STATUS_DONE | VIP_STATUS_DESC_FLUSHED_ERROR;
            queue.completed = queue.completed.wrapping_add(1);
        }
    }
}

/// The plug-in's thread finds the program always at work: the target alone makes progress.
unsafe extern "C" fn poll(_: *const vipl_nic, _: u32) -> c_int {
    VIPL_POLL_NOTHING
}

unsafe extern "C" fn now() -> u64 {
    12_345
}

/// The operations of loopback.
pub fn provider() -> &'static vipl_provider {
    static OPS: OnceLock<vipl_provider> = OnceLock::new();
    OPS.get_or_init(|| {
        vipl_guard::install();
        // SAFETY: every operation may be absent, and sizes may be 0.
        let mut ops: vipl_provider = unsafe { std::mem::zeroed() };
        ops.size = size_of::<vipl_provider>();
        let init = vipl_loopback::vipl_plugin_v1.init.expect("init");
        // The fuzzer's own, which ends the process.
        let hook = std::panic::take_hook();
        // SAFETY: the table lives for ever.
        let status = unsafe { init(&HOST, &mut ops) };
        std::panic::set_hook(hook);
        assert_eq!(status, VIPL_OK);
        ops
    })
}

/// An open device.
pub struct Device {
    /// The host's structure.
    pub nic: Box<vipl_nic>,
    /// What it says of itself.
    pub info: vipl_nic_info,
}

impl Device {
    /// Opens `loopback:ARGUMENT`; stays open.
    pub fn open(argument: &CStr, single_copy: bool) -> Device {
        SINGLE_COPY.set(single_copy);
        // SAFETY: plain data.
        let (mut nic, mut info): (Box<vipl_nic>, vipl_nic_info) =
            unsafe { (Box::new(std::mem::zeroed()), std::mem::zeroed()) };
        info.size = size_of::<vipl_nic_info>();
        info.shared_fds = [-1; 2];
        let open = provider().nic_open.expect("nic_open");
        // SAFETY: as the interface asks.
        let status = unsafe { open(argument.as_ptr(), &mut *nic, &mut info) };
        assert_eq!(status, VIPL_OK);
        nic.regions = info.regions;
        nic.region_count = info.regions_max;
        nic.segments_max = 252;
        Device { nic, info }
    }

    /// Writes an entry of the region table; gives the handle.
    pub fn register(&self, index: u32, base: u64, bytes: u64, tag: u32, flags: u32) -> u32 {
        let handle = self.nic.region_count | index;
        // SAFETY: the table has more entries than any target uses.
        let region = unsafe { &*self.nic.regions.add(index as usize) };
        region.base.store(base, Ordering::Relaxed);
        region.end.store(base + bytes, Ordering::Relaxed);
        region
            .access
            .store(u64::from(tag) << 32 | u64::from(flags), Ordering::Relaxed);
        region.handle.store(handle, Ordering::Release);
        handle
    }
}

/// One VI with its rings.
pub struct Work {
    /// The host's structure.
    pub vi: Box<vipl_vi>,
    _rings: [Box<[vipl_entry]>; 2],
}

impl Work {
    /// A VI of a device.
    pub fn new(device: &Device, index: u32, ptag: u32, reliability: u16) -> Work {
        let ring = || {
            let empty = vipl_entry {
                descriptor: std::ptr::null_mut(),
                memory: 0,
                status: 0,
            };
            vec![empty; RING as usize].into_boxed_slice()
        };
        let mut rings = [ring(), ring()];
        // SAFETY: plain data.
        let mut vi: Box<vipl_vi> = unsafe { Box::new(std::mem::zeroed()) };
        for (number, queue) in [&mut vi.send, &mut vi.recv].into_iter().enumerate() {
            queue.entries = rings[number].as_mut_ptr();
            queue.mask = RING - 1;
            queue.which = number as u32;
            // Close below the wrap, which is to be passed.
            (queue.posted, queue.completed, queue.taken) =
                (u32::MAX - 5, u32::MAX - 5, u32::MAX - 5);
        }
        vi.nic = &*device.nic;
        vi.max_transfer_size = device.info.transfer_max;
        vi.index = index;
        vi.ptag = ptag;
        vi.state = VIP_VI_STATE::VIP_STATE_IDLE as u32;
        vi.reliability = reliability;
        let mut work = Work { vi, _rings: rings };
        let create = provider().vi_create.expect("vi_create");
        // SAFETY: as the interface asks.
        let status = unsafe { create(&mut *work.vi) };
        assert_eq!(status, VIPL_OK);
        work
    }

    /// Connects it.
    pub fn attach(&mut self, connection: &vipl_connection) {
        let attach = provider().attach.expect("attach");
        self.vi.state = VIP_VI_STATE::VIP_STATE_CONNECTED as u32;
        // SAFETY: as the interface asks.
        let status = unsafe { attach(&mut *self.vi, connection) };
        assert_eq!(status, VIPL_OK);
    }

    /// Whether it still is connected.
    pub fn is_connected(&self) -> bool {
        self.vi.state == VIP_VI_STATE::VIP_STATE_CONNECTED as u32
    }

    /// Calls an operation that takes nothing but the VI.
    pub fn call(&mut self, operation: Option<unsafe extern "C" fn(*mut vipl_vi)>) {
        // SAFETY: as the interface asks.
        unsafe { operation.expect("an operation")(&mut *self.vi) };
    }

    /// Puts a descriptor on a queue and rings the doorbell, if there is room.
    pub fn post(&mut self, recv: bool, descriptor: *mut u8, memory: u32) -> bool {
        let queue = if recv {
            &mut self.vi.recv
        } else {
            &mut self.vi.send
        };
        if queue.posted.wrapping_sub(queue.completed) == RING {
            return false;
        }
        // SAFETY: masked, so inside the ring.
        let entry = unsafe { &mut *queue.entries.add((queue.posted & queue.mask) as usize) };
        *entry = vipl_entry {
            descriptor: descriptor.cast(),
            memory,
            status: 0,
        };
        queue.posted = queue.posted.wrapping_add(1);
        self.call(if recv {
            provider().post_recv
        } else {
            provider().post_send
        });
        true
    }

    /// Disconnects and destroys it.
    pub fn end(mut self) {
        self.call(provider().detach);
        self.call(provider().vi_destroy);
    }
}

/// A sealed shared memory of zeroes, and this process's view of it.
pub struct Shared {
    /// The memfd.
    pub fd: OwnedFd,
    base: *mut u8,
    bytes: usize,
}

impl Shared {
    /// Makes one.
    pub fn new(bytes: usize) -> Shared {
        // SAFETY: system calls on a descriptor of our own.
        unsafe {
            let raw = libc::memfd_create(
                c"fuzz".as_ptr(),
                libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING,
            );
            assert!(raw >= 0, "{}", std::io::Error::last_os_error());
            let fd = OwnedFd::from_raw_fd(raw);
            assert_eq!(libc::ftruncate(raw, bytes as libc::off_t), 0);
            assert_eq!(
                libc::fcntl(
                    raw,
                    libc::F_ADD_SEALS,
                    libc::F_SEAL_SHRINK | libc::F_SEAL_GROW
                ),
                0
            );
            let access = libc::PROT_READ | libc::PROT_WRITE;
            let base = libc::mmap(
                std::ptr::null_mut(),
                bytes,
                access,
                libc::MAP_SHARED,
                fd.as_raw_fd(),
                0,
            );
            assert_ne!(base, libc::MAP_FAILED);
            Shared {
                fd,
                base: base.cast(),
                bytes,
            }
        }
    }

    /// Writes there, like a peer; what does not fit is cut.
    pub fn put(&self, at: usize, bytes: &[u8]) {
        let at = at.min(self.bytes);
        let bytes = &bytes[..bytes.len().min(self.bytes - at)];
        // SAFETY: inside the mapping, which everybody accesses as shared memory.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.base.add(at), bytes.len()) };
    }

    /// Reads a word there, like a peer.
    pub fn u32(&self, at: usize) -> u32 {
        assert!(at + 4 <= self.bytes);
        // SAFETY: inside the mapping.
        unsafe { self.base.add(at).cast::<u32>().read_volatile() }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: mapped in `new`, once.
        unsafe { libc::munmap(self.base.cast(), self.bytes) };
    }
}
