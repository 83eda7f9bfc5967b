//! RDMA Write, both sides (spec §10.2, E9 to E12).

use vipl_abi::*;
use vipl_guard::Segment;
use vipl_plugin_sdk::Queue;
use vipl_plugin_sdk::abi::*;
use vipl_plugin_sdk::descriptor;
use vipl_sys::process_vm::Way;

use super::RDMA_MIN;
use super::pieces::{self, Put};
use super::refusal;
use crate::buffers::{Buffers, scatter};
use crate::copy::{self, CopyError, portion};
use crate::ending::{CONN_LOST, Closed, Ending};
use crate::nic;
use crate::peer::{Call, Reach};
use crate::receive::{self, Receiver, Taken};
use crate::request::Request;
use crate::segment::{Announcement, Arrival, Extra, PIECE, flag, op};
use crate::send::{Pieces, Sender, Step};
use crate::shared_copy::SharedCopy;

const OPCODE: u32 = VIP_STATUS_OP_RDMA_WRITE;
const TARGET_OPCODE: u32 = VIP_STATUS_OP_REMOTE_RDMA_WRITE;

/// The usual write: one segment in one system call. False: something is in its way or it has failed, and `start` finds out by
/// repeating it.
#[inline(always)]
pub(crate) fn start_single(request: &Request, call: Call, sender: &mut Sender) -> bool {
    let (Reach::Process(pid), Buffers::One(local)) = (call.peer.reach(), &request.data) else {
        return false;
    };
    let written = request.length < RDMA_MIN
        && call.peer.permits_write()
        && !sender.has_outstanding()
        && !sender.has_writes_in_ring(call.peer)
        && copy::write_single(call.peer, pid, local, &request.range(call.peer));
    if written {
        let bytes = u64::from(request.length);
        nic::count(nic::counters().single_copy_bytes, bytes);
    }
    written
}

/// Copies into the target's memory.
///
/// # Errors
/// The connection ends.
#[cold]
pub(crate) fn start(
    request: &Request,
    call: Call,
    sender: &mut Sender,
    shared: &mut SharedCopy,
) -> Result<Step, Ending> {
    // On Reliable Reception nothing takes effect before earlier sends have been received.
    let ordered = call.peer.reception() && sender.has_outstanding();
    if ordered || request.flagged && !sender.has_slot(call.peer) {
        return Ok(Step::Wait);
    }
    let Ok(local) = request.data.list() else {
        return sender.local_error(call, VIP_STATUS_PROTECTION_ERROR | OPCODE);
    };
    match super::rdma(call, shared, Way::Write, request, &local) {
        Ok(bytes) => nic::count(nic::counters().single_copy_bytes, bytes),
        // The reason for which the peer has closed is handled by the poll.
        Err(CopyError::Closed | CopyError::Later) => return Ok(Step::Wait),
        Err(CopyError::Gone) => {
            copy::lose_reach(call.peer);
            return start_pieces(request, call, sender);
        }
        Err(CopyError::Fault) if !copy::is_accessible(&local, false) => {
            return sender.local_error(call, VIP_STATUS_PROTECTION_ERROR | OPCODE);
        }
        // Earlier sends are received before the connection ends.
        Err(CopyError::Fault) if sender.has_outstanding() => return Ok(Step::Wait),
        Err(CopyError::Fault) => return refused(request, call, sender),
    }
    if request.flagged {
        return announce(request, call, sender);
    }
    Ok(Step::Placed)
}

/// Sends the immediate data of an RDMA Write that has been placed.
fn announce(request: &Request, call: Call, sender: &mut Sender) -> Result<Step, Ending> {
    if let Some(step) = sender.blocked(call, OPCODE)? {
        return Ok(step);
    }
    let slot = Announcement {
        op: op::PLACED,
        flags: flag::IMMEDIATE,
        length: request.length,
        immediate: request.immediate,
        payload: 0,
    };
    sender.publish(call, slot);
    sender.count_message();
    Ok(Step::Sent)
}

/// E9 and E10, found by the initiator.
#[cold]
fn refused(request: &Request, call: Call, sender: &mut Sender) -> Result<Step, Ending> {
    let refusal = refusal::found(call, request, VIPL_REGION_RDMA_WRITE);
    let by_descriptor = request.flagged && sender.has_descriptor(call.peer);
    if by_descriptor {
        let slot = Announcement {
            op: op::PLACED,
            flags: flag::IMMEDIATE | flag::REFUSED,
            immediate: request.immediate,
            ..Announcement::default()
        };
        sender.publish(call, slot);
        sender.count_message();
    }
    match call.port.reliability() {
        VIP_SERVICE_UNRELIABLE => {
            if !by_descriptor {
                sender.send_event(call, VIP_ERROR_CODE::VIP_ERROR_RDMAW_PROT as u32);
            }
            sender.complete_in_turn(call, OPCODE, None)
        }
        level => {
            if !by_descriptor {
                call.peer.close(Closed::WRITE_REFUSED);
            }
            if level == VIP_SERVICE_RELIABLE_RECEPTION {
                let status = VIP_STATUS_RDMA_PROT_ERROR | OPCODE;
                sender.complete_in_turn(call, status, Some(VIPL_CAUSE_REPORTED))
            } else {
                // The write was complete when its data had left; the loss is reported afterwards, and only the log says why.
                call.port.refused(&refusal);
                sender.complete_in_turn(call, OPCODE, Some(CONN_LOST))
            }
        }
    }
}

