//! What carries the frames of one connection: the socket of the NIC to another host, or the shared segment of the
//! connection to another process of this host.

use std::sync::Arc;

use vipl_netio::{Address, Frame, Header, Outbox};
use vipl_plugin_sdk::Host;
use vipl_wire::Transmit;

use crate::doorbell::{Doorbell, GROUP};
use crate::local::Local;
use crate::segment::InvalidCursor;
use crate::trains::Trains;

/// The frames of one connection, on their way to the peer.
pub(crate) struct Carrier {
    /// Largest frame.
    mtu: usize,
    way: Way,
}

enum Way {
    /// To another host.
    Remote(Remote),
    /// To another process of this host.
    Local(Box<Local>),
}

struct Remote {
    doorbell: Arc<Doorbell>,
    header: Header,
    /// That of frames in trains of packets.
    joined: Header,
    /// Frames for the doorbell, which has to be locked. It gets them when there are [`GROUP`] of them and no train grows,
    /// or at the end of the call. While no frame is here, there is one spare buffer at most.
    group: Outbox,
    trains: Trains,
}

impl Carrier {
    /// To another host, through the NIC's doorbell; `trains`: the longest frame in a train of packets and the header of
    /// such frames, if there may be any.
    pub(crate) fn remote(
        doorbell: &Arc<Doorbell>,
        header: Header,
        mtu: usize,
        trains: Option<(usize, Header)>,
    ) -> Carrier {
        let way = Way::Remote(Remote {
            doorbell: doorbell.clone(),
            header,
            joined: trains.map_or(Header::NONE, |(_, joined)| joined),
            group: Outbox::default(),
            trains: Trains::new(trains.map(|(longest, _)| longest)),
        });
        Carrier { mtu, way }
    }

    /// To another process of this host.
    pub(crate) fn local(local: Local, mtu: usize) -> Carrier {
        let way = Way::Local(Box::new(local));
        Carrier { mtu, way }
    }

    /// Largest frame.
    pub(crate) fn mtu(&self) -> usize {
        self.mtu
    }

    /// Whether the peer is on another host, and frames to it are collected.
    pub(crate) fn collects(&self) -> bool {
        matches!(&self.way, Way::Remote(remote) if remote.doorbell.collects())
    }

    /// The trains to another host.
    #[inline(always)]
    pub(crate) fn trains(&mut self) -> Option<&mut Trains> {
        match &mut self.way {
            Way::Remote(remote) => Some(&mut remote.trains),
            Way::Local(_) => None,
        }
    }

    /// Whether to ask now whether the peer receives trains.
    #[inline(always)]
    pub(crate) fn wants_trains(&self, now: u64) -> bool {
        match &self.way {
            Way::Remote(remote) => {
                remote.trains.want_answer(now) && remote.doorbell.carries_trains()
            }
            Way::Local(_) => false,
        }
    }

    /// Whether frames join trains, except for one before which nothing is in flight.
    #[inline(always)]
    pub(crate) fn uses_trains(&self) -> bool {
        matches!(&self.way, Way::Remote(remote) if remote.trains.are_on())
    }

    /// Where the frames go, if that is another host.
    pub(crate) fn peer(&self) -> Option<Address> {
        match &self.way {
            Way::Remote(remote) => remote.header.receiver(),
            Way::Local(_) => None,
        }
    }

    /// From now on frames go there. Returns where they have gone so far.
    pub(crate) fn redirect(&mut self, to: Header) -> Header {
        match &mut self.way {
            Way::Remote(remote) => std::mem::replace(&mut remote.header, to),
            Way::Local(_) => to,
        }
    }

    /// From now on frames leave without the ECT codepoint.
    pub(crate) fn refuse_ect(&self) {
        if let Way::Remote(remote) = &self.way {
            remote.doorbell.mark(false);
        }
    }

    /// Transmits during one call of the engine. `now`: the time, if it is known; `urgent`: the first frame need not
    /// wait for others.
    #[inline(always)]
    pub(crate) fn transmitter(&mut self, now: Option<u64>, urgent: bool) -> Transmitter<'_> {
        Transmitter {
            carrier: self,
            urgent,
            alone: false,
            now,
        }
    }

    /// Ends an operation, whose transmitter has been dropped: rings for what was sent.
    #[inline(always)]
    pub(crate) fn finish(&mut self, now: u64) {
        match &mut self.way {
            Way::Remote(remote) => remote.doorbell.end_operation(),
            Way::Local(local) => local.finish(now),
        }
    }

    /// Copies the next frame from a peer on this host into `frame`, if there is one.
    #[inline(always)]
    pub(crate) fn take(&mut self, frame: &mut Vec<u8>) -> Result<bool, InvalidCursor> {
        match &mut self.way {
            Way::Remote(_) => Ok(false),
            Way::Local(local) => local.take(frame),
        }
    }

    /// When an emulated link must be served, in nanoseconds.
    pub(crate) fn deadline(&self) -> Option<u64> {
        match &self.way {
            Way::Remote(_) => None,
            Way::Local(local) => local.deadline(),
        }
    }
}

/// A carrier during one call of the engine.
pub(crate) struct Transmitter<'a> {
    pub(crate) carrier: &'a mut Carrier,
    urgent: bool,
    alone: bool,
    now: Option<u64>,
}

