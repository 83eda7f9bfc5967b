//! Plays the agent and any number of processes for a real device: starts the program, introduces NIC
//! handles of this very process to it, and rings doorbells as a plug-in does.
#![allow(unreachable_pub, dead_code, reason = "each test file uses its part")]

use std::os::fd::{AsRawFd, OwnedFd};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU64, fence};
use std::time::{Duration, Instant};

use vipl_abi::*;
use vipl_clan_proto::message::{Reply, Request, VERSION, flag, op, status};
use vipl_clan_proto::nic::{DEVICE_BYTES, DevicePage, NIC_BYTES, NicPage, REGIONS_AT};
use vipl_clan_proto::vi::{
    HEAD, ReceiveLine, Segment, SendLine, VI_BYTES, ViPages, claim, end, form,
};
use vipl_clan_proto::{channel, wait};
use vipl_plugin_sdk::abi::{VIPL_REGION_RDMA_READ, VIPL_REGION_RDMA_WRITE, vipl_region};
use vipl_plugin_sdk::shm::Mapping;
use zerocopy::{FromBytes, IntoBytes};

/// For what must happen, on however busy a machine.
pub const PATIENCE: Duration = Duration::from_secs(60);
pub const TAG: u32 = 7;

static PROBE: AtomicU64 = AtomicU64::new(0x1234_5678_9abc_def1);

/// Waits for something that must come.
pub fn until<R>(what: &str, mut look: impl FnMut() -> Option<R>) -> R {
    let limit = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < limit, "in vain: {what}");
        std::thread::yield_now();
    }
}

/// The agent, and the device that it has started.
pub struct Agent {
    pub device: Child,
    pub socket: Option<OwnedFd>,
}

impl Agent {
    pub fn start() -> Agent {
        let (ours, theirs) = channel::pair().expect("sockets");
        let device = Command::new(env!("CARGO_BIN_EXE_vipl-clan"))
            .stdin(Stdio::from(theirs))
            .spawn()
            .expect("the device");
        Agent {
            device,
            socket: Some(ours),
        }
    }

    /// Introduces a process: gives its socket.
    pub fn introduce(&self, pid: u32) -> OwnedFd {
        let (ours, theirs) = channel::pair().expect("sockets");
        let newcomer = kagent_proto::Introduction {
            version: kagent_proto::Introduction::VERSION,
            pid,
            uid: 0,
            reserved: 0,
        };
        let socket = self.socket.as_ref().expect("an agent");
        let fds = [theirs.as_raw_fd()];
        until("room for an introduction", || {
            channel::send(socket.as_raw_fd(), newcomer.as_bytes(), &fds).ok()
        });
        ours
    }

    pub fn open(&self) -> Nic {
        Nic::open(self.introduce(std::process::id()))
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.socket = None;
        let ended = until("the device ends with its agent", || {
            self.device.try_wait().expect("wait")
        });
        // A device that was killed by its test has no exit code.
        if !std::thread::panicking() && ended.code().is_some() {
            assert!(ended.success(), "the device failed: {ended}");
        }
    }
}

/// Waits for a reply.
pub fn reply(socket: &OwnedFd) -> (Reply, Vec<OwnedFd>) {
    let mut packet = [0; size_of::<Reply>()];
    let (bytes, fds) = until("a reply", || {
        channel::wait(socket, 100);
        channel::receive(socket.as_raw_fd(), &mut packet).ok()
    });
    assert!(bytes > 0, "the device has hung up");
    (
        Reply::read_from_bytes(&packet[..bytes]).expect("a reply"),
        fds,
    )
}

/// A NIC handle.
pub struct Nic {
    pub socket: OwnedFd,
    pub interrupts: OwnedFd,
    memory: Mapping,
    page: Mapping,
    next: u32,
}

pub fn open_request() -> Request {
    Request {
        op: op::OPEN,
        number: 1,
        vi: VERSION,
        key: PROBE.as_ptr() as u64,
        max_transfer: PROBE.load(Relaxed),
        ptag: 100,
        ..Request::default()
    }
}

