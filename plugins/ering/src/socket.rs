//! The data socket of a NIC: AF_PACKET, opened and filtered by the Kernel Agent, driven from here.
//!
//! Frames are received in a ring that the kernel shares with this process (TPACKET_V2): looking for one
//! costs a load, no system call, and each frame is there at once. TPACKET_V3 hands over blocks when a
//! timer says so, which is too late for us. Sending is plain: `sendto` for one frame, `sendmmsg` for more.
//!
//! Interfaces go down, come up, lose their MTU and vanish. None of that is an error of this file's users:
//! a frame that cannot be sent is lost, as on a cut cable, and the protocol above decides when to give up.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use vipl_plugin_sdk::shm::Kept;
use vipl_wire::ETHERTYPE;

use crate::errno;
pub use crate::errno::{drop_notices, take_socket_error};

/// Block of the receive ring in bytes.
const BLOCK: usize = 64 << 10;
/// Room that the kernel wants in front of each frame, and what a frame has beyond its payload.
const OVERHEAD: usize = 128;
/// Frames of one `sendmmsg`.
const BURST_MAX: usize = 64;

/// The receive side, for one thread at a time.
pub struct Receiver {
    socket: RawFd,
    ring: *mut u8,
    bytes: usize,
    frame_bytes: usize,
    /// A power of two.
    frames: usize,
    next: usize,
}

// SAFETY: the mapping stays where it is; the receiver is used under a lock.
unsafe impl Send for Receiver {}

/// The status word of the place where the next frame arrives. Anybody may look at it, whoever has the
/// receiver.
pub(crate) struct Tip(AtomicPtr<u32>);

impl Tip {
    /// That of a receiver, which must not be dropped earlier.
    pub(crate) fn new(receiver: &Receiver) -> Tip {
        Tip(AtomicPtr::new(receiver.status()))
    }

    /// The receiver has gone on.
    pub(crate) fn follow(&self, receiver: &Receiver) {
        self.0.store(receiver.status(), Ordering::Release);
    }

    /// Whether a frame lies there. If so, asks for the beginning of it, which another processor has written. A
    /// thread that reads meanwhile may have taken it already, which does no harm.
    #[inline(always)]
    pub(crate) fn has_frame(&self) -> bool {
        let place = self.0.load(Ordering::Acquire);
        // SAFETY: a word of the ring, which stays mapped; the kernel writes it, so it is an atomic one.
        let status = unsafe { AtomicU32::from_ptr(place) };
        let lies_there = status.load(Ordering::Acquire) & libc::TP_STATUS_USER != 0;
        if lies_there {
            // A small frame lies in the three lines behind its place's first one.
            for line in 1..=3 {
                fetch_line(place.wrapping_byte_add(64 * line).cast());
            }
        }
        lies_there
    }
}

/// Asks for the cache line at this address, without waiting for it.
#[inline(always)]
fn fetch_line(address: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a hint, at any address.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(address.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}

/// What one look at the ring brought.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Received {
    /// Frames given to the caller.
    pub frames: u32,
    /// Frames that were cut because they were larger than the interface should send.
    pub cut: u32,
    /// The kernel had to drop frames since it last said so.
    pub losing: bool,
}

