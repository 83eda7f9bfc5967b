//! Sending datagrams: one system call passes a train, or several trains. A train stands in one buffer, because the kernel
//! copies that in half the time of many pieces.

use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use vipl_sys::fd::Kept;

use super::peer::Peer;
use super::use_marks;
use crate::{Frame, Sent, options};

/// Messages of one `sendmmsg`.
const BURST_MAX: usize = 64;
/// Bytes of the control message with the length of the datagrams of a train.
const CONTROL: usize = size_of::<libc::cmsghdr>() + 8;
/// Send buffer to ask for; the kernel limits it.
const ROOM: i32 = 4 << 20;

/// Datagrams that leave one by one after the kernel has refused a train.
const SINGLE: usize = 4096;

/// A connected TCP socket refuses the last flag, and UDP ignores it; sockets of other kinds refuse the address.
const FLAGS: i32 = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL | libc::MSG_FASTOPEN;

#[repr(C, align(8))]
#[derive(Clone, Copy)]
struct Control([u8; CONTROL]);

/// The sending side of a data socket.
pub struct Sender {
    socket: Kept,
    /// Datagrams that leave one by one before the next train.
    single: AtomicUsize,
    /// Routers drop datagrams with the ECT codepoint.
    refused: AtomicBool,
}

impl Sender {
    /// Takes a UDP socket.
    pub fn new(socket: OwnedFd) -> Sender {
        let fd = socket.as_raw_fd();
        let _ = options::set(fd, libc::SOL_SOCKET, libc::SO_SNDBUF, &ROOM);
        // No host or router fragments a datagram, and one as long as the interface allows leaves it: the engine finds the
        // size that the path carries. Each family refuses the option of the other.
        let probe = libc::IP_PMTUDISC_PROBE;
        let _ = options::set(fd, libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, &probe);
        let probe = libc::IPV6_PMTUDISC_PROBE;
        let _ = options::set(fd, libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, &probe);
        Sender {
            socket: Kept::new(socket),
            single: AtomicUsize::new(0),
            refused: AtomicBool::new(false),
        }
    }

    /// The socket. `None`: the application has closed it.
    pub fn socket(&self) -> Option<RawFd> {
        self.socket.fd().ok()
    }

    /// The descriptor's number, without a check of what it refers to now.
    pub(crate) fn number(&self) -> RawFd {
        self.socket.number()
    }

    /// From now on datagrams carry the ECT codepoint of RFC 3168: a congested router marks them instead of dropping them.
    /// The receiver of the same socket reports marks of arriving datagrams. With `false` never again.
    pub fn mark(&self, on: bool) {
        let refused = !on || self.refused.load(Ordering::SeqCst);
        self.refused.store(refused, Ordering::SeqCst);
        if let Some(socket) = self.socket() {
            use_marks(socket, !refused);
        }
    }

    /// Sends as many trains as one system call takes.
    pub fn send(&self, trains: &[Frame]) -> Sent {
        let sent = match trains {
            [] => return Sent::Frames(0),
            [one] if one.count() == 1 => self.send_one(one).min(1),
            _ if self.single.load(Ordering::Relaxed) > 0 => self.send_one_by_one(trains),
            _ => self.send_trains(trains),
        };
        if sent > 0 {
            return Sent::Frames(sent as usize);
        }
        match std::io::Error::last_os_error().raw_os_error().unwrap_or(0) {
            libc::EAGAIN | libc::ENOBUFS | libc::EINTR => Sent::Again,
            // The datagrams are longer than the interface now allows, or it computes no checksums.
            libc::EINVAL | libc::EIO | libc::EMSGSIZE
                if trains[0].count() > 1 && self.single.load(Ordering::Relaxed) == 0 =>
            {
                self.single.store(SINGLE, Ordering::Relaxed);
                self.send(trains)
            }
            error => Sent::Lost(error),
        }
    }

    /// As after the kernel has refused a train.
    #[cfg(test)]
    pub(crate) fn refuse_trains(&self) {
        self.single.store(SINGLE, Ordering::Relaxed);
    }

    fn send_one(&self, frame: &Frame) -> isize {
        let (to, (bytes, _)) = (frame.header(), frame.train());
        // SAFETY: datagram and address are valid.
        unsafe {
            vipl_sys::uncancelled::sendto(
                self.socket.number(),
                bytes.as_ptr().cast(),
                bytes.len(),
                FLAGS,
                to.as_ptr().cast(),
                Peer::length(to) as libc::socklen_t,
            )
        }
    }

    /// Returns the number of datagrams sent.
    fn send_trains(&self, trains: &[Frame]) -> isize {
        let mut messages = Messages::new();
        for train in trains.iter().take(BURST_MAX) {
            let (bytes, length) = train.train();
            messages.add(train.header(), bytes, (train.count() > 1).then_some(length));
        }
        match usize::try_from(messages.send(self.socket.number())) {
            Ok(sent) => trains[..sent].iter().map(Frame::count).sum::<usize>() as isize,
            Err(_) => -1,
        }
    }