impl Nic {
    pub fn open(socket: OwnedFd) -> Nic {
        wait::join_barriers();
        channel::send(socket.as_raw_fd(), open_request().as_bytes(), &[]).expect("send");
        let (answer, fds) = reply(&socket);
        assert_eq!(answer.status, status::OK, "errno {}", answer.errno);
        let [nic, page, interrupts] = &fds[..] else {
            panic!("{} descriptors", fds.len());
        };
        Nic {
            socket,
            interrupts: interrupts.try_clone().expect("dup"),
            memory: Mapping::open(nic.as_raw_fd(), NIC_BYTES, true).expect("memory"),
            page: Mapping::open(page.as_raw_fd(), DEVICE_BYTES, false).expect("page"),
            next: 1,
        }
    }

    pub fn nic(&self) -> &NicPage {
        // SAFETY: a page of zeroes at first, all atomic.
        unsafe { &*self.memory.base().cast() }
    }

    pub fn page(&self) -> &DevicePage {
        // SAFETY: as above.
        unsafe { &*self.page.base().cast() }
    }

    /// All of the memory that the process shares about the NIC.
    pub fn raw(&self) -> *mut u8 {
        self.memory.base()
    }

    /// Writes an entry of the table of regions; gives the handle.
    pub fn register(&mut self, base: u64, bytes: u64, rights: u32) -> u32 {
        let handle = self.next;
        self.next += 1;
        let table = self.memory.base().wrapping_add(REGIONS_AT);
        // SAFETY: an entry of the table.
        let region = unsafe { &*table.cast::<vipl_region>().add(handle as usize) };
        region.base.store(base, Relaxed);
        region.end.store(base + bytes, Relaxed);
        region
            .access
            .store(u64::from(TAG) << 32 | u64::from(rights), Relaxed);
        region.handle.store(handle, Release);
        handle
    }

    pub fn deregister(&self, handle: u32) {
        let table = self.memory.base().wrapping_add(REGIONS_AT);
        // SAFETY: an entry of the table.
        let region = unsafe { &*table.cast::<vipl_region>().add(handle as usize) };
        region.handle.store(0, Release);
    }

    pub fn tell(&self, request: &Request) {
        until("room for a packet", || {
            channel::send(self.socket.as_raw_fd(), request.as_bytes(), &[]).ok()
        });
        self.nic().mail.fetch_add(1, Release);
    }

    pub fn call(&self, request: &Request) -> (Reply, Vec<OwnedFd>) {
        self.tell(request);
        let (answer, fds) = reply(&self.socket);
        assert_eq!(answer.number, request.number);
        (answer, fds)
    }

    pub fn kick(&self) {
        fence(std::sync::atomic::Ordering::SeqCst);
        if self.page().asleep.load(Acquire) & 1 != 0 {
            let request = Request {
                op: op::WAKE,
                ..Request::default()
            };
            let _ = channel::send(self.socket.as_raw_fd(), request.as_bytes(), &[]);
        }
    }

    pub fn vi(&self, number: u32) -> Vi {
        let request = Request {
            op: op::CREATE,
            number: 100 + number,
            vi: number,
            ..Request::default()
        };
        let (answer, fds) = self.call(&request);
        assert_eq!(answer.status, status::OK, "errno {}", answer.errno);
        let memory = Mapping::open(fds[0].as_raw_fd(), VI_BYTES, true).expect("memory");
        Vi {
            // SAFETY: the mapping lives in the VI.
            pages: unsafe { ViPages::new(memory.base()) },
            number,
            sends: 0,
            receives: 0,
            epoch: 0,
            memory,
        }
    }
}

/// A VI, with its own doorbell counts.
pub struct Vi {
    pub pages: ViPages,
    pub number: u32,
    pub sends: u32,
    pub receives: u32,
    pub epoch: u32,
    memory: Mapping,
}

/// A completed receive, as a plug-in takes it.
#[derive(Debug)]
pub struct Arrived {
    pub status: u32,
    pub length: u32,
    pub immediate: u32,
    /// The data, if it came with the completion.
    pub small: Vec<u8>,
}

impl Vi {
    pub fn raw(&self) -> *mut u8 {
        self.memory.base()
    }

    pub fn terms(&self, key: u64, side: u32, level: u16, flags: u16) -> Request {
        Request {
            op: op::ATTACH,
            vi: self.number,
            epoch: self.epoch + 1,
            key,
            side,
            max_transfer: 1 << 30,
            ptag: TAG,
            sends: self.sends,
            receives: self.receives,
            reliability: level,
            flags,
            read_levels: VIP_SERVICE_RELIABLE_DELIVERY | VIP_SERVICE_RELIABLE_RECEPTION,
            segments_max: 252,
            ..Request::default()
        }
    }

