//! What the unit tests share: a host of a few lines, and two connected VIs in one process.
//!
//! The plug-in's operations are called directly, one at a time, so that a test decides who makes progress when.

use std::cell::{Cell, RefCell};
use std::ffi::{CStr, c_char, c_int};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering};

use vipl_abi::*;
use vipl_plugin_sdk::abi::*;
use vipl_plugin_sdk::{NicHandle, Port};
use vipl_sys::shm;

use crate::connection::Connection;
use crate::nic::LoopbackNic;
use crate::segment::SEGMENT;

/// Places of a work queue.
const RING: u32 = 512;
/// Bytes of an end's memory; all of it is one region.
const MEMORY: usize = 1 << 20;
/// Longest message.
const TRANSFER_MAX: u64 = 256 << 10;
/// Where the descriptors lie, one per kilobyte; data lies before them.
const DESCRIPTORS: usize = MEMORY / 2;
/// Handle of the region.
pub(crate) const HANDLE: u32 = 1;
const TAG: u32 = 7;

pub(crate) const RD: u16 = VIP_SERVICE_RELIABLE_DELIVERY;
pub(crate) const RR: u16 = VIP_SERVICE_RELIABLE_RECEPTION;
pub(crate) const U: u16 = VIP_SERVICE_UNRELIABLE;
pub(crate) const DONE: u32 = VIP_STATUS_DONE;

/// What the plug-in has reported to the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reported {
    /// An asynchronous error of the VI with this index.
    Raised(u32, c_int),
    /// An RDMA was refused: the VI's index, whether it is the target, and the bytes.
    Refused(u32, bool, u64),
    /// The connection of the VI with this index ended for this cause.
    Failed(u32, c_int),
}

thread_local! {
    static REPORTED: RefCell<Vec<Reported>> = const { RefCell::new(Vec::new()) };
    static SINGLE_COPY: Cell<bool> = const { Cell::new(true) };
}

/// What was reported since the last call.
pub(crate) fn reported() -> Vec<Reported> {
    REPORTED.take()
}

pub(crate) fn code(code: VIP_ERROR_CODE) -> c_int {
    code as c_int
}

unsafe extern "C" fn log(_level: c_int, _text: *const c_char) {}

unsafe extern "C" fn setting(_plugin: *const c_char, key: *const c_char) -> *const c_char {
    // SAFETY: a text of the plug-in.
    let key = unsafe { CStr::from_ptr(key) };
    match key.to_bytes() {
        b"single_copy" if SINGLE_COPY.get() => c"1".as_ptr(),
        b"single_copy" => c"0".as_ptr(),
        _ => std::ptr::null(),
    }
}

unsafe extern "C" fn counter(_plugin: *const c_char, _name: *const c_char) -> *mut u64 {
    static COUNTER: AtomicU64 = AtomicU64::new(0);
    COUNTER.as_ptr()
}

unsafe extern "C" fn completed(_vi: *mut vipl_vi, _queue: *mut vipl_queue) {}

unsafe extern "C" fn raise(vi: *mut vipl_vi, code: c_int, _: u32, _: *mut VIP_DESCRIPTOR) {
    // SAFETY: the VI of the operation that calls.
    let index = unsafe { (*vi).index };
    REPORTED.with_borrow_mut(|reported| reported.push(Reported::Raised(index, code)));
}

unsafe extern "C" fn fail(vi: *mut vipl_vi, cause: c_int, _: u32, _: *mut VIP_DESCRIPTOR) {
    // SAFETY: as above.
    let index = unsafe {
        (*vi).state = VIP_VI_STATE::VIP_STATE_ERROR as u32;
        (*vi).index
    };
    REPORTED.with_borrow_mut(|reported| reported.push(Reported::Failed(index, cause)));
}

/// The watch thread finds nothing: the test alone makes progress.
unsafe extern "C" fn poll(_nic: *const vipl_nic, _index: u32) -> c_int {
    VIPL_POLL_NOTHING
}

unsafe extern "C" fn now() -> u64 {
    vipl_sys::clock::now_ns()
}

