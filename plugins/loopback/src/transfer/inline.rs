//! Messages inside the slot; and what they have in common with those in the payload area.

use vipl_guard::Fault;
use vipl_plugin_sdk::descriptor::Segments;

use crate::buffers::Buffers;
use crate::peer::{Call, Peer};
use crate::request::Request;
use crate::segment::{Announcement, Arrival, INLINE, flag, op};
use crate::send::{Sender, Step};

/// Sends a message in the next slot, which is free.
///
/// # Errors
/// Its memory is not accessible.
#[inline(always)]
pub(crate) fn start(request: &Request, call: Call, sender: &mut Sender) -> Result<Step, Fault> {
    let to = sender.ring().inline(sender.sent());
    send(request, call, sender, op::INLINE, to, 0)
}

/// Copies a message to its place in the ring and publishes it.
#[inline(always)]
pub(super) fn send(
    request: &Request,
    call: Call,
    sender: &mut Sender,
    op: u8,
    to: *mut u8,
    payload: u32,
) -> Result<Step, Fault> {
    let copied = match &request.data {
        Buffers::One(segment) => {
            let from = std::ptr::with_exposed_provenance(segment.address as usize);
            // SAFETY: `to` has room for `length` bytes; faults are caught.
            unsafe { sender.copy_in(call.peer, to, from, request.length as usize) }
        }
        Buffers::Any(segments) => gather(segments, request.length, call.peer, sender, to),
    };
    if copied.is_err() {
        sender.cancel();
        return Err(Fault);
    }
    let slot = Announcement {
        op,
        flags: if request.flagged { flag::IMMEDIATE } else { 0 },
        length: request.length,
        immediate: request.immediate,
        payload,
    };
    sender.publish(call, slot);
    sender.count_message();
    Ok(Step::Sent)
}

/// Copies any number of segments to one place.
#[inline(never)]
fn gather(
    segments: &Segments,
    length: u32,
    peer: &Peer,
    sender: &Sender,
    to: *mut u8,
) -> Result<(), Fault> {
    let (mut at, mut left) = (to, length);
    for number in 0..segments.len() {
        // Read for the second time: the program may have changed it since it was judged.
        let segment = segments.get(number)?;
        left = left.checked_sub(segment.length).ok_or(Fault)?;
        let bytes = segment.length as usize;
        let from = std::ptr::with_exposed_provenance(segment.address as usize);
        // SAFETY: `at` has room for the total length, which was checked; faults are caught.
        unsafe { sender.copy_in(peer, at, from, bytes)? };
        at = at.wrapping_add(bytes);
    }
    Ok(())
}

/// Where the message of an `INLINE` slot lies. `None`: the slot violates the protocol.
#[inline(always)]
pub(crate) fn arrived(arrival: &Arrival) -> Option<*const u8> {
    (arrival.length as usize <= INLINE).then_some(arrival.inline)
}
