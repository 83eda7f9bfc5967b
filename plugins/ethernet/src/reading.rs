//! Frames out of the receive ring, to the VIs that they are for.

use vipl_packet::{ETHERNET, Receiver};
use vipl_wire::Address;

use crate::nic::{Core, NOBODY, Wire, count};
use crate::turn::Taken;

/// Frames that one look at the socket takes.
const LOOK_FRAMES: u32 = 64;

impl Core {
    /// Reads the socket. Frames of the connection with this key check of the VI `own` go to `each`, behind
    /// their Ethernet header, in the order of their arrival; those of others go to their inboxes. When
    /// another thread reads, that one fills our inbox. Where no frame lies, there is nothing to take turns for.
    #[inline(always)]
    pub(crate) fn receive(&self, own: u32, check: u64, mut each: impl FnMut(&[u8])) {
        let Some(wire) = &self.wire else { return };
        let reading = match wire.tip.has_frame() {
            true => wire.receiver.take(),
            false => None,
        };
        self.empty_inbox(own, &mut each);
        if let Some(receiver) = reading {
            self.read(wire, receiver, LOOK_FRAMES, (own, check), each);
        }
    }

    /// The same for everything that has arrived by now. False: another thread has frames in its hands, which
    /// may be for this VI.
    #[cold]
    pub(crate) fn catch_up(&self, own: u32, check: u64, mut each: impl FnMut(&[u8])) -> bool {
        let Some(wire) = &self.wire else { return true };
        let Some(receiver) = wire.receiver.take() else {
            return false;
        };
        self.empty_inbox(own, &mut each);
        let most = receiver.frames();
        self.read(wire, receiver, most, (own, check), each);
        true
    }

    /// What lies in the inbox came before what lies in the ring.
    #[inline(always)]
    fn empty_inbox(&self, own: u32, each: &mut impl FnMut(&[u8])) {
        if let Some(inbox) = self.inboxes.get(own as usize) {
            while let Some(frame) = inbox.take() {
                each(&frame);
            }
        }
    }

    /// Takes frames out of the ring.
    #[inline(always)]
    fn read(
        &self,
        wire: &Wire,
        mut receiver: Taken<'_, Receiver>,
        most: u32,
        (own, check): (u32, u64),
        mut each: impl FnMut(&[u8]),
    ) {
        let mut others = false;
        let received = receiver.receive(most, |frame| {
            // SAFETY: the agent gave the socket to this process only, and does not map the ring itself.
            let frame = unsafe { frame.in_place() };
            let payload = frame.get(ETHERNET..).unwrap_or_default();
            match vipl_wire::address(payload) {
                Some(address) if address.endpoint == self.endpoint => {
                    if (address.vi, address.check) == (own, check) {
                        each(payload);
                    } else {
                        others |= self.deliver(address, frame);
                    }
                }
                _ => self.unreadable(frame),
            }
        });
        wire.tip.follow(&receiver);
        if received.losing {
            count(self.counters.dropped, u64::from(receiver.take_drops()));
        }
        drop(receiver);
        if received.cut > 0 {
            count(self.counters.bad, u64::from(received.cut));
        }
        count(self.counters.received, u64::from(received.frames));
        if others {
            self.bell.ring_if_wanted();
        }
    }

    /// Reads the socket for everybody.
    pub(crate) fn receive_all(&self) {
        self.receive(NOBODY, 0, |_| {});
    }

    /// A frame for another VI than the one at work. True: its VI has something now.
    #[cold]
    fn deliver(&self, address: Address, frame: &[u8]) -> bool {
        let payload = &frame[ETHERNET..];
        if let Some(inbox) = self.inboxes.get(address.vi as usize)
            && inbox.put(address.check, payload)
        {
            self.bell.mark(address.vi);
            return true;
        }
        self.stray(frame);
        false
    }

    /// A frame that has no sense in this version.
    #[cold]
    fn unreadable(&self, frame: &[u8]) {
        count(self.counters.bad, 1);
        self.strangers.take(self, frame);
    }

    /// A frame of no connection that lives.
    #[cold]
    pub(crate) fn stray(&self, frame: &[u8]) {
        if !self.farewells.take(self, frame) && !self.strangers.take(self, frame) {
            count(self.counters.stray, 1);
        }
    }
}