unsafe extern "C" fn link(_interface: *const c_char, _out: *mut vipl_link) -> c_int {
    VIPL_E_NOT_SUPPORTED
}

unsafe extern "C" fn link_ask(_interface: *const c_char) -> c_int {
    VIPL_E_RESOURCE
}

unsafe extern "C" fn refused(
    vi: *mut vipl_vi,
    at_target: bool,
    _: u32,
    _: u32,
    _: u64,
    bytes: u64,
) {
    // SAFETY: the VI of the operation that calls.
    let index = unsafe { (*vi).index };
    REPORTED.with_borrow_mut(|reported| reported.push(Reported::Refused(index, at_target, bytes)));
}

unsafe extern "C" fn memory(_base: u64, _bytes: u64, _out: *mut vipl_memory) -> c_int {
    VIPL_E_INVALID
}

unsafe extern "C" fn catastrophe(_nic: *const vipl_nic) {}

unsafe extern "C" fn device(_name: *const c_char, _fd: *mut c_int, _pid: *mut u32) -> c_int {
    VIPL_E_INVALID
}

static HOST: vipl_host = vipl_plugin_sdk::host_table! {
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

pub(crate) fn install_host() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        vipl_guard::install();
        // SAFETY: every operation may be absent, and sizes may be 0.
        let mut provider: vipl_provider = unsafe { std::mem::zeroed() };
        provider.size = size_of::<vipl_provider>();
        let init = crate::vipl_plugin_v1.init.expect("init");
        // SAFETY: the host's table lives as long as the process.
        let status = unsafe { init(&raw const HOST, &raw mut provider) };
        // Panics are those of the tests again.
        drop(std::panic::take_hook());
        assert_eq!(status, VIPL_OK);
    });
}

/// One of the two ends.
pub(crate) struct End {
    pub(crate) nic: LoopbackNic,
    pub(crate) link: Option<Connection>,
    vi: Box<vipl_vi>,
    _host_nic: Box<vipl_nic>,
    _rings: [Box<[vipl_entry]>; 2],
    memory: Box<[AtomicU64]>,
    info: vipl_nic_info,
    descriptors: usize,
}

/// A descriptor that was posted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Posted(usize);

impl End {
    fn new(index: u32, reliability: u16) -> End {
        // SAFETY: plain data.
        let (mut host_nic, mut info, mut vi): (Box<vipl_nic>, vipl_nic_info, Box<vipl_vi>) = unsafe {
            (
                Box::new(std::mem::zeroed()),
                std::mem::zeroed(),
                Box::new(std::mem::zeroed()),
            )
        };
        // SAFETY: the NIC outlives the plug-in's.
        let handle = unsafe { NicHandle::new(&raw const *host_nic) };
        let nic = LoopbackNic::open("", handle, &mut info).expect("a NIC");
        host_nic.regions = nic.shared().regions().as_ptr();
        host_nic.region_count = info.regions_max;
        host_nic.segments_max = 252;
        let empty = vipl_entry {
            descriptor: std::ptr::null_mut(),
            memory: 0,
            status: 0,
        };
        let mut rings = [0, 1].map(|_| vec![empty; RING as usize].into_boxed_slice());
        for (queue, ring) in [&mut vi.send, &mut vi.recv].into_iter().zip(&mut rings) {
            queue.entries = ring.as_mut_ptr();
            queue.mask = RING - 1;
            // Close below the wrap, which is to be passed.
            (queue.posted, queue.completed) = (u32::MAX - 5, u32::MAX - 5);
        }
        vi.nic = &raw const *host_nic;
        vi.max_transfer_size = TRANSFER_MAX;
        (vi.index, vi.ptag, vi.reliability) = (index, TAG, reliability);
        (vi.rdma_write, vi.rdma_read) = (1, 1);
        let end = End {
            nic,
            link: None,
            vi,
            _host_nic: host_nic,
            _rings: rings,
            memory: (0..MEMORY / 8).map(|_| AtomicU64::new(0)).collect(),
            info,
            descriptors: 0,
        };
        let flags = VIPL_REGION_RDMA_WRITE | VIPL_REGION_RDMA_READ;
        let base = end.address(0);
        let region = &end.nic.shared().regions()[HANDLE as usize];
        region.base.store(base, Ordering::Relaxed);
        region.end.store(base + MEMORY as u64, Ordering::Relaxed);
        let access = u64::from(TAG) << 32 | u64::from(flags);
        region.access.store(access, Ordering::Relaxed);
        region.handle.store(HANDLE, Ordering::Release);
        end
    }

