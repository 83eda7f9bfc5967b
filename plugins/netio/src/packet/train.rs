//! Trains: many frames of one length in one packet, which takes the path through the kernel once.
//!
//! A train is a packet of UDP over IPv6. The kernel takes it from a packet socket in one piece (PACKET_VNET_HDR) and has
//! the card cut it, or cuts it before the card, at the length of its frames. The receiver gets the pieces or, if nothing
//! on the way had to cut, the whole. So each frame of a train is a frame of the protocol that stands by itself.
//!
//! ```text
//!   in the socket                                               on the link
//!   ┌───────┬──────────┬──────┬─────┬───────┬───────┬─────┐      ┌──────────┬──────┬─────┬───────┐
//!   │ cut   │ Ethernet │ IPv6 │ UDP │ frame │ frame │  …  │  ──▶ │ Ethernet │ IPv6 │ UDP │ frame │, …
//!   └───────┴──────────┴──────┴─────┴───────┴───────┴─────┘      └──────────┴──────┴─────┴───────┘
//!     10      14         40     8
//! ```
//!
//! Both addresses are `::1`. A host drops a packet with such an address that comes from an interface, before anything else
//! (RFC 4291, section 2.5.3): it neither answers nor forwards it, nor shows it to its firewall or to a socket of UDP. Packet
//! sockets see it before. The flow label is the endpoint of the receiver, which a filter in the kernel compares first.

use std::io;
use std::os::fd::RawFd;
use std::sync::Arc;

use vipl_sys::fd::Kept;

use super::ETHERNET;
use super::ring::{Receiver, Tip};
use crate::datagram::TRAIN as FRAMES;
use crate::frame::MEMBER;
use crate::{Frame, Received, options};

/// Bytes that a train adds to each of its frames.
pub const EXTRA: usize = IPV6 + UDP;
/// Bytes before the first frame, in a socket.
pub(super) const HEAD: usize = CUT + ETHERNET + EXTRA;

/// Bytes of `struct virtio_net_hdr`: how a packet is to be cut.
const CUT: usize = 10;
const IPV6: usize = 40;
const UDP: usize = 8;
/// Where the header of UDP begins, after [`CUT`].
const AT_UDP: usize = ETHERNET + IPV6;
/// The largest packet from a socket.
const PACKET: usize = CUT + ETHERNET + IPV6 + u16::MAX as usize;

/// `VIRTIO_NET_HDR_F_NEEDS_CSUM` and `VIRTIO_NET_HDR_GSO_UDP_L4` of `<linux/virtio_net.h>`.
const NEEDS_CHECKSUM: u8 = 1;
const CUT_UDP: u8 = 5;
/// Options of `<linux/if_packet.h>`, and the flag of a frame that waits in the socket as a whole.
const PACKET_COPY_THRESH: i32 = 7;
const PACKET_VNET_HDR: i32 = 15;
const TP_STATUS_COPY: u32 = 2;

const LOOPBACK: [u8; 16] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];

/// Makes a socket one for trains, before it gets a ring.
///
/// # Errors
/// The kernel has no trains.
pub(super) fn prepare(socket: RawFd) -> io::Result<()> {
    options::set(socket, libc::SOL_PACKET, PACKET_VNET_HDR, &1i32)
}