fn option<T>(socket: RawFd, name: i32, value: &T) -> io::Result<()> {
    // SAFETY: the option's value is valid for its size.
    let status = unsafe {
        libc::setsockopt(
            socket,
            libc::SOL_PACKET,
            name,
            std::ptr::from_ref(value).cast(),
            size_of::<T>() as libc::socklen_t,
        )
    };
    if status == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Bytes of the place of one frame, and of the whole ring.
fn shape(mtu: usize, frames: usize) -> io::Result<(usize, usize)> {
    let frame_bytes = (mtu + OVERHEAD).next_power_of_two().clamp(2048, BLOCK);
    let bytes = frames * frame_bytes;
    if !bytes.is_multiple_of(BLOCK) || !frames.is_power_of_two() {
        return Err(io::Error::other(
            "the receive ring has no whole blocks, or no power of two of frames",
        ));
    }
    Ok((frame_bytes, bytes))
}

/// The address family of a socket.
fn domain(socket: RawFd) -> io::Result<i32> {
    let mut domain = 0i32;
    let mut length = size_of::<i32>() as libc::socklen_t;
    // SAFETY: room for one number.
    let status = unsafe {
        libc::getsockopt(
            socket,
            libc::SOL_SOCKET,
            libc::SO_DOMAIN,
            (&raw mut domain).cast(),
            &raw mut length,
        )
    };
    if status == 0 {
        Ok(domain)
    } else {
        Err(io::Error::last_os_error())
    }
}

impl Receiver {
    /// Makes the ring and maps it: `frames` frames, a power of two, with payloads up to `mtu` bytes.
    ///
    /// # Errors
    /// The kernel's.
    pub fn open(socket: RawFd, mtu: usize, frames: usize) -> io::Result<Receiver> {
        Receiver::prepare(socket, mtu, frames)?;
        Receiver::map(socket, mtu, frames)
    }

    /// Makes the ring, for whoever maps it. The kernel takes its time for that, some milliseconds.
    ///
    /// # Errors
    /// The kernel's.
    pub fn prepare(socket: RawFd, mtu: usize, frames: usize) -> io::Result<()> {
        let (frame_bytes, bytes) = shape(mtu, frames)?;
        // An old kernel without it gives back our own frames; they are for other addresses.
        let _ = option(socket, libc::PACKET_IGNORE_OUTGOING, &1i32);
        option(
            socket,
            libc::PACKET_VERSION,
            &(libc::tpacket_versions::TPACKET_V2 as i32),
        )?;
        let request = libc::tpacket_req {
            tp_block_size: BLOCK as u32,
            tp_block_nr: (bytes / BLOCK) as u32,
            tp_frame_size: frame_bytes as u32,
            tp_frame_nr: frames as u32,
        };
        option(socket, libc::PACKET_RX_RING, &request)
    }

    /// Maps a ring that was made with the same numbers, perhaps by another process.
    ///
    /// # Errors
    /// It is no such socket, or has no such ring.
    pub fn map(socket: RawFd, mtu: usize, frames: usize) -> io::Result<Receiver> {
        let (frame_bytes, bytes) = shape(mtu, frames)?;
        // Memory of any other descriptor might vanish.
        if domain(socket)? != libc::AF_PACKET {
            return Err(io::Error::from_raw_os_error(libc::EPROTOTYPE));
        }
        // SAFETY: a new mapping. The kernel maps the whole ring or nothing, and lets nobody take it away.
        let ring = unsafe {
            let protection = libc::PROT_READ | libc::PROT_WRITE;
            let ring = libc::mmap(
                std::ptr::null_mut(),
                bytes,
                protection,
                libc::MAP_SHARED,
                socket,
                0,
            );
            if ring == libc::MAP_FAILED {
                return Err(io::Error::last_os_error());
            }
            libc::madvise(ring, bytes, libc::MADV_DONTFORK);
            ring.cast::<u8>()
        };
        Ok(Receiver {
            socket,
            ring,
            bytes,
            frame_bytes,
            frames,
            next: 0,
        })
    }

    /// Status word of the place where the next frame arrives.
    fn status(&self) -> *mut u32 {
        self.place(self.next).cast()
    }

    #[inline(always)]
    fn place(&self, number: usize) -> *mut u8 {
        self.ring.wrapping_add(number * self.frame_bytes)
    }

    /// Gives frames to `each` in the order of their arrival, `most` at most.
    pub fn receive(&mut self, most: u32, mut each: impl FnMut(&[u8])) -> Received {
        let mut received = Received::default();
        while received.frames + received.cut < most {
            let header = self.place(self.next).cast::<libc::tpacket2_hdr>();
            // SAFETY: inside the ring; the kernel writes the word, so it is an atomic one.
            let status = unsafe { AtomicU32::from_ptr(&raw mut (*header).tp_status) };
            // Acquire: what the kernel wrote before is seen.
            let word = status.load(Ordering::Acquire);
            if word & libc::TP_STATUS_USER == 0 {
                break;
            }
            received.losing |= word & libc::TP_STATUS_LOSING != 0;
            let next = (self.next + 1) & (self.frames - 1);
            // Another processor has the word that is looked at next; it comes while this frame is processed.
            fetch_line(self.place(next));
            // SAFETY: the frame is this process's until the status is given back; the kernel keeps
            // frames inside their places.
            let (whole, frame) = unsafe {
                let (length, start) = ((*header).tp_snaplen, (*header).tp_mac);
                // Where others have mapped the ring, too, the header may say anything.
                let start = usize::from(start).min(self.frame_bytes);
                let at = header.cast::<u8>().add(start);
                let room = self.frame_bytes - start;
                let length = (length as usize).min(room);
                (
                    length as u32 == (*header).tp_len,
                    std::slice::from_raw_parts(at, length),
                )
            };
            if whole {
                received.frames += 1;
                each(frame);
            } else {
                received.cut += 1;
            }
            // Release: the kernel may use the place again.
            status.store(libc::TP_STATUS_KERNEL, Ordering::Release);
            self.next = next;
        }
        received
    }

    /// Frames that may lie in the ring.
    pub(crate) fn frames(&self) -> u32 {
        self.frames as u32
    }

    /// Frames that the kernel dropped since this was last asked.
    pub(crate) fn take_drops(&self) -> u32 {
        // SAFETY: two counters, all zero is valid.
        let mut stats: libc::tpacket_stats = unsafe { std::mem::zeroed() };
        let mut length = size_of::<libc::tpacket_stats>() as libc::socklen_t;
        // SAFETY: room for the counters.
        unsafe {
            libc::getsockopt(
                self.socket,
                libc::SOL_PACKET,
                libc::PACKET_STATISTICS,
                (&raw mut stats).cast(),
                &raw mut length,
            );
        }
        stats.tp_drops
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        // SAFETY: mapped by `open`, unmapped once.
        unsafe { libc::munmap(self.ring.cast(), self.bytes) };
    }
}

/// Whether the socket still belongs to an interface; one that was removed unbinds it.
pub fn is_bound(socket: RawFd) -> bool {
    bound_to(socket).is_some()
}

/// The interface of a socket, if there is one.
fn bound_to(socket: RawFd) -> Option<libc::sockaddr_ll> {
    // SAFETY: all zero is a valid address.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    let mut length = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
    // SAFETY: room for an address of this kind.
    let known =
        unsafe { libc::getsockname(socket, (&raw mut address).cast(), &raw mut length) == 0 };
    (known && address.sll_ifindex > 0).then_some(address)
}

/// Bytes of the Ethernet header.
pub const ETHERNET: usize = 14;
/// What stands before a frame: destination, source, ethertype.
pub type Header = [u8; ETHERNET];

/// The header of frames from one address to another.
pub fn header(to: [u8; 6], from: [u8; 6]) -> Header {
    let mut header = [0; ETHERNET];
    header[..6].copy_from_slice(&to);
    header[6..12].copy_from_slice(&from);
    header[12..].copy_from_slice(&ETHERTYPE.to_be_bytes());
    header
}

/// A whole frame at the beginning of a buffer.
pub struct Frame {
    /// The frame and, behind it, whatever was there.
    pub buffer: Vec<u8>,
    /// Bytes of the frame, Ethernet header included.
    pub bytes: usize,
}

impl Frame {
    fn contents(&self) -> &[u8] {
        &self.buffer[..self.bytes]
    }
}

/// What became of frames that were to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sent {
    /// So many are on their way, one at least.
    Frames(usize),
    /// The device has no room now; the same frames again later.
    Again,
    /// The first one cannot be sent, for this `errno`; it is lost.
    Lost(i32),
}

