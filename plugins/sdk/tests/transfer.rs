//! What a plug-in is offered for its descriptors: through the C functions of the host, and through [`Port`] where the two
//! differ. The plug-in of these tests does nothing itself, so that what is posted stays.

use std::ffi::{CStr, c_int};

use vipl_abi::*;
use vipl_guard::Segment;
use vipl_plugin_sdk::abi::*;
use vipl_plugin_sdk::testing::{Event, Memory, Nic as Opened, Plugin, Posted, Vi as Tested};
use vipl_plugin_sdk::testing::{connect, events};
use vipl_plugin_sdk::{Nic, NicHandle, Port, Provider, Queue, Status, Vi, kit};

/// A plug-in that does nothing.
pub struct Still;

impl Provider for Still {
    const NAME: &'static CStr = c"still";
    const VERSION: &'static CStr = c"1";
    type Nic = Still;

    fn devices() -> Vec<String> {
        Vec::new()
    }

    fn open(_: &str, _: NicHandle, info: &mut vipl_nic_info) -> Result<Still, Status> {
        info.transfer_max = 1 << 20;
        Ok(Still)
    }
}

impl Nic for Still {
    type Vi = Still;
}

impl Vi for Still {
    type Nic = Still;

    fn new(_: &Still, _: &Port) -> Result<Still, Status> {
        Ok(Still)
    }

    fn attach(&mut self, _: &Still, _: &Port, _: &vipl_connection) -> Result<(), Status> {
        Ok(())
    }

    fn detach(&mut self, _: &Still, _: &Port) {}
    fn post_send(&mut self, _: &Still, _: &Port) {}
    fn progress(&mut self, _: &Still, _: &Port) {}
}

vipl_plugin_sdk::plugin!(Still);

const RD: u16 = VIP_SERVICE_RELIABLE_DELIVERY;
const U: u16 = VIP_SERVICE_UNRELIABLE;
/// Offset and length of the pieces of a message.
const PIECES: &[(usize, u32)] = &[(40, 3), (0, 0), (8, 5)];

/// A connected VI.
struct World {
    memory: Memory,
    vi: Tested,
    _peer: Tested,
    nic: Opened,
}

impl World {
    fn new(reliability: u16) -> World {
        let nic = Plugin::load(&vipl_plugin_v1).open("").expect("a NIC");
        let (mut vi, mut peer) = (nic.vi(reliability), nic.vi(reliability));
        connect(&mut vi, &mut peer);
        World {
            memory: nic.memory(64),
            vi,
            _peer: peer,
            nic,
        }
    }

    /// Posts a descriptor with these flags.
    fn post(&mut self, queue: Queue, control: u16, pieces: &[(usize, u32)]) -> Posted {
        let segment = |(at, length): &(usize, u32)| self.memory.segment(*at, *length);
        let segments: Vec<Segment> = pieces.iter().map(segment).collect();
        self.vi.post(queue, control, &segments)
    }

    /// Number of the oldest descriptor of a queue that is not complete.
    fn oldest(&mut self, queue: Queue) -> u32 {
        self.port().completed(queue)
    }

    fn port(&mut self) -> &Port {
        // SAFETY: the only user of the VI, as in all calls below.
        unsafe { Port::new(self.vi.abi()) }
    }

    fn next_send(&mut self) -> Option<vipl_request> {
        let mut request = blank();
        // SAFETY: as above.
        unsafe { kit::next_send(self.vi.abi(), &raw mut request) }.then_some(request)
    }

    fn next_receive(&mut self, length: u32) -> Option<vipl_request> {
        let mut request = blank();
        // SAFETY: as above.
        unsafe { kit::next_receive(self.vi.abi(), length, &raw mut request) }.then_some(request)
    }

    fn next_notice(&mut self) -> bool {
        // SAFETY: as above.
        unsafe { kit::next_notice(self.vi.abi()) }
    }

