//! The helpers for plug-ins that process one descriptor at a time, through the C functions that the host offers.

use std::cell::RefCell;
use std::ffi::{c_char, c_int, c_void};
use std::ptr::null_mut;

use vipl_abi::*;
use vipl_plugin_abi::*;
use vipl_rules::{Host, kit};

/// What the host was told.
#[derive(Debug, PartialEq)]
enum Told {
    Raised(c_int),
    Failed(c_int),
}

thread_local! {
    static TOLD: RefCell<Vec<Told>> = const { RefCell::new(Vec::new()) };
}

fn told() -> Vec<Told> {
    TOLD.with_borrow_mut(std::mem::take)
}

unsafe extern "C" fn log(_: c_int, _: *const c_char) {}
unsafe extern "C" fn setting(_: *const c_char, _: *const c_char) -> *const c_char {
    std::ptr::null()
}
unsafe extern "C" fn counter(_: *const c_char, _: *const c_char) -> *mut u64 {
    null_mut()
}
unsafe extern "C" fn completed(_: *mut vipl_vi, _: *mut vipl_queue) {}
unsafe extern "C" fn raise(_: *mut vipl_vi, code: c_int, _: u32, _: *mut VIP_DESCRIPTOR) {
    TOLD.with_borrow_mut(|told| told.push(Told::Raised(code)));
}
unsafe extern "C" fn fail(vi: *mut vipl_vi, cause: c_int, _: u32, _: *mut VIP_DESCRIPTOR) {
    TOLD.with_borrow_mut(|told| told.push(Told::Failed(cause)));
    // SAFETY: the test's VI.
    unsafe { (*vi).state = VIP_VI_STATE::VIP_STATE_ERROR as u32 };
}
unsafe extern "C" fn poll(_: *const vipl_nic, _: u32) -> c_int {
    VIPL_POLL_NOTHING
}
unsafe extern "C" fn now() -> u64 {
    0
}
unsafe extern "C" fn link(_: *const c_char, _: *mut vipl_link) -> c_int {
    VIPL_E_NOT_SUPPORTED
}
unsafe extern "C" fn link_ask(_interface: *const c_char) -> c_int {
    VIPL_E_RESOURCE
}

unsafe extern "C" fn catastrophe(_: *const vipl_nic) {}
unsafe extern "C" fn device(_: *const c_char, _: *mut c_int, _: *mut u32) -> c_int {
    VIPL_E_NOT_SUPPORTED
}

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
};

/// Handle of the one region, which is in entry 0 of two.
const REGION: u32 = 2;
const DATA: usize = 64;

/// A descriptor of up to three segments.
#[repr(C, align(64))]
#[derive(Clone, Copy)]
struct Image([u8; 128]);

impl Image {
    fn put(&mut self, at: usize, bytes: &[u8]) {
        self.0[at..at + bytes.len()].copy_from_slice(bytes);
    }

    fn status(&self) -> u32 {
        u32::from_ne_bytes([self.0[28], self.0[29], self.0[30], self.0[31]])
    }
}

/// A VI with descriptors on one of its queues.
struct World {
    data: Box<[u8; DATA]>,
    posted: Box<[Image; 2]>,
    _entries: Vec<vipl_entry>,
    _regions: Box<[vipl_region; 2]>,
    _nic: Box<vipl_nic>,
    vi: Box<vipl_vi>,
}

