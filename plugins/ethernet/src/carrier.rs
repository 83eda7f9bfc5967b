//! What carries the frames of one connection: the socket of the NIC to another host, or the shared segment of the
//! connection to another process of this host, with or without an emulated link in between.

use std::sync::Arc;

use vipl_netio::packet::Frame;
use vipl_plugin_sdk::Host;
use vipl_wire::Transmit;

use crate::bell::Bell;
use crate::card::EmulatedLink;
use crate::doorbell::{Doorbell, GROUP};
use crate::medium::{Header, Sender};
use crate::segment::{InvalidCursor, Segment};

/// A buffer for one frame, behind the link's own header.
pub(crate) struct FrameBuffer {
    /// As large as the largest frame, with the content of an earlier one: clearing it would be expensive.
    buffer: Vec<u8>,
    head: usize,
}

impl AsMut<[u8]> for FrameBuffer {
    #[inline(always)]
    fn as_mut(&mut self) -> &mut [u8] {
        &mut self.buffer[self.head..]
    }
}

/// To a peer on another host.
pub(crate) struct RemoteCarrier {
    header: Header,
    /// Frames for the doorbell, which has to be locked. It gets them when there is a group of them, or at the end of the call.
    ready: Vec<Frame>,
    /// Buffers for the next frames; one at most if no frame is ready.
    spare: Vec<Vec<u8>>,
}

/// To a peer on this host.
pub(crate) struct LocalCarrier {
    segment: Segment,
    bell: Arc<Bell>,
    peer: u32,
    emulated: Option<Box<dyn EmulatedLink>>,
    /// Buffers of earlier frames.
    spare: Vec<Vec<u8>>,
}

/// The way to the peer.
pub(crate) enum Carrier {
    Remote(RemoteCarrier),
    Local(Box<LocalCarrier>),
}

impl Carrier {
    /// To another host, through the NIC's doorbell.
    pub(crate) fn remote(header: Header) -> Carrier {
        Carrier::Remote(RemoteCarrier {
            header,
            ready: Vec::new(),
            spare: Vec::new(),
        })
    }

    /// To the VI `peer` of the NIC that `bell` wakes.
    pub(crate) fn local(
        segment: Segment,
        bell: Arc<Bell>,
        peer: u32,
        emulated: Option<Box<dyn EmulatedLink>>,
    ) -> Carrier {
        Carrier::Local(Box::new(LocalCarrier {
            segment,
            bell,
            peer,
            emulated,
            spare: Vec::new(),
        }))
    }

    /// Whether the peer is on another host.
    #[inline(always)]
    pub(crate) fn is_remote(&self) -> bool {
        matches!(self, Carrier::Remote(_))
    }

    /// Where the frames go, if that is another host.
    pub(crate) fn peer(&self) -> Option<Sender> {
        match self {
            Carrier::Remote(remote) => remote.header.receiver(),
            Carrier::Local(_) => None,
        }
    }

    /// From now on frames go there. Gives where they have gone so far.
    pub(crate) fn redirect(&mut self, to: Header) -> Header {
        match self {
            Carrier::Remote(remote) => std::mem::replace(&mut remote.header, to),
            Carrier::Local(_) => to,
        }
    }

    /// A buffer for a frame of `mtu` bytes. `None`: the device or the segment is full.
    #[inline(always)]
    pub(crate) fn buffer(
        &mut self,
        doorbell: Option<&Doorbell>,
        mtu: usize,
    ) -> Option<FrameBuffer> {
        match self {
            Carrier::Remote(remote) => {
                let doorbell = doorbell?;
                if doorbell.is_full() {
                    return None;
                }
                if remote.spare.is_empty() {
                    let count = if remote.ready.is_empty() { 1 } else { GROUP };
                    doorbell.lend(count, &mut remote.spare);
                }
                let mut buffer = remote.spare.pop().unwrap_or_default();
                remote.header.put(&mut buffer, mtu);
                Some(FrameBuffer {
                    buffer,
                    head: remote.header.length(),
                })
            }
            Carrier::Local(local) => local.buffer(mtu),
        }
    }