    /// The request for a send by its number, and whether it can be processed.
    fn send_at(&mut self, number: u32) -> (bool, vipl_request) {
        let mut request = blank();
        // SAFETY: as above.
        let good = unsafe { kit::send_at(self.vi.abi(), number, &raw mut request) };
        (good, request)
    }

    fn receive_at(&mut self, number: u32, length: u32) -> (bool, vipl_request) {
        let mut request = blank();
        // SAFETY: as above.
        let good = unsafe { kit::receive_at(self.vi.abi(), number, length, &raw mut request) };
        (good, request)
    }

    fn gather(&mut self, request: &vipl_request, offset: u32, bytes: u32) -> Option<Vec<u8>> {
        let mut to = vec![0u8; bytes as usize];
        let room = to.as_mut_ptr().cast();
        // SAFETY: as above; there is room.
        unsafe { kit::gather(self.vi.abi(), request, offset, room, bytes) }.then_some(to)
    }

    fn scatter(&mut self, request: &vipl_request, offset: u32, part: &[u8]) -> bool {
        let (from, bytes) = (part.as_ptr().cast(), part.len() as u32);
        // SAFETY: as above; the part has so many bytes.
        unsafe { kit::scatter(self.vi.abi(), request, offset, from, bytes) }
    }
}

fn blank() -> vipl_request {
    // SAFETY: plain data.
    let mut request: vipl_request = unsafe { std::mem::zeroed() };
    request.size = size_of::<vipl_request>();
    request
}

fn failed(cause: c_int) -> Event {
    Event::Failed(0, cause)
}

#[test]
fn a_message_is_gathered_and_scattered_in_parts() {
    let mut world = World::new(RD);
    world.post(Queue::Send, VIP_CONTROL_IMMEDIATE, PIECES);
    world.memory.write(40, b"abc");
    world.memory.write(8, b"defgh");
    let send = world.next_send().expect("a send");
    let facts = (send.operation, send.length, send.immediate, send.flagged);
    assert_eq!(facts, (VIP_STATUS_OP_SEND, 8, 0x1234_5678, 1));
    assert_eq!(world.gather(&send, 0, 8).as_deref(), Some(&b"abcdefgh"[..]));
    assert_eq!(world.gather(&send, 2, 4).as_deref(), Some(&b"cdef"[..]));
    assert_eq!(world.gather(&send, 8, 0).as_deref(), Some(&b""[..]));

    world.memory.write(0, &[0; 64]);
    world.post(Queue::Recv, 0, PIECES);
    let receive = world.next_receive(6).expect("a receive");
    assert!(world.scatter(&receive, 0, b"abcd") && world.scatter(&receive, 4, b"ef"));
    assert_eq!(world.memory.read(40, 3), b"abc");
    assert_eq!(world.memory.read(8, 6), b"def\0\0\0");
    assert_eq!(events(), []);
}

#[test]
fn a_descriptor_that_breaks_a_rule_ends_reliable_connections_only() {
    for level in [U, RD] {
        let mut world = World::new(level);
        let first = world.post(Queue::Send, 3, PIECES);
        world.post(Queue::Send, 0, PIECES);
        let unreliable = level == U;
        assert_eq!(world.next_send().is_some(), unreliable, "the next one");
        let status = VIP_STATUS_FORMAT_ERROR | VIP_STATUS_DONE;
        assert_eq!(world.vi.status(first), status);
        assert_eq!(world.vi.is_connected(), unreliable);
        let expected: &[Event] = &[failed(VIPL_CAUSE_REPORTED)];
        assert_eq!(events(), if unreliable { &[] } else { expected });
    }
}

#[test]
fn a_message_without_a_receive_is_reported() {
    let empty = VIP_ERROR_CODE::VIP_ERROR_RECVQ_EMPTY as c_int;
    for (level, expected) in [
        (U, Event::Raised(0, empty)),
        (VIP_SERVICE_RELIABLE_RECEPTION, failed(empty)),
    ] {
        for of_data in [true, false] {
            let mut world = World::new(level);
            let found = if of_data {
                world.next_receive(1).is_some()
            } else {
                world.next_notice()
            };
            assert!(!found);
            assert_eq!(events(), std::slice::from_ref(&expected));
            assert_eq!(world.vi.is_connected(), level == U);
        }
    }
}

