//! RDMA Read, both sides (spec §10.2, E13).

use vipl_abi::*;
use vipl_guard::{Fault, Segment};
use vipl_plugin_sdk::abi::*;
use vipl_plugin_sdk::{Port, Queue};
use vipl_sys::process_vm::Way;

use super::pieces::{self, Put};
use super::refusal;
use crate::buffers::scatter;
use crate::copy::{self, CopyError};
use crate::ending::{Closed, Ending};
use crate::nic;
use crate::peer::Call;
use crate::receive::{Receiver, Taken};
use crate::request::Request;
use crate::segment::{Announcement, Arrival, Extra, PIECE, flag, op};
use crate::send::{self, Sender, Serving, Step};
use crate::shared_copy::SharedCopy;

const OPCODE: u32 = VIP_STATUS_OP_RDMA_READ;

/// Copies out of the target's memory.
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
    let Ok(local) = request.data.list() else {
        return sender.local_error(call, VIP_STATUS_PROTECTION_ERROR | OPCODE);
    };
    match super::rdma(call, shared, Way::Read, request, &local) {
        Ok(bytes) => nic::count(nic::counters().single_copy_bytes, bytes),
        Err(CopyError::Closed | CopyError::Later) => return Ok(Step::Wait),
        Err(CopyError::Gone) => {
            copy::lose_reach(call.peer);
            return ask(request, call, sender);
        }
        Err(CopyError::Fault) if !copy::is_accessible(&local, true) => {
            return sender.local_error(call, VIP_STATUS_PROTECTION_ERROR | OPCODE);
        }
        Err(CopyError::Fault) if sender.has_outstanding() => return Ok(Step::Wait),
        Err(CopyError::Fault) => {
            refusal::found(call, request, VIPL_REGION_RDMA_READ);
            call.peer.close(Closed::READ_REFUSED);
            let status = VIP_STATUS_RDMA_PROT_ERROR | OPCODE;
            return sender.complete_in_turn(call, status, Some(VIPL_CAUSE_REPORTED));
        }
    }
    Ok(Step::Placed)
}

/// Asks the target to send the data in pieces.
///
/// # Errors
/// The connection ends.
#[cold]
pub(crate) fn ask(request: &Request, call: Call, sender: &mut Sender) -> Result<Step, Ending> {
    if sender.is_reading() || !sender.has_slot(call.peer) {
        return Ok(Step::Wait);
    }
    if request.length == 0 {
        return Ok(Step::Placed);
    }
    // Earlier sends complete first, so that the data belongs to the head of the queue.
    if sender.has_outstanding() {
        return Ok(Step::Wait);
    }
    let extra = Extra {
        address: request.remote.address,
        handle: request.remote.handle,
        ..Extra::default()
    };
    sender.ring().put_extra(sender.sent(), extra);
    let slot = Announcement {
        op: op::READ,
        length: request.length,
        ..Announcement::default()
    };
    sender.publish(call, slot);
    sender.set_reading(true);
    Ok(Step::Wait)
}

/// Takes a request of the peer for data of this side; `serve` sends it.
///
/// # Errors
/// The connection ends: the range is not permitted.
#[cold]
pub(crate) fn asked(arrival: &Arrival, call: Call, sender: &mut Sender) -> Result<Taken, Ending> {
    let extra = arrival.extra();
    let range = Segment {
        address: extra.address,
        handle: extra.handle,
        length: arrival.length,
    };
    let permitted =
        !sender.is_serving() && call.port.rdma_read() && is_permitted(call.port, &range);
    if !permitted {
        return Err(refused(call.port, range));
    }
    sender.set_serving(Some(Serving { range, offset: 0 }));
    Ok(Taken::Yes)
}

/// Sends data that the peer asked for, as far as there is room.
///
/// # Errors
/// The connection ends: the range is not permitted any more.
#[cold]
pub(crate) fn serve(call: Call, sender: &mut Sender) -> Result<(), Ending> {
    while let Some(Serving { range, offset }) = sender.serving() {
        let total = range.length;
        let extra = Extra {
            offset,
            bytes: (total - offset).min(PIECE),
            ..Extra::default()
        };
        // The region may have been deregistered since the last piece.
        let put = if is_permitted(call.port, &range) {
            pieces::put(sender, call.peer, &[range], total, extra)
        } else {
            Put::Fault
        };
        let (payload, flags) = match put {
            Put::At(payload, flags) => (payload, flags),
            Put::NoRoom => return Ok(()),
            Put::Fault => {
                sender.set_serving(None);
                return Err(refused(call.port, range));
            }
        };
        let slot = Announcement {
            op: op::DATA,
            flags,
            length: total,
            payload,
            ..Announcement::default()
        };
        sender.publish(call, slot);
        call.peer.wake();
        let offset = offset + extra.bytes;
        let left = (offset != total).then_some(Serving { range, offset });
        sender.set_serving(left);
    }
    Ok(())
}

fn is_permitted(port: &Port, range: &Segment) -> bool {
    copy::is_target(port, range, VIPL_REGION_RDMA_READ)
}

/// E13 at the target.
#[cold]
fn refused(port: &Port, range: Segment) -> Ending {
    refusal::at_target(port, range, VIPL_REGION_RDMA_READ);
    let cause = VIP_ERROR_CODE::VIP_ERROR_RDMAR_PROT as i32;
    Ending::new(Closed::TARGET_REFUSED, cause, OPCODE)
}

/// Takes a piece of the data that this side asked for.
///
/// # Errors
/// The connection ends.
#[cold]
pub(crate) fn arrived(
    arrival: &Arrival,
    call: Call,
    receiver: &Receiver,
    sender: &mut Sender,
) -> Result<Taken, Ending> {
    let (port, extra) = (call.port, arrival.extra());
    let from = receiver.payload(arrival.payload, extra.bytes);
    let oldest = port.oldest(Queue::Send);
    let (Some(from), Some(entry), true) = (from, oldest, sender.is_reading()) else {
        return Err(Ending::protocol_error());
    };
    let placed = Request::judge(port, entry)
        .and_then(|request| {
            request
                .data
                .list()
                .map_err(|Fault| VIP_STATUS_PROTECTION_ERROR)
        })
        .is_ok_and(|segments| scatter(&segments, extra.offset, from, extra.bytes));
    if !placed {
        sender.set_reading(false);
        sender.local_error(call, VIP_STATUS_PROTECTION_ERROR | OPCODE)?;
        return Ok(Taken::Yes);
    }
    if arrival.has(flag::LAST) {
        sender.set_reading(false);
        send::complete_oldest(port, OPCODE)?;
    }
    Ok(Taken::Yes)
}