    pub fn attach(&mut self, nic: &Nic, key: u64, side: u32, level: u16, flags: u16) {
        let request = self.terms(key, side, level, flags);
        self.epoch += 1;
        nic.tell(&request);
    }

    /// Rings for a send; `whole` says whether the doorbell carries the descriptor.
    pub fn send(&mut self, nic: &Nic, descriptor: &Descriptor, whole: bool) {
        let fields = &descriptor.0;
        let mut line = SendLine {
            descriptor: descriptor.address(),
            form: form::TOKEN,
            ..SendLine::default()
        };
        let count = usize::from(fields.seg_count);
        if whole && count <= 5 {
            line.form = form::WHOLE;
            line.seg_count = fields.seg_count;
            line.control = fields.control;
            line.immediate = fields.immediate;
            line.length = fields.length;
            line.first = fields.segments[0];
            let rest = self.pages.send_rest(self.sends).cast::<Segment>();
            for place in 1..count {
                // SAFETY: the second line has room for four segments.
                unsafe { rest.add(place - 1).write(fields.segments[place]) };
            }
        }
        self.pages.ring_send(self.sends, &line);
        self.sends = self.sends.wrapping_add(1);
        nic.kick();
    }

    /// Rings for a send of one segment whose data goes with the doorbell.
    pub fn send_inline(&mut self, nic: &Nic, descriptor: &Descriptor, data: &[u8]) {
        let fields = &descriptor.0;
        let line = SendLine {
            descriptor: descriptor.address(),
            form: form::INLINE,
            seg_count: 1,
            control: fields.control,
            immediate: fields.immediate,
            length: data.len() as u32,
            first: fields.segments[0],
            ..SendLine::default()
        };
        let first = data.len().min(HEAD);
        // SAFETY: both lines together have room for the data of a small message.
        unsafe {
            let (head, rest) = (
                self.pages.send_head(self.sends),
                self.pages.send_rest(self.sends),
            );
            std::ptr::copy_nonoverlapping(data.as_ptr(), head, first);
            std::ptr::copy_nonoverlapping(data[first..].as_ptr(), rest, data.len() - first);
        }
        self.pages.ring_send(self.sends, &line);
        self.sends = self.sends.wrapping_add(1);
        nic.kick();
    }

    pub fn receive(&mut self, descriptor: &Descriptor, whole: bool) {
        let fields = &descriptor.0;
        let mut line = ReceiveLine {
            descriptor: descriptor.address(),
            form: form::TOKEN,
            ..ReceiveLine::default()
        };
        if whole && fields.seg_count <= 2 {
            line.form = form::WHOLE;
            line.seg_count = fields.seg_count;
            line.control = fields.control;
            line.segments = [fields.segments[0], fields.segments[1]];
        }
        self.pages.ring_receive(self.receives, &line);
        self.receives = self.receives.wrapping_add(1);
    }

    /// Waits for the completion of a send.
    pub fn sent(&self, number: u32) -> u32 {
        let slot = self.pages.sent(number);
        until("a completed send", || {
            let there = slot.lap.load(Acquire) == number.wrapping_add(1);
            there.then(|| slot.status.load(Relaxed))
        })
    }

    /// Waits for the completion of a receive and takes it from the device.
    pub fn received(&self, number: u32) -> Arrived {
        let slot = self.pages.received(number);
        until("a completed receive", || {
            if slot.lap.load(Acquire) != number.wrapping_add(1) {
                return None;
            }
            let taken = slot
                .claim
                .compare_exchange(claim::OPEN, claim::PROGRAM, AcqRel, Acquire);
            if taken == Err(claim::DEVICE) {
                return None;
            }
            let small = taken.map_or(0, |_| slot.small.load(Relaxed) as usize);
            let words = slot.data.iter().flat_map(|w| w.load(Relaxed).to_ne_bytes());
            Some(Arrived {
                status: slot.status.load(Relaxed),
                length: slot.length.load(Relaxed),
                immediate: slot.immediate.load(Relaxed),
                small: words.take(small).collect(),
            })
        })
    }

    /// Why the connection has ended.
    pub fn ended(&self) -> u32 {
        until("the end of a connection", || self.end())
    }

    /// The same, if it has.
    pub fn end(&self) -> Option<u32> {
        let word = self.pages.words().end.load(Acquire);
        let here = (word >> 32) as u32 == self.epoch && word as u32 != end::NONE;
        here.then_some(word as u32)
    }
}