    /// Sends the first `bytes` bytes of a frame.
    #[inline(always)]
    pub(crate) fn transmit(
        &mut self,
        doorbell: Option<&Doorbell>,
        now: impl FnOnce() -> u64,
        frame: FrameBuffer,
        (bytes, urgent): (usize, bool),
    ) {
        let (buffer, bytes) = (frame.buffer, frame.head + bytes);
        match (self, doorbell) {
            (Carrier::Remote(remote), Some(doorbell)) => {
                let frame = Frame { buffer, bytes };
                if remote.ready.is_empty() && doorbell.send_at_once(&frame, urgent) {
                    remote.spare.push(frame.buffer);
                    return;
                }
                remote.ready.push(frame);
                if remote.ready.len() == GROUP {
                    doorbell.push(&mut remote.ready, &mut remote.spare);
                }
            }
            (Carrier::Remote(_), None) => {}
            (Carrier::Local(local), _) => local.transmit(now(), buffer, bytes),
        }
    }

    /// Gives the doorbell the frames that it has not got yet, and buffers back.
    #[inline(always)]
    pub(crate) fn hand_over(&mut self, doorbell: Option<&Doorbell>) {
        if let (Carrier::Remote(remote), Some(doorbell)) = (self, doorbell)
            && !remote.ready.is_empty()
        {
            doorbell.push(&mut remote.ready, &mut remote.spare);
        }
    }

    /// The end of an operation, whose transmitter has been dropped: rings for what was sent.
    #[inline(always)]
    pub(crate) fn finish(&mut self, doorbell: Option<&Doorbell>, now: u64) {
        match self {
            Carrier::Remote(_) => {
                if let Some(doorbell) = doorbell {
                    doorbell.operation_ends();
                }
            }
            Carrier::Local(local) => local.finish(now),
        }
    }

    /// Copies the next frame from a peer on this host into `frame`, if there is one.
    #[inline(always)]
    pub(crate) fn take(&mut self, frame: &mut Vec<u8>) -> Result<bool, InvalidCursor> {
        match self {
            Carrier::Remote(_) => Ok(false),
            Carrier::Local(local) => local.segment.take(frame),
        }
    }

    /// Sends through this carrier during one call of the engine.
    pub(crate) fn transmitter<'a>(
        &'a mut self,
        doorbell: Option<&'a Doorbell>,
        mtu: usize,
        now: u64,
    ) -> Transmitter<'a> {
        Transmitter {
            carrier: self,
            doorbell,
            mtu,
            urgent: false,
            now: Some(now),
        }
    }

    /// When an emulated link must be served, in nanoseconds.
    pub(crate) fn deadline(&self) -> Option<u64> {
        match self {
            Carrier::Remote(_) => None,
            Carrier::Local(local) => local.emulated.as_ref()?.next_due(),
        }
    }
}

impl LocalCarrier {
    fn buffer(&mut self, mtu: usize) -> Option<FrameBuffer> {
        let has_room = match &self.emulated {
            Some(link) => link.has_room(),
            None => self.segment.has_room(mtu),
        };
        if !has_room {
            return None;
        }
        let mut buffer = self.spare.pop().unwrap_or_default();
        buffer.resize(mtu, 0);
        Some(FrameBuffer { buffer, head: 0 })
    }

    fn transmit(&mut self, now: u64, buffer: Vec<u8>, bytes: usize) {
        let frame = &buffer[..bytes];
        match &mut self.emulated {
            Some(link) => link.send(now, frame),
            // After `buffer` another frame may have been sent.
            None if self.segment.has_room(bytes) => self.segment.put(frame),
            None => {}
        }
        self.spare.push(buffer);
    }

    fn finish(&mut self, now: u64) {
        if let Some(link) = &mut self.emulated {
            while let Some(bytes) = link.next_bytes(now) {
                if !self.segment.has_room(bytes) {
                    break;
                }
                if let Some(frame) = link.receive(now) {
                    self.segment.put(&frame);
                }
            }
        }
        if self.segment.has_news() || self.segment.peer_starves() {
            self.bell.mark(self.peer);
            self.bell.ring_if_wanted();
        }
    }
}

