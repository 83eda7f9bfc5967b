//! Placing data into the posted buffers: of a small message, which came with its completion, and of a long one, which this
//! side fetches itself.

use std::sync::atomic::Ordering::Relaxed;

use vipl_abi::{VIP_STATUS_LENGTH_ERROR, VIP_STATUS_PROTECTION_ERROR};
use vipl_clan_proto::vi::{Offer, RECEIVE_SEGMENTS, Received, SMALL, Segment};
use vipl_guard::Fault;
use vipl_plugin_sdk::{Entry, Port, descriptor};
use vipl_sys::process_vm::{self, Way};

/// Copies a small message into the posted buffers.
///
/// # Errors
/// One bit of a status.
#[inline(always)]
pub(crate) fn place(port: &Port, entry: &Entry, slot: &Received, bytes: usize) -> Result<(), u32> {
    let mut data = [0u64; SMALL / 8];
    for (to, from) in data.iter_mut().zip(&slot.data) {
        *to = from.load(Relaxed);
    }
    let from = data.as_ptr().cast::<u8>();
    let message = Some(bytes as u32);
    let posted = descriptor::incoming(port, entry, message).map_err(|fault| fault.status)?;
    if posted.total() < bytes as u64 {
        return Err(VIP_STATUS_LENGTH_ERROR);
    }
    let placed = posted.pieces(0, bytes, |at, to, length| {
        // SAFETY: `at + length` is inside `data`; faults are caught.
        unsafe { vipl_guard::copy(to, from.wrapping_add(at), length) }
    });
    placed.map_err(|Fault| VIP_STATUS_PROTECTION_ERROR)
}

/// Fetches an offered message, whose claim this side has, into the posted buffers. False: the device places it.
pub(crate) fn fetch(port: &Port, entry: &Entry, slot: &Received) -> bool {
    let length = slot.length.load(Relaxed) as usize;
    let copied = copy(port, entry, &slot.offer(), length);
    let in_time = slot.claim.end_fetch(copied.is_some());
    copied.is_some() && in_time
}

/// Copies the data once, from the sender's memory. The device has checked both descriptors. `None`: it cannot be copied;
/// the device moves it, or finds what is wrong with it.
fn copy(port: &Port, entry: &Entry, offer: &Offer, length: usize) -> Option<()> {
    let posted = descriptor::incoming(port, entry, Some(length as u32)).ok()?;
    let mut local = [piece(&Segment::default()); RECEIVE_SEGMENTS];
    let mut count = 0;
    posted
        .pieces(0, length, |_, to, bytes| {
            *local.get_mut(count).ok_or(Fault)? = libc::iovec {
                iov_base: to.cast(),
                iov_len: bytes,
            };
            count += 1;
            Ok(())
        })
        .ok()?;
    let remote = offer.segments.each_ref().map(piece);
    let remote = &remote[..offer.count];
    let offered: usize = remote.iter().map(|part| part.iov_len).sum();
    if offered != length {
        return None;
    }
    // SAFETY: `local` is what the application has posted for this message.
    let copied = unsafe { process_vm::copy(offer.thread, Way::Read, &local[..count], remote) };
    (copied.ok() == Some(length)).then_some(())
}

fn piece(segment: &Segment) -> libc::iovec {
    process_vm::piece(segment.address, segment.length as usize)
}
