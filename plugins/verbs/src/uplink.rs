//! Control records between hosts: datagrams on the socket that the Kernel Agent gives to a NIC, sent again until the peer
//! has confirmed them, also for a while after a connection has ended.
//!
//! ```text
//!    ┌────────┬───────┬─────────┬───────────┬─────────────┬──────────────┬─────────┬─────────────────┐
//!    │ record │ magic │ VI (to) │ VI (from) │ number      │ last number  │ flags   │ hash (16 bytes) │
//!    └────────┴───────┴─────────┴───────────┴─────────────┴──────────────┴─────────┴─────────────────┘
//!                                             of this side  of the peer
//! ```
//!
//! The hash, BLAKE3, is keyed with the seal of the connection, or with its key where the hosts have no secret. It covers
//! this exchange only: what the devices send is as open as RDMA always is.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use vipl_plugin_sdk::abi::vipl_connection;
use vipl_sys::fd::Kept;
use vipl_sys::mutex::Mutex;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::record::{Record, ring};

/// "VERB", and the version of the frame.
const MAGIC: u32 = 0x5645_5201;
/// Bytes of the hash.
const HASH: usize = 16;
/// When a record that was not confirmed is sent again the first time; doubled each time up to [`AGAIN_MAX_NS`].
const AGAIN_NS: u64 = 20_000_000;
const AGAIN_MAX_NS: u64 = 500_000_000;
/// How long the last record of a connection is sent again.
const LINGER_NS: u64 = 2_000_000_000;

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Frame {
    record: Record,
    magic: u32,
    to: u32,
    from: u32,
    number: u32,
    last: u32,
    /// [`SETTLED`], and the side that sends it: else its own frame could be sent back to it.
    flags: u32,
}

/// In [`Frame::flags`]: it only confirms, and asks for no answer.
const SETTLED: u32 = 2;
/// Frames taken at a time; the thread has other work.
const BATCH: usize = 64;

const FRAME: usize = size_of::<Frame>();

/// The exchange with one peer on another host.
pub(crate) struct Remote {
    inner: Mutex<Inner>,
    /// Number of the peer's last record.
    received: AtomicU64,
    /// Wakes the thread, which sends.
    bell: Arc<Kept>,
}

struct Inner {
    to: SocketAddr,
    secret: [u8; 32],
    side: u32,
    vi: u32,
    peer: u32,
    record: Record,
    theirs: Record,
    number: u32,
    confirmed: u32,
    /// The peer has sent something that this side has not confirmed.
    owes: bool,
    next: u64,
    pause: u64,
    /// The connection has ended; its last record is sent until then.
    end: Option<u64>,
}

impl Remote {
    /// Tells the peer this record, and forgets the one before.
    pub(crate) fn publish(&self, record: &Record) {
        let mut inner = self.inner.lock();
        inner.record = *record;
        inner.number += 1;
        inner.next = 0;
        inner.pause = AGAIN_NS;
        drop(inner);
        ring(&self.bell);
    }

    /// The peer's record, if it is new.
    #[inline(always)]
    pub(crate) fn read(&self, seen: &mut u64) -> Option<Record> {
        let received = self.received.load(Ordering::Acquire);
        if received == *seen {
            return None;
        }
        *seen = received;
        Some(self.inner.lock().theirs)
    }

    /// The number of the peer's last record.
    pub(crate) fn version(&self) -> u64 {
        self.received.load(Ordering::Acquire)
    }

    /// Takes a frame that claims to be from this peer.
    fn accept(&self, frame: &Frame, bytes: &[u8], from: SocketAddr) -> bool {
        let mut inner = self.inner.lock();
        let (body, hash) = bytes.split_at(FRAME);
        let is_other = frame.from == inner.peer && frame.flags & 1 != inner.side;
        if from != inner.to || !is_other || hash != inner.hash(body) {
            return false;
        }
        if frame.last == inner.number {
            inner.confirmed = frame.last;
        }
        let received = self.received.load(Ordering::Relaxed);
        let is_new = u64::from(frame.number) > received;
        if is_new {
            inner.theirs = frame.record;
            self.received.store(frame.number.into(), Ordering::Release);
        }
        inner.owes |= frame.flags & SETTLED == 0;
        is_new
    }
}

