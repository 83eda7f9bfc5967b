//! A frame in its buffer, behind what precedes it on its link.

use std::fmt;
use std::net::SocketAddr;

use crate::datagram::{PEER, Peer};
use crate::packet::ETHERNET;

/// Room before each frame. Copying a constant number of bytes costs less than copying the length of the header.
const ROOM: usize = 32;

const _: () = assert!(PEER <= ROOM && ETHERNET <= ROOM);

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

/// A frame in a buffer, which has the header of its link before it.
pub struct Frame {
    /// As large as the largest frame, with the contents of an earlier one: clearing it would be expensive.
    buffer: Vec<u8>,
    /// Bytes of the header.
    head: u32,
    /// Bytes of the header and the frame.
    end: u32,
}

impl Frame {
    /// Prepares a buffer for a frame of up to `bytes` bytes.
    #[inline(always)]
    pub(crate) fn new(mut buffer: Vec<u8>, header: &Header, bytes: usize) -> Frame {
        // Used buffers have that length, and the function that changes it is a call.
        if buffer.len() != ROOM + bytes {
            buffer.resize(ROOM + bytes, 0);
        }
        buffer[..ROOM].copy_from_slice(&header.bytes);
        let head = u32::from(header.length);
        Frame {
            buffer,
            head,
            end: head,
        }
    }

    /// The frame gets this length, without its header.
    #[inline(always)]
    pub fn set_length(&mut self, bytes: usize) {
        self.end = self.head + bytes as u32;
    }

    /// The header and the frame.
    #[inline(always)]
    pub fn contents(&self) -> &[u8] {
        &self.buffer[..self.end as usize]
    }

    #[inline(always)]
    pub(crate) fn into_buffer(self) -> Vec<u8> {
        self.buffer
    }
}

/// The frame as far as its buffer goes.
impl AsMut<[u8]> for Frame {
    #[inline(always)]
    fn as_mut(&mut self) -> &mut [u8] {
        &mut self.buffer[self.head as usize..]
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
        let mut frame = Frame::new(Vec::new(), header, bytes.len());
        frame.as_mut()[..bytes.len()].copy_from_slice(bytes);
        frame.set_length(bytes.len());
        frame
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
