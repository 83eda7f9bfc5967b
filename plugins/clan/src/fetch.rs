//! Long messages that this side fetches itself: the device has checked both descriptors and says where in
//! the sender's memory the data lies, and the kernel copies it once. What cannot be fetched the device
//! moves, or finds what is wrong with it.

use std::sync::atomic::Ordering::Relaxed;

use vipl_clan_proto::vi::{Offer, RECEIVE_SEGMENTS, Received, Segment};
use vipl_plugin_sdk::{Entry, Port, descriptor};
use vipl_sys::process_vm::{self, Way};

use crate::vi::ClanVi;

impl ClanVi {
    /// Fetches the message into the posted buffers. False: it is the device's.
    pub(crate) fn fetch(&self, port: &Port, entry: &Entry, slot: &Received) -> bool {
        if !slot.claim.begin_fetch() {
            return false;
        }
        let length = slot.length.load(Relaxed) as usize;
        let copied = copy(port, entry, &slot.offer(), length);
        let in_time = slot.claim.end_fetch(copied.is_some());
        self.card.kick();
        copied.is_some() && in_time
    }
}

/// Copies the data into the posted buffers; `None` if that cannot be done.
fn copy(port: &Port, entry: &Entry, offer: &Offer, length: usize) -> Option<()> {
    let posted = descriptor::incoming(port, entry, Some(length as u32)).ok()?;
    let mut near = [piece(&Segment::default()); RECEIVE_SEGMENTS];
    let mut room = length;
    for number in 0..posted.len() {
        let segment = posted.get(number).ok()?;
        let into = near.get_mut(usize::from(number))?;
        *into = piece(&segment);
        into.iov_len = into.iov_len.min(room);
        room -= into.iov_len;
    }
    let far = offer.segments.each_ref().map(piece);
    let offered: usize = far[..offer.count].iter().map(|part| part.iov_len).sum();
    if room > 0 || offered != length {
        return None;
    }
    // SAFETY: `near` is what the application has posted for this message.
    let copied = unsafe { process_vm::copy(offer.thread, Way::Read, &near, &far[..offer.count]) };
    (copied.ok() == Some(length)).then_some(())
}

fn piece(segment: &Segment) -> libc::iovec {
    process_vm::piece(segment.address, segment.length as usize)
}