impl Inner {
    fn hash(&self, body: &[u8]) -> [u8; HASH] {
        let mut short = [0; HASH];
        short.copy_from_slice(&blake3::keyed_hash(&self.secret, body).as_bytes()[..HASH]);
        short
    }

    /// The frame to send now, if any, and when to look again.
    fn due(&mut self, now: u64, received: u64) -> (Option<Vec<u8>>, Option<u64>) {
        let waits = self.number != self.confirmed;
        if !(self.owes || waits && now >= self.next) {
            return (None, waits.then_some(self.next));
        }
        self.owes = false;
        if waits {
            self.next = now + self.pause;
            self.pause = (2 * self.pause).min(AGAIN_MAX_NS);
        }
        let frame = Frame {
            record: self.record,
            magic: MAGIC,
            to: self.peer,
            from: self.vi,
            number: self.number,
            last: received as u32,
            flags: self.side | if waits { 0 } else { SETTLED },
        };
        let mut bytes = frame.as_bytes().to_vec();
        bytes.extend_from_slice(&self.hash(frame.as_bytes()));
        (Some(bytes), waits.then_some(self.next))
    }
}

/// The socket, and the peers behind it.
pub(crate) struct Uplink {
    socket: Kept,
    /// Peers by the number of the VI of this side. A connection that has ended may stand beside its successor.
    peers: Mutex<Vec<(u32, Arc<Remote>)>>,
    bell: Arc<Kept>,
}

impl Uplink {
    /// `bell` wakes the thread that calls [`serve`](Self::serve).
    pub(crate) fn new(socket: OwnedFd, bell: Arc<Kept>) -> Uplink {
        Uplink {
            socket: Kept::new(socket),
            peers: Mutex::new(Vec::new()),
            bell,
        }
    }

    /// The socket, for `poll`.
    pub(crate) fn fd(&self) -> io::Result<RawFd> {
        self.socket.fd()
    }

    /// The exchange of a new connection of a VI.
    pub(crate) fn connect(&self, vi: u32, connection: &vipl_connection) -> io::Result<Arc<Remote>> {
        let bytes = usize::from(connection.remote_address_len);
        let host = connection.remote_address.get(..bytes).unwrap_or_default();
        let to = SocketAddr::new(ip_of(host)?, connection.remote_endpoint);
        let secret = match connection.sealed {
            0 => *blake3::hash(&connection.key.to_le_bytes()).as_bytes(),
            _ => connection.seal,
        };
        let remote = Arc::new(Remote {
            inner: Mutex::new(Inner {
                to,
                secret,
                side: connection.side & 1,
                vi,
                peer: connection.peer_vi,
                record: Record::default(),
                theirs: Record::default(),
                number: 0,
                confirmed: 0,
                owes: false,
                next: 0,
                pause: AGAIN_NS,
                end: None,
            }),
            received: AtomicU64::new(0),
            bell: self.bell.clone(),
        });
        self.peers.lock().push((vi, remote.clone()));
        Ok(remote)
    }

    /// The connection has ended: its last record is sent for a while, then it is forgotten.
    pub(crate) fn linger(&self, remote: &Remote, now: u64) {
        remote.inner.lock().end = Some(now + LINGER_NS);
    }

    /// Whether records of ended connections are still to be confirmed.
    pub(crate) fn is_lingering(&self) -> bool {
        let peers = self.peers.lock();
        peers.iter().any(|(_, remote)| {
            let inner = remote.inner.lock();
            inner.end.is_some() && inner.number != inner.confirmed
        })
    }

    /// Receives and sends what is due. Returns whether a peer has a new record, and when to call it again, in
    /// nanoseconds.
    pub(crate) fn serve(&self, now: u64) -> (bool, Option<u64>) {
        let Ok(socket) = self.socket.fd() else {
            return (false, None);
        };
        let mut peers = self.peers.lock();
        let updated = receive(socket, &peers);
        let mut again: Option<u64> = None;
        peers.retain(|(_, remote)| {
            let mut inner = remote.inner.lock();
            let received = remote.received.load(Ordering::Relaxed);
            let (frame, next) = inner.due(now, received);
            if let Some(frame) = frame {
                transmit(socket, &frame, inner.to);
            }
            let end = inner.end;
            again = [again, next, end].into_iter().flatten().min();
            // Until then a repetition of the peer's last record is confirmed.
            end.is_none_or(|end| now < end)
        });
        (updated, again)
    }
}

