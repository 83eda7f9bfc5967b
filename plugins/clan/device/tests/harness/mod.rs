//! Plays the agent and any number of processes for a real device: starts the program, introduces NIC
//! handles of this very process to it, and rings doorbells as a plug-in does.
#![allow(
    unreachable_pub,
    dead_code,
    unused_imports,
    reason = "each test file uses its part"
)]

mod chaos;
mod lan;
mod memory;
mod vi;

pub use chaos::*;
pub use lan::*;
pub use memory::*;
pub use vi::*;

use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU64, fence};
use std::time::{Duration, Instant};

use vipl_clan_proto::channel;
use vipl_clan_proto::message::{Reply, Request, VERSION, flag, op, status};
use vipl_clan_proto::nic::{DEVICE_BYTES, DevicePage, NIC_BYTES, NicPage, REGIONS_AT};
use vipl_clan_proto::vi::{VI_BYTES, ViPages};
use vipl_plugin_abi::{VIPL_REGION_RDMA_READ, VIPL_REGION_RDMA_WRITE, vipl_region};
use vipl_sys::membarrier::{self, Scope};
use vipl_sys::shm::Mapping;
use zerocopy::{FromBytes, IntoBytes};

/// A time in which everything happens even on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(60);
pub const TAG: u32 = 7;

static PROBE: AtomicU64 = AtomicU64::new(0x1234_5678_9abc_def1);

/// Waits for something that must happen.
pub fn until<R>(what: &str, mut look: impl FnMut() -> Option<R>) -> R {
    let limit = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < limit, "waited too long: {what}");
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

    /// Introduces a process; returns its socket.
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

    /// The same with an interface.
    pub fn open_on(&self, lan: &Lan, endpoint: u16) -> Nic {
        let request = Request {
            mtu: MTU,
            endpoint,
            ..open_request()
        };
        let data = lan.data_socket(endpoint);
        Nic::open_with(
            self.introduce(std::process::id()),
            &request,
            &[data.as_raw_fd()],
        )
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
        channel::wait(socket.as_raw_fd(), Duration::from_millis(100));
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
        Nic::open_with(socket, &open_request(), &[])
    }

    pub fn open_with(socket: OwnedFd, request: &Request, fds: &[RawFd]) -> Nic {
        membarrier::register(Scope::Global);
        channel::send(socket.as_raw_fd(), request.as_bytes(), fds).expect("send");
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

    /// The memory of the NIC that the process shares.
    pub fn raw(&self) -> *mut u8 {
        self.memory.base()
    }

    /// Writes an entry of the table of regions; returns the handle.
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

    pub fn send(&self, request: &Request) {
        until("room for a packet", || {
            channel::send(self.socket.as_raw_fd(), request.as_bytes(), &[]).ok()
        });
        self.nic().messages.fetch_add(1, Release);
    }

    pub fn call(&self, request: &Request) -> (Reply, Vec<OwnedFd>) {
        self.send(request);
        let (answer, fds) = reply(&self.socket);
        assert_eq!(answer.number, request.number);
        (answer, fds)
    }

    /// Requests this [`op`] on a VI; returns the status.
    pub fn ask(&self, op: u32, vi: &Vi) -> u32 {
        let request = Request {
            op,
            number: 50_000,
            vi: vi.number,
            ..Request::default()
        };
        self.call(&request).0.status
    }

    /// Takes a VI off its connection.
    pub fn detach(&self, vi: &Vi) {
        assert_eq!(self.ask(op::DETACH, vi), status::OK);
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

/// Two VIs of two NIC handles, connected.
pub struct Couple {
    pub near: Nic,
    pub far: Nic,
    pub from: Vi,
    pub to: Vi,
}

/// All rights of a connection.
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

    /// The same over the network, between this endpoint and the next.
    pub fn remote(agent: &Agent, lan: &Lan, endpoint: u16, level: u16, flags: u16) -> Couple {
        let (near, far) = (
            agent.open_on(lan, endpoint),
            agent.open_on(lan, endpoint + 1),
        );
        let (mut from, mut to) = (near.vi(3), far.vi(900));
        let key = 0x1_0000_0000 | u64::from(endpoint);
        from.attach_remote(&near, (key, 0), (900, endpoint + 1), level, flags);
        to.attach_remote(&far, (key, 1), (3, endpoint), level, flags);
        Couple {
            near,
            far,
            from,
            to,
        }
    }
}
