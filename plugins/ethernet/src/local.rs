//! Frames to another process of this host, through the shared segment of the connection, with or without an emulated
//! link in between.

use std::sync::Arc;

use vipl_link_emulator::LinkEmulator;
use vipl_netio::{Frame, Header, Outbox};

use crate::bell::Bell;
use crate::segment::{InvalidCursor, Segment};

/// This side of a connection within one host.
pub(crate) struct Local {
    segment: Segment,
    /// The bell of the peer's NIC.
    bell: Arc<Bell>,
    /// The peer's VI there.
    peer: u32,
    emulated: Option<LinkEmulator>,
    /// Buffers of earlier frames; no frame waits here.
    buffers: Outbox,
}

impl Local {
    /// To the VI `peer` of the NIC that `bell` wakes.
    pub(crate) fn new(
        segment: Segment,
        bell: Arc<Bell>,
        peer: u32,
        emulated: Option<LinkEmulator>,
    ) -> Local {
        Local {
            segment,
            bell,
            peer,
            emulated,
            buffers: Outbox::default(),
        }
    }

    /// A frame of up to `mtu` bytes. `None`: the segment or the link is full.
    pub(crate) fn frame(&mut self, mtu: usize) -> Option<Frame> {
        let has_room = match &self.emulated {
            Some(link) => link.has_room(),
            None => self.segment.has_room(mtu),
        };
        has_room.then(|| self.buffers.frame(&Header::NONE, mtu))
    }

    pub(crate) fn transmit(&mut self, now: u64, frame: Frame) {
        let bytes = frame.contents();
        match &mut self.emulated {
            Some(link) => link.send(now, bytes),
            // After `frame` another one may have been sent.
            None if self.segment.has_room(bytes.len()) => self.segment.put(bytes),
            None => {}
        }
        self.buffers.take_back(frame);
    }

    /// Ends an operation: passes on what the emulated link delivers by now, and wakes the peer.
    pub(crate) fn finish(&mut self, now: u64) {
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
        if self.segment.has_written() || self.segment.peer_starves() {
            self.bell.mark(self.peer);
            self.bell.ring_if_wanted();
        }
    }

    /// Copies the next frame from the peer into `frame`, if there is one.
    #[inline(always)]
    pub(crate) fn take(&mut self, frame: &mut Vec<u8>) -> Result<bool, InvalidCursor> {
        self.segment.take(frame)
    }

    /// When the emulated link delivers its next frame, in nanoseconds.
    pub(crate) fn deadline(&self) -> Option<u64> {
        self.emulated.as_ref()?.next_due()
    }
}
