//! Impaired cables: forwards frames between the ports of a switch that does not, through a link emulator. The
//! kernel may lack the module for that (netem), so a thread does it.
//!
//! ```text
//!   host 0 ─ eth0 ══ port0 ─ relay ─ port1 ══ eth0 ─ host 1
//!                              └──── port2 ══ eth0 ─ host 2
//! ```

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::Instant;

use vipl_link_emulator::{FaultCounts, Impairments, LinkEmulator};

use crate::Namespaces;
use crate::inside::{self, enter, socket};

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
    thread: Option<JoinHandle<FaultCounts>>,
}

#[derive(Debug, Default)]
struct Shared {
    stop: AtomicBool,
    cut: AtomicBool,
    forwarded: AtomicU64,
    copy: AtomicBool,
    copies: AtomicU64,
    /// Impairments to apply next.
    next: Mutex<Option<Impairments>>,
}

impl Shared {
    fn next(&self) -> MutexGuard<'_, Option<Impairments>> {
        self.next
            .lock()
            .unwrap_or_else(|broken| broken.into_inner())
    }
}

impl Relay {
    /// Takes the hosts off their switch, and relays between its ports.
    ///
    /// # Errors
    /// Why that is not possible.
    pub fn start(hosts: &Namespaces, mut impairments: Impairments) -> io::Result<Relay> {
        // A real link checks each frame; what it lets pass wrongly is no wrong address.
        impairments.exempt_bytes = HEADER_BYTES;
        let switch = hosts
            .switch()
            .ok_or_else(|| io::Error::other("hosts without a switch"))?
            .to_owned();
        let addresses: Vec<_> = (0..hosts.hosts()).map(|host| hosts.address(host)).collect();
        let last = hosts.ipv4(hosts.hosts() - 1).octets();
        for host in 0..hosts.hosts() {
            // Otherwise packets of IP come here before they have been cut into frames, and without checksums.
            hosts.inside(host, inside::finish_packets)??;
            hosts.introduce(host);
            hosts.cut(host);
        }
        let shared = Arc::new(Shared::default());
        let (ready, started) = std::sync::mpsc::channel();
        let thread = std::thread::spawn({
            let shared = shared.clone();
            move || match enter(&switch).and_then(|()| ports(&addresses, &impairments)) {
                Ok(mut ports) => {
                    let _ = ready.send(Ok(()));
                    run(&shared, &mut ports, last)
                }
                Err(error) => {
                    let _ = ready.send(Err(error));
                    FaultCounts::default()
                }
            }
        });
        started.recv().map_err(io::Error::other)??;
        Ok(Relay {
            shared,
            thread: Some(thread),
        })
    }

    /// Cuts the cable, or mends it; no interface notices.
    pub fn cut(&self, cut: bool) {
        self.shared.cut.store(cut, Ordering::SeqCst);
    }

    /// Changes the impairments, within milliseconds.
    pub fn impair(&self, mut impairments: Impairments) {
        impairments.exempt_bytes = HEADER_BYTES;
        *self.shared.next() = Some(impairments);
    }

    /// From now on the last host sends a copy of each datagram of data of the others under its own IPv4 address, and each copy
    /// arrives before its original.
    pub fn copy(&self, copy: bool) {
        self.shared.copy.store(copy, Ordering::SeqCst);
    }

    /// Copies that were sent.
    pub fn copies(&self) -> u64 {
        self.shared.copies.load(Ordering::SeqCst)
    }

    /// Frames that have arrived somewhere.
    pub fn forwarded(&self) -> u64 {
        self.shared.forwarded.load(Ordering::SeqCst)
    }

    /// Ends it; returns the injected faults.
    pub fn end(mut self) -> FaultCounts {
        self.stop()
    }

    fn stop(&mut self) -> FaultCounts {
        self.shared.stop.store(true, Ordering::SeqCst);
        let ended = self.thread.take().map(JoinHandle::join);
        ended.and_then(Result::ok).unwrap_or_default()
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.stop();
    }
}

/// One end of a cable.
struct Port {
    socket: OwnedFd,
    /// Of the host at the other end.
    address: [u8; 6],
    /// The cable, for frames from that host.
    link: LinkEmulator,
}

/// The ports of the switch, in whose namespace the thread is.
fn ports(addresses: &[[u8; 6]], impairments: &Impairments) -> io::Result<Vec<Port>> {
    let port = |(number, address): (usize, &[u8; 6])| {
        Ok(Port {
            socket: socket(&format!("port{number}"))?,
            address: *address,
            link: LinkEmulator::new(impairments, number as u64),
        })
    };
    addresses.iter().enumerate().map(port).collect()
}

