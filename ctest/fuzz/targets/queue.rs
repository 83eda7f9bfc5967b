//! Two honest programs over loopback, against an oracle of two queues: every message arrives once, in
//! order and whole, every descriptor completes in order, RDMA takes effect in order, and nothing but what
//! was posted is written.
#![no_main]

use std::collections::VecDeque;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::sync::OnceLock;

use libfuzzer_sys::fuzz_target;
use vipl_abi::*;
use vipl_fuzz::host::{Device, RING, Shared, Work, provider};
use vipl_fuzz::input::Input;
use vipl_fuzz::memory::Watched;
use vipl_plugin_abi::*;

const SLOT: usize = 256;
const DESCRIPTORS: usize = 2 * RING as usize * SLOT;
/// Each receive descriptor has its own part; sends share one.
const ROOM: usize = 2304;
const RECEIVE: usize = DESCRIPTORS;
const LARGE: Range<usize> =
    RECEIVE + RING as usize * ROOM..RECEIVE + RING as usize * ROOM + (48 << 10);
const SEND: Range<usize> = LARGE.end + 64..LARGE.end + 64 + (48 << 10);
const TARGET: Range<usize> = SEND.end + 64..SEND.end + 64 + (24 << 10);
const BYTES: usize = TARGET.end + 64;
const TAG: u32 = 3;

/// Two devices that copy directly, and two that may not.
fn devices() -> &'static [[Device; 2]; 2] {
    struct Devices([[Device; 2]; 2]);
    // SAFETY: used by the one thread that runs the target.
    unsafe impl Sync for Devices {}
    // SAFETY: as above.
    unsafe impl Send for Devices {}
    static DEVICES: OnceLock<Devices> = OnceLock::new();
    let open = |single| [Device::open(c"1", single), Device::open(c"2", single)];
    &DEVICES.get_or_init(|| Devices([open(true), open(false)])).0
}

/// A message under way: its bytes and its immediate data.
struct Message {
    bytes: Vec<u8>,
    immediate: Option<u32>,
}

/// One program.
struct Side {
    work: Work,
    memory: Watched,
    handle: u32,
    target: u32,
    /// Where the posted receives begin and how long they are.
    receives: VecDeque<Vec<Range<usize>>>,
    /// Operations of the posted sends, with the local ranges that an RDMA Read writes.
    sends: VecDeque<(u32, Vec<Range<usize>>)>,
    /// Messages to this side that are not received yet.
    expected: VecDeque<Message>,
    /// Sent to the other side, as far as its receives have been used up.
    large_posted: bool,
}

impl Side {
    fn allowed(&self, rdma: bool) -> Vec<Range<usize>> {
        let mut allowed = Vec::new();
        let queues = [&self.work.vi.send, &self.work.vi.recv];
        for (which, queue) in queues.into_iter().enumerate() {
            for number in 0..queue.posted.wrapping_sub(queue.taken) {
                let place = (queue.taken.wrapping_add(number) % RING) as usize;
                let at = (which * RING as usize + place) * SLOT;
                allowed.push(at + 20..at + 32);
            }
        }
        allowed.extend(self.receives.iter().flatten().cloned());
        allowed.extend(
            self.sends
                .iter()
                .flat_map(|(_, ranges)| ranges.iter().cloned()),
        );
        if rdma {
            allowed.push(TARGET);
        }
        allowed
    }

    fn field(&self, recv: bool, number: u32, at: usize) -> u32 {
        let place = (usize::from(recv) * RING as usize + (number % RING) as usize) * SLOT + at;
        let mut word = [0; 4];
        word.copy_from_slice(self.memory.get(place..place + 4));
        u32::from_le_bytes(word)
    }

