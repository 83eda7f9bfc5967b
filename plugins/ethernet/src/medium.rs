//! What carries frames to other hosts: packet sockets of an interface, or UDP.
//!
//! A frame in a buffer has room for the medium's [`Header`] before it: that of Ethernet, or the address for the kernel.
//! The rest of the crate knows neither.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::RawFd;

use vipl_netio::datagram::{Datagram, PEER, Peer};
use vipl_netio::packet::{ETHERNET, Frame, Tip};
use vipl_plugin_sdk::Link;
use vipl_plugin_sdk::abi::VIPL_DATA_ETHERTYPE as ETHERTYPE;
use vipl_wire::Kind;

use crate::interface::{self, Subnet};
use crate::try_lock::{Guard, TryLock};

/// Room for a header before each frame. A copy of a known size costs less than one of the right size.
const ROOM: usize = 32;

/// What precedes a frame on its medium.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Header {
    bytes: [u8; ROOM],
    length: u8,
}

impl Header {
    fn new(bytes: &[u8]) -> Header {
        let mut header = Header {
            bytes: [0; ROOM],
            length: bytes.len() as u8,
        };
        header.bytes[..bytes.len()].copy_from_slice(bytes);
        header
    }

    /// Its length.
    #[inline(always)]
    pub(crate) fn length(&self) -> usize {
        usize::from(self.length)
    }

    /// Where the frame goes.
    pub(crate) fn receiver(&self) -> Option<Sender> {
        match self.length() {
            ETHERNET => self.bytes.first_chunk().copied().map(Sender::Ethernet),
            PEER => {
                let peer = self.bytes.first_chunk().copied();
                peer.map(Peer::of_bytes).map(Sender::Udp)
            }
            _ => None,
        }
    }

    /// Makes room for a frame of up to `bytes` bytes in a buffer, behind this.
    #[inline(always)]
    pub(crate) fn put(&self, buffer: &mut Vec<u8>, bytes: usize) {
        // Used buffers have that length, and the function that changes it is a call.
        if buffer.len() != ROOM + bytes {
            buffer.resize(ROOM + bytes, 0);
        }
        buffer[..ROOM].copy_from_slice(&self.bytes);
    }
}

/// The sender of a frame, or its receiver, for answers and for the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Sender {
    Ethernet([u8; 6]),
    Udp(Peer),
}

impl Sender {
    /// Whether another sender has the same address but for the port.
    pub(crate) fn is_same_host(&self, other: &Sender) -> bool {
        match (self, other) {
            (Sender::Udp(one), Sender::Udp(other)) => {
                SocketAddr::from(*one).ip() == SocketAddr::from(*other).ip()
            }
            _ => self == other,
        }
    }
}

impl std::fmt::Display for Sender {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Sender::Ethernet(mac) => {
                let mac = mac.map(|byte| format!("{byte:02x}"));
                to.write_str(&mac.join(":"))
            }
            Sender::Udp(peer) => SocketAddr::from(*peer).fmt(to),
        }
    }
}

/// Which medium a link is, and this side's address on it.
#[derive(Clone, Debug)]
pub(crate) enum Medium {
    Ethernet([u8; 6]),
    Udp(Subnet),
}

impl Medium {
    /// That of a link to which the agent has given an address of this kind.
    pub(crate) fn of(link: &Link, datagrams: bool) -> io::Result<Medium> {
        if datagrams {
            let own = ip_of_host(&link.address);
            return own.map(|own| Medium::Udp(interface::subnet(own)));
        }
        let address = link.address.as_slice().try_into();
        let wrong = |_| io::Error::other("the interface's address does not have 6 bytes");
        address.map(Medium::Ethernet).map_err(wrong)
    }

    /// The header of frames to an endpoint of a host. Over UDP the endpoint is a port at the host's IP address; the
    /// port in the address is that of its agent.
    pub(crate) fn header(&self, host: &[u8], endpoint: u16) -> io::Result<Header> {
        match self {
            Medium::Ethernet(own) => {
                let to = host.try_into().map_err(|_| wrong_length())?;
                Ok(Header::new(&vipl_netio::packet::header(
                    to, *own, ETHERTYPE,
                )))
            }
            Medium::Udp(_) => {
                let ip = ip_of_host(host)?;
                let peer = Peer::from(SocketAddr::new(ip, endpoint));
                Ok(Header::new(peer.bytes()))
            }
        }
    }

    /// Whether frames are datagrams.
    pub(crate) fn is_udp(&self) -> bool {
        matches!(self, Medium::Udp(_))
    }

    /// Whether the way to a host has other users: routers are on it.
    pub(crate) fn is_shared(&self, host: &[u8]) -> bool {
        match self {
            Medium::Ethernet(_) => false,
            Medium::Udp(subnet) => ip_of_host(host).is_ok_and(|ip| !subnet.has(ip)),
        }
    }