fn run(shared: &Shared, ports: &mut [Port], last: [u8; 4]) -> FaultCounts {
    let start = Instant::now();
    let mut buffer = vec![0; FRAME_MAX];
    while !shared.stop.load(Ordering::SeqCst) {
        let now = start.elapsed().as_nanos() as u64;
        if let Some(impairments) = shared.next().take() {
            for port in &mut *ports {
                port.link.set_impairments(&impairments);
            }
        }
        for from in 0..ports.len() {
            let port = &mut ports[from];
            for _ in 0..LOOK_FRAMES {
                let socket = port.socket.as_raw_fd();
                // SAFETY: the buffer is as large as stated.
                let got = unsafe { libc::recv(socket, buffer.as_mut_ptr().cast(), FRAME_MAX, 0) };
                if got <= 0 {
                    break;
                }
                if !shared.cut.load(Ordering::SeqCst) {
                    port.link.send(now, &buffer[..got as usize]);
                }
            }
            while let Some(frame) = ports[from].link.receive(now) {
                let copy = shared.copy.load(Ordering::SeqCst);
                let copy = copy.then(|| copied(&frame, last)).flatten();
                for to in receivers(ports, from, &frame) {
                    if let Some(copy) = &copy {
                        forward(shared, &to.socket, copy);
                        shared.copies.fetch_add(1, Ordering::SeqCst);
                    }
                    forward(shared, &to.socket, &frame);
                }
            }
        }
        wait(ports, start.elapsed().as_nanos() as u64);
    }
    let mut faults = FaultCounts::default();
    for port in ports {
        faults += port.link.counts();
    }
    faults
}

/// The port of the host that a frame is for; all others, if it is for none of them.
fn receivers<'a>(
    ports: &'a [Port],
    from: usize,
    frame: &[u8],
) -> impl Iterator<Item = &'a Port> + use<'a> {
    let only = ports
        .iter()
        .position(|port| frame.starts_with(&port.address));
    let others = ports.iter().enumerate().filter(move |(to, _)| *to != from);
    others
        .filter(move |(to, _)| only.is_none_or(|only| only == *to))
        .map(|(_, port)| port)
}

/// A datagram of data, from another IPv4 address. `None`: the frame is something else, or comes from there.
fn copied(frame: &[u8], from: [u8; 4]) -> Option<Vec<u8>> {
    const AGENT: u16 = 34998;
    let packet = frame.get(HEADER_BYTES..)?;
    let datagram = frame.get(HEADER_BYTES + 20..)?;
    // A header without options.
    let udp = frame[12..14] == [8, 0] && packet[0] == 0x45 && packet[9] == 17;
    let port = |at: usize| {
        Some(u16::from_be_bytes([
            *datagram.get(at)?,
            *datagram.get(at + 1)?,
        ]))
    };
    if !udp || packet[12..16] == from || port(0)? == AGENT || port(2)? == AGENT {
        return None;
    }
    let mut copy = frame.to_vec();
    let packet = &mut copy[HEADER_BYTES..];
    packet[12..16].copy_from_slice(&from);
    packet[10..12].fill(0);
    let words = packet[..20].chunks_exact(2);
    let sum: u32 = words
        .map(|word| u32::from(u16::from_be_bytes([word[0], word[1]])))
        .sum();
    let sum = (sum & 0xFFFF) + (sum >> 16);
    let sum = !((sum & 0xFFFF) + (sum >> 16)) as u16;
    packet[10..12].copy_from_slice(&sum.to_be_bytes());
    // Over IPv4 a datagram may do without a checksum.
    packet.get_mut(26..28)?.fill(0);
    Some(copy)
}

/// A corrupt address or length may make a frame that cannot be sent: then it is lost.
fn forward(shared: &Shared, to: &OwnedFd, frame: &[u8]) {
    // SAFETY: the frame is valid.
    unsafe { libc::send(to.as_raw_fd(), frame.as_ptr().cast(), frame.len(), 0) };
    shared.forwarded.fetch_add(1, Ordering::SeqCst);
}

/// Sleeps until a frame comes or is due.
fn wait(ports: &[Port], now: u64) {
    let due = ports.iter().filter_map(|port| port.link.next_due()).min();
    let sleep_ns = due.map_or(u64::MAX, |due| due.saturating_sub(now));
    let sleep_ns = sleep_ns.min(SLEEP_MS as u64 * 1_000_000);
    let time = libc::timespec {
        tv_sec: 0,
        tv_nsec: sleep_ns as libc::c_long,
    };
    let poll = |port: &Port| libc::pollfd {
        fd: port.socket.as_raw_fd(),
        events: libc::POLLIN,
        revents: 0,
    };
    let mut fds: Vec<_> = ports.iter().map(poll).collect();
    let count = fds.len() as libc::nfds_t;
    // SAFETY: a valid array and time.
    unsafe { libc::ppoll(fds.as_mut_ptr(), count, &raw const time, std::ptr::null()) };
}
