//! A hostile peer of loopback: it writes anything anywhere into what the two share, while an honest
//! program posts, receives and disconnects. Whatever it writes may end the connection; it may not crash
//! this side, keep it busy for ever, or change a byte that was not offered to it.
#![no_main]

use std::ops::Range;
use std::sync::OnceLock;

use libfuzzer_sys::fuzz_target;
use vipl_abi::*;
use vipl_fuzz::host::{Device, RING, Shared, Work, provider};
use vipl_fuzz::input::Input;
use vipl_fuzz::memory::Watched;
use vipl_plugin_abi::*;

// The segment, as `segment.rs` of loopback lays it out. This side is side 0.
const SLOTS: usize = 256;
/// Slot 16 of the direction in which the peer sends; slot 15 is the last one.
const INCOMING: usize = 1024;
const OWN: usize = INCOMING + SLOTS * 64;
const PEER: usize = OWN + 384;
const PAYLOADS: usize = 9 * 4096;
const PAYLOAD: usize = 256 << 10;
const SEGMENT: usize = PAYLOADS + 2 * PAYLOAD;
const CONSUMED: usize = OWN + 4;
const ATTACHED: usize = 64;
/// What a side that has attached writes there.
const LAYOUT: u32 = 2;
/// Words of a side: posted, consumed; attached to costs.
const WORDS: [usize; 15] = [
    0, 4, ATTACHED, 68, 72, 76, 80, 84, 88, 92, 96, 100, 104, 108, 112,
];
const COPYING: usize = 128;

// The program's memory.
const DESCRIPTORS: usize = 2 * RING as usize * 256;
const RECEIVE: Range<usize> = DESCRIPTORS..DESCRIPTORS + (72 << 10);
const SEND: Range<usize> = RECEIVE.end + 64..RECEIVE.end + 64 + (48 << 10);
const OFFERED: Range<usize> = SEND.end + 64..SEND.end + 64 + (16 << 10);
const BYTES: usize = OFFERED.end + 64;
const TAG: u32 = 9;

/// What lives as long as the process: the device, and the process that the peer claims to be.
struct World {
    device: Device,
    peer_pid: u32,
    /// A word that this process and the peer's have at the same place.
    probe: &'static u64,
}
// SAFETY: used by the one thread that runs the target.
unsafe impl Sync for World {}
// SAFETY: as above.
unsafe impl Send for World {}

fn world() -> &'static World {
    static WORLD: OnceLock<World> = OnceLock::new();
    WORLD.get_or_init(|| {
        let probe = Box::leak(Box::new(0x5eed_5eed_5eed_5eed));
        // SAFETY: the child only sleeps, and goes with its parent.
        let peer_pid = unsafe {
            let parent = libc::getpid();
            let pid = libc::fork();
            if pid == 0 {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                for fd in 0..64 {
                    libc::close(fd);
                }
                while libc::getppid() == parent {
                    libc::sleep(1);
                }
                libc::_exit(0);
            }
            pid as u32
        };
        World {
            device: Device::open(c"1", true),
            peer_pid,
            probe,
        }
    })
}

struct Game<'a> {
    input: Input<'a>,
    segment: Shared,
    memory: Watched,
    work: Work,
    /// All memory, for descriptors; and the part that is offered to RDMA.
    handle: u32,
    offered: u32,
    /// Region and VI admit RDMA Write.
    writable: bool,
    /// Data segments of the descriptors posted, by place in the rings.
    receives: Vec<Vec<Range<usize>>>,
    reads: Vec<Vec<Range<usize>>>,
}

