//! Receiving datagrams: those that arrive together come in one piece.

use std::io;
use std::os::fd::RawFd;

use super::CONGESTION;
use super::peer::{PEER, Peer};
use crate::{Received, options};

/// Bytes of the longest piece that the kernel makes.
const PIECE: usize = 1 << 16;
/// Receive buffer to ask for; the kernel limits it.
const ROOM: i32 = 8 << 20;
/// Room for control messages: the length of the datagrams of a piece, the mark of a router, and the count of dropped
/// datagrams.
const CONTROL: usize = 96;

/// UDP ignores this flag; sockets of other kinds return nothing for it.
const UDP_ONLY: i32 = libc::MSG_OOB;

#[repr(C, align(8))]
struct Control([u8; CONTROL]);

/// The receiving side of a data socket, used by one thread at a time.
pub struct Receiver {
    socket: RawFd,
    piece: Box<[u8]>,
    /// A piece has been fetched and not yet been passed on.
    piece_is_here: bool,
    /// Its bytes.
    bytes: usize,
    /// The length of its datagrams, of which the last one may be shorter.
    length: usize,
    /// Its sender, and whether a router has marked it. The kernel does not join marked and unmarked datagrams.
    from: Peer,
    marked: bool,
    /// The kernel's count of dropped datagrams.
    dropped: u32,
    /// The part of the count that has been reported.
    reported: u32,
}

impl Receiver {
    /// Prepares a socket for receiving, which must outlive this.
    ///
    /// # Errors
    /// The kernel's.
    pub fn open(socket: RawFd) -> io::Result<Receiver> {
        // More than the system's limit takes a privilege.
        if options::set(socket, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, &ROOM).is_err() {
            options::set(socket, libc::SOL_SOCKET, libc::SO_RCVBUF, &ROOM)?;
        }
        // Kernels without it deliver each datagram by itself.
        let _ = options::set(socket, libc::SOL_UDP, libc::UDP_GRO, &1i32);
        options::set(socket, libc::SOL_SOCKET, libc::SO_RXQ_OVFL, &1i32)?;
        Ok(Receiver::of(socket))
    }

    fn of(socket: RawFd) -> Receiver {
        Receiver {
            socket,
            piece: vec![0; PIECE].into(),
            piece_is_here: false,
            bytes: 0,
            length: 1,
            from: Peer::of_bytes([0; PEER]),
            marked: false,
            dropped: 0,
            reported: 0,
        }
    }

    /// Whether [`receive`](Self::receive) has datagrams; fetches a piece from the kernel if none has been fetched.
    #[inline]
    pub fn fetch(&mut self) -> bool {
        self.piece_is_here || self.next_piece()
    }