impl Transmitter<'_> {
    /// Nothing is in flight: the first frame joins no train.
    #[inline(always)]
    pub(crate) fn begins(mut self, alone: bool) -> Self {
        self.alone = alone;
        self
    }

    /// The time of the call, for which the clock is read once.
    #[inline(always)]
    pub(crate) fn time(&mut self) -> u64 {
        *self.now.get_or_insert_with(|| Host::get().now_ns())
    }

    /// Passes what was sent so far to the doorbell, as the end of the call does.
    #[inline(always)]
    pub(crate) fn hand_over(&mut self) {
        if let Way::Remote(remote) = &mut self.carrier.way
            && !remote.group.is_empty()
        {
            remote.doorbell.push(&mut remote.group);
        }
    }
}

impl Drop for Transmitter<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        self.hand_over();
    }
}

impl Transmit for Transmitter<'_> {
    type Frame = Frame;

    #[inline(always)]
    fn frame(&mut self) -> Option<Frame> {
        let mtu = self.carrier.mtu;
        match &mut self.carrier.way {
            Way::Remote(Remote {
                doorbell,
                header,
                joined,
                group,
                trains,
            }) => {
                if doorbell.is_full() {
                    return None;
                }
                let in_train = trains.are_built() && !self.alone;
                let header = if in_train { joined } else { header };
                if group.is_empty() {
                    doorbell.resume(header, group);
                }
                if group.lacks_buffers(header) {
                    let count = if group.is_empty() { 1 } else { GROUP };
                    doorbell.lend(count, group);
                }
                Some(group.frame(header, mtu))
            }
            Way::Local(local) => local.frame(mtu),
        }
    }

    #[inline(always)]
    fn transmit(&mut self, mut frame: Frame, bytes: usize) {
        frame.set_length(bytes);
        let urgent = std::mem::take(&mut self.urgent);
        self.alone = false;
        match &mut self.carrier.way {
            Way::Remote(Remote {
                doorbell,
                header,
                joined,
                group,
                trains,
            }) => {
                if frame.is_in_train() && !trains.take(frame.payload()) {
                    frame = group.take_out(frame, header);
                }
                let joins = frame.is_in_train();
                let single = !joins && group.is_empty() && frame.count() == 1;
                if single && doorbell.send_at_once(&frame, urgent) {
                    group.take_back(frame);
                    return;
                }
                if !group.is_empty() {
                    trains.note_crowd();
                }
                group.push(frame);
                let header = if joins { joined } else { header };
                if group.len() >= GROUP && !group.may_grow(header) {
                    doorbell.push(group);
                }
            }
            Way::Local(local) => {
                let now = *self.now.get_or_insert_with(|| Host::get().now_ns());
                local.transmit(now, frame);
            }
        }
    }

    #[inline(always)]
    fn take_back(&mut self, frame: Frame) {
        match &mut self.carrier.way {
            Way::Remote(remote) => remote.group.take_back(frame),
            Way::Local(_) => {}
        }
    }

    #[inline(always)]
    fn now(&mut self) -> Option<u64> {
        Some(self.time())
    }
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;
    use std::sync::atomic::AtomicU64;
    use std::time::Duration;

    use vipl_netio::{Socket, datagram};

    use super::*;
    use crate::doorbell::{Counters, Policy};
    use crate::interface;
    use crate::medium::Medium;

    const MTU: usize = 100;

    /// A doorbell of a socket, another socket, and the way to that.
    fn way(policy: Policy) -> (Arc<Doorbell>, UdpSocket, Carrier) {
        let [near, far] = [0, 1].map(|_| UdpSocket::bind("127.0.0.1:0").unwrap());
        far.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        let port = far.local_addr().unwrap().port();
        let medium = Medium::Udp(interface::subnet([127, 0, 0, 1].into()));
        let header = medium.header(&[127, 0, 0, 1, 0, 0], port).unwrap();
        let socket = Socket::Datagrams(datagram::Sender::new(near.into()));
        static COUNTER: AtomicU64 = AtomicU64::new(0);
        let counters = Counters {
            sent: &COUNTER,
            again: &COUNTER,
            lost: &COUNTER,
            kicks: &COUNTER,
        };
        let doorbell = Arc::new(Doorbell::new(policy, socket, counters));
        let carrier = Carrier::remote(&doorbell, header, MTU, None);
        (doorbell, far, carrier)
    }

    /// Spare buffers of the carrier, which has handed over all frames.
    fn spare(carrier: &Carrier) -> usize {
        let Way::Remote(remote) = &carrier.way else {
            unreachable!("a way to another host");
        };
        assert!(remote.group.is_empty());
        remote.group.spare()
    }

    #[test]
    fn frames_leave_in_order_and_one_buffer_stays() {
        for policy in [Policy::Trap, Policy::Batch] {
            let (doorbell, far, mut carrier) = way(policy);
            let mut number = 0u32;
            for count in [1, 2, GROUP, GROUP + 1, 5 * GROUP, 1] {
                let first = number;
                let mut out = carrier.transmitter(Some(0), false);
                for _ in 0..count {
                    let mut frame = out.frame().expect("room");
                    frame.as_mut()[4..MTU].fill(7);
                    frame.as_mut()[..4].copy_from_slice(&number.to_be_bytes());
                    out.transmit(frame, 4 + number as usize % 60);
                    number += 1;
                }
                drop(out);
                assert!(spare(&carrier) <= 1, "after {count} frames");
                carrier.finish(0);
                doorbell.ring();
                for wanted in first..number {
                    let mut frame = [0; MTU];
                    let bytes = far.recv(&mut frame).expect("a frame");
                    let length = 4 + wanted as usize % 60;
                    assert_eq!(frame[..4], wanted.to_be_bytes());
                    // Padding may follow, which has nothing of what was in the buffer.
                    assert!(frame[4..length].iter().all(|byte| *byte == 7));
                    assert!(frame[length..bytes].iter().all(|byte| *byte == 0));
                }
            }
        }
    }
}