    /// Takes off what has completed, and looks whether it is right.
    fn reap(&mut self) {
        while self.work.vi.send.taken != self.work.vi.send.completed {
            let number = self.work.vi.send.taken;
            let (opcode, _) = self.sends.pop_front().expect("a completion for each send");
            assert_eq!(
                self.field(false, number, 28),
                VIP_STATUS_DONE | opcode,
                "a send"
            );
            self.work.vi.send.taken = number.wrapping_add(1);
        }
        while self.work.vi.recv.taken != self.work.vi.recv.completed {
            let number = self.work.vi.recv.taken;
            let segments = self
                .receives
                .pop_front()
                .expect("a completion for each receive");
            let message = self.expected.pop_front().expect("a message that was sent");
            let flag = if message.immediate.is_some() {
                VIP_STATUS_IMMEDIATE
            } else {
                0
            };
            let status = VIP_STATUS_DONE | VIP_STATUS_OP_RECEIVE | flag;
            assert_eq!(self.field(true, number, 28), status, "a receive");
            assert_eq!(
                self.field(true, number, 24) as usize,
                message.bytes.len(),
                "Length"
            );
            assert_eq!(
                self.field(true, number, 20),
                message.immediate.unwrap_or(0),
                "ImmediateData"
            );
            let mut rest = &message.bytes[..];
            for segment in &segments {
                let (now, later) = rest.split_at(rest.len().min(segment.len()));
                assert!(
                    self.memory.get(segment.start..segment.start + now.len()) == now,
                    "data"
                );
                rest = later;
            }
            self.large_posted &= segments.iter().all(|segment| segment.start < LARGE.start);
            self.work.vi.recv.taken = number.wrapping_add(1);
        }
    }

    fn write_descriptor(
        &mut self,
        recv: bool,
        control: u16,
        segments: &[(u64, u32, u32)],
        length: u32,
        immediate: u32,
    ) -> *mut u8 {
        let queue = if recv {
            &self.work.vi.recv
        } else {
            &self.work.vi.send
        };
        let at = (usize::from(recv) * RING as usize + (queue.posted % RING) as usize) * SLOT;
        let mut bytes = vec![0u8; 32];
        bytes[12..14].copy_from_slice(&(segments.len() as u16).to_le_bytes());
        bytes[14..16].copy_from_slice(&control.to_le_bytes());
        bytes[20..24].copy_from_slice(&immediate.to_le_bytes());
        bytes[24..28].copy_from_slice(&length.to_le_bytes());
        for (address, handle, length) in segments {
            bytes.extend(address.to_le_bytes());
            bytes.extend(handle.to_le_bytes());
            bytes.extend(length.to_le_bytes());
        }
        self.memory.put(at, &bytes);
        self.memory.base().wrapping_add(at)
    }

    fn room(&self, recv: bool) -> bool {
        let queue = if recv {
            &self.work.vi.recv
        } else {
            &self.work.vi.send
        };
        queue.posted.wrapping_sub(queue.taken) < RING
    }
}

struct Game<'a> {
    input: Input<'a>,
    sides: [Side; 2],
    /// What the target memory of each side will hold.
    target: [Vec<u8>; 2],
    /// Receives posted and not yet promised to a message, with their room.
    free: [VecDeque<usize>; 2],
    /// Bytes of SEND in use on each side; a send's memory must not change before it is complete.
    used: [usize; 2],
    salt: u8,
    /// The ways of loopback must not be told apart: an RDMA Read is expected to see all earlier writes.
    steps: u32,
}