/// What makes every socket but one of AF_PACKET refuse, together with an address of that family: urgent data, for
/// those that have none (UDP, raw, Unix, netlink), and data of a connection request (TCP). The program may have
/// closed our socket and opened one of its own under its number, and no look before each frame costs as little.
const PACKETS_ONLY: i32 = libc::MSG_OOB | libc::MSG_FASTOPEN;

/// The sending side of a data socket.
pub struct Sender {
    socket: Kept,
    /// The interface, as in every call.
    to: libc::sockaddr_ll,
}

impl Sender {
    /// Of a socket that is bound to its interface.
    pub fn new(socket: OwnedFd) -> Sender {
        let to = bound_to(socket.as_raw_fd()).unwrap_or_else(|| {
            // SAFETY: all zero is a valid address; nothing can be sent there.
            unsafe { std::mem::zeroed() }
        });
        Sender {
            socket: Kept::new(socket),
            to,
        }
    }

    /// The socket. `None`: the program has closed it.
    pub fn socket(&self) -> Option<RawFd> {
        self.socket.fd().ok()
    }

    /// Its number, whatever that stands for by now.
    pub fn number(&self) -> RawFd {
        self.socket.number()
    }

    /// Sends whole frames, Ethernet header included, `BURST_MAX` at most, with one system call.
    pub fn send(&self, frames: &[Frame]) -> Sent {
        let sent = match frames {
            [] => return Sent::Frames(0),
            [frame] => self.send_one(frame.contents()).min(1),
            frames => self.send_many(&frames[..frames.len().min(BURST_MAX)]),
        };
        if sent > 0 {
            return Sent::Frames(sent as usize);
        }
        if sent == 0 {
            // A socket with a transmit ring, which somebody else has given it, sends what lies there.
            return Sent::Lost(libc::EIO);
        }
        match errno::last() {
            libc::EAGAIN | libc::ENOBUFS | libc::EINTR => Sent::Again,
            error => Sent::Lost(error),
        }
    }