    /// The region ends.
    pub(crate) fn deregister(&self) {
        let region = &self.nic.shared().regions()[HANDLE as usize];
        region.handle.store(0, Ordering::Release);
    }

    /// The host's view of the VI.
    pub(crate) fn port<'a>(&mut self) -> &'a Port {
        // SAFETY: the VI outlives the view, and one operation runs at a time.
        unsafe { Port::new(&raw mut *self.vi) }
    }

    pub(crate) fn connection(&mut self) -> &mut Connection {
        self.link.as_mut().expect("a connection")
    }

    pub(crate) fn has_connection(&mut self) -> bool {
        self.port().is_connected()
    }

    /// An address in the memory, for descriptors.
    pub(crate) fn address(&self, at: usize) -> u64 {
        assert!(at < MEMORY);
        self.memory.as_ptr().cast::<u8>().expose_provenance() as u64 + at as u64
    }

    fn at(&self, at: usize) -> *mut u8 {
        std::ptr::with_exposed_provenance_mut(self.address(at) as usize)
    }

    /// The bytes there.
    pub(crate) fn bytes(&self, at: usize, count: usize) -> Vec<u8> {
        // SAFETY: inside the memory; every byte is initialised, and no operation runs.
        (0..count)
            .map(|place| unsafe { self.at(at + place).read_volatile() })
            .collect()
    }

    /// Fills memory with a pattern that depends on the seed; gives it.
    pub(crate) fn fill(&self, at: usize, count: usize, seed: usize) -> Vec<u8> {
        let pattern: Vec<u8> = (0..count)
            .map(|place| (place * 7 + place / 251 + seed) as u8)
            .collect();
        for (place, byte) in pattern.iter().enumerate() {
            // SAFETY: as above.
            unsafe { self.at(at + place).write_volatile(*byte) };
        }
        pattern
    }

    fn put<T>(&self, at: usize, value: T) {
        // SAFETY: inside the memory, and aligned.
        unsafe { self.at(at).cast::<T>().write_volatile(value) };
    }

    fn word(&self, at: usize) -> u32 {
        // SAFETY: as above.
        unsafe { self.at(at).cast::<u32>().read_volatile() }
    }

    /// Writes a descriptor: control, immediate data, length, and segments of address, handle and length.
    fn describe(&mut self, control: u16, length: u32, segments: &[(u64, u32, u32)]) -> Posted {
        let at = DESCRIPTORS + self.descriptors % RING as usize * 1024;
        self.descriptors += 1;
        self.put(at + 12, segments.len() as u16);
        self.put(at + 14, control);
        self.put(at + 20, 0x1234_5678_u32);
        self.put(at + 24, length);
        self.put(at + 28, 0_u32);
        for (number, (address, handle, length)) in segments.iter().enumerate() {
            let place = at + 32 + 16 * number;
            self.put(place, *address);
            self.put(place + 8, *handle);
            self.put(place + 12, *length);
        }
        Posted(at)
    }

    fn enqueue(&mut self, recv: bool, posted: Posted) {
        let descriptor = self.at(posted.0).cast();
        let queue = if recv {
            &mut self.vi.recv
        } else {
            &mut self.vi.send
        };
        assert!(queue.posted.wrapping_sub(queue.completed) < RING);
        // SAFETY: masked, so inside the ring.
        let entry = unsafe { &mut *queue.entries.add((queue.posted & queue.mask) as usize) };
        (entry.descriptor, entry.memory) = (descriptor, HANDLE);
        queue.posted = queue.posted.wrapping_add(1);
        let port = self.port();
        if recv {
            self.connection().post_recv(port);
        } else if let Some(connection) = &mut self.link {
            connection.post_send(&self.nic, port);
        }
    }