/// Sends an RDMA Write in pieces, as far as there is room; the target checks and places them.
///
/// # Errors
/// The connection ends.
#[cold]
pub(crate) fn start_pieces(
    request: &Request,
    call: Call,
    sender: &mut Sender,
) -> Result<Step, Ending> {
    let Ok(segments) = request.data.list() else {
        return sender.local_error(call, VIP_STATUS_PROTECTION_ERROR | OPCODE);
    };
    let (total, remote) = (request.length, request.remote);
    let mut offset = sender.pieces().map_or(0, |pieces| pieces.offset);
    loop {
        let bytes = portion((total - offset).into(), PIECE.into()) as u32;
        let extra = Extra {
            address: remote.address,
            handle: remote.handle,
            offset,
            bytes,
            ..Extra::default()
        };
        let (payload, flags) = match pieces::put(sender, call.peer, &segments, total, extra) {
            Put::At(payload, flags) => (payload, flags),
            Put::NoRoom => {
                sender.set_pieces(Some(Pieces { offset, total }));
                return Ok(Step::Wait);
            }
            Put::Fault => {
                sender.set_pieces(Some(Pieces { offset, total }));
                return sender.local_error(call, VIP_STATUS_PROTECTION_ERROR | OPCODE);
            }
        };
        let immediate = if request.flagged { flag::IMMEDIATE } else { 0 };
        let slot = Announcement {
            op: op::WRITE,
            flags: flags | immediate,
            length: total,
            immediate: request.immediate,
            payload,
        };
        sender.publish(call, slot);
        sender.note_write();
        nic::count(nic::counters().ring_copy_bytes, u64::from(bytes));
        offset += bytes;
        if offset == total {
            break;
        }
    }
    sender.set_pieces(None);
    // The target uses a descriptor if it has one; this side counts it by the same count.
    if request.flagged && sender.has_descriptor(call.peer) {
        sender.count_message();
    }
    Ok(Step::Sent)
}

/// Takes a piece of an RDMA Write for this side.
///
/// # Errors
/// The connection ends.
#[cold]
pub(crate) fn arrived(
    arrival: &Arrival,
    call: Call,
    receiver: &mut Receiver,
) -> Result<Taken, Ending> {
    let (port, extra) = (call.port, arrival.extra());
    let range = Segment {
        address: extra.address,
        handle: extra.handle,
        length: arrival.length,
    };
    let is_permitted = || {
        arrival.length == 0
            || (port.rdma_write() && copy::is_target(port, &range, VIPL_REGION_RDMA_WRITE))
    };
    if arrival.has(flag::FIRST) {
        receiver.set_writing(Some(is_permitted()));
    }
    if arrival.has(flag::ABORTED) {
        receiver.set_writing(None);
        port.raise(VIP_ERROR_CODE::VIP_ERROR_RDMAW_ABORT, TARGET_OPCODE);
        return Ok(Taken::Yes);
    }
    let end = u64::from(extra.offset) + u64::from(extra.bytes);
    let from = receiver.payload(arrival.payload, extra.bytes);
    let (Some(from), Some(permitted)) = (from, receiver.writing()) else {
        return Err(Ending::protocol_error());
    };
    if end > u64::from(arrival.length) {
        return Err(Ending::protocol_error());
    }
    // The region may have been deregistered since the first piece.
    let placed = permitted
        && (arrival.length == 0
            || (is_permitted() && scatter(&[range], extra.offset, from, extra.bytes)));
    if !placed {
        if receiver.writing() == Some(true) || arrival.has(flag::FIRST) {
            refusal::at_target(port, range, VIPL_REGION_RDMA_WRITE);
        }
        receiver.set_writing(Some(false));
    }
    if !arrival.has(flag::LAST) {
        return Ok(Taken::Yes);
    }
    receiver.set_writing(None);
    if arrival.has(flag::IMMEDIATE) {
        return placed_with_immediate(arrival, call, !placed);
    }
    if placed { Ok(Taken::Yes) } else { refuse(call) }
}

/// Takes the immediate data of an RDMA Write, which uses one receive descriptor (spec §5.5).
///
/// # Errors
/// The connection ends.
#[cold]
pub(crate) fn placed_with_immediate(
    arrival: &Arrival,
    call: Call,
    refused: bool,
) -> Result<Taken, Ending> {
    let port = call.port;
    if u64::from(arrival.length) > port.max_transfer() {
        return Err(Ending::protocol_error());
    }
    let Some(entry) = port.oldest(Queue::Recv) else {
        return if refused {
            refuse(call)
        } else {
            receive::no_descriptor(call)
        };
    };
    if let Err(fault) = descriptor::incoming(port, &entry, None) {
        return receive::refuse(call, fault.status, 0);
    }
    if !refused {
        // SAFETY: the oldest one.
        return unsafe { receive::complete(call, entry, arrival, TARGET_OPCODE) };
    }
    let status = VIP_STATUS_RDMA_PROT_ERROR | TARGET_OPCODE;
    if !port.complete(Queue::Recv, status, Some((0, arrival.immediate))) {
        return Err(Ending::completion_failed());
    }
    if !port.is_reliable() {
        return Ok(Taken::Yes);
    }
    Err(Ending::reported(Closed::TARGET_REFUSED))
}

/// E9 at the target.
#[cold]
fn refuse(call: Call) -> Result<Taken, Ending> {
    let code = VIP_ERROR_CODE::VIP_ERROR_RDMAW_PROT;
    Ending::or_raise(call.port, Closed::TARGET_REFUSED, code, TARGET_OPCODE)?;
    Ok(Taken::Yes)
}
