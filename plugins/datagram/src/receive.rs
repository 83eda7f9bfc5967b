//! Receiving: what has arrived together comes in one piece.

use std::io;
use std::os::fd::RawFd;

use crate::option;
use crate::peer::{PEER, Peer};

/// Bytes of the longest piece that the kernel makes.
const PIECE: usize = 1 << 16;
/// Wanted room for datagrams that wait; the kernel gives what it allows.
const ROOM: i32 = 8 << 20;
/// Room for control messages: the length of the datagrams of a piece, and the count of dropped ones.
const CONTROL: usize = 64;

/// UDP ignores this; all other kinds of sockets have nothing to give for it.
const UDP_ONLY: i32 = libc::MSG_OOB;

/// Result of one call of [`Receiver::receive`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Received {
    /// Datagrams passed to the caller.
    pub datagrams: u32,
    /// Datagrams that the kernel has dropped since the last call, for lack of room.
    pub dropped: u32,
}

#[repr(C, align(8))]
struct Control([u8; CONTROL]);

/// The receiving side of a data socket, used by one thread at a time.
pub struct Receiver {
    socket: RawFd,
    piece: Box<[u8]>,
    /// What is left of the last piece: where it begins and ends, and the length of its datagrams.
    left: (usize, usize, usize),
    /// Its sender.
    from: Peer,
    /// The kernel's count of dropped datagrams.
    dropped: u32,
}

impl Receiver {
    /// Prepares a socket for receiving, which must outlive this.
    ///
    /// # Errors
    /// The kernel's.
    pub fn open(socket: RawFd) -> io::Result<Receiver> {
        // More than the system's limit takes a privilege.
        if option(socket, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, ROOM).is_err() {
            option(socket, libc::SOL_SOCKET, libc::SO_RCVBUF, ROOM)?;
        }
        // Kernels without it deliver each datagram by itself.
        let _ = option(socket, libc::SOL_UDP, libc::UDP_GRO, 1);
        option(socket, libc::SOL_SOCKET, libc::SO_RXQ_OVFL, 1)?;
        Ok(Receiver {
            socket,
            piece: vec![0; PIECE].into(),
            left: (0, 0, 1),
            from: Peer::of_bytes([0; PEER]),
            dropped: 0,
        })
    }

    /// Passes up to `most` datagrams and their senders to `each`, in order of arrival.
    #[inline]
    pub fn receive(&mut self, most: u32, mut each: impl FnMut(&Peer, &[u8])) -> Received {
        let before = self.dropped;
        let mut datagrams = 0;
        while datagrams < most {
            let (at, end, length) = self.left;
            if at >= end {
                // The kernel has given less than a piece holds when there was no more.
                if !self.next_piece() {
                    break;
                }
                if self.left.1 == 0 {
                    // An empty datagram.
                    each(&self.from, &[]);
                    datagrams += 1;
                }
                continue;
            }
            let next = (at + length).min(end);
            self.left.0 = next;
            datagrams += 1;
            each(&self.from, &self.piece[at..next]);
        }
        Received {
            datagrams,
            dropped: self.dropped.wrapping_sub(before),
        }
    }

    fn next_piece(&mut self) -> bool {
        let mut part = libc::iovec {
            iov_base: self.piece.as_mut_ptr().cast(),
            iov_len: PIECE,
        };
        let mut control = Control([0; CONTROL]);
        let mut from = [0; PEER];
        // SAFETY: all zero is a valid message.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_name = (&raw mut from).cast();
        message.msg_namelen = PEER as libc::socklen_t;
        message.msg_iov = &raw mut part;
        message.msg_iovlen = 1;
        message.msg_control = (&raw mut control).cast();
        message.msg_controllen = CONTROL as _;
        // SAFETY: all that the message points to outlives the call.
        let got =
            unsafe { libc::recvmsg(self.socket, &raw mut message, libc::MSG_DONTWAIT | UDP_ONLY) };
        let Ok(got) = usize::try_from(got) else {
            return false;
        };
        self.from = Peer::of_bytes(from);
        self.left = (0, got, got.max(1));
        let filled = (message.msg_controllen as usize).min(CONTROL);
        self.read_control(&control.0[..filled]);
        true
    }