impl Game<'_> {
    /// What may be written: the data segments and status fields of what is posted, and what is offered.
    fn allowed(&self) -> Vec<Range<usize>> {
        let mut allowed = Vec::new();
        let queues = [&self.work.vi.send, &self.work.vi.recv];
        for (which, queue) in queues.into_iter().enumerate() {
            let mut number = queue.completed;
            while number != queue.posted {
                let place = (number % RING) as usize;
                let at = (which * RING as usize + place) * 256;
                allowed.push(at + 20..at + 32);
                let segments = [&self.reads, &self.receives][which];
                allowed.extend(segments[place].iter().cloned());
                number = number.wrapping_add(1);
            }
        }
        if self.writable {
            allowed.push(OFFERED);
        }
        allowed
    }

    /// An operation of the plug-in, and what may have come of it.
    fn act(&mut self, operation: impl FnOnce(&mut Work)) {
        let mut allowed = self.allowed();
        let before = [self.work.vi.send.completed, self.work.vi.recv.completed];
        operation(&mut self.work);
        let queues = [&self.work.vi.send, &self.work.vi.recv];
        for (before, queue) in before.into_iter().zip(queues) {
            let done = queue.completed.wrapping_sub(before);
            assert!(
                done <= queue.posted.wrapping_sub(before),
                "more completed than was posted"
            );
            for number in 0..done {
                let place = (before.wrapping_add(number) & queue.mask) as usize;
                // SAFETY: inside the ring.
                let status = unsafe { (*queue.entries.add(place)).status };
                assert!(status & VIP_STATUS_DONE != 0, "completed and not done");
                assert_eq!(status & VIP_STATUS_RESERVED, 0, "reserved bits of a status");
                if std::ptr::eq(queue, &self.work.vi.recv) {
                    self.check_length(before.wrapping_add(number), status);
                }
            }
        }
        self.memory.check(&mut allowed);
    }

    /// A message that was received is no longer than its buffers, or the program would read on behind them.
    fn check_length(&self, number: u32, status: u32) {
        let place = (number % RING) as usize;
        let at = (RING as usize + place) * 256 + 24;
        let mut word = [0; 4];
        word.copy_from_slice(self.memory.get(at..at + 4));
        let length = u32::from_le_bytes(word) as usize;
        let room: usize = self.receives[place].iter().map(Range::len).sum();
        let received = status & VIP_STATUS_OP_MASK == VIP_STATUS_OP_RECEIVE;
        if status & VIP_STATUS_ERROR_MASK == 0 && received {
            assert!(length <= room, "{length} bytes received into {room}");
        } else if status & VIP_STATUS_ERROR_MASK == 0 {
            assert!(
                length as u64 <= self.work.vi.max_transfer_size,
                "an RDMA Write of {length} bytes"
            );
        }
    }

    /// Writes a descriptor and posts it.
    fn post(&mut self, recv: bool) {
        let queue = if recv {
            &self.work.vi.recv
        } else {
            &self.work.vi.send
        };
        if !self.work.is_connected() || queue.posted.wrapping_sub(queue.completed) == RING {
            return;
        }
        let place = (queue.posted % RING) as usize;
        let at = (usize::from(recv) * RING as usize + place) * 256;
        let operation = if recv { 0 } else { self.input.below(3) as u16 };
        let flags = if self.input.below(4) == 0 { 4 } else { 0 };
        let control = operation | if recv || operation == 2 { 0 } else { flags };
        let home = if recv || operation == 2 {
            RECEIVE
        } else {
            SEND
        };
        let mut segments = Vec::new();
        let mut bytes = vec![0u8; 32];
        if operation != 0 {
            // Where the peer's memory is said to be; its region table decides.
            bytes.extend(
                self.input
                    .odd_u32()
                    .to_le_bytes()
                    .iter()
                    .chain(&[0, 0, 0, 0]),
            );
            bytes.extend(self.input.u32().to_le_bytes());
            bytes.extend([0; 4]);
        }
        let mut total = 0;
        for _ in 0..self.input.below(4) {
            let room = (home.end - home.start) as u32;
            let length = (self.input.odd_u32() % room).min((65_536 - total) as u32) as usize;
            let start = home.start + (self.input.odd_u32() as usize) % (room as usize - length);
            bytes.extend(self.memory.address(start).to_le_bytes());
            bytes.extend(self.handle.to_le_bytes());
            bytes.extend((length as u32).to_le_bytes());
            segments.push(start..start + length);
            total += length;
        }
        let count = ((bytes.len() - 32) / 16) as u16;
        bytes[12..14].copy_from_slice(&count.to_le_bytes());
        bytes[14..16].copy_from_slice(&control.to_le_bytes());
        bytes[20..24].copy_from_slice(&0x1234_5678u32.to_le_bytes());
        bytes[24..28].copy_from_slice(&(total as u32).to_le_bytes());
        self.memory.put(at, &bytes);
        let descriptor = self.memory.base().wrapping_add(at);
        let list = if recv {
            &mut self.receives
        } else {
            &mut self.reads
        };
        list[place] = if recv || operation == 2 {
            segments.clone()
        } else {
            Vec::new()
        };
        // The doorbell may complete it at once: its own bytes are allowed, too.
        let mut allowed = self.allowed();
        allowed.push(at + 20..at + 32);
        if recv || operation == 2 {
            allowed.extend(segments);
        }
        self.work.post(recv, descriptor, self.handle);
        self.memory.check(&mut allowed);
    }

    /// The peer announces a slot that may or may not make sense.
    fn slot(&mut self) {
        let next = self.segment.u32(CONSUMED).wrapping_add(self.input.below(3));
        let at = INCOMING + (next as usize + SLOTS - 16) % SLOTS * 64;
        let length = self.input.odd_u32();
        let mut slot = Vec::with_capacity(64);
        slot.extend((next / SLOTS as u32 + 1).to_le_bytes());
        slot.push(1 + self.input.below(10) as u8);
        slot.push(self.input.u8() & 63);
        slot.extend(self.input.u16().to_le_bytes());
        slot.extend(length.to_le_bytes());
        slot.extend(self.input.u32().to_le_bytes());
        slot.extend(self.input.odd_u32().to_le_bytes());
        slot.extend(self.input.odd_u32().to_le_bytes());
        // Address, handle, bytes, offset: of the offered memory, or of anything.
        let (address, handle) = match self.input.below(4) {
            0 => (self.input.u64(), self.input.u32()),
            _ => (
                self.memory
                    .address(OFFERED.start + self.input.odd_u32() as usize % OFFERED.len()),
                [self.offered, self.handle][self.input.below(5) as usize / 4],
            ),
        };
        slot.extend(address.to_le_bytes());
        slot.extend(handle.to_le_bytes());
        let bytes = if self.input.coin() {
            length
        } else {
            self.input.odd_u32()
        };
        slot.extend(bytes.to_le_bytes());
        slot.extend(self.input.odd_u32().to_le_bytes());
        slot.resize(64, 0x5a);
        self.segment.put(at, &slot);
    }

    /// A list of segments in the payload area, for a FETCH.
    fn list(&mut self) {
        let world = world();
        for number in 0..self.input.below(6) as usize {
            let mut entry = Vec::new();
            let address = if self.input.coin() {
                std::ptr::from_ref(world.probe).expose_provenance() as u64
            } else {
                self.input.u64()
            };
            entry.extend(address.to_le_bytes());
            entry.extend((REGION_OF_PEER).to_le_bytes());
            entry.extend(self.input.odd_u32().to_le_bytes());
            self.segment.put(PAYLOADS + PAYLOAD + number * 16, &entry);
        }
    }

    fn step(&mut self) {
        match self.input.below(16) {
            0..=3 => self.slot(),
            4 => self.list(),
            5 => {
                let word = WORDS[self.input.below(WORDS.len() as u32) as usize];
                let value = if self.input.coin() {
                    self.input.below(9)
                } else {
                    self.input.odd_u32()
                };
                self.segment.put(PEER + word, &value.to_le_bytes());
            }
            6 => {
                let at = self.input.odd_u32() as usize % SEGMENT;
                let noise = self.input.take(64);
                self.segment.put(at, noise);
            }
            7 => {
                // It copies, or has copied. The end of a connection would wait a second for it.
                let copying = self.input.below(2);
                self.segment.put(PEER + COPYING, &copying.to_le_bytes());
            }
            8..=9 => self.post(true),
            10..=11 => self.post(false),
            12 => {
                let orderly = self.input.coin();
                self.act(|work| {
                    let gone = provider().peer_gone.expect("peer_gone");
                    // SAFETY: as the interface asks.
                    unsafe { gone(&mut *work.vi, orderly) };
                });
            }
            _ => self.act(|work| work.call(provider().progress)),
        }
    }
}

