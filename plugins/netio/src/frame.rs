//! A frame in its buffer, behind what precedes it on its link.

use std::fmt;
use std::net::SocketAddr;

use vipl_wire::Kind;

use crate::datagram::{PEER, Peer, TRAIN, TRAIN_BYTES};
use crate::packet::ETHERNET;

/// Room before each frame. Copying a constant number of bytes costs less than copying the length of the header.
const ROOM: usize = 32;

/// The ethertype of frames that leave in one packet with others: that of IPv6.
pub(crate) const MEMBER: [u8; 2] = [0x86, 0xDD];
/// Bytes of the header of such frames: that of Ethernet, and the endpoint of the receiver.
const JOINED: usize = ETHERNET + 2;

/// Bytes of a buffer for trains.
pub(crate) const TRAIN_ROOM: usize = 1 << 16;

const _: () = assert!(PEER <= ROOM && JOINED <= ROOM && ROOM + TRAIN_BYTES <= TRAIN_ROOM);

/// What precedes a frame: its Ethernet header or, over UDP, the address of the receiver as the kernel reads it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Header {
    bytes: [u8; ROOM],
    length: u8,
}

impl Header {
    /// Nothing: the frame does not leave this host.
    pub const NONE: Header = Header {
        bytes: [0; ROOM],
        length: 0,
    };

    /// The Ethernet header of frames from one address to another.
    pub fn ethernet(to: [u8; 6], from: [u8; 6], ethertype: u16) -> Header {
        let mut bytes = [0; ETHERNET];
        bytes[..6].copy_from_slice(&to);
        bytes[6..12].copy_from_slice(&from);
        bytes[12..].copy_from_slice(&ethertype.to_be_bytes());
        Header::new(&bytes)
    }

    /// Behind an Ethernet header: the header of frames that join trains to an endpoint.
    pub fn in_trains(&self, endpoint: u16) -> Header {
        let mut bytes = [0; JOINED];
        bytes[..ETHERNET - 2].copy_from_slice(&self.bytes[..ETHERNET - 2]);
        bytes[ETHERNET - 2..ETHERNET].copy_from_slice(&MEMBER);
        bytes[ETHERNET..].copy_from_slice(&endpoint.to_be_bytes());
        Header::new(&bytes)
    }

    /// The receiver of datagrams.
    pub fn udp(to: Peer) -> Header {
        Header::new(to.bytes())
    }

    fn new(contents: &[u8]) -> Header {
        let mut bytes = [0; ROOM];
        bytes[..contents.len()].copy_from_slice(contents);
        let length = contents.len() as u8;
        Header { bytes, length }
    }

    /// The receiver of the frames.
    pub fn receiver(&self) -> Option<Address> {
        match usize::from(self.length) {
            ETHERNET => self.bytes.first_chunk().copied().map(Address::Ethernet),
            PEER => {
                let peer = self.bytes.first_chunk().copied();
                peer.map(Peer::of_bytes).map(Address::Udp)
            }
            _ => None,
        }
    }
}

/// A frame in a buffer, behind the header of its link. Datagrams, and frames that join trains of packets, stand behind
/// others to the same receiver there, as a *train*: all have one length, and the last one may be shorter.
pub struct Frame {
    /// Contents of earlier frames stay: clearing them would be expensive.
    buffer: Vec<u8>,
    /// Bytes of the header.
    head: u32,
    /// Where the first frame of the train begins, where the last one does, and where that ends.
    first: u32,
    last: u32,
    end: u32,
    /// Frames of the train, and the length of the first one.
    count: u32,
    length: u32,
}

impl Frame {
    /// Prepares a buffer for a frame of up to `bytes` bytes.
    #[inline(always)]
    pub(crate) fn new(mut buffer: Vec<u8>, header: &Header, bytes: usize) -> Frame {
        // Used buffers have that length, and the function that changes it is a call.
        if buffer.len() < ROOM + bytes {
            buffer.resize(ROOM + bytes, 0);
        }
        buffer[..ROOM].copy_from_slice(&header.bytes);
        let head = u32::from(header.length);
        Frame {
            buffer,
            head,
            first: head,
            last: head,
            end: head,
            count: 1,
            length: 0,
        }
    }

    /// The last frame gets this length, without the header.
    #[inline(always)]
    pub fn set_length(&mut self, bytes: usize) {
        self.end = self.last + bytes as u32;
        if self.count == 1 {
            self.length = bytes as u32;
        }
    }