    /// The header of an answer. `None`: nobody can be answered there.
    pub(crate) fn answer(&self, sender: Sender) -> Option<Header> {
        match (self, sender) {
            // A group address is never that of a sender.
            (Medium::Ethernet(own), Sender::Ethernet(to)) if to[0] & 1 == 0 => Some(Header::new(
                &vipl_netio::packet::header(to, *own, ETHERTYPE),
            )),
            (Medium::Udp(_), Sender::Udp(peer)) => Some(Header::new(peer.bytes())),
            _ => None,
        }
    }
}

fn wrong_length() -> io::Error {
    io::Error::other("the address of the peer has another length")
}

/// The IP address of a host, whose port follows.
pub(crate) fn ip_of_host(host: &[u8]) -> io::Result<IpAddr> {
    let (ip, _port) = host.split_last_chunk::<2>().ok_or_else(wrong_length)?;
    let v4 = <[u8; 4]>::try_from(ip).map(IpAddr::from);
    v4.or_else(|_| <[u8; 16]>::try_from(ip).map(IpAddr::from))
        .map_err(|_| wrong_length())
}

/// A datagram is a frame behind an address.
#[repr(transparent)]
struct Addressed(Frame);

impl Datagram for Addressed {
    #[inline(always)]
    fn contents(&self) -> &[u8] {
        &self.0.buffer[..self.0.bytes]
    }

    #[inline(always)]
    fn is_alone(&self) -> bool {
        // Its fate must be its own, and a train is forwarded or dropped as a whole.
        Kind::Try.is_of(&self.0.buffer[PEER..])
    }
}

/// Sends frames.
pub(crate) enum Outlet {
    Packets(vipl_netio::packet::Sender),
    Datagrams(vipl_netio::datagram::Sender),
}

/// Result of sending.
pub(crate) enum Sent {
    /// This many frames were sent, at least one.
    Frames(usize),
    /// There is no room; the caller tries the same frames later.
    Again,
    /// The first frame cannot be sent, for this `errno`; the caller drops it.
    Lost(i32),
}

impl Outlet {
    /// The data socket. `None`: the application has closed it.
    pub(crate) fn socket(&self) -> Option<RawFd> {
        match self {
            Outlet::Packets(sender) => sender.socket(),
            Outlet::Datagrams(sender) => sender.socket(),
        }
    }

    /// Sends as many frames as one system call takes.
    #[inline(always)]
    pub(crate) fn send(&self, frames: &[Frame]) -> Sent {
        match self {
            Outlet::Packets(sender) => match sender.send(frames) {
                vipl_netio::packet::Sent::Frames(count) => Sent::Frames(count),
                vipl_netio::packet::Sent::Again => Sent::Again,
                vipl_netio::packet::Sent::Lost(error) => Sent::Lost(error),
            },
            Outlet::Datagrams(sender) => match sender.send(Addressed::of(frames)) {
                vipl_netio::datagram::Sent::Datagrams(count) => Sent::Frames(count),
                vipl_netio::datagram::Sent::Again => Sent::Again,
                vipl_netio::datagram::Sent::Lost(error) => Sent::Lost(error),
            },
        }
    }
}

impl Addressed {
    #[inline(always)]
    fn of(frames: &[Frame]) -> &[Addressed] {
        // SAFETY: `Addressed` is a `Frame` and nothing else (`repr(transparent)`).
        unsafe { std::slice::from_raw_parts(frames.as_ptr().cast(), frames.len()) }
    }
}

/// Receives frames; any thread may ask, one at a time reads.
pub(crate) enum Inlet {
    /// The ring, and where it has its next frame, for threads that do not hold it.
    Packets(TryLock<vipl_netio::packet::Receiver>, Tip),
    Datagrams(TryLock<vipl_netio::datagram::Receiver>),
}

/// An inlet that this thread reads.
pub(crate) enum Reading<'a> {
    Packets(Guard<'a, vipl_netio::packet::Receiver>, &'a Tip),
    Datagrams(Guard<'a, vipl_netio::datagram::Receiver>),
}

/// Result of reading.
#[derive(Clone, Copy, Default)]
pub(crate) struct Received {
    /// Frames passed to the caller.
    pub(crate) frames: u32,
    /// Frames that were longer than the link allows.
    pub(crate) cut: u32,
    /// Frames that the kernel has dropped.
    pub(crate) dropped: u32,
}

impl Inlet {
    /// Whether a frame is known to wait, without a system call; prefetches it.
    #[inline(always)]
    pub(crate) fn has_frame(&self) -> bool {
        match self {
            Inlet::Packets(_, tip) => tip.has_frame(),
            Inlet::Datagrams(_) => false,
        }
    }