impl Game<'_> {
    /// Cuts a range into one to three segments.
    fn cut(&mut self, range: Range<usize>) -> Vec<Range<usize>> {
        let mut parts = Vec::new();
        let mut start = range.start;
        for _ in 0..self.input.below(3) {
            let middle = start + self.input.odd_u32() as usize % (range.end - start + 1);
            parts.push(start..middle);
            start = middle;
        }
        parts.push(start..range.end);
        parts
    }

    /// Runs an operation on one side, then checks both.
    fn act(&mut self, who: usize, operation: impl FnOnce(&mut Side)) {
        let mut allowed = [self.sides[0].allowed(true), self.sides[1].allowed(true)];
        operation(&mut self.sides[who]);
        for (side, allowed) in self.sides.iter_mut().zip(&mut allowed) {
            // What was posted in between is allowed, too.
            allowed.extend(side.allowed(true));
            side.memory.check(allowed);
            assert!(side.work.is_connected(), "an honest connection has ended");
            side.reap();
        }
        if self.sides[who].sends.is_empty() {
            self.used[who] = 0;
        }
    }

    fn post_recv(&mut self, who: usize) {
        if !self.sides[who].room(true) {
            return;
        }
        let place = (self.sides[who].work.vi.recv.posted % RING) as usize;
        let large = !self.sides[who].large_posted && self.input.below(3) == 0;
        let start = if large {
            LARGE.start
        } else {
            RECEIVE + place * ROOM
        };
        let room =
            1 + self.input.odd_u32() as usize % (if large { LARGE.len() } else { ROOM - 64 });
        let parts = self.cut(start..start + room);
        let side = &mut self.sides[who];
        side.large_posted |= large;
        let list: Vec<_> = parts
            .iter()
            .map(|p| (side.memory.address(p.start), side.handle, p.len() as u32))
            .collect();
        let descriptor = side.write_descriptor(true, 0, &list, room as u32, 0);
        self.free[who].push_back(room);
        let handle = side.handle;
        self.act(who, |side| {
            side.receives.push_back(parts);
            assert!(side.work.post(true, descriptor, handle));
        });
    }

    /// A source of so many bytes that no pending operation uses.
    fn source(&mut self, who: usize, length: usize) -> Option<(Range<usize>, Vec<u8>)> {
        let start = SEND.start + self.used[who];
        if start + length > SEND.end {
            return None;
        }
        self.used[who] += length;
        self.salt = self.salt.wrapping_add(17);
        let bytes: Vec<u8> = (0..length)
            .map(|at| self.salt ^ (at * 5 + at / 256) as u8)
            .collect();
        self.sides[who].memory.put(start, &bytes);
        Some((start..start + length, bytes))
    }

    fn post_send(&mut self, who: usize) {
        // Only a message that finds a receive descriptor with room.
        let Some(&room) = self.free[1 - who].front() else {
            return;
        };
        if !self.sides[who].room(false) {
            return;
        }
        let length = self.input.odd_u32() as usize % (room + 1);
        let Some((range, bytes)) = self.source(who, length) else {
            return;
        };
        self.free[1 - who].pop_front();
        let flagged = self.input.below(3) == 0;
        let parts = self.cut(range);
        let (mut list, side) = (Vec::new(), &mut self.sides[who]);
        for part in &parts {
            list.push((
                side.memory.address(part.start),
                side.handle,
                part.len() as u32,
            ));
        }
        let control = if flagged { VIP_CONTROL_IMMEDIATE } else { 0 };
        let immediate = u32::from(self.salt) << 8;
        let descriptor = side.write_descriptor(false, control, &list, length as u32, immediate);
        let handle = side.handle;
        self.sides[1 - who].expected.push_back(Message {
            bytes,
            immediate: flagged.then_some(immediate),
        });
        self.act(who, |side| {
            side.sends.push_back((VIP_STATUS_OP_SEND, Vec::new()));
            assert!(side.work.post(false, descriptor, handle));
        });
    }

    fn post_write(&mut self, who: usize) {
        if !self.sides[who].room(false) {
            return;
        }
        let length = self.input.odd_u32() as usize % TARGET.len();
        let at = self.input.odd_u32() as usize % (TARGET.len() - length);
        let Some((range, bytes)) = self.source(who, length) else {
            return;
        };
        self.target[1 - who][at..at + length].copy_from_slice(&bytes);
        let remote = (
            self.sides[1 - who].memory.address(TARGET.start + at),
            self.sides[1 - who].target,
            0,
        );
        let parts = self.cut(range);
        let side = &mut self.sides[who];
        let mut list = vec![remote];
        list.extend(
            parts
                .iter()
                .map(|p| (side.memory.address(p.start), side.handle, p.len() as u32)),
        );
        let descriptor =
            side.write_descriptor(false, VIP_CONTROL_OP_RDMAWRITE, &list, length as u32, 0);
        let handle = side.handle;
        self.act(who, |side| {
            side.sends.push_back((VIP_STATUS_OP_RDMA_WRITE, Vec::new()));
            assert!(side.work.post(false, descriptor, handle));
        });
    }

    fn step(&mut self) {
        let who = self.input.below(2) as usize;
        match self.input.below(8) {
            0..=1 => self.post_recv(who),
            2..=3 => self.post_send(who),
            4 => self.post_write(who),
            _ => self.act(who, |side| side.work.call(provider().progress)),
        }
    }
}