    /// Bytes of the last frame.
    #[inline(always)]
    pub(crate) fn last_bytes(&self) -> usize {
        (self.end - self.last) as usize
    }

    /// Frames in the buffer.
    #[inline(always)]
    pub fn count(&self) -> usize {
        self.count as usize
    }

    /// The header and the frame, which is the only one.
    #[inline(always)]
    pub fn contents(&self) -> &[u8] {
        debug_assert!(self.count == 1 && self.first == self.head);
        &self.buffer[..self.end as usize]
    }

    /// The last frame.
    #[inline(always)]
    pub fn payload(&self) -> &[u8] {
        &self.buffer[self.last as usize..self.end as usize]
    }

    /// Whether the frame leaves in one packet with others.
    #[inline(always)]
    pub fn is_in_train(&self) -> bool {
        self.head as usize == JOINED
    }

    /// Bytes of the first frame, which is the longest, and of the header.
    pub(crate) fn longest(&self) -> usize {
        (self.head + self.length) as usize
    }

    /// The header.
    #[inline(always)]
    pub(crate) fn header(&self) -> &[u8] {
        &self.buffer[..self.head as usize]
    }

    /// The frames of the train, and the length of each but the last one.
    #[inline(always)]
    pub(crate) fn train(&self) -> (&[u8], usize) {
        let frames = &self.buffer[self.first as usize..self.end as usize];
        (frames, self.length as usize)
    }

    /// Each frame of the train.
    pub(crate) fn members(&self) -> impl Iterator<Item = &[u8]> {
        let (frames, length) = self.train();
        let end = move |number| frames.len().min((number + 1) * length);
        (0..self.count()).map(move |number| &frames[number * length..end(number)])
    }

    /// Bytes that the last frame lacks to the length of the train.
    #[inline(always)]
    fn lacks(&self) -> usize {
        (self.last + self.length).saturating_sub(self.end) as usize
    }

    /// Whether the last datagram is a TRY. A train is forwarded or dropped as a whole, and the fate of a TRY must be its
    /// own. The TRYs in a train of packets ask about trains.
    fn last_is_try(&self) -> bool {
        !self.is_in_train() && Kind::Try.is_of(self.payload())
    }

    /// Whether this header precedes the train, if it is one of trains.
    #[inline(always)]
    fn is_behind(&self, header: &Header) -> bool {
        match usize::from(header.length) {
            PEER => self.buffer[..PEER] == header.bytes[..PEER],
            JOINED => self.is_in_train() && self.buffer[..JOINED] == header.bytes[..JOINED],
            _ => false,
        }
    }

    /// Whether a frame with this header may join the train, after its last frame has been padded with up to `padding`
    /// bytes.
    #[inline(always)]
    pub(crate) fn may_grow(&self, header: &Header, padding: usize) -> bool {
        let bytes = (self.count() + 1) * self.length as usize;
        self.is_behind(header)
            && self.length > 0
            && self.count() < TRAIN
            && bytes <= TRAIN_BYTES
            && self.lacks() <= padding
            && !self.last_is_try()
    }

    /// Whether the buffer has no room for a train.
    #[inline(always)]
    pub(crate) fn is_small(&self) -> bool {
        self.buffer.len() < TRAIN_ROOM
    }

    /// Moves the train to another buffer. Returns its own.
    pub(crate) fn move_to(&mut self, mut buffer: Vec<u8>) -> Vec<u8> {
        if buffer.len() < TRAIN_ROOM {
            buffer.resize(TRAIN_ROOM, 0);
        }
        let used = self.end as usize;
        buffer[..used].copy_from_slice(&self.buffer[..used]);
        std::mem::replace(&mut self.buffer, buffer)
    }

    /// Begins the next frame of the train, of up to `bytes` bytes. Returns the bytes of padding before it.
    #[inline(always)]
    pub(crate) fn grow(&mut self, bytes: usize) -> usize {
        let (end, padding) = (self.end as usize, self.lacks());
        let begin = end + padding;
        if self.buffer.len() < begin + bytes {
            self.buffer.resize(begin + bytes, 0);
        }
        self.buffer[end..begin].fill(0);
        self.last = begin as u32;
        self.end = self.last;
        self.count += 1;
        padding
    }