/// A descriptor in the memory of the process.
#[repr(C, align(64))]
pub struct Fields {
    pub next: [u32; 3],
    pub seg_count: u16,
    pub control: u16,
    pub reserved: u32,
    pub immediate: u32,
    pub length: u32,
    pub status: u32,
    pub segments: [Segment; 254],
}

pub struct Descriptor(pub Box<Fields>);

impl Descriptor {
    pub fn new(control: u16, length: u32, segments: &[Segment]) -> Descriptor {
        let mut list = [Segment::default(); 254];
        list[..segments.len()].copy_from_slice(segments);
        Descriptor(Box::new(Fields {
            next: [0; 3],
            seg_count: segments.len() as u16,
            control,
            reserved: 0,
            immediate: 0,
            length,
            status: 0,
            segments: list,
        }))
    }

    /// A receive into these.
    pub fn into(segments: &[Segment]) -> Descriptor {
        Descriptor::new(0, 0, segments)
    }

    /// A send from these.
    pub fn from(segments: &[Segment]) -> Descriptor {
        let length = segments.iter().map(|s| s.length).sum();
        Descriptor::new(VIP_CONTROL_OP_SENDRECV, length, segments)
    }

    pub fn address(&self) -> u64 {
        &raw const *self.0 as u64
    }

    /// What the device has written: status, length, immediate data.
    pub fn result(&self) -> (u32, u32, u32) {
        // SAFETY: valid words; the device writes them.
        unsafe {
            let status = (&raw const self.0.status).read_volatile();
            fence(Acquire);
            (
                status,
                (&raw const self.0.length).read_volatile(),
                (&raw const self.0.immediate).read_volatile(),
            )
        }
    }
}

/// Memory of the process, between pages that nobody can touch: what goes beyond it fails.
pub struct Memory {
    base: *mut u8,
    bytes: usize,
}

const PAGE: usize = 4096;

impl Memory {
    pub fn new(bytes: usize) -> Memory {
        let bytes = bytes.next_multiple_of(PAGE);
        // SAFETY: a new mapping, opened up but for its first and last page.
        let base = unsafe {
            let (closed, open) = (libc::PROT_NONE, libc::PROT_READ | libc::PROT_WRITE);
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            let whole = libc::mmap(std::ptr::null_mut(), bytes + 2 * PAGE, closed, flags, -1, 0);
            assert_ne!(whole, libc::MAP_FAILED);
            let base = whole.cast::<u8>().add(PAGE);
            assert_eq!(libc::mprotect(base.cast(), bytes, open), 0);
            base
        };
        Memory { base, bytes }
    }

    pub fn base(&self) -> u64 {
        self.base as u64
    }

    pub fn fill(&mut self, seed: u8) {
        for place in 0..self.bytes / 8 {
            let word = (place as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ u64::from(seed) << 56;
            // SAFETY: inside the memory.
            unsafe { self.base.cast::<u64>().add(place).write_volatile(word) };
        }
    }

    /// A copy of what stands there, read as memory that others write.
    pub fn copy(&self, offset: usize, bytes: usize) -> Vec<u8> {
        (offset..offset + bytes)
            // SAFETY: inside the memory.
            .map(|at| unsafe { self.base.add(at).read_volatile() })
            .collect()
    }

    pub fn segment(&self, handle: u32, offset: u64, length: u32) -> Segment {
        Segment {
            address: self.base() + offset,
            handle,
            length,
        }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`, with a page on each side.
        unsafe { libc::munmap(self.base.sub(PAGE).cast(), self.bytes + 2 * PAGE) };
    }
}

/// Two VIs of two NIC handles, connected.
pub struct Couple {
    pub near: Nic,
    pub far: Nic,
    pub from: Vi,
    pub to: Vi,
}

/// Everything that a connection may permit.
pub const OPEN_TO_ALL: u16 = flag::RDMA_WRITE | flag::RDMA_READ | flag::INLINE;
pub const RIGHTS: u32 = VIPL_REGION_RDMA_WRITE | VIPL_REGION_RDMA_READ;

impl Couple {
    pub fn new(agent: &Agent, key: u64, level: u16, flags: u16) -> Couple {
        let (near, far) = (agent.open(), agent.open());
        let (mut from, mut to) = (near.vi(3), far.vi(900));
        from.attach(&near, key, 0, level, flags);
        to.attach(&far, key, 1, level, flags);
        Couple {
            near,
            far,
            from,
            to,
        }
    }
}