/// Takes frames; returns whether there is a new record among them.
fn receive(socket: RawFd, peers: &[(u32, Arc<Remote>)]) -> bool {
    let mut by_vi: BTreeMap<u32, Vec<&Remote>> = BTreeMap::new();
    let mut updated = false;
    let mut bytes = [0; FRAME + HASH + 1];
    for _ in 0..BATCH {
        let Some((length, from)) = take(socket, &mut bytes) else {
            break;
        };
        if by_vi.is_empty() {
            for (vi, remote) in peers {
                by_vi.entry(*vi).or_default().push(remote);
            }
        }
        let whole = (length == FRAME + HASH)
            .then(|| Frame::read_from_prefix(&bytes).ok())
            .flatten();
        let Some((frame, _)) = whole.filter(|(frame, _)| frame.magic == MAGIC) else {
            continue;
        };
        for remote in by_vi.get(&frame.to).into_iter().flatten() {
            updated |= remote.accept(&frame, &bytes[..length], from);
        }
    }
    updated
}

fn take(socket: RawFd, room: &mut [u8]) -> Option<(usize, SocketAddr)> {
    let mut address = [0; vipl_netio::datagram::PEER];
    let mut size = address.len() as libc::socklen_t;
    // SAFETY: room for a frame and for an address.
    let length = unsafe {
        libc::recvfrom(
            socket,
            room.as_mut_ptr().cast(),
            room.len(),
            libc::MSG_DONTWAIT,
            address.as_mut_ptr().cast(),
            &raw mut size,
        )
    };
    let length = usize::try_from(length).ok()?;
    // The flow and scope of an IPv6 address do not count.
    Some((length, vipl_netio::datagram::Peer::of_bytes(address).into()))
}

/// A frame that the system does not take is sent again, like one that is lost.
fn transmit(socket: RawFd, frame: &[u8], to: SocketAddr) {
    let to_bytes = *vipl_netio::datagram::Peer::from(to).bytes();
    let size = match to {
        SocketAddr::V4(_) => size_of::<libc::sockaddr_in>(),
        SocketAddr::V6(_) => size_of::<libc::sockaddr_in6>(),
    };
    // SAFETY: a frame and an address.
    unsafe {
        libc::sendto(
            socket,
            frame.as_ptr().cast(),
            frame.len(),
            libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL,
            to_bytes.as_ptr().cast(),
            size as libc::socklen_t,
        );
    }
}