/// What precedes the frames of a train.
pub(super) fn head(train: &Frame) -> [u8; HEAD] {
    let (frames, segment) = train.train();
    let length = UDP + frames.len();
    // The endpoints follow version and kind.
    let [to, from] = [2, 4].map(|at| [frames[at], frames[at + 1]]);
    let mut head = [0; HEAD];
    let (cut, packet) = head.split_at_mut(CUT);
    // Numbers in the byte order of the host.
    cut[0] = NEEDS_CHECKSUM;
    cut[2..4].copy_from_slice(&((AT_UDP + UDP) as u16).to_ne_bytes());
    if train.count() > 1 {
        cut[1] = CUT_UDP;
        cut[4..6].copy_from_slice(&(segment as u16).to_ne_bytes());
    }
    cut[6..8].copy_from_slice(&(AT_UDP as u16).to_ne_bytes());
    cut[8..10].copy_from_slice(&6u16.to_ne_bytes());
    packet[..ETHERNET].copy_from_slice(&train.header()[..ETHERNET]);
    let (ip, udp) = packet[ETHERNET..].split_at_mut(IPV6);
    ip[0] = 6 << 4;
    ip[2..4].copy_from_slice(&to);
    ip[4..6].copy_from_slice(&(length as u16).to_be_bytes());
    (ip[6], ip[7]) = (libc::IPPROTO_UDP as u8, 1);
    ip[8..24].copy_from_slice(&LOOPBACK);
    ip[24..].copy_from_slice(&LOOPBACK);
    udp[..2].copy_from_slice(&from);
    udp[2..4].copy_from_slice(&to);
    udp[4..6].copy_from_slice(&(length as u16).to_be_bytes());
    // The sum of the pseudo header, with 1 of each address. The rest is left to the card or the kernel.
    let sum = 2 + libc::IPPROTO_UDP as usize + length;
    let sum = (sum & 0xFFFF) + (sum >> 16);
    udp[6..].copy_from_slice(&(sum as u16).to_be_bytes());
    head
}

/// The frames of a packet from a socket, and their length; the last one may be shorter. `None`: it is no train, or a
/// damaged one. What the frames contain is not checked.
pub(super) fn open(packet: &[u8]) -> Option<(&[u8], usize)> {
    let (cut, packet) = packet.split_at_checked(CUT)?;
    let (head, rest) = packet.split_at_checked(AT_UDP + UDP)?;
    let (ip, udp) = head[ETHERNET..].split_at(IPV6);
    let is_ours = head[ETHERNET - 2..ETHERNET] == MEMBER
        && ip[0] == 6 << 4
        && ip[6] == libc::IPPROTO_UDP as u8
        && ip[8..24] == LOOPBACK
        && ip[24..] == LOOPBACK
        && ip[4..6] == udp[4..6];
    let bytes = usize::from(u16::from_be_bytes([udp[4], udp[5]])).checked_sub(UDP)?;
    // The link may have added bytes after the packet.
    let frames = rest.get(..bytes)?;
    if !is_ours || frames.is_empty() {
        return None;
    }
    match cut[1] {
        0 => Some((frames, bytes)),
        CUT_UDP => {
            let segment = usize::from(u16::from_ne_bytes([cut[4], cut[5]]));
            let fits = segment > 0 && bytes <= segment * FRAMES;
            fits.then_some((frames, segment))
        }
        _ => None,
    }
}

/// The receive side of a socket for trains, used by one thread at a time.
///
/// Frames that were cut on the way arrive in the ring, without a system call. Of a train that is whole the slot has the
/// beginning, and the train waits in the socket.
pub struct Trains {
    ring: Receiver,
    socket: Arc<Kept>,
    packet: Box<[u8]>,
}

impl Trains {
    /// Creates the ring of a socket from [`Sender::use_trains`](super::Sender::use_trains): `frames` slots, a power of
    /// two, for single frames of up to `mtu` bytes with all headers but Ethernet's.
    ///
    /// # Errors
    /// The kernel's.
    pub fn open(socket: Arc<Kept>, mtu: usize, frames: usize) -> io::Result<Trains> {
        let fd = socket.number();
        options::set(fd, libc::SOL_PACKET, PACKET_COPY_THRESH, &1i32)?;
        let ring = Receiver::open(fd, mtu, frames)?;
        Ok(Trains {
            ring,
            socket,
            packet: vec![0; PACKET].into(),
        })
    }

    /// The status word of the next slot, see [`Tip`].
    pub fn tip(&self) -> Tip {
        Tip::new(&self.ring)
    }