    /// Whether a frame waits for this thread; prefetches it. Over UDP this asks the kernel, and takes the frame.
    #[inline(always)]
    pub(crate) fn finds_frame(&self) -> bool {
        match self {
            Inlet::Packets(_, tip) => tip.has_frame(),
            Inlet::Datagrams(receiver) => receiver
                .try_lock()
                .is_some_and(|mut receiver| receiver.fetch()),
        }
    }

    /// For reading, if there may be a frame and no other thread reads.
    #[inline(always)]
    pub(crate) fn reading(&self) -> Option<Reading<'_>> {
        match self {
            Inlet::Packets(receiver, tip) => match tip.has_frame() {
                true => Some(Reading::Packets(receiver.try_lock()?, tip)),
                false => None,
            },
            Inlet::Datagrams(receiver) => Some(Reading::Datagrams(receiver.try_lock()?)),
        }
    }

    /// For reading, if no other thread reads.
    pub(crate) fn try_lock(&self) -> Option<Reading<'_>> {
        match self {
            Inlet::Packets(receiver, tip) => Some(Reading::Packets(receiver.try_lock()?, tip)),
            Inlet::Datagrams(receiver) => Some(Reading::Datagrams(receiver.try_lock()?)),
        }
    }
}

/// Frames that one look takes.
const LOOK_FRAMES: u32 = 64;
/// More datagrams than a socket holds that is not privileged.
const WAITING_DATAGRAMS: u32 = 1024;

impl Reading<'_> {
    /// Passes frames to `each`, without their headers, with what tells their senders, and whether a router has marked
    /// them: `all` that are waiting, or as many as one look takes.
    #[inline(always)]
    pub(crate) fn receive(
        mut self,
        all: bool,
        mut each: impl FnMut(&dyn Fn() -> Sender, &[u8], bool),
    ) -> Received {
        match &mut self {
            Reading::Packets(receiver, tip) => {
                let most = if all { receiver.frames() } else { LOOK_FRAMES };
                let received = receiver.receive(most, |frame| {
                    // SAFETY: the agent gave the socket to this process only, and does not map the ring itself.
                    let frame = unsafe { frame.in_place() };
                    let payload = frame.get(ETHERNET..).unwrap_or_default();
                    let sender = || {
                        let sender = vipl_netio::packet::split(frame).map(|(sender, _)| sender);
                        Sender::Ethernet(sender.unwrap_or([0xFF; 6]))
                    };
                    each(&sender, payload, false);
                });
                tip.follow(receiver);
                let dropped = if received.losing {
                    receiver.take_drops()
                } else {
                    0
                };
                Received {
                    frames: received.frames,
                    cut: received.cut,
                    dropped,
                }
            }
            Reading::Datagrams(receiver) => {
                let each = |peer: &Peer, payload: &[u8], marked| {
                    each(&|| Sender::Udp(*peer), payload, marked);
                };
                let received = if all {
                    receiver.receive(WAITING_DATAGRAMS, each)
                } else {
                    // After an acknowledgement there may be more, and it pays to send for all of them at once.
                    receiver.look(LOOK_FRAMES, |frame: &[u8]| Kind::Data.is_of(frame), each)
                };
                Received {
                    frames: received.datagrams,
                    cut: 0,
                    dropped: received.dropped,
                }
            }
        }
    }
}

const _: () = assert!(PEER <= ROOM && ETHERNET <= ROOM);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_endpoint_is_the_port() {
        let udp = Medium::Udp(interface::subnet([192, 0, 2, 1].into()));
        let header = udp.header(&[192, 0, 2, 7, 1, 2], 9).unwrap();
        let peer = Peer::from("192.0.2.7:9".parse::<SocketAddr>().unwrap());
        assert_eq!(header, Header::new(peer.bytes()));
        assert_eq!(udp.answer(Sender::Udp(peer)), Some(header));
        let mut v6 = [0; 18];
        v6[15] = 1;
        let header = udp.header(&v6, 9).unwrap();
        let peer = Peer::from("[::1]:9".parse::<SocketAddr>().unwrap());
        assert_eq!(header, Header::new(peer.bytes()));
        for length in [0, 1, 2, 5, 7, 17, 32] {
            assert!(udp.header(&vec![1; length], 9).is_err());
        }
    }

    #[test]
    fn groups_are_not_answered() {
        let ethernet = Medium::Ethernet([2; 6]);
        assert!(
            ethernet
                .answer(Sender::Ethernet([2, 0, 0, 0, 0, 1]))
                .is_some()
        );
        assert!(ethernet.answer(Sender::Ethernet([0xFF; 6])).is_none());
    }
}