    /// The same without trains.
    #[cold]
    fn send_one_by_one(&self, trains: &[Frame]) -> isize {
        let mut messages = Messages::new();
        let datagrams = trains
            .iter()
            .flat_map(|train| train.members().map(|datagram| (train.header(), datagram)));
        for (to, datagram) in datagrams.take(BURST_MAX) {
            messages.add(to, datagram, None);
        }
        // If threads do this at the same time, it ends a little sooner or later.
        let left = self
            .single
            .load(Ordering::Relaxed)
            .saturating_sub(messages.count);
        self.single.store(left, Ordering::Relaxed);
        messages.send(self.socket.number())
    }
}

/// What one `sendmmsg` passes to the kernel.
struct Messages<'a> {
    count: usize,
    headers: [MaybeUninit<libc::mmsghdr>; BURST_MAX],
    parts: [MaybeUninit<libc::iovec>; BURST_MAX],
    controls: [MaybeUninit<Control>; BURST_MAX],
    bytes: PhantomData<&'a [u8]>,
}

impl<'a> Messages<'a> {
    fn new() -> Self {
        Messages {
            count: 0,
            // Most bursts are one train, and clearing all of this takes longer than filling one.
            headers: [const { MaybeUninit::uninit() }; BURST_MAX],
            parts: [const { MaybeUninit::uninit() }; BURST_MAX],
            controls: [const { MaybeUninit::uninit() }; BURST_MAX],
            bytes: PhantomData,
        }
    }

    /// Adds datagrams to one receiver: one, or a train whose datagrams have this length.
    fn add(&mut self, to: &'a [u8], bytes: &'a [u8], train: Option<usize>) {
        let number = self.count;
        self.parts[number].write(libc::iovec {
            iov_base: bytes.as_ptr().cast_mut().cast(),
            iov_len: bytes.len(),
        });
        // SAFETY: all zero is a valid message.
        let message = self.headers[number].write(unsafe { std::mem::zeroed() });
        let header = &mut message.msg_hdr;
        header.msg_name = to.as_ptr().cast_mut().cast();
        header.msg_namelen = Peer::length(to) as libc::socklen_t;
        header.msg_iovlen = 1;
        if let Some(length) = train {
            self.controls[number].write(control(length as u16));
            header.msg_controllen = CONTROL as _;
        }
        self.count += 1;
    }

    /// Returns the number of messages sent.
    fn send(&mut self, socket: RawFd) -> isize {
        let parts = self.parts.iter_mut().zip(&mut self.controls);
        let rest = self.headers.iter_mut().zip(parts);
        for (message, (part, control)) in rest.take(self.count) {
            // SAFETY: `add` has written it.
            let header = unsafe { &mut message.assume_init_mut().msg_hdr };
            header.msg_iov = part.as_mut_ptr();
            if header.msg_controllen > 0 {
                header.msg_control = control.as_mut_ptr().cast();
            }
        }
        // SAFETY: as many messages as stated, whose addresses, parts and control messages outlive the call.
        let sent = unsafe {
            vipl_sys::uncancelled::sendmmsg(
                socket,
                self.headers.as_mut_ptr().cast(),
                self.count as u32,
                FLAGS,
            )
        };
        sent as isize
    }
}

/// The control message of a train: the length of its datagrams.
fn control(length: u16) -> Control {
    let mut control = Control([0; CONTROL]);
    let head = libc::cmsghdr {
        cmsg_len: (size_of::<libc::cmsghdr>() + 2) as _,
        cmsg_level: libc::SOL_UDP,
        cmsg_type: libc::UDP_SEGMENT,
    };
    // SAFETY: the buffer is aligned and has room for the head and eight bytes.
    unsafe { (&raw mut control).cast::<libc::cmsghdr>().write(head) };
    control.0[size_of::<libc::cmsghdr>()..][..2].copy_from_slice(&length.to_ne_bytes());
    control
}

#[cfg(test)]
pub(crate) mod tests {
    use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};

    use super::*;
    use crate::Header;
    use crate::frame::tests::frame;

    pub(crate) fn made(to: SocketAddr, bytes: &[u8]) -> Frame {
        frame(&Header::udp(Peer::from(to)), bytes)
    }

    #[test]
    fn no_other_socket_takes_a_datagram() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (far, _) = listener.accept().unwrap();
        far.set_nonblocking(true).unwrap();
        let to: SocketAddr = "127.0.0.1:9".parse().unwrap();
        let sender = Sender {
            socket: Kept::new(near.try_clone().unwrap().into()),
            single: AtomicUsize::new(0),
            refused: AtomicBool::new(false),
        };
        let one = sender.send(&[made(to, b"one")]);
        assert!(matches!(one, Sent::Lost(_)), "{one:?}");
        let two = sender.send(&[made(to, b"two"), made(to, b"two")]);
        assert!(matches!(two, Sent::Lost(_)), "{two:?}");
        let mut room = [0; 9];
        let none = far.peek(&mut room);
        assert!(none.is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock));
    }

    #[test]
    fn without_trains_everything_arrives_as_well() {
        let far = UdpSocket::bind("127.0.0.1:0").unwrap();
        let to = far.local_addr().unwrap();
        let sender = Sender::new(UdpSocket::bind("127.0.0.1:0").unwrap().into());
        sender.refuse_trains();
        let sent = sender.send(&[made(to, b"one"), made(to, b"two"), made(to, b"")]);
        assert_eq!(sent, Sent::Frames(3));
        for expected in [&b"one"[..], b"two", b""] {
            let mut room = [0; 9];
            let got = far.recv(&mut room).unwrap();
            assert_eq!(&room[..got], expected);
        }
    }
}
