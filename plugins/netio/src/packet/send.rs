//! Sending frames: one system call for one frame (`sendto`) or for a burst (`sendmmsg`).

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use vipl_sys::clock;
use vipl_sys::fd::Kept;

use super::room::Room;
use super::train::{self, HEAD};
use super::{bound_to, error};
use crate::{Frame, Sent};

/// Frames of one `sendmmsg`.
const BURST_MAX: usize = 64;

/// Flags that every socket except AF_PACKET refuses together with an address of that family: UDP, raw, Unix and netlink
/// sockets have no urgent data, and TCP refuses data in a connection request. The application may have closed our socket
/// and opened another under its number; a check before each frame would cost more.
const PACKETS_ONLY: i32 = libc::MSG_OOB | libc::MSG_FASTOPEN;

/// Trains of one `sendmmsg`.
const TRAINS_MAX: usize = 8;

/// The sending side of a data socket.
pub struct Sender {
    socket: Kept,
    /// The interface, for every call.
    to: libc::sockaddr_ll,
    room: Room,
    trains: Option<TrainSocket>,
}

/// The socket for trains.
struct TrainSocket {
    socket: Arc<Kept>,
    to: libc::sockaddr_ll,
    /// The kernel or the driver has refused a train.
    refused: AtomicBool,
}

impl Sender {
    /// Takes a socket that is bound to its interface.
    pub fn new(socket: OwnedFd) -> Sender {
        let to = interface(&socket);
        Sender {
            socket: Kept::new(socket),
            to,
            room: Room::default(),
            trains: None,
        }
    }

    /// Takes a socket for trains, bound like the data socket. Returns it for the receive side.
    ///
    /// # Errors
    /// The kernel has no trains.
    pub fn use_trains(&mut self, socket: OwnedFd) -> io::Result<Arc<Kept>> {
        train::prepare(socket.as_raw_fd())?;
        let to = interface(&socket);
        let socket = Arc::new(Kept::new(socket));
        self.trains = Some(TrainSocket {
            socket: socket.clone(),
            to,
            refused: AtomicBool::new(false),
        });
        Ok(socket)
    }

    /// The socket for trains, if there is one that the application has not closed.
    pub(crate) fn train_socket(&self) -> Option<RawFd> {
        self.trains.as_ref()?.socket.fd().ok()
    }

    /// Whether frames may join trains.
    pub(crate) fn carries_trains(&self) -> bool {
        let trains = self.trains.as_ref();
        trains.is_some_and(|trains| !trains.refused.load(Ordering::Relaxed))
    }

    /// The socket. `None`: the application has closed it.
    pub fn socket(&self) -> Option<RawFd> {
        self.socket.fd().ok()
    }

    /// The descriptor's number, without a check of what it refers to now.
    pub fn number(&self) -> RawFd {
        self.socket.number()
    }

    /// Sends up to `BURST_MAX` whole frames, Ethernet header included, or some trains, with one system call.
    pub fn send(&self, frames: &[Frame]) -> Sent {
        let mut frames = frames;
        if let (Some(trains), [first, ..]) = (&self.trains, frames) {
            let member = first.is_in_train();
            let alike = |frame: &&Frame| frame.is_in_train() == member;
            frames = &frames[..frames.iter().take_while(alike).count()];
            if member {
                return self.send_trains(trains, frames);
            }
        }
        let sent = match frames {
            [] => return Sent::Frames(0),
            [frame] => self.send_one(frame.contents()).min(1),
            frames => self.send_many(&frames[..frames.len().min(BURST_MAX)]),
        };
        if sent > 0 {
            self.room.found(&frames[..sent as usize]);
            return Sent::Frames(sent as usize);
        }
        if sent == 0 {
            // Another process has set up a transmit ring, and the socket sends the content of the ring instead.
            return Sent::Lost(libc::EIO);
        }
        self.failure(&frames[0])
    }

    /// Why the first frame was not sent.
    #[cold]
    fn failure(&self, first: &Frame) -> Sent {
        match error::last() {
            libc::EAGAIN | libc::EINTR => Sent::Again,
            libc::ENOBUFS if self.room.may_come(first.longest(), clock::now_ns()) => Sent::Again,
            error => Sent::Lost(error),
        }
    }