#[test]
fn a_message_that_is_too_long_is_a_length_error() {
    let mut world = World::new(U);
    let first = world.post(Queue::Recv, 0, PIECES);
    world.post(Queue::Recv, 0, PIECES);
    assert!(world.next_receive(9).is_none());
    let status = VIP_STATUS_LENGTH_ERROR | VIP_STATUS_OP_RECEIVE | VIP_STATUS_DONE;
    assert_eq!(world.vi.status(first), status);
    assert!(world.next_receive(8).is_some(), "the next one has room");
}

/// The application makes its segments shorter after they were checked: nothing is copied from beyond them.
#[test]
fn segments_that_shrink_are_a_protection_error() {
    let mut world = World::new(U);
    let posted = world.post(Queue::Send, 0, PIECES);
    let send = world.next_send().expect("a send");
    let shorter = world.memory.segment(8, 1);
    world.vi.set_segment(posted, 2, shorter);
    assert_eq!(world.gather(&send, 0, 8), None);
    let status = VIP_STATUS_PROTECTION_ERROR | VIP_STATUS_OP_SEND | VIP_STATUS_DONE;
    assert_eq!(world.vi.status(posted), status);
}

/// RDMA-04: the notice of an RDMA Write takes a receive whose segments may be anything, also where segments are checked
/// whole; its control segment is checked.
#[test]
fn a_notice_leaves_the_segments_of_its_receive_unchecked() {
    let mut world = World::new(RD);
    world.nic.set_options(VIPL_OPTION_CHECK_RECEIVE_WHOLE);
    let wrong = Segment {
        handle: 77,
        ..world.memory.segment(0, 64)
    };
    world.vi.receive(&[wrong]);
    assert!(world.next_notice());
    assert!(world.port().next_notice(), "the same from Rust");
    assert_eq!(events(), []);
    assert!(
        world.next_receive(0).is_none(),
        "a message has them checked"
    );
    assert_eq!(events(), [failed(VIPL_CAUSE_REPORTED)]);

    let mut world = World::new(RD);
    let posted = world.post(Queue::Recv, VIP_CONTROL_OP_RDMAREAD, &[]);
    assert!(!world.next_notice());
    let status = VIP_STATUS_FORMAT_ERROR | VIP_STATUS_OP_RECEIVE | VIP_STATUS_DONE;
    assert_eq!(world.vi.status(posted), status);
}

/// Several descriptors in progress: each is read by its number, and a fault waits for its turn.
#[test]
fn descriptors_of_a_window_are_read_by_their_numbers() {
    let mut world = World::new(RD);
    let good = world.post(Queue::Send, 0, PIECES);
    let bad = world.post(Queue::Send, 3, PIECES);
    world.memory.write(40, b"abcd");
    let first = world.oldest(Queue::Send);

    let (is_good, request) = world.send_at(first);
    assert!(is_good);
    let facts = (request.number, request.segment_count, request.length);
    assert_eq!((facts, request.fault), ((first, 3, 8), 0));
    assert_eq!(world.gather(&request, 0, 3).as_deref(), Some(&b"abc"[..]));
    // SAFETY: plain data.
    let mut segment: VIP_DATA_SEGMENT = unsafe { std::mem::zeroed() };
    // SAFETY: a request of the host.
    assert!(unsafe { kit::segment(&raw const request, 2, &raw mut segment) });
    assert_eq!((segment.Handle, segment.Length), (world.memory.handle(), 5));
    // SAFETY: as above.
    let beyond = unsafe { kit::segment(&raw const request, 3, &raw mut segment) };
    assert!(!beyond);

    let (is_good, request) = world.send_at(first.wrapping_add(1));
    assert!(!is_good);
    assert_eq!(request.fault, VIP_STATUS_FORMAT_ERROR);
    let (is_good, request) = world.send_at(first.wrapping_add(2));
    assert!(!is_good && request.fault == 0, "not posted");
    assert_eq!((world.vi.status(good), world.vi.status(bad)), (0, 0));
    assert!(world.vi.is_connected());

    let port = world.port();
    assert!(port.complete(Queue::Send, VIP_STATUS_OP_SEND, None));
    port.refuse(Queue::Send, VIP_STATUS_FORMAT_ERROR);
    let status = VIP_STATUS_FORMAT_ERROR | VIP_STATUS_DONE;
    assert_eq!(world.vi.status(good), VIP_STATUS_OP_SEND | VIP_STATUS_DONE);
    assert_eq!(world.vi.status(bad), status);
}