    /// Whether the last frame may not stay in its train.
    #[inline(always)]
    pub(crate) fn is_misplaced(&self) -> bool {
        self.count > 1 && (self.last_bytes() > self.length as usize || self.last_is_try())
    }

    /// Moves the last frame of several into another buffer.
    #[cold]
    pub(crate) fn split(&mut self, buffer: Vec<u8>) -> Frame {
        let alone = self.copy_last(buffer, &Header::new(self.header()));
        self.drop_last();
        alone
    }

    /// Moves the first frame of several into another buffer.
    pub(crate) fn split_first(&mut self, buffer: Vec<u8>) -> Frame {
        let first = &self.buffer[self.first as usize..][..self.length as usize];
        let alone = Frame::filled(buffer, &Header::new(self.header()), first);
        self.drop_first(1);
        alone
    }

    /// A copy of the last frame behind this header.
    #[cold]
    pub(crate) fn copy_last(&self, buffer: Vec<u8>, header: &Header) -> Frame {
        Frame::filled(buffer, header, self.payload())
    }

    /// A frame with these contents.
    fn filled(buffer: Vec<u8>, header: &Header, bytes: &[u8]) -> Frame {
        let mut frame = Frame::new(buffer, header, bytes.len());
        frame.as_mut()[..bytes.len()].copy_from_slice(bytes);
        frame.set_length(bytes.len());
        frame
    }

    /// Drops the last frame of several.
    pub(crate) fn drop_last(&mut self) {
        self.count -= 1;
        self.end = self.last;
        self.last -= self.length;
    }

    /// Drops the first frames of several: at least one stays.
    pub(crate) fn drop_first(&mut self, count: usize) {
        debug_assert!(count < self.count());
        self.count -= count as u32;
        self.first += count as u32 * self.length;
        if self.count == 1 {
            self.length = self.end - self.last;
        }
    }

    #[inline(always)]
    pub(crate) fn into_buffer(self) -> Vec<u8> {
        self.buffer
    }
}

/// The last frame, as far as its buffer goes.
impl AsMut<[u8]> for Frame {
    #[inline(always)]
    fn as_mut(&mut self) -> &mut [u8] {
        &mut self.buffer[self.last as usize..]
    }
}

/// The sender or the receiver of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Address {
    /// An Ethernet address.
    Ethernet([u8; 6]),
    /// An IP address and a port.
    Udp(Peer),
}