    /// Sends trains: as many as one system call takes.
    fn send_trains(&self, socket: &TrainSocket, trains: &[Frame]) -> Sent {
        let trains = &trains[..trains.len().min(TRAINS_MAX)];
        // SAFETY: all zero is a valid value of both.
        let mut parts: [[libc::iovec; 2]; TRAINS_MAX] = unsafe { std::mem::zeroed() };
        // SAFETY: as above.
        let mut messages: [libc::mmsghdr; TRAINS_MAX] = unsafe { std::mem::zeroed() };
        let mut heads = [[0; HEAD]; TRAINS_MAX];
        let part = |bytes: &[u8]| libc::iovec {
            iov_base: bytes.as_ptr().cast_mut().cast(),
            iov_len: bytes.len(),
        };
        for (number, train) in trains.iter().enumerate() {
            heads[number] = train::head(train);
            parts[number] = [part(&heads[number]), part(train.train().0)];
            let header = &mut messages[number].msg_hdr;
            header.msg_iov = parts[number].as_mut_ptr();
            header.msg_iovlen = 2;
        }
        // As for single frames.
        let first = &mut messages[0].msg_hdr;
        first.msg_name = (&raw const socket.to).cast_mut().cast();
        first.msg_namelen = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
        // SAFETY: as many messages as stated, whose parts outlive the call.
        let sent = unsafe {
            vipl_sys::uncancelled::sendmmsg(
                socket.socket.number(),
                messages.as_mut_ptr(),
                trains.len() as u32,
                libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL | PACKETS_ONLY,
            )
        };
        match usize::try_from(sent) {
            Ok(0) => Sent::Lost(libc::EIO),
            Ok(sent) => {
                self.room.found(&trains[..sent]);
                Sent::Frames(trains[..sent].iter().map(Frame::count).sum())
            }
            // An older kernel, or a device without checksums.
            Err(_) if matches!(error::last(), libc::EINVAL | libc::EOPNOTSUPP) => {
                socket.refused.store(true, Ordering::Relaxed);
                Sent::NoTrains(trains[0].count())
            }
            Err(_) => self.failure(&trains[0]),
        }
    }

    fn send_one(&self, frame: &[u8]) -> isize {
        // SAFETY: frame and address are valid.
        unsafe {
            vipl_sys::uncancelled::sendto(
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
        }
        // The others need no address: the kernel resolves the descriptor once for all of them, and sends none of them if
        // the first is refused. Without an address it also need not resolve the interface.
        let first = &mut messages[0].msg_hdr;
        first.msg_name = (&raw const self.to).cast_mut().cast();
        first.msg_namelen = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
        // SAFETY: as many messages as frames, each with one valid part.
        let sent = unsafe {
            vipl_sys::uncancelled::sendmmsg(
                self.number(),
                messages.as_mut_ptr(),
                frames.len() as u32,
                libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL | PACKETS_ONLY,
            )
        };
        sent as isize
    }
}

/// The interface that a socket is bound to.
fn interface(socket: &OwnedFd) -> libc::sockaddr_ll {
    bound_to(socket.as_raw_fd()).unwrap_or_else(|| {
        // SAFETY: all zero is a valid address; sending there fails.
        unsafe { std::mem::zeroed() }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Header;
    use crate::frame::tests::frame;
    use std::io::ErrorKind;
    use std::net::{TcpListener, TcpStream, UdpSocket};
    use std::os::unix::net::{UnixDatagram, UnixStream};

    /// A socket that has taken the number of a closed data socket gets no byte.
    #[test]
    fn no_other_socket_takes_a_frame() {
        let header = Header::ethernet([7; 6], [7; 6], 0x0707);
        let frame = || frame(&header, &[7; 46]);
        // SAFETY: all zero is a valid address.
        let mut to: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        to.sll_family = libc::AF_PACKET as u16;
        to.sll_ifindex = 1;
        let refuses = |fd: OwnedFd, name: &str| {
            let socket = Kept::new(fd);
            let sender = Sender {
                socket,
                to,
                room: Room::default(),
                trains: None,
            };
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