    /// Reads what the kernel says about a piece.
    fn read_control(&mut self, mut control: &[u8]) {
        const HEAD: usize = size_of::<libc::cmsghdr>();
        while let Some(bytes) = control.first_chunk::<HEAD>() {
            // SAFETY: any bytes are a valid head.
            let head: libc::cmsghdr = unsafe { std::mem::transmute_copy(bytes) };
            let length = head.cmsg_len as usize;
            let value = control.get(HEAD..HEAD + 4);
            let number = value.and_then(|value| Some(i32::from_ne_bytes(value.try_into().ok()?)));
            match (head.cmsg_level, head.cmsg_type, number) {
                (libc::SOL_UDP, libc::UDP_GRO, Some(length)) if length > 0 => {
                    self.left.2 = length as usize;
                }
                (libc::SOL_SOCKET, libc::SO_RXQ_OVFL, Some(dropped)) => {
                    self.dropped = dropped as u32;
                }
                _ => {}
            }
            let aligned = length.next_multiple_of(size_of::<usize>()).max(HEAD);
            control = control.get(aligned..).unwrap_or_default();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
    use std::os::fd::AsRawFd;

    use super::*;
    use crate::send::tests::made;
    use crate::{Sender, Sent};

    fn exchange(host: &str) {
        let far = UdpSocket::bind((host, 0)).unwrap();
        far.set_nonblocking(true).unwrap();
        let to = far.local_addr().unwrap();
        let near = UdpSocket::bind((host, 0)).unwrap();
        let from = near.local_addr().unwrap();
        let sender = Sender::new(near.into());
        let mut receiver = Receiver::open(far.as_raw_fd()).unwrap();
        assert_eq!(receiver.receive(9, |_, _| panic!()), Received::default());
        let sizes = [1200, 1200, 1200, 7, 1200, 0, 1300, 1300, 1];
        let sent: Vec<Vec<u8>> = (0u8..).zip(sizes).map(|(n, size)| vec![n; size]).collect();
        let all: Vec<_> = sent.iter().map(|bytes| made(to, bytes)).collect();
        let mut first = 0;
        while first < all.len() {
            match sender.send(&all[first..]) {
                Sent::Datagrams(count) => first += count,
                other => panic!("{other:?}"),
            }
        }
        let mut got = Vec::new();
        let mut calls = 0;
        while got.len() < sent.len() {
            // A piece may have more than one call takes.
            receiver.receive(2, |peer, bytes| {
                assert_eq!(SocketAddr::from(*peer), from);
                got.push(bytes.to_vec());
            });
            calls += 1;
            assert!(calls < 1_000_000, "{} of {}", got.len(), sent.len());
        }
        assert_eq!(got, sent);
    }

    #[test]
    fn trains_arrive_as_they_were_sent() {
        exchange("127.0.0.1");
        if UdpSocket::bind("[::1]:0").is_err() {
            println!("SKIP IPv6: no such address here");
            return;
        }
        exchange("::1");
    }

    #[test]
    fn dropped_datagrams_are_counted() {
        let far = UdpSocket::bind("127.0.0.1:0").unwrap();
        far.set_nonblocking(true).unwrap();
        let to = far.local_addr().unwrap();
        let mut receiver = Receiver::open(far.as_raw_fd()).unwrap();
        option(far.as_raw_fd(), libc::SOL_SOCKET, libc::SO_RCVBUF, 1).unwrap();
        let near = UdpSocket::bind("127.0.0.1:0").unwrap();
        let send = |count: u32| (0..count).for_each(|_| drop(near.send_to(&[1; 500], to)));
        send(100);
        let mut sum = Received::default();
        // The count comes with a datagram that was queued after the drop.
        for _ in 0..2 {
            let got = receiver.receive(1000, |_, _| {});
            sum.datagrams += got.datagrams;
            sum.dropped += got.dropped;
            send(1);
        }
        assert!(
            sum.dropped > 0 && sum.datagrams + sum.dropped >= 100,
            "{sum:?}"
        );
    }

    #[test]
    fn nothing_is_taken_from_another_socket() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (far, _) = listener.accept().unwrap();
        io::Write::write_all(&mut &far, b"data").unwrap();
        near.peek(&mut [0; 4]).unwrap();
        let mut receiver = Receiver {
            socket: near.as_raw_fd(),
            piece: vec![0; PIECE].into(),
            left: (0, 0, 1),
            from: Peer::of_bytes([0; PEER]),
            dropped: 0,
        };
        assert_eq!(receiver.receive(9, |_, _| panic!()), Received::default());
        let mut room = [0; 9];
        assert_eq!(io::Read::read(&mut &near, &mut room).unwrap(), 4);
    }
}