    /// The tip follows this receiver, after it has taken a train.
    #[inline(always)]
    pub fn move_tip(&self, tip: &Tip) {
        tip.follow(&self.ring);
    }

    /// Passes the frames of the next train to `each`, with the Ethernet header of the train.
    #[inline(always)]
    pub fn receive(&mut self, mut each: impl FnMut(&[u8], &[u8])) -> Received {
        let Trains {
            ring,
            socket,
            packet,
        } = self;
        let (mut received, mut losing) = (Received::default(), false);
        ring.take_slot(|slot| {
            losing = slot.word & libc::TP_STATUS_LOSING != 0;
            let in_slot = slot.frame_after(CUT);
            let packet = if slot.word & TP_STATUS_COPY != 0 {
                fetch(socket, packet)
            } else if slot.is_whole {
                // SAFETY: the agent gave the socket to this process only, and does not map the ring itself.
                in_slot.as_ref().map(|frame| unsafe { frame.in_place() })
            } else {
                None
            };
            let Some((link, (frames, segment))) =
                packet.and_then(|packet| Some((&packet[CUT..][..ETHERNET], open(packet)?)))
            else {
                received.cut += 1;
                return;
            };
            for frame in frames.chunks(segment) {
                received.frames += 1;
                each(link, frame);
            }
        });
        if losing {
            received.dropped = ring.take_drops();
        }
        received
    }
}