/// A receive is posted to a device before a message is known, and checked again when one has come.
#[test]
fn a_receive_of_a_window_is_checked_for_its_message() {
    let mut world = World::new(RD);
    let reaches_beyond = world.memory.segment(60, 100);
    world.vi.receive(&[reaches_beyond]);
    let first = world.oldest(Queue::Recv);
    assert!(world.receive_at(first, 0).0);
    assert!(world.receive_at(first, 4).0, "as far as it is registered");
    let (is_good, request) = world.receive_at(first, 5);
    assert!(!is_good);
    let fault = VIP_STATUS_PROTECTION_ERROR | VIP_STATUS_OP_RECEIVE;
    assert_eq!(request.fault, fault);

    let mut world = World::new(RD);
    world.post(Queue::Recv, 0, PIECES);
    let first = world.oldest(Queue::Recv);
    let (is_good, request) = world.receive_at(first, 9);
    assert!(!is_good);
    let fault = VIP_STATUS_LENGTH_ERROR | VIP_STATUS_OP_RECEIVE;
    assert_eq!(request.fault, fault);
    assert_eq!(events(), []);
}

/// What is not the oldest one cannot be refused yet, and what is complete cannot be copied to any more.
#[test]
fn a_copy_respects_the_order_of_its_queue() {
    let mut world = World::new(U);
    world.post(Queue::Recv, 0, PIECES);
    let second = world.post(Queue::Recv, 0, PIECES);
    let first = world.oldest(Queue::Recv);
    let (_, request) = world.receive_at(first.wrapping_add(1), 8);
    let shorter = world.memory.segment(8, 1);
    world.vi.set_segment(second, 2, shorter);
    assert!(!world.scatter(&request, 0, b"abcdefgh"));
    assert_eq!(world.vi.status(second), 0, "the plug-in's to refuse later");

    let request = world.next_receive(8).expect("the first one");
    let data = Some((8, 0));
    let completed = world
        .port()
        .complete(Queue::Recv, VIP_STATUS_OP_RECEIVE, data);
    assert!(completed);
    assert!(!world.scatter(&request, 0, b"abcdefgh"), "it is complete");
    assert_eq!(events(), []);
}

/// What a plug-in in safe Rust may do wrong: no call reaches a descriptor that was not posted.
#[test]
fn an_empty_queue_is_left_alone() {
    let mut world = World::new(RD);
    let port = world.port();
    assert!(port.oldest(Queue::Send).is_none());
    assert!(port.outstanding(Queue::Recv, 7).is_none());
    assert!(!port.complete(Queue::Send, 0, None));
    port.refuse(Queue::Recv, VIP_STATUS_FORMAT_ERROR);
    assert_eq!(port.posted(Queue::Send), port.completed(Queue::Send));
    assert!(world.vi.is_connected());
    let text = "a plug-in completes a descriptor that was not posted";
    let line = Event::Log(VIPL_LOG_ERROR, text.to_owned());
    assert_eq!(events(), [line.clone(), line]);
}