fn side(devices: &[Device; 2], who: usize, reliability: u16) -> Side {
    let device = &devices[who];
    let memory = Watched::new(BYTES.next_multiple_of(64));
    let handle = device.register(1, memory.address(0), BYTES as u64, TAG, 0);
    let flags = VIPL_REGION_RDMA_WRITE | VIPL_REGION_RDMA_READ;
    let target = device.register(
        2,
        memory.address(TARGET.start),
        TARGET.len() as u64,
        TAG,
        flags,
    );
    let mut work = Work::new(device, who as u32, TAG, reliability);
    (work.vi.rdma_write, work.vi.rdma_read) = (1, 1);
    Side {
        work,
        memory,
        handle,
        target,
        receives: VecDeque::new(),
        sends: VecDeque::new(),
        expected: VecDeque::new(),
        large_posted: false,
    }
}

fuzz_target!(|bytes: &[u8]| {
    let mut input = Input::new(bytes);
    let devices = &devices()[input.below(2) as usize];
    // Loss is not modelled; on one host the Unreliable level loses nothing that has a receive descriptor.
    let reliability = 1 << input.below(3);
    let mut sides = [side(devices, 0, reliability), side(devices, 1, reliability)];
    let target = [0, 1].map(|who: usize| sides[who].memory.get(TARGET).to_vec());
    let segment = Shared::new(devices[0].info.segment_bytes as usize);
    for (who, side) in sides.iter_mut().enumerate() {
        // SAFETY: plain data.
        let mut connection: vipl_connection = unsafe { std::mem::zeroed() };
        connection.size = size_of::<vipl_connection>();
        connection.key = 5;
        connection.side = who as u32;
        connection.peer_pid = std::process::id();
        // SAFETY: an address as a name.
        connection.peer_nic = std::ptr::from_ref(&devices[1 - who]).expose_provenance() as u64;
        connection.peer_vi = 1 - who as u32;
        connection.segment_fd = segment.fd.as_raw_fd();
        connection.segment_bytes = devices[0].info.segment_bytes;
        connection.peer_fds = devices[1 - who].info.shared_fds;
        (connection.peer_rdma_write, connection.peer_rdma_read) = (1, 1);
        side.work.attach(&connection);
    }
    let mut game = Game {
        input,
        sides,
        target,
        free: Default::default(),
        used: [0; 2],
        salt: 0,
        steps: 0,
    };
    while !game.input.is_empty() && game.steps < 96 {
        game.step();
        game.steps += 1;
    }
    // All that was sent arrives, with both sides at work.
    let busy = |side: &Side| !side.expected.is_empty() || !side.sends.is_empty();
    let mut quiet = 0;
    for _ in 0..200 {
        // An RDMA Write is complete when its data has left; the target takes it in a few rounds more.
        quiet = if game.sides.iter().any(busy) {
            0
        } else {
            quiet + 1
        };
        if quiet > 10 {
            break;
        }
        for who in 0..2 {
            game.act(who, |side| side.work.call(provider().progress));
        }
    }
    for (who, side) in game.sides.iter().enumerate() {
        assert!(
            side.expected.is_empty(),
            "{} messages did not arrive",
            side.expected.len()
        );
        assert!(
            side.sends.is_empty(),
            "{} sends did not complete",
            side.sends.len()
        );
        assert!(
            side.memory.get(TARGET) == game.target[who],
            "RDMA Writes out of order, or not done"
        );
    }
    let [one, two] = game.sides;
    one.work.end();
    two.work.end();
});