/// The IP address in the address of a host; a port follows it.
pub(crate) fn ip_of(host: &[u8]) -> io::Result<IpAddr> {
    let wrong = || io::Error::other("the address of the peer has another length");
    let (ip, _port) = host.split_last_chunk::<2>().ok_or_else(wrong)?;
    let v4 = <[u8; 4]>::try_from(ip).map(IpAddr::from);
    v4.or_else(|_| <[u8; 16]>::try_from(ip).map(IpAddr::from))
        .map_err(|_| wrong())
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use super::*;

    /// A host with one connection, and the socket that is its uplink.
    struct Side {
        uplink: Uplink,
        remote: Arc<Remote>,
        socket: UdpSocket,
        seen: u64,
    }

    fn socket() -> UdpSocket {
        UdpSocket::bind("127.0.0.1:0").expect("a socket")
    }

    /// Both sides of a connection between VIs of the same number.
    fn pair(seal: u8) -> [Side; 2] {
        let sockets = [socket(), socket()];
        let ports = [0, 1].map(|side: usize| sockets[side].local_addr().expect("bound").port());
        let mut side = 0;
        sockets.map(|socket| {
            // SAFETY: numbers only.
            let mut connection: vipl_connection = unsafe { std::mem::zeroed() };
            connection.key = 7;
            connection.side = side as u32;
            connection.peer_vi = 3;
            connection.remote_endpoint = ports[1 - side];
            connection.remote_address[..4].copy_from_slice(&[127, 0, 0, 1]);
            connection.remote_address_len = 6;
            connection.sealed = 1;
            connection.seal = [seal; 32];
            side += 1;
            // SAFETY: a system call; the descriptor is new.
            let bell = unsafe { vipl_sys::fd::made(libc::eventfd(0, libc::EFD_NONBLOCK)) };
            let bell = Arc::new(Kept::new(bell.expect("an eventfd")));
            let uplink = Uplink::new(socket.try_clone().expect("the same").into(), bell);
            let remote = uplink.connect(3, &connection).expect("connected");
            Side {
                uplink,
                remote,
                socket,
                seen: 0,
            }
        })
    }

    fn record(taken: u32) -> Record {
        let mut record = Record::default();
        record.taken = taken;
        record
    }

    impl Side {
        /// Whether serving it brings a new record, and which.
        fn serve(&mut self, now: u64) -> Option<u32> {
            let (updated, _) = self.uplink.serve(now);
            let record = self.remote.read(&mut self.seen);
            assert_eq!(updated, record.is_some());
            record.map(|record| record.taken)
        }

        /// Whether it has something to send, after so many nanoseconds without an answer.
        fn is_waiting(&self) -> bool {
            let inner = self.remote.inner.lock();
            inner.number != inner.confirmed
        }

        /// The frame that has arrived here.
        fn intercept(&self) -> Vec<u8> {
            let mut bytes = [0; 512];
            let (length, _) = self.socket.recv_from(&mut bytes).expect("a frame");
            bytes[..length].to_vec()
        }
    }

    #[test]
    fn a_record_is_sent_until_it_is_confirmed() {
        let [mut left, mut right] = pair(1);
        left.remote.publish(&record(1));
        assert_eq!(left.serve(0), None);
        right.intercept(); // It is lost.
        assert_eq!(left.serve(AGAIN_NS - 1), None);
        assert_eq!(right.serve(0), None);
        assert_eq!(left.serve(AGAIN_NS), None);
        assert_eq!(right.serve(AGAIN_NS), Some(1));
        assert!(left.is_waiting());
        assert_eq!(left.serve(AGAIN_NS), None);
        assert!(!left.is_waiting());
        // A newer one replaces one that was not sent.
        left.remote.publish(&record(2));
        left.remote.publish(&record(3));
        left.serve(AGAIN_NS);
        assert_eq!(right.serve(AGAIN_NS), Some(3));
    }

    #[test]
    fn the_last_record_is_sent_for_a_while() {
        let [mut left, _right] = pair(1);
        left.remote.publish(&record(1));
        left.uplink.linger(&left.remote, 0);
        assert!(left.uplink.is_lingering());
        left.serve(LINGER_NS - 1);
        assert!(left.uplink.is_lingering());
        left.serve(LINGER_NS);
        assert!(!left.uplink.is_lingering());
    }

    #[test]
    fn what_is_not_from_the_peer_changes_nothing() {
        let [mut left, mut right] = pair(1);
        left.remote.publish(&record(1));
        left.serve(0);
        let old = right.intercept();
        left.remote.publish(&record(2));
        left.serve(0);
        let frame = right.intercept();
        let to = right.socket.local_addr().expect("bound");
        // From another socket.
        socket().send_to(&frame, to).expect("sent");
        assert_eq!(right.serve(0), None);
        // With any bit changed, shorter, longer.
        for bit in 0..8 * frame.len() {
            let mut forged = frame.clone();
            forged[bit / 8] ^= 1 << (bit % 8);
            left.socket.send_to(&forged, to).expect("sent");
            assert_eq!(right.serve(0), None, "bit {bit}");
        }
        for forged in [&frame[1..], &frame[..frame.len() - 1], &[]] {
            left.socket.send_to(forged, to).expect("sent");
        }
        left.socket
            .send_to(&[&frame[..], &[0]].concat(), to)
            .expect("sent");
        assert_eq!(right.serve(0), None);
        // Sent back to the side that made it, from the right address.
        let from = left.socket.local_addr().expect("bound");
        right.socket.send_to(&frame, from).expect("sent");
        assert_eq!(left.serve(0), None);
        // The newest one counts, and an older one behind it or the same again do not.
        left.socket.send_to(&frame, to).expect("sent");
        assert_eq!(right.serve(0), Some(2));
        for again in [&old, &frame] {
            left.socket.send_to(again, to).expect("sent");
            assert_eq!(right.serve(0), None);
        }
        // Of a connection with another seal.
        let [mut stranger, _] = pair(2);
        stranger.remote.inner.lock().to = to;
        stranger.remote.publish(&record(9));
        stranger.serve(0);
        assert_eq!(right.serve(0), None);
    }
}