    /// Posts a receive into `length` bytes at this place.
    pub(crate) fn receive(&mut self, at: usize, length: u32) -> Posted {
        let segment = (self.address(at), HANDLE, length);
        let posted = self.describe(0, length, &[segment]);
        self.enqueue(true, posted);
        posted
    }

    /// Posts a descriptor of the send queue.
    pub(crate) fn post(
        &mut self,
        control: u16,
        length: u32,
        segments: &[(u64, u32, u32)],
    ) -> Posted {
        let posted = self.describe(control, length, segments);
        self.enqueue(false, posted);
        posted
    }

    /// Posts a send of `length` bytes at this place.
    pub(crate) fn send(&mut self, at: usize, length: u32) -> Posted {
        let segment = (self.address(at), HANDLE, length);
        self.post(0, length, &[segment])
    }

    /// Posts RDMA between this place and a remote range.
    pub(crate) fn rdma(
        &mut self,
        control: u16,
        at: usize,
        length: u32,
        remote: (u64, u32),
    ) -> Posted {
        let segments = [(remote.0, remote.1, 0), (self.address(at), HANDLE, length)];
        self.post(control, length, &segments)
    }

    /// A thread sleeps until something of a queue is complete, or not.
    pub(crate) fn await_completions(&mut self, recv: bool, send: bool) {
        (self.vi.recv.signal, self.vi.send.signal) = (recv.into(), send.into());
    }

    pub(crate) fn progress(&mut self) {
        let port = self.port();
        if let Some(connection) = &mut self.link {
            connection.poll(&self.nic, port);
        }
    }

    /// VipDisconnect.
    pub(crate) fn detach(&mut self) {
        let port = self.port();
        let connection = self.link.take().expect("a connection");
        connection.detach(&self.nic, port);
    }

    /// Status of a descriptor; 0 until it is complete.
    pub(crate) fn status(&self, posted: Posted) -> u32 {
        self.word(posted.0 + 28)
    }

    /// Length and immediate data of a receive descriptor.
    pub(crate) fn result(&self, posted: Posted) -> (u32, u32) {
        (self.word(posted.0 + 24), self.word(posted.0 + 20))
    }
}

/// Two ends of one connection, and its segment.
pub(crate) struct Pair {
    pub(crate) left: End,
    pub(crate) right: End,
    _segment: OwnedFd,
}

/// Connects two VIs; without `single_copy` everything goes through the ring.
pub(crate) fn pair(reliability: u16, single_copy: bool) -> Pair {
    static KEYS: AtomicU64 = AtomicU64::new(1);
    install_host();
    SINGLE_COPY.set(single_copy);
    let segment = shm::create(c"vipl-test", SEGMENT).expect("a segment");
    let mut ends = [End::new(0, reliability), End::new(1, reliability)];
    let key = KEYS.fetch_add(1, Ordering::Relaxed);
    for side in 0..2 {
        // SAFETY: plain data.
        let mut connection: vipl_connection = unsafe { std::mem::zeroed() };
        connection.size = size_of::<vipl_connection>();
        (connection.key, connection.side) = (key, side as u32);
        connection.peer_pid = std::process::id();
        connection.peer_nic = 2 - side as u64;
        connection.peer_vi = 1 - side as u32;
        connection.peer_fds = ends[1 - side].info.shared_fds;
        connection.segment_fd = segment.as_raw_fd();
        connection.segment_bytes = SEGMENT as u32;
        (connection.peer_rdma_write, connection.peer_rdma_read) = (1, 1);
        let end = &mut ends[side];
        end.vi.state = VIP_VI_STATE::VIP_STATE_CONNECTED as u32;
        let port = end.port();
        let attached = Connection::attach(&end.nic, port, &connection);
        end.link = Some(attached.expect("a connection"));
    }
    reported();
    let [left, right] = ends;
    Pair {
        left,
        right,
        _segment: segment,
    }
}

impl Drop for End {
    fn drop(&mut self) {
        use vipl_plugin_sdk::Nic as _;
        self.link = None;
        self.nic.close();
    }
}