    fn send_one(&self, frame: &[u8]) -> isize {
        // SAFETY: frame and address are valid.
        unsafe {
            libc::sendto(
                self.number(),
                frame.as_ptr().cast(),
                frame.len(),
                libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL | PACKETS_ONLY,
                (&raw const self.to).cast(),
                size_of::<libc::sockaddr_ll>() as libc::socklen_t,
            )
        }
    }

    fn send_many(&self, frames: &[Frame]) -> isize {
        // SAFETY: all zero is a valid value of both.
        let mut parts: [libc::iovec; BURST_MAX] = unsafe { std::mem::zeroed() };
        // SAFETY: as above.
        let mut messages: [libc::mmsghdr; BURST_MAX] = unsafe { std::mem::zeroed() };
        for (place, frame) in frames.iter().enumerate() {
            let frame = frame.contents();
            parts[place] = libc::iovec {
                iov_base: frame.as_ptr().cast_mut().cast(),
                iov_len: frame.len(),
            };
            let header = &mut messages[place].msg_hdr;
            header.msg_iov = &raw mut parts[place];
            header.msg_iovlen = 1;
            header.msg_name = (&raw const self.to).cast_mut().cast();
            header.msg_namelen = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
        }
        // SAFETY: as many messages as frames, each with one valid part.
        let sent = unsafe {
            libc::sendmmsg(
                self.number(),
                messages.as_mut_ptr(),
                frames.len() as u32,
                libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL | PACKETS_ONLY,
            )
        };
        sent as isize
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::ErrorKind;
    use std::net::{TcpListener, TcpStream, UdpSocket};
    use std::os::unix::net::{UnixDatagram, UnixStream};

    /// What took the number of a closed data socket gets no byte.
    #[test]
    fn no_other_socket_takes_a_frame() {
        let frame = || Frame {
            buffer: vec![7; 60],
            bytes: 60,
        };
        // SAFETY: all zero is a valid address.
        let mut to: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        to.sll_family = libc::AF_PACKET as u16;
        to.sll_ifindex = 1;
        let refuses = |fd: OwnedFd, name: &str| {
            let socket = Kept::new(fd);
            let sender = Sender { socket, to };
            let one = sender.send(&[frame()]);
            assert!(matches!(one, Sent::Lost(_)), "{name}: {one:?}");
            let two = sender.send(&[frame(), frame()]);
            assert!(matches!(two, Sent::Lost(_)), "{name}: {two:?}");
        };
        let nothing = |read: std::io::Result<usize>, name: &str| {
            let none = read.is_err_and(|error| error.kind() == ErrorKind::WouldBlock);
            assert!(none, "{name} has got something");
        };
        let mut room = [0; 64];
        for host in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(listener) = TcpListener::bind(host) else {
                println!("SKIP {host}: no such address here");
                continue;
            };
            let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (far, _) = listener.accept().unwrap();
            far.set_nonblocking(true).unwrap();
            refuses(near.try_clone().unwrap().into(), "TCP");
            nothing(far.peek(&mut room), "TCP");
            drop(near);
            let (near, far) = (
                UdpSocket::bind(host).unwrap(),
                UdpSocket::bind(host).unwrap(),
            );
            near.connect(far.local_addr().unwrap()).unwrap();
            far.set_nonblocking(true).unwrap();
            refuses(near.into(), "UDP");
            nothing(far.recv(&mut room), "UDP");
        }
        let (near, far) = UnixDatagram::pair().unwrap();
        far.set_nonblocking(true).unwrap();
        refuses(near.try_clone().unwrap().into(), "Unix datagrams");
        nothing(far.recv(&mut room), "Unix datagrams");
        let (near, far) = UnixStream::pair().unwrap();
        far.set_nonblocking(true).unwrap();
        refuses(near.try_clone().unwrap().into(), "Unix stream");
        nothing(std::io::Read::read(&mut &far, &mut room), "Unix stream");
        drop(near);
        let (reader, writer) = std::io::pipe().unwrap();
        refuses(writer.into(), "pipe");
        drop(reader);
    }
}