    /// Passes datagrams to `each`, in order of arrival, with their senders and whether they are marked
    /// ([`Sender::mark`](super::Sender::mark)), a whole piece at a time, until there have been `most` of them, or no more
    /// are waiting. A datagram in a piece of its own that is `urgent` is the last one: it need not wait for the system call
    /// that finds nothing more.
    #[inline]
    pub fn receive(
        &mut self,
        most: u32,
        urgent: impl Fn(&[u8]) -> bool,
        mut each: impl FnMut(&Peer, &[u8], bool),
    ) -> Received {
        let mut frames = 0;
        while frames < most && self.fetch() {
            self.piece_is_here = false;
            // A datagram may be empty.
            let (first, rest) = self.piece[..self.bytes].split_at(self.length.min(self.bytes));
            each(&self.from, first, self.marked);
            frames += 1;
            for datagram in rest.chunks(self.length) {
                each(&self.from, datagram, self.marked);
                frames += 1;
            }
            if rest.is_empty() && urgent(first) {
                break;
            }
        }
        let reported = std::mem::replace(&mut self.reported, self.dropped);
        Received {
            frames,
            cut: 0,
            dropped: self.dropped.wrapping_sub(reported),
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
        let got = unsafe {
            vipl_sys::uncancelled::recvmsg(
                self.socket,
                &raw mut message,
                libc::MSG_DONTWAIT | UDP_ONLY,
            )
        };
        let Ok(got) = usize::try_from(got) else {
            return false;
        };
        self.from = Peer::of_bytes(from);
        self.piece_is_here = true;
        (self.bytes, self.length) = (got, got.max(1));
        self.marked = false;
        let filled = (message.msg_controllen as usize).min(CONTROL);
        self.read_control(&control.0[..filled]);
        true
    }

    /// Reads the kernel's control messages for a piece.
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
                    self.length = length as usize;
                }
                (libc::IPPROTO_IP, libc::IP_TOS, Some(_))
                | (libc::IPPROTO_IPV6, libc::IPV6_TCLASS, Some(_)) => {
                    // One byte, or an integer.
                    let size = length.saturating_sub(HEAD).min(size_of::<i32>());
                    let set = |byte: &u8| byte & CONGESTION == CONGESTION;
                    self.marked = control[HEAD..HEAD + size].iter().any(set);
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

    use super::super::send::tests::made;
    use super::super::{Sender, use_marks};
    use super::*;
    use crate::Sent;

    fn exchange(host: &str) {
        let far = UdpSocket::bind((host, 0)).unwrap();
        far.set_nonblocking(true).unwrap();
        let to = far.local_addr().unwrap();
        let near = UdpSocket::bind((host, 0)).unwrap();
        let from = near.local_addr().unwrap();
        let sender = Sender::new(near.into());
        let mut receiver = Receiver::open(far.as_raw_fd()).unwrap();
        assert!(!receiver.fetch());
        assert_eq!(
            receiver.receive(9, |_| false, |_, _, _| panic!()),
            Received::default()
        );
        let sizes = [1200, 1200, 1200, 7, 1200, 0, 1300, 1300, 1];
        let sent: Vec<Vec<u8>> = (0u8..).zip(sizes).map(|(n, size)| vec![n; size]).collect();
        let all: Vec<_> = sent.iter().map(|bytes| made(to, bytes)).collect();
        let mut first = 0;
        while first < all.len() {
            match sender.send(&all[first..]) {
                Sent::Frames(count) => first += count,
                other => panic!("{other:?}"),
            }
        }
        let mut got = Vec::new();
        let mut calls = 0;
        while got.len() < sent.len() {
            receiver.receive(
                2,
                |bytes| bytes.len() < 9,
                |peer, bytes, marked| {
                    assert!(!marked);
                    assert_eq!(SocketAddr::from(*peer), from);
                    got.push(bytes.to_vec());
                },
            );
            // A piece that has been fetched is not fetched again.
            receiver.fetch();
            receiver.fetch();
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

    /// A sender may set the mark as well as a router.
    #[test]
    fn marks_are_reported_after_they_were_enabled() {
        for host in ["127.0.0.1", "::1"] {
            let Ok(far) = UdpSocket::bind((host, 0)) else {
                println!("SKIP {host}: no such address here");
                continue;
            };
            far.set_nonblocking(true).unwrap();
            let near = UdpSocket::bind((host, 0)).unwrap();
            let mark = |value: u8| {
                for (level, name) in [
                    (libc::IPPROTO_IP, libc::IP_TOS),
                    (libc::IPPROTO_IPV6, libc::IPV6_TCLASS),
                ] {
                    let _ = options::set(near.as_raw_fd(), level, name, &i32::from(value));
                }
            };
            let mut receiver = Receiver::open(far.as_raw_fd()).unwrap();
            let mut received = |value: u8| {
                mark(value);
                near.send_to(&[value], far.local_addr().unwrap()).unwrap();
                let mut got = None;
                while got.is_none() {
                    receiver.receive(
                        9,
                        |_| false,
                        |_, bytes, marked| got = Some((bytes[0], marked)),
                    );
                }
                got.unwrap()
            };
            assert_eq!(received(CONGESTION), (CONGESTION, false));
            use_marks(far.as_raw_fd(), true);
            // The other bits are the traffic class.
            for value in [0, 1, 2, 0xFC, 0xFE] {
                assert_eq!(received(value), (value, false));
                assert_eq!(received(value | CONGESTION), (value | CONGESTION, true));
            }
            // This side sends with the codepoint until a router drops it.
            let sender = Sender::new(near.into());
            for (on, tos) in [(true, 2), (true, 2), (false, 0), (true, 0)] {
                sender.mark(on);
                let got = [
                    (libc::IPPROTO_IP, libc::IP_TOS),
                    (libc::IPPROTO_IPV6, libc::IPV6_TCLASS),
                ]
                .map(|(level, name)| {
                    // SAFETY: an integer.
                    unsafe { options::get::<i32>(sender.socket().unwrap(), level, name) }
                });
                let got = got[usize::from(host == "::1")].as_ref();
                assert_eq!(got.ok(), Some(&tos), "{host}");
            }
        }
    }

    #[test]
    fn dropped_datagrams_are_counted() {
        let far = UdpSocket::bind("127.0.0.1:0").unwrap();
        far.set_nonblocking(true).unwrap();
        let to = far.local_addr().unwrap();
        let mut receiver = Receiver::open(far.as_raw_fd()).unwrap();
        options::set(far.as_raw_fd(), libc::SOL_SOCKET, libc::SO_RCVBUF, &1i32).unwrap();
        let near = UdpSocket::bind("127.0.0.1:0").unwrap();
        let send = |count: u32| (0..count).for_each(|_| drop(near.send_to(&[1; 500], to)));
        send(100);
        let mut sum = Received::default();
        // The count comes with a datagram that was queued after the drop.
        for _ in 0..2 {
            let got = receiver.receive(1000, |_| false, |_, _, _| {});
            sum.frames += got.frames;
            sum.dropped += got.dropped;
            send(1);
        }
        assert!(
            sum.dropped > 0 && sum.frames + sum.dropped >= 100,
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
        let mut receiver = Receiver::of(near.as_raw_fd());
        assert_eq!(
            receiver.receive(9, |_| false, |_, _, _| panic!()),
            Received::default()
        );
        let mut room = [0; 9];
        assert_eq!(io::Read::read(&mut &near, &mut room).unwrap(), 4);
    }
}