/// Entries of the peer's region table.
const REGIONS: usize = 4096;
/// A handle in the peer's region table, whose every entry covers all memory.
const REGION_OF_PEER: u32 = 4096 | 3;

fuzz_target!(|bytes: &[u8]| {
    let world = world();
    let mut input = Input::new(bytes);
    let reliability = 1 << input.below(3);
    let (segment, bell, regions) = (
        Shared::new(SEGMENT),
        Shared::new(4096),
        Shared::new(REGIONS * size_of::<vipl_region>() + 16 + REGIONS * 24),
    );
    let mut region = Vec::new();
    region.extend(0u64.to_le_bytes());
    region.extend(input.odd_u32().to_le_bytes());
    region.extend(u32::from(input.u16()).to_le_bytes());
    region.extend((u64::from(TAG) << 32 | 3).to_le_bytes());
    region.extend(REGION_OF_PEER.to_le_bytes());
    regions.put(3 * size_of::<vipl_region>(), &region);
    // Pages of it that can be mapped, as the peer says: from a descriptor of its process.
    let mut window = Vec::new();
    window.extend(u32::from(input.u8()).to_le_bytes());
    window.extend([0; 4]);
    window.extend(u64::from(input.odd_u32()).to_le_bytes());
    regions.put(REGIONS * size_of::<vipl_region>(), &window);
    window.clear();
    window.extend(0u64.to_le_bytes());
    window.extend((1u64 << 47).to_le_bytes());
    window.extend(REGION_OF_PEER.to_le_bytes());
    regions.put(REGIONS * size_of::<vipl_region>() + 16 + 3 * 24, &window);
    let memory = Watched::new(BYTES.next_multiple_of(64));
    let handle = world
        .device
        .register(5, memory.address(0), BYTES as u64, TAG, 0);
    let flags = u32::from(input.u8()) & (VIPL_REGION_RDMA_WRITE | VIPL_REGION_RDMA_READ);
    let (rdma_write, rdma_read) = (input.coin(), input.coin());
    let writable = rdma_write && flags & VIPL_REGION_RDMA_WRITE != 0;
    let offered = world.device.register(
        6,
        memory.address(OFFERED.start),
        OFFERED.len() as u64,
        TAG,
        flags,
    );
    let mut work = Work::new(&world.device, 1, TAG, reliability);
    (work.vi.rdma_write, work.vi.rdma_read) = (rdma_write.into(), rdma_read.into());
    let probe = std::ptr::from_ref(world.probe).expose_provenance() as u64;
    let line = PEER + 80;
    segment.put(line, &world.peer_pid.to_le_bytes());
    segment.put(line + 4, &TAG.to_le_bytes());
    segment.put(line + 8, &probe.to_le_bytes());
    segment.put(line + 16, &world.probe.to_le_bytes());
    segment.put(PEER, &input.below(40).to_le_bytes());
    segment.put(PEER + ATTACHED, &LAYOUT.to_le_bytes());
    // SAFETY: plain data.
    let mut connection: vipl_connection = unsafe { std::mem::zeroed() };
    connection.size = size_of::<vipl_connection>();
    connection.key = 7;
    connection.peer_pid = world.peer_pid;
    connection.peer_nic = 77;
    connection.peer_vi = input.odd_u32();
    connection.segment_fd = std::os::fd::AsRawFd::as_raw_fd(&segment.fd);
    connection.segment_bytes = SEGMENT as u32;
    connection.peer_fds = [&bell.fd, &regions.fd].map(std::os::fd::AsRawFd::as_raw_fd);
    (connection.peer_rdma_write, connection.peer_rdma_read) = (1, 1);
    work.attach(&connection);
    assert_eq!(
        segment.u32(OWN + ATTACHED),
        LAYOUT,
        "another layout than that of segment.rs"
    );
    let mut game = Game {
        input,
        segment,
        memory,
        work,
        handle,
        offered,
        writable,
        receives: vec![Vec::new(); RING as usize],
        reads: vec![Vec::new(); RING as usize],
    };
    let mut steps = 0;
    while !game.input.is_empty() && steps < 64 {
        game.step();
        steps += 1;
    }
    for _ in 0..3 {
        game.act(|work| work.call(provider().progress));
    }
    game.segment.put(PEER + COPYING, &0u32.to_le_bytes());
    let Game {
        work, mut memory, ..
    } = game;
    let mut allowed = if writable { vec![OFFERED] } else { Vec::new() };
    work.end();
    memory.check(&mut allowed);
});