impl World {
    /// Posts two descriptors, each with these pieces of the data: offset and length.
    fn new(reliability: u16, which: u32, controls: [u16; 2], pieces: &[(usize, u32)]) -> World {
        // SAFETY: the table is constant.
        unsafe { Host::adopt(&raw const HOST) };
        vipl_guard::install();
        let mut data = Box::new([0; DATA]);
        let base = data.as_mut_ptr().expose_provenance() as u64;
        // SAFETY: plain data; zero is valid.
        let (mut nic, mut vi): (Box<vipl_nic>, Box<vipl_vi>) =
            unsafe { (Box::new(std::mem::zeroed()), Box::new(std::mem::zeroed())) };
        let region = |handle: u32| vipl_region {
            base: base.into(),
            end: (base + DATA as u64).into(),
            access: (u64::from(VIPL_PTAG_NONE) << 32).into(),
            handle: handle.into(),
            reserved: 0,
        };
        let regions = Box::new([region(REGION), region(0)]);
        let length: u32 = pieces.iter().map(|(_, length)| length).sum();
        let image = |control: u16| {
            let mut image = Image([0; 128]);
            image.put(12, &(pieces.len() as u16).to_ne_bytes());
            image.put(14, &control.to_ne_bytes());
            image.put(20, &77u32.to_ne_bytes());
            image.put(24, &length.to_ne_bytes());
            for (number, (offset, length)) in pieces.iter().enumerate() {
                image.put(32 + 16 * number, &(base + *offset as u64).to_ne_bytes());
                image.put(40 + 16 * number, &REGION.to_ne_bytes());
                image.put(44 + 16 * number, &length.to_ne_bytes());
            }
            image
        };
        let mut posted = Box::new(controls.map(image));
        let entry = |image: &mut Image| vipl_entry {
            descriptor: (&raw mut *image).cast(),
            memory: REGION,
            status: 0,
        };
        let mut entries: Vec<vipl_entry> = posted.iter_mut().map(entry).collect();
        (nic.regions, nic.region_count, nic.segments_max) = (regions.as_ptr(), 2, 3);
        (vi.nic, vi.max_transfer_size) = (&raw const *nic, 1 << 20);
        (vi.state, vi.reliability) = (VIP_VI_STATE::VIP_STATE_CONNECTED as u32, reliability);
        vi.recv.which = 1;
        let queue = if which == 0 {
            &mut vi.send
        } else {
            &mut vi.recv
        };
        (queue.entries, queue.mask, queue.posted) = (entries.as_mut_ptr(), 1, 2);
        World {
            data,
            posted,
            _entries: entries,
            _regions: regions,
            _nic: nic,
            vi,
        }
    }

    fn next_send(&mut self) -> Option<vipl_request> {
        let mut request = blank();
        // SAFETY: the only user of the VI.
        unsafe { kit::next_send(&raw mut *self.vi, &raw mut request) }.then_some(request)
    }

    fn next_receive(&mut self, length: u32) -> Option<vipl_request> {
        let mut request = blank();
        // SAFETY: as above.
        let found = unsafe { kit::next_receive(&raw mut *self.vi, length, &raw mut request) };
        found.then_some(request)
    }

    fn gather(&mut self, request: &vipl_request, offset: u32, bytes: u32) -> Option<Vec<u8>> {
        let mut to = vec![0u8; bytes as usize];
        let room = to.as_mut_ptr().cast::<c_void>();
        // SAFETY: as above; there is room.
        let copied = unsafe { kit::gather(&raw mut *self.vi, request, offset, room, bytes) };
        copied.then_some(to)
    }

    fn is_connected(&self) -> bool {
        self.vi.state == VIP_VI_STATE::VIP_STATE_CONNECTED as u32
    }
}

fn blank() -> vipl_request {
    // SAFETY: plain data.
    let mut request: vipl_request = unsafe { std::mem::zeroed() };
    request.size = size_of::<vipl_request>();
    request
}

const PIECES: &[(usize, u32)] = &[(40, 3), (0, 0), (8, 5)];