impl Address {
    /// Whether another address differs in its port at most.
    pub fn is_same_host(&self, other: &Address) -> bool {
        match (self, other) {
            (Address::Udp(one), Address::Udp(other)) => {
                SocketAddr::from(*one).ip() == SocketAddr::from(*other).ip()
            }
            _ => self == other,
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Ethernet(mac) => {
                let mac = mac.map(|byte| format!("{byte:02x}"));
                to.write_str(&mac.join(":"))
            }
            Address::Udp(peer) => SocketAddr::from(*peer).fmt(to),
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A frame with these contents.
    pub(crate) fn frame(header: &Header, bytes: &[u8]) -> Frame {
        Frame::filled(Vec::new(), header, bytes)
    }

    /// The last short frame of a message, before the first of the next one.
    #[test]
    fn a_longer_frame_begins_a_train_where_it_stands() {
        let header = Header::ethernet([2; 6], [4; 6], 0x88B5).in_trains(7);
        let mut train = frame(&header, &[1; 3]);
        for (number, length) in [(2, 9), (3, 9), (4, 5)] {
            train.grow(length);
            train.as_mut()[..length].fill(number);
            train.set_length(length);
            if train.is_misplaced() {
                let short = train.split_first(Vec::new());
                assert_eq!(short.train(), (&[1; 3][..], 3));
            }
        }
        let all = [[2; 9], [3; 9]].concat();
        let members: Vec<&[u8]> = train.members().collect();
        assert_eq!(members, [&all[..9], &all[9..], &[4; 5]]);
    }

    #[test]
    fn a_train_of_packets_is_between_two_endpoints_and_may_have_tries() {
        let link = Header::ethernet([2; 6], [4; 6], 0x88B5);
        let header = link.in_trains(7);
        let mut train = frame(&header, &[vipl_wire::VERSION, Kind::Try as u8, 2]);
        assert!(train.is_in_train() && train.may_grow(&header, 0));
        train.grow(3);
        train.as_mut()[..3].copy_from_slice(&[vipl_wire::VERSION, Kind::Try as u8, 2]);
        train.set_length(3);
        assert!(!train.is_misplaced());
        let other_host = Header::ethernet([6; 6], [4; 6], 0x88B5).in_trains(7);
        for other in [link, link.in_trains(8), other_host] {
            assert!(!train.may_grow(&other, 0));
        }
        let alone = frame(&link, b"one");
        assert!(!alone.is_in_train() && !alone.may_grow(&link, 0) && !alone.may_grow(&header, 0));
        let alone = train.copy_last(Vec::new(), &link);
        assert_eq!(alone.contents()[..12], [[2; 6], [4; 6]].concat());
        assert!(!alone.is_in_train());
    }

    #[test]
    fn a_train_has_one_receiver_and_one_length() {
        let header = |port| Header::udp(Peer::from(SocketAddr::from(([192, 0, 2, 1], port))));
        let one = header(1);
        let grown = |sizes: &[usize], padding| {
            let mut train = frame(&one, &vec![7; sizes[0]]);
            for size in &sizes[1..] {
                if !train.may_grow(&one, padding) {
                    break;
                }
                train.grow(*size);
                train.as_mut()[..*size].fill(7);
                train.set_length(*size);
                if train.is_misplaced() {
                    let alone = train.split(Vec::new());
                    assert_eq!(alone.contents(), frame(&one, &vec![7; *size]).contents());
                    break;
                }
            }
            train
        };
        let count = |sizes: &[usize]| grown(sizes, 0).count();
        assert_eq!(count(&[9]), 1);
        assert_eq!(count(&[9, 9, 8, 8]), 3);
        assert_eq!(count(&[9, 9, 10]), 2);
        assert_eq!(count(&[0, 0]), 1);
        assert_eq!(count(&[9; 100]), TRAIN);
        assert_eq!(count(&[9000; 9]), 7);
        assert!(!frame(&one, b"one").may_grow(&header(2), 0));
        assert!(!frame(&Header::NONE, b"one").may_grow(&Header::NONE, 0));

        // Padding has none of what was in the buffer before.
        let mut train = grown(&[9, 7, 9], 2);
        assert_eq!(
            train.train(),
            (
                &[[7; 9], [7, 7, 7, 7, 7, 7, 7, 0, 0], [7; 9]].concat()[..],
                9
            )
        );
        train.drop_first(1);
        assert_eq!((train.count(), train.train().0.len()), (2, 18));
        train.drop_last();
        assert_eq!(train.train(), (&[7, 7, 7, 7, 7, 7, 7, 0, 0][..], 9));
        let mut short = grown(&[9, 9, 3], 0);
        short.drop_first(2);
        assert_eq!(short.train(), (&[7; 3][..], 3));
        assert!(short.may_grow(&one, 0));
    }

    #[test]
    fn a_try_is_alone() {
        let header = Header::udp(Peer::from(SocketAddr::from(([192, 0, 2, 1], 1))));
        let a_try = [vipl_wire::VERSION, Kind::Try as u8, 2];
        assert!(!frame(&header, &a_try).may_grow(&header, 0));
        let mut train = frame(&header, b"one");
        train.grow(3);
        train.as_mut()[..3].copy_from_slice(&a_try);
        train.set_length(3);
        assert!(train.is_misplaced());
        assert_eq!(train.split(Vec::new()).train(), (&a_try[..], 3));
        assert_eq!(train.train(), (&b"one"[..], 3));
    }

    #[test]
    fn the_header_precedes_the_frame_and_names_its_receiver() {
        let peer = Peer::from("[2001:db8::7]:9".parse::<SocketAddr>().unwrap());
        let udp = Header::udp(peer);
        assert_eq!(udp.receiver(), Some(Address::Udp(peer)));
        assert_eq!(
            frame(&udp, b"two").contents(),
            [&peer.bytes()[..], b"two"].concat()
        );
        let ethernet = Header::ethernet([2; 6], [4; 6], 0x88B5);
        assert_eq!(ethernet.receiver(), Some(Address::Ethernet([2; 6])));
        assert_eq!(Header::NONE.receiver(), None);
        let expected = [&[2; 6][..], &[4; 6], &[0x88, 0xB5], b"one"].concat();
        assert_eq!(frame(&ethernet, b"one").contents(), expected);
    }
}
