//! A bad cable: forwards frames between the two ports of a switch that does not, and does to them what a
//! weather says. The kernel at hand may lack a module for that, so a thread does it.
//!
//! ```text
//!   host 0 ─ eth0 ══ port0 ─ relay ─ port1 ══ eth0 ─ host 1
//! ```

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Instant;

use vipl_ering::{Sky, Weather};

use crate::Namespaces;

/// Bytes of the Ethernet header.
const HEADER_BYTES: usize = 14;
/// Largest frame, and then some.
const FRAME_MAX: usize = 16 << 10;
/// Frames of one direction that one look takes.
const LOOK_FRAMES: usize = 64;
/// Longest sleep in milliseconds.
const SLEEP_MS: i32 = 20;

/// A relay that runs; dropping it ends it.
#[derive(Debug)]
pub struct Relay {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Shared {
    stop: AtomicBool,
    cut: AtomicBool,
    forwarded: AtomicU64,
}

impl Relay {
    /// Takes the two hosts off their switch, and relays between its first two ports.
    ///
    /// # Errors
    /// Why that is not possible.
    pub fn start(hosts: &Namespaces, mut weather: Weather) -> io::Result<Relay> {
        // A real link checks each frame; what it lets pass wrongly is no wrong address.
        weather.spared = HEADER_BYTES;
        let switch = hosts
            .switch()
            .ok_or_else(|| io::Error::other("hosts without a switch"))?
            .to_owned();
        hosts.cut(0);
        hosts.cut(1);
        let shared = Arc::new(Shared::default());
        let (ready, told) = std::sync::mpsc::channel();
        let thread = std::thread::spawn({
            let shared = shared.clone();
            move || {
                let ports = enter(&switch).and_then(|()| Ok([port("port0")?, port("port1")?]));
                match ports {
                    Ok(ports) => {
                        let _ = ready.send(Ok(()));
                        run(&shared, &ports, &weather);
                    }
                    Err(error) => {
                        let _ = ready.send(Err(error));
                    }
                }
            }
        });
        told.recv().map_err(io::Error::other)??;
        Ok(Relay {
            shared,
            thread: Some(thread),
        })
    }

    /// Cuts the cable, or mends it; no interface notices.
    pub fn cut(&self, cut: bool) {
        self.shared.cut.store(cut, Ordering::SeqCst);
    }

    /// Frames that have arrived somewhere.
    pub fn forwarded(&self) -> u64 {
        self.shared.forwarded.load(Ordering::SeqCst)
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn check(status: i32) -> io::Result<i32> {
    if status < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(status)
    }
}

/// Brings the calling thread, and no other, into a namespace.
fn enter(name: &str) -> io::Result<()> {
    let namespace = File::open(format!("/run/netns/{name}"))?;
    // SAFETY: a system call on an open descriptor.
    check(unsafe { libc::setns(namespace.as_raw_fd(), libc::CLONE_NEWNET) }).map(drop)
}

/// A socket that sends and receives every frame of an interface.
fn port(name: &str) -> io::Result<OwnedFd> {
    const ALL: u16 = 3; // ETH_P_ALL
    let text = CString::new(name)?;
    // SAFETY: system calls with valid arguments; the descriptor is new.
    unsafe {
        let kind = libc::SOCK_RAW | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
        // With no ethertype nothing is received before the socket is bound.
        let socket = OwnedFd::from_raw_fd(check(libc::socket(libc::AF_PACKET, kind, 0))?);
        let index = libc::if_nametoindex(text.as_ptr()) as i32;
        let one = 1i32;
        check(libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_PACKET,
            libc::PACKET_IGNORE_OUTGOING,
            (&raw const one).cast(),
            4,
        ))?;
        let mut wanted: libc::packet_mreq = std::mem::zeroed();
        wanted.mr_ifindex = index;
        wanted.mr_type = libc::PACKET_MR_PROMISC as u16;
        check(libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_PACKET,
            libc::PACKET_ADD_MEMBERSHIP,
            (&raw const wanted).cast(),
            size_of::<libc::packet_mreq>() as libc::socklen_t,
        ))?;
        let bytes = 4 << 20;
        let _ = libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_RCVBUFFORCE,
            (&raw const bytes).cast(),
            4,
        );
        let mut address: libc::sockaddr_ll = std::mem::zeroed();
        address.sll_family = libc::AF_PACKET as u16;
        address.sll_protocol = ALL.to_be();
        address.sll_ifindex = index;
        let length = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
        check(libc::bind(
            socket.as_raw_fd(),
            (&raw const address).cast(),
            length,
        ))?;
        Ok(socket)
    }
}

fn run(shared: &Shared, ports: &[OwnedFd; 2], weather: &Weather) {
    let start = Instant::now();
    let mut skies = [Sky::new(weather, 0), Sky::new(weather, 1)];
    let mut frame = vec![0; FRAME_MAX];
    while !shared.stop.load(Ordering::SeqCst) {
        let now = start.elapsed().as_nanos() as u64;
        for (from, sky) in skies.iter_mut().enumerate() {
            for _ in 0..LOOK_FRAMES {
                let socket = ports[from].as_raw_fd();
                // SAFETY: the buffer is as large as stated.
                let got = unsafe { libc::recv(socket, frame.as_mut_ptr().cast(), FRAME_MAX, 0) };
                if got <= 0 {
                    break;
                }
                let frame = &frame[..got as usize];
                if !shared.cut.load(Ordering::SeqCst) {
                    sky.send(now, frame);
                }
            }
            while let Some(frame) = sky.arrival(now) {
                forward(shared, &ports[1 - from], &frame);
            }
        }
        wait(ports, &skies, start.elapsed().as_nanos() as u64);
    }
}

/// A corrupt address or length may make a frame that cannot be sent: then it is lost.
fn forward(shared: &Shared, to: &OwnedFd, frame: &[u8]) {
    // SAFETY: the frame is valid.
    unsafe { libc::send(to.as_raw_fd(), frame.as_ptr().cast(), frame.len(), 0) };
    shared.forwarded.fetch_add(1, Ordering::SeqCst);
}

/// Sleeps until a frame comes or is due.
fn wait(ports: &[OwnedFd; 2], skies: &[Sky; 2], now: u64) {
    let due = skies.iter().filter_map(Sky::next_due).min();
    let sleep_ns = due.map_or(u64::MAX, |due| due.saturating_sub(now));
    let sleep_ns = sleep_ns.min(SLEEP_MS as u64 * 1_000_000);
    let time = libc::timespec {
        tv_sec: 0,
        tv_nsec: sleep_ns as libc::c_long,
    };
    let mut fds = [0, 1].map(|side: usize| libc::pollfd {
        fd: ports[side].as_raw_fd(),
        events: libc::POLLIN,
        revents: 0,
    });
    // SAFETY: a valid array and time.
    unsafe { libc::ppoll(fds.as_mut_ptr(), 2, &raw const time, std::ptr::null()) };
}