#[test]
fn a_message_is_gathered_and_scattered_in_parts() {
    let mut world = World::new(VIP_SERVICE_RELIABLE_DELIVERY, 0, [4, 0], PIECES);
    world.data[40..43].copy_from_slice(b"abc");
    world.data[8..13].copy_from_slice(b"defgh");
    let send = world.next_send().expect("a send");
    let facts = (send.operation, send.length, send.immediate, send.flagged);
    assert_eq!(facts, (VIP_STATUS_OP_SEND, 8, 77, 1));
    assert_eq!(world.gather(&send, 0, 8).as_deref(), Some(&b"abcdefgh"[..]));
    assert_eq!(world.gather(&send, 2, 4).as_deref(), Some(&b"cdef"[..]));
    assert_eq!(world.gather(&send, 8, 0).as_deref(), Some(&b""[..]));

    let mut world = World::new(VIP_SERVICE_RELIABLE_DELIVERY, 1, [0, 0], PIECES);
    let receive = world.next_receive(6).expect("a receive");
    for (offset, part) in [(0, &b"abcd"[..]), (4, b"ef")] {
        let (from, bytes) = (part.as_ptr().cast(), part.len() as u32);
        // SAFETY: the only user of the VI; the part has so many bytes.
        let copied = unsafe { kit::scatter(&raw mut *world.vi, &receive, offset, from, bytes) };
        assert!(copied);
    }
    assert_eq!(&world.data[40..43], b"abc");
    assert_eq!(&world.data[8..14], b"def\0\0\0");
    assert_eq!(told(), []);
}

#[test]
fn a_descriptor_that_breaks_a_rule_ends_reliable_connections_only() {
    for level in [VIP_SERVICE_UNRELIABLE, VIP_SERVICE_RELIABLE_DELIVERY] {
        let mut world = World::new(level, 0, [3, 0], PIECES);
        let unreliable = level == VIP_SERVICE_UNRELIABLE;
        assert_eq!(world.next_send().is_some(), unreliable, "the next one");
        assert_eq!(world.vi.send.completed, 1);
        let status = VIP_STATUS_FORMAT_ERROR | VIP_STATUS_DONE;
        assert_eq!(world.posted[0].status(), status);
        assert_eq!(world.is_connected(), unreliable);
        let expected: &[Told] = &[Told::Failed(VIPL_CAUSE_REPORTED)];
        assert_eq!(told(), if unreliable { &[] } else { expected });
    }
}

#[test]
fn a_message_without_a_receive_is_reported() {
    let empty = VIP_ERROR_CODE::VIP_ERROR_RECVQ_EMPTY as c_int;
    for (level, expected) in [
        (VIP_SERVICE_UNRELIABLE, Told::Raised(empty)),
        (VIP_SERVICE_RELIABLE_RECEPTION, Told::Failed(empty)),
    ] {
        let mut world = World::new(level, 0, [0, 0], PIECES);
        assert!(world.next_receive(1).is_none());
        assert_eq!(told(), [expected]);
        assert_eq!(world.is_connected(), level == VIP_SERVICE_UNRELIABLE);
    }
}

#[test]
fn a_message_that_is_too_long_is_a_length_error() {
    let mut world = World::new(VIP_SERVICE_UNRELIABLE, 1, [0, 0], PIECES);
    assert!(world.next_receive(9).is_none());
    let status = VIP_STATUS_LENGTH_ERROR | VIP_STATUS_OP_RECEIVE | VIP_STATUS_DONE;
    assert_eq!(world.posted[0].status(), status);
    assert!(world.next_receive(8).is_some(), "the next one has room");
}

/// The program makes its segments shorter after they were checked: nothing is copied from beyond them.
#[test]
fn segments_that_shrink_are_a_protection_error() {
    let mut world = World::new(VIP_SERVICE_UNRELIABLE, 0, [0, 0], PIECES);
    let send = world.next_send().expect("a send");
    world.posted[0].put(44 + 32, &1u32.to_ne_bytes());
    assert_eq!(world.gather(&send, 0, 8), None);
    let status = VIP_STATUS_PROTECTION_ERROR | VIP_STATUS_OP_SEND | VIP_STATUS_DONE;
    assert_eq!(world.posted[0].status(), status);
}
