//! What carries the frames of one connection: the NIC's socket to another host, or the connection's
//! shared segment to another process of this one, with or without an emulated link in between.

use std::sync::Arc;

use vipl_packet::{ETHERNET, Frame, Header};
use vipl_wire::ETHERTYPE;

use crate::bell::Bell;
use crate::doorbell::Doorbell;
use crate::provider::EmulatedLink;
use crate::segment::{Lie, Segment};

/// Room for one frame, behind the link's own header.
pub(crate) struct Room {
    /// As large as the largest frame, whatever was in it before: it would cost much to zero it.
    buffer: Vec<u8>,
    head: usize,
}

impl AsMut<[u8]> for Room {
    #[inline(always)]
    fn as_mut(&mut self) -> &mut [u8] {
        &mut self.buffer[self.head..]
    }
}

/// To a partner on another host.
pub(crate) struct Away {
    header: Header,
    /// A buffer for the next frame.
    spare: Option<Vec<u8>>,
}

/// To a partner on this host.
pub(crate) struct Here {
    segment: Segment,
    bell: Arc<Bell>,
    partner: u32,
    emulated: Option<Box<dyn EmulatedLink>>,
    /// Buffers for frames, used again.
    spare: Vec<Vec<u8>>,
}

/// The way to the partner.
pub(crate) enum Carrier {
    Away(Away),
    Here(Box<Here>),
}

impl Carrier {
    /// To the interface with this address, by way of the NIC's doorbell.
    pub(crate) fn away(to: [u8; 6], from: [u8; 6]) -> Carrier {
        Carrier::Away(Away {
            header: vipl_packet::header(to, from, ETHERTYPE),
            spare: None,
        })
    }

    /// To the VI `partner` of the NIC that `bell` wakes.
    pub(crate) fn here(
        segment: Segment,
        bell: Arc<Bell>,
        partner: u32,
        emulated: Option<Box<dyn EmulatedLink>>,
    ) -> Carrier {
        Carrier::Here(Box::new(Here {
            segment,
            bell,
            partner,
            emulated,
            spare: Vec::new(),
        }))
    }

    /// To another host.
    #[inline(always)]
    pub(crate) fn is_away(&self) -> bool {
        matches!(self, Carrier::Away(_))
    }

    /// Room for a frame of `mtu` bytes.
    #[inline(always)]
    pub(crate) fn room(&mut self, doorbell: Option<&Doorbell>, mtu: usize) -> Option<Room> {
        match self {
            Carrier::Away(away) => {
                let doorbell = doorbell?;
                let mut buffer = match away.spare.take_if(|_| !doorbell.waits()) {
                    Some(spare) => spare,
                    None => doorbell.buffer()?,
                };
                buffer.resize(ETHERNET + mtu, 0);
                buffer[..ETHERNET].copy_from_slice(&away.header);
                Some(Room {
                    buffer,
                    head: ETHERNET,
                })
            }
            Carrier::Here(here) => here.room(mtu),
        }
    }

    /// Sends the first `bytes` bytes of a frame.
    #[inline(always)]
    pub(crate) fn transmit(
        &mut self,
        doorbell: Option<&Doorbell>,
        now: impl FnOnce() -> u64,
        room: Room,
        bytes: usize,
    ) {
        let (buffer, bytes) = (room.buffer, room.head + bytes);
        match (self, doorbell) {
            (Carrier::Away(away), Some(doorbell)) => {
                if let Some(spare) = doorbell.push(Frame { buffer, bytes }) {
                    away.spare = Some(spare);
                }
            }
            (Carrier::Away(_), None) => {}
            (Carrier::Here(here), _) => here.transmit(now(), buffer, bytes),
        }
    }

    /// The end of an operation: what was sent gets going.
    #[inline(always)]
    pub(crate) fn finish(&mut self, doorbell: Option<&Doorbell>, now: u64) {
        match self {
            Carrier::Away(_) => {
                if let Some(doorbell) = doorbell {
                    doorbell.operation_ends();
                }
            }
            Carrier::Here(here) => here.finish(now),
        }
    }

    /// Copies the next frame from a partner on this host into `frame`, if there is one.
    #[inline(always)]
    pub(crate) fn take(&mut self, frame: &mut Vec<u8>) -> Result<bool, Lie> {
        match self {
            Carrier::Away(_) => Ok(false),
            Carrier::Here(here) => here.segment.take(frame),
        }
    }

    /// When something happens without anybody's doing, in nanoseconds.
    pub(crate) fn deadline(&self) -> Option<u64> {
        match self {
            Carrier::Away(_) => None,
            Carrier::Here(here) => here.emulated.as_ref()?.next_due(),
        }
    }
}

impl Here {
    fn room(&mut self, mtu: usize) -> Option<Room> {
        let has_room = match &self.emulated {
            Some(link) => link.has_room(),
            None => self.segment.has_room(mtu),
        };
        if !has_room {
            return None;
        }
        let mut buffer = self.spare.pop().unwrap_or_default();
        buffer.resize(mtu, 0);
        Some(Room { buffer, head: 0 })
    }

    fn transmit(&mut self, now: u64, buffer: Vec<u8>, bytes: usize) {
        let frame = &buffer[..bytes];
        match &mut self.emulated {
            Some(link) => link.send(now, frame),
            // Between `room` and here another frame may have been sent.
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
        if self.segment.has_news() || self.segment.partner_starves() {
            self.bell.mark(self.partner);
            self.bell.ring_if_wanted();
        }
    }
}
