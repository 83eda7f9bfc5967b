//! Sending datagrams: one system call passes a train, or several trains.

use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use vipl_sys::fd::Kept;
use vipl_wire::Kind;

use super::peer::{PEER, Peer};
use super::{TRAIN, TRAIN_BYTES, use_marks};
use crate::{Frame, Sent, options};

/// Datagrams of one `sendmmsg`.
const BURST_MAX: usize = 64;
/// Bytes of the control message with the length of the datagrams of a train.
const CONTROL: usize = size_of::<libc::cmsghdr>() + 8;
/// Send buffer to ask for; the kernel limits it.
const ROOM: i32 = 4 << 20;

/// Datagrams that leave one by one after the kernel has refused a train.
const SINGLE: usize = 4096;

/// A connected TCP socket refuses this flag, and UDP ignores it; sockets of other kinds refuse the address.
const UDP_ONLY: i32 = libc::MSG_FASTOPEN;

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

    /// Sends as many of the datagrams as one system call takes.
    pub fn send(&self, datagrams: &[Frame]) -> Sent {
        let datagrams = &datagrams[..datagrams.len().min(BURST_MAX)];
        let sent = match datagrams {
            [] => return Sent::Frames(0),
            [one] => self.send_one(one.contents()).min(1),
            several => self.send_trains(several),
        };
        if sent > 0 {
            return Sent::Frames(sent as usize);
        }
        match std::io::Error::last_os_error().raw_os_error().unwrap_or(0) {
            libc::EAGAIN | libc::ENOBUFS | libc::EINTR => Sent::Again,
            // The datagrams are longer than the interface now allows, or it computes no checksums.
            libc::EINVAL | libc::EIO | libc::EMSGSIZE
                if datagrams.len() > 1 && self.single.load(Ordering::Relaxed) == 0 =>
            {
                self.single.store(SINGLE, Ordering::Relaxed);
                self.send(&datagrams[..1])
            }
            error => Sent::Lost(error),
        }
    }

    fn send_one(&self, datagram: &[u8]) -> isize {
        let (to, bytes) = datagram.split_at(PEER);
        // SAFETY: datagram and address are valid.
        unsafe {
            vipl_sys::uncancelled::sendto(
                self.socket.number(),
                bytes.as_ptr().cast(),
                bytes.len(),
                libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL | UDP_ONLY,
                to.as_ptr().cast(),
                Peer::length(to) as libc::socklen_t,
            )
        }
    }

    /// Returns the number of datagrams sent.
    fn send_trains(&self, datagrams: &[Frame]) -> isize {
        // SAFETY: all zero is a valid value of these three.
        let mut parts: [libc::iovec; BURST_MAX] = unsafe { std::mem::zeroed() };
        // SAFETY: as above.
        let mut messages: [libc::mmsghdr; BURST_MAX] = unsafe { std::mem::zeroed() };
        let mut controls = [Control([0; CONTROL]); BURST_MAX];
        for (part, datagram) in parts.iter_mut().zip(datagrams) {
            let bytes = &datagram.contents()[PEER..];
            part.iov_base = bytes.as_ptr().cast_mut().cast();
            part.iov_len = bytes.len();
        }
        let single = self.single.load(Ordering::Relaxed);
        if single > 0 {
            // If threads do this at the same time, it ends a little sooner or later.
            let left = single.saturating_sub(datagrams.len());
            self.single.store(left, Ordering::Relaxed);
        }
        let mut lengths = [0; BURST_MAX];
        let (mut first, mut count) = (0, 0);
        while first < datagrams.len() {
            let length = if single == 0 {
                train(&datagrams[first..])
            } else {
                1
            };
            let to = &datagrams[first].contents()[..PEER];
            let header = &mut messages[count].msg_hdr;
            header.msg_name = to.as_ptr().cast_mut().cast();
            header.msg_namelen = Peer::length(to) as libc::socklen_t;
            header.msg_iov = &raw mut parts[first];
            header.msg_iovlen = length as _;
            if length > 1 {
                controls[count] = control(parts[first].iov_len as u16);
                header.msg_control = (&raw mut controls[count]).cast();
                header.msg_controllen = CONTROL as _;
            }
            lengths[count] = length;
            first += length;
            count += 1;
        }
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL | UDP_ONLY;
        // SAFETY: as many messages as stated, whose addresses, parts and control messages outlive the call.
        let sent = unsafe {
            vipl_sys::uncancelled::sendmmsg(
                self.socket.number(),
                messages.as_mut_ptr(),
                count as u32,
                flags,
            )
        };
        match usize::try_from(sent) {
            Ok(sent) => lengths[..sent].iter().sum::<usize>() as isize,
            Err(_) => -1,
        }
    }
}

/// How many datagrams from the first on form a train: to one address, of one length; the last one may be shorter.
fn train(datagrams: &[Frame]) -> usize {
    let (to, bytes) = datagrams[0].contents().split_at(PEER);
    let mut all = bytes.len();
    // A train is forwarded or dropped as a whole, and the fate of a TRY must be its own.
    if Kind::Try.is_of(bytes) {
        return 1;
    }
    for (number, next) in datagrams.iter().enumerate().skip(1) {
        let (there, more) = next.contents().split_at(PEER);
        all += more.len();
        // An empty datagram at the end of a train would be lost.
        let fits = !more.is_empty() && more.len() <= bytes.len() && all <= TRAIN_BYTES;
        let fits = fits && !Kind::Try.is_of(more);
        if there != to || !fits || number == TRAIN {
            return number;
        }
        if more.len() < bytes.len() {
            return number + 1;
        }
    }
    datagrams.len()
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
    fn a_train_has_one_receiver_and_one_length() {
        let (one, two) = (
            "192.0.2.1:1".parse().unwrap(),
            "192.0.2.1:2".parse().unwrap(),
        );
        let length = |sizes: &[(SocketAddr, usize)]| {
            let all: Vec<Frame> = sizes
                .iter()
                .map(|(to, size)| made(*to, &vec![0; *size]))
                .collect();
            train(&all)
        };
        assert_eq!(length(&[(one, 9)]), 1);
        assert_eq!(length(&[(one, 9), (one, 9), (one, 8), (one, 8)]), 3);
        assert_eq!(length(&[(one, 9), (one, 9), (one, 10)]), 2);
        assert_eq!(length(&[(one, 9), (two, 9)]), 1);
        assert_eq!(length(&[(one, 9), (one, 9), (one, 0)]), 2);
        assert_eq!(length(&[(one, 0), (one, 0)]), 1);
        assert_eq!(length(&[(one, 9); 100]), TRAIN);
        assert_eq!(length(&[(one, 9000); 9]), 7);
        let alone =
            [0, 0, Kind::Try as u8, 0].map(|kind| made(one, &[vipl_wire::VERSION, kind, 2]));
        assert_eq!([0, 1, 2, 3].map(|from| train(&alone[from..])), [2, 1, 1, 1]);
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
        sender.single.store(SINGLE, Ordering::Relaxed);
        let sent = sender.send(&[made(to, b"one"), made(to, b"two"), made(to, b"")]);
        assert_eq!(sent, Sent::Frames(3));
        for expected in [&b"one"[..], b"two", b""] {
            let mut room = [0; 9];
            let got = far.recv(&mut room).unwrap();
            assert_eq!(&room[..got], expected);
        }
    }
}
