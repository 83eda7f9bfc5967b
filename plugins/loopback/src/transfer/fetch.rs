//! Large messages that the receiver copies out of the sender's memory, straight into the posted buffers.

use vipl_abi::*;
use vipl_guard::Segment;
use vipl_plugin_sdk::Queue;
use vipl_plugin_sdk::region::Table;
use vipl_sys::process_vm::Way;

use super::pieces::measured;
use crate::choice::{Choice, Large};
use crate::copy::{self, CopyError};
use crate::ending::{CONN_LOST, Closed, Ending};
use crate::nic;
use crate::peer::Call;
use crate::receive::{self, Receiver, Taken};
use crate::request::Request;
use crate::segment::{Announcement, Arrival, Extra, flag, op};
use crate::send::{Sender, Step};
use crate::shared_copy::{Of, Offer, Shared, SharedCopy};
use crate::ticks::ticks;

/// Segments of one message.
const SEGMENTS_MAX: u32 = 4096;
/// Smallest message whose copy is offered to the sender.
const SHARED_MIN: u32 = 64 << 10;

/// Announces a message that stays in this side's memory until the receiver has fetched it.
///
/// # Errors
/// The connection ends.
#[cold]
pub(crate) fn start(
    request: &Request,
    call: Call,
    sender: &mut Sender,
    choice: &mut Choice,
) -> Result<Step, Ending> {
    if let Some(step) = sender.blocked(call, VIP_STATUS_OP_SEND)? {
        return Ok(step);
    }
    let list = request.data.list();
    let Some(segments) = list.ok().filter(|list| copy::is_accessible(list, false)) else {
        return sender.local_error(call, VIP_STATUS_PROTECTION_ERROR);
    };
    let bytes = size_of_val::<[Segment]>(&segments) as u32;
    let Some(payload) = sender.reserve(call.peer, bytes) else {
        return Ok(Step::Wait);
    };
    let extra = Extra {
        bytes: segments.len() as u32,
        ..Extra::default()
    };
    sender.ring().put_extra(sender.sent(), extra);
    // SAFETY: the payload has room for the list.
    unsafe {
        let from = segments.as_ptr().cast::<u8>();
        let to = sender.ring().payload(payload);
        std::ptr::copy_nonoverlapping(from, to, bytes as usize);
    }
    let slot = Announcement {
        op: op::FETCH,
        flags: if request.flagged { flag::IMMEDIATE } else { 0 },
        length: request.length,
        immediate: request.immediate,
        payload,
    };
    sender.publish(call, slot);
    choice.sent();
    sender.count_message();
    Ok(Step::Announced)
}

/// Fetches a message.
///
/// # Errors
/// The connection ends.
pub(crate) fn arrived(
    arrival: &Arrival,
    call: Call,
    receiver: &Receiver,
    shared: &mut SharedCopy,
    choice: &mut Choice,
) -> Result<Taken, Ending> {
    let of = Of::Message(call.peer.consumed());
    let begun = shared.poll(call.peer, of);
    match begun {
        Some(Shared::Later) => return Ok(Taken::Later),
        Some(Shared::Done) => return fetched(arrival, call, choice, arrival.length.into()),
        Some(Shared::Alone) => {}
        None => choice.begin(ticks(), 0),
    }
    let Some(entry) = call.port.oldest(Queue::Recv) else {
        return receive::no_descriptor(call);
    };
    let remote = announced(arrival, receiver).ok_or_else(Ending::protocol_error)?;
    let local = receive::buffers(call.port, entry, arrival.length);
    let local = match local {
        Ok(local) => local,
        Err(status) => return receive::refuse(call, status, 0),
    };
    copy::find_reach(call.peer);
    let table = call.peer.table();
    let live = || remote.iter().all(|segment| is_live(table, segment));
    if begun.is_none() && arrival.length >= SHARED_MIN {
        let offer = Offer {
            of,
            way: Way::Read,
            local: &local,
            remote: &remote,
            bytes: arrival.length,
        };
        match shared.offer(call.peer, &offer, live) {
            Shared::Later => return Ok(Taken::Later),
            Shared::Done => return fetched(arrival, call, choice, arrival.length.into()),
            Shared::Alone => {}
        }
    }
    match copy::copy(call.peer, Way::Read, &local, &remote, live) {
        Ok(bytes) => fetched(arrival, call, choice, bytes),
        Err(CopyError::Closed | CopyError::Gone | CopyError::Later) => Ok(Taken::PeerLeft),
        // The sender has taken its buffer away before it was read: its own error.
        Err(CopyError::Fault) if copy::is_accessible(&local, true) => {
            if !call.port.is_reliable() {
                return Ok(Taken::Yes);
            }
            Err(Ending::new(Closed::SENDER_FAULT, CONN_LOST, 0))
        }
        Err(CopyError::Fault) => receive::refuse(call, VIP_STATUS_PROTECTION_ERROR, 0),
    }
}

/// The sender's segments, read once. `None`: the slot violates the protocol.
fn announced(arrival: &Arrival, receiver: &Receiver) -> Option<Vec<Segment>> {
    let count = arrival.extra().bytes;
    let bytes = count.saturating_mul(size_of::<Segment>() as u32);
    let from = receiver.payload(arrival.payload, bytes)?;
    if count > SEGMENTS_MAX {
        return None;
    }
    let mut remote = vec![Segment::default(); count as usize];
    // SAFETY: `bytes` bytes are there; every bit pattern is a segment; checked below.
    unsafe { std::ptr::copy_nonoverlapping(from, remote.as_mut_ptr().cast(), bytes as usize) };
    let total: u64 = remote.iter().map(|segment| u64::from(segment.length)).sum();
    (total == u64::from(arrival.length)).then_some(remote)
}

/// A message is in the posted buffers.
fn fetched(
    arrival: &Arrival,
    call: Call,
    choice: &mut Choice,
    bytes: u64,
) -> Result<Taken, Ending> {
    nic::count(nic::counters().single_copy_bytes, bytes);
    measured(call, choice, Large::Fetch, arrival.length);
    receive::complete_next(arrival, call)
}

/// Whether a segment of the sender still lies in one of its regions.
fn is_live(table: Table, segment: &Segment) -> bool {
    let length = u64::from(segment.length);
    length == 0 || table.is_registered(segment.handle, segment.address, length)
}