/// Takes the oldest packet that waits in the socket as a whole.
fn fetch<'a>(socket: &Kept, packet: &'a mut [u8]) -> Option<&'a [u8]> {
    // The application may have closed the socket; what has its number now is not to be read.
    let fd = socket.fd().ok()?;
    // SAFETY: room for as many bytes as stated; no address is wanted.
    let got = unsafe {
        vipl_sys::uncancelled::recvfrom(
            fd,
            packet.as_mut_ptr().cast(),
            packet.len(),
            libc::MSG_DONTWAIT,
            std::ptr::null_mut(),
            std::ptr::null_mut(),
        )
    };
    packet.get(..usize::try_from(got).ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Header, Outbox};

    /// A train of frames of these lengths, from endpoint 7 to this one.
    fn train(to: u16, lengths: &[usize]) -> Frame {
        let header = Header::ethernet([2; 6], [4; 6], 0x88B5).in_trains(to);
        let mut outbox = Outbox::default();
        for (number, length) in lengths.iter().enumerate() {
            let mut frame = outbox.frame(&header, *length);
            let bytes = &mut frame.as_mut()[..*length];
            bytes.fill(number as u8);
            bytes[2..4].copy_from_slice(&to.to_be_bytes());
            bytes[4..6].copy_from_slice(&[0, 7]);
            frame.set_length(*length);
            outbox.push(frame);
        }
        outbox.take_only()
    }

    /// The packet of a train, as the kernel gets it, and as it gives it to a receiver that it reaches whole.
    fn packet(train: &Frame) -> Vec<u8> {
        [&head(train)[..], train.train().0].concat()
    }

    /// What a card makes of the packet: one for each frame, with lengths of its own.
    fn cut(packet: &[u8]) -> Vec<Vec<u8>> {
        let (head, frames) = packet.split_at(HEAD);
        let segment = u16::from_ne_bytes([head[4], head[5]]);
        let each = frames.chunks(usize::from(segment)).map(|frame| {
            let mut piece = [head, frame].concat();
            piece[..CUT].fill(0);
            let length = ((UDP + frame.len()) as u16).to_be_bytes();
            piece[CUT + ETHERNET + 4..][..2].copy_from_slice(&length);
            piece[CUT + AT_UDP + 4..][..2].copy_from_slice(&length);
            piece
        });
        each.collect()
    }

    #[test]
    fn what_is_packed_is_opened_whole_or_cut() {
        for lengths in [&[100][..], &[100, 100, 100], &[1400, 1400, 36]] {
            let sent = train(0x1234, lengths);
            let payloads: Vec<&[u8]> = sent.members().collect();
            assert_eq!(payloads.len(), lengths.len());
            let whole = packet(&sent);
            let (all, segment) = open(&whole).expect("a train");
            assert_eq!(all.chunks(segment).collect::<Vec<_>>(), payloads);
            assert_eq!(
                whole[CUT + ETHERNET + 2..][..2],
                [0x12, 0x34],
                "where the filter looks for the endpoint"
            );
            if lengths.len() > 1 {
                let pieces = cut(&whole);
                let opened = pieces.iter().map(|piece| open(piece).expect("a frame").0);
                assert_eq!(opened.collect::<Vec<_>>(), payloads);
            }
            let padded = [&whole[..], &[0; 20]].concat();
            assert_eq!(open(&padded), Some((all, segment)), "padding of the link");
        }
    }

    /// The sum that a card or the kernel completes: that of the pseudo header.
    #[test]
    fn the_sum_is_that_of_the_pseudo_header() {
        let whole = packet(&train(1, &[1400; 44]));
        let (ip, udp) = (
            &whole[CUT + ETHERNET..][..IPV6],
            &whole[CUT + AT_UDP..][..UDP],
        );
        let words = ip[8..]
            .chunks(2)
            .map(|two| u32::from(u16::from_be_bytes([two[0], two[1]])));
        let length = u32::from(u16::from_be_bytes([udp[4], udp[5]]));
        let mut sum = words.sum::<u32>() + length + 17;
        while sum > 0xFFFF {
            sum = (sum & 0xFFFF) + (sum >> 16);
        }
        assert_eq!(udp[6..], (sum as u16).to_be_bytes());
        assert_eq!(usize::from(u16::from_ne_bytes([whole[4], whole[5]])), 1400);
    }

    #[test]
    fn damaged_packets_are_no_trains() {
        let whole = packet(&train(0x1234, &[100, 100, 50]));
        assert!(open(&whole).is_some());
        for short in 0..whole.len() {
            assert_eq!(open(&whole[..short]), None, "{short} bytes");
        }
        let ip = CUT + ETHERNET;
        let udp = CUT + AT_UDP;
        let cases = [
            (1, 1, "cut as TCP"),
            (1, 3, "cut as fragments"),
            (CUT + 12, 0x08, "another ethertype"),
            (CUT + 13, 0, "another ethertype"),
            (ip, 0x45, "another version of IP"),
            (ip, 0x61, "a traffic class"),
            (ip + 5, 0, "a length that is not that of UDP"),
            (ip + 6, 6, "TCP"),
            (ip + 6, 0, "an extension header"),
            (ip + 23, 2, "from another address"),
            (ip + 8, 0xFE, "from another address"),
            (ip + 39, 2, "to another address"),
            (ip + 24, 0xFF, "to another address"),
            (udp + 4, 0xFF, "longer than the packet"),
        ];
        for (at, value, what) in cases {
            let mut damaged = whole.clone();
            damaged[at] = value;
            assert_eq!(open(&damaged), None, "{what}");
        }
        let with_lengths = |length: u16, segment: u16| {
            let mut damaged = whole.clone();
            damaged[4..6].copy_from_slice(&segment.to_ne_bytes());
            damaged[ip + 4..ip + 6].copy_from_slice(&length.to_be_bytes());
            damaged[udp + 4..udp + 6].copy_from_slice(&length.to_be_bytes());
            damaged
        };
        for (length, segment) in [(258, 0), (258, 3), (8, 100), (7, 100), (0, 100), (259, 100)] {
            assert_eq!(
                open(&with_lengths(length, segment)),
                None,
                "{length}, {segment}"
            );
        }
        // A segment longer than all frames is a single frame.
        let one = with_lengths(258, 1000);
        let (all, segment) = open(&one).expect("a frame");
        assert_eq!(all.chunks(segment).count(), 1);
    }
}