/// The way of frames during one call of the engine.
pub(crate) struct Transmitter<'a> {
    pub(crate) carrier: &'a mut Carrier,
    pub(crate) doorbell: Option<&'a Doorbell>,
    pub(crate) mtu: usize,
    /// The next frame need not wait for others.
    pub(crate) urgent: bool,
    /// The time, once it is known.
    pub(crate) now: Option<u64>,
}

/// The time of an operation, for which the clock is read once.
#[inline(always)]
pub(crate) fn time(known: &mut Option<u64>) -> u64 {
    *known.get_or_insert_with(|| Host::get().now_ns())
}

impl Transmitter<'_> {
    /// Gives the doorbell what was sent so far, as the end of the call does.
    #[inline(always)]
    pub(crate) fn hand_over(&mut self) {
        self.carrier.hand_over(self.doorbell);
    }
}

impl Drop for Transmitter<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        self.hand_over();
    }
}

impl Transmit for Transmitter<'_> {
    type Frame = FrameBuffer;

    #[inline(always)]
    fn frame(&mut self) -> Option<FrameBuffer> {
        self.carrier.buffer(self.doorbell, self.mtu)
    }

    #[inline(always)]
    fn transmit(&mut self, frame: FrameBuffer, bytes: usize) {
        let now = || time(&mut self.now);
        let urgent = std::mem::take(&mut self.urgent);
        self.carrier
            .transmit(self.doorbell, now, frame, (bytes, urgent));
    }

    #[inline(always)]
    fn now(&mut self) -> Option<u64> {
        Some(time(&mut self.now))
    }
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;
    use std::sync::atomic::AtomicU64;
    use std::time::Duration;

    use super::*;
    use crate::doorbell::{Counters, Policy};
    use crate::interface;
    use crate::medium::{Medium, Outlet};

    const MTU: usize = 100;

    /// A doorbell of a socket, another socket, and the way to that.
    fn way(policy: Policy) -> (Doorbell, UdpSocket, Carrier) {
        let [near, far] = [0, 1].map(|_| UdpSocket::bind("127.0.0.1:0").unwrap());
        far.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        let port = far.local_addr().unwrap().port();
        let medium = Medium::Udp(interface::subnet([127, 0, 0, 1].into()));
        let header = medium.header(&[127, 0, 0, 1, 0, 0], port).unwrap();
        let outlet = Outlet::Datagrams(vipl_netio::datagram::Sender::new(near.into()));
        static COUNTER: AtomicU64 = AtomicU64::new(0);
        let counters = Counters {
            sent: &COUNTER,
            again: &COUNTER,
            lost: &COUNTER,
            kicks: &COUNTER,
        };
        let doorbell = Doorbell::new(policy, outlet, counters);
        (doorbell, far, Carrier::remote(header))
    }

    /// Buffers that the carrier keeps; it has handed over all frames.
    fn kept(carrier: &Carrier) -> usize {
        match carrier {
            Carrier::Remote(remote) => {
                assert!(remote.ready.is_empty());
                remote.spare.len()
            }
            Carrier::Local(_) => unreachable!("a way to another host"),
        }
    }

    #[test]
    fn frames_leave_in_order_and_one_buffer_stays() {
        for policy in [Policy::Trap, Policy::Batch] {
            let (doorbell, far, mut carrier) = way(policy);
            let mut number = 0u32;
            for count in [1, 2, GROUP, GROUP + 1, 5 * GROUP, 1] {
                let first = number;
                let mut out = carrier.transmitter(Some(&doorbell), MTU, 0);
                for _ in 0..count {
                    let mut frame = out.frame().expect("room");
                    frame.as_mut()[..4].copy_from_slice(&number.to_be_bytes());
                    out.transmit(frame, 4 + number as usize % 60);
                    number += 1;
                }
                drop(out);
                assert!(kept(&carrier) <= 1, "after {count} frames");
                carrier.finish(Some(&doorbell), 0);
                doorbell.ring();
                for wanted in first..number {
                    let mut frame = [0; MTU];
                    let bytes = far.recv(&mut frame).expect("a frame");
                    assert_eq!(bytes, 4 + wanted as usize % 60);
                    assert_eq!(frame[..4], wanted.to_be_bytes());
                }
            }
        }
    }
}
