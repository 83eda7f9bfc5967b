//! Large messages through the payload area, in pieces.

use vipl_abi::*;
use vipl_guard::Segment;
use vipl_plugin_sdk::{Port, Queue};

use crate::buffers::{gather, scatter};
use crate::choice::{Choice, Large};
use crate::ending::Ending;
use crate::nic;
use crate::peer::{Call, Peer};
use crate::receive::{self, Assembly, Receiver, Taken};
use crate::request::Request;
use crate::segment::{Announcement, Arrival, Extra, LINE, PIECE, flag, op};
use crate::send::{Pieces, Sender, Step};
use crate::ticks::ticks;
use crate::watch;

/// What became of a piece.
pub(super) enum Put {
    /// It lies there, and the slot gets these flags.
    At(u32, u8),
    /// No room yet.
    NoRoom,
    /// Its memory is not accessible.
    Fault,
}

/// Copies the piece that `extra` describes into the payload area, and `extra` into the next slot.
pub(super) fn put(
    sender: &mut Sender,
    peer: &Peer,
    segments: &[Segment],
    total: u32,
    extra: Extra,
) -> Put {
    let Extra { offset, bytes, .. } = extra;
    if !sender.has_slot(peer) {
        return Put::NoRoom;
    }
    let Some(place) = sender.reserve(peer, bytes) else {
        return Put::NoRoom;
    };
    let to = sender.ring().payload(place);
    if gather(segments, offset, bytes, to).is_err() {
        sender.cancel();
        return Put::Fault;
    }
    sender.ring().put_extra(sender.sent(), extra);
    let first = if offset == 0 { flag::FIRST } else { 0 };
    let last = if offset + bytes == total {
        flag::LAST
    } else {
        0
    };
    Put::At(place, first | last)
}

/// Sends a message in pieces, as far as there is room.
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
    if sender.pieces().is_none()
        && let Some(step) = sender.blocked(call, VIP_STATUS_OP_SEND)?
    {
        return Ok(step);
    }
    let Ok(segments) = request.data.list() else {
        return sender.local_error(call, VIP_STATUS_PROTECTION_ERROR);
    };
    let total = request.length;
    let mut offset = sender.pieces().map_or(0, |pieces| pieces.offset);
    choice.goes_on(ticks(), watch::is_this_thread());
    loop {
        let bytes = (total - offset).min(piece_of(total));
        let extra = Extra {
            offset,
            bytes,
            ..Extra::default()
        };
        let (payload, flags) = match put(sender, call.peer, &segments, total, extra) {
            Put::At(payload, flags) => (payload, flags),
            Put::NoRoom => {
                sender.set_pieces(Some(Pieces { offset, total }));
                choice.waits(ticks());
                return Ok(Step::Wait);
            }
            Put::Fault => {
                sender.set_pieces(Some(Pieces { offset, total }));
                return sender.local_error(call, VIP_STATUS_PROTECTION_ERROR);
            }
        };
        let immediate = if request.flagged { flag::IMMEDIATE } else { 0 };
        let slot = Announcement {
            op: op::PIECE,
            flags: flags | immediate,
            length: total,
            immediate: request.immediate,
            payload,
        };
        sender.publish(call, slot);
        nic::count(nic::counters().ring_copy_bytes, u64::from(bytes));
        offset += bytes;
        if offset == total {
            break;
        }
        // A receiver that sleeps shall take pieces while the others are copied.
        call.peer.wake();
        watch::note_arrival();
    }
    sender.set_pieces(None);
    choice.sent();
    sender.count_message();
    Ok(Step::Sent)
}

/// Takes a piece of a message.
///
/// # Errors
/// The connection ends.
pub(crate) fn arrived(
    arrival: &Arrival,
    call: Call,
    receiver: &mut Receiver,
    choice: &mut Choice,
) -> Result<Taken, Ending> {
    let extra = arrival.extra();
    let is_first = arrival.has(flag::FIRST);
    if is_first && let Some(taken) = begin(arrival, call, receiver)? {
        return Ok(taken);
    }
    let end = u64::from(extra.offset) + u64::from(extra.bytes);
    let from = receiver.payload(arrival.payload, extra.bytes);
    let (Some(assembly), Some(from)) = (receiver.assembly(), from) else {
        return Err(Ending::protocol_error());
    };
    // All pieces are of one message, whose length is reported to the program.
    if end > u64::from(arrival.length) || arrival.length != assembly.total {
        return Err(Ending::protocol_error());
    }
    let is_last = arrival.has(flag::LAST);
    if assembly.dropped {
        if is_last {
            receiver.set_assembly(None);
        }
        return Ok(Taken::Yes);
    }
    if arrival.has(flag::ABORTED) {
        receiver.set_assembly(None);
        return receive::refuse(call, VIP_STATUS_PARTIAL_ERROR, extra.offset);
    }
    if assembly.number != call.port.completed(Queue::Recv) {
        return Err(Ending::protocol_error());
    }
    // Regions may have been deregistered since the first piece.
    let placed = are_local(call.port, &assembly.segments)
        && scatter(&assembly.segments, extra.offset, from, extra.bytes);
    if !placed {
        receiver.set_assembly(Some(dropped(arrival)));
        return receive::refuse(call, VIP_STATUS_PROTECTION_ERROR, 0);
    }
    if is_first {
        choice.begin(ticks(), extra.bytes);
    }
    if !is_last {
        return Ok(Taken::Yes);
    }
    receiver.set_assembly(None);
    measured(call, choice, Large::Pieces, arrival.length);
    receive::complete_next(arrival, call)
}

/// Begins with a message. `Some`: it is dropped.
fn begin(arrival: &Arrival, call: Call, receiver: &mut Receiver) -> Result<Option<Taken>, Ending> {
    let Some(entry) = call.port.oldest(Queue::Recv) else {
        receiver.set_assembly(Some(dropped(arrival)));
        return receive::no_descriptor(call).map(Some);
    };
    let segments = receive::buffers(call.port, entry, arrival.length);
    match segments {
        Ok(segments) => {
            receiver.set_assembly(Some(Assembly {
                segments,
                number: call.port.completed(Queue::Recv),
                total: arrival.length,
                dropped: false,
            }));
            Ok(None)
        }
        Err(status) => {
            receiver.set_assembly(Some(dropped(arrival)));
            receive::refuse(call, status, 0).map(Some)
        }
    }
}

/// A message whose remaining pieces are dropped.
fn dropped(arrival: &Arrival) -> Assembly {
    Assembly {
        segments: Vec::new(),
        number: 0,
        total: arrival.length,
        dropped: true,
    }
}

/// The receiver has all of a large message.
pub(super) fn measured(call: Call, choice: &mut Choice, method: Large, bytes: u32) {
    if bytes > PIECE {
        choice.end(ticks(), method, bytes, &call.peer.own().costs);
    }
}

/// Bytes of one piece of a message: all are of one size, so that both sides copy at the same time.
fn piece_of(total: u32) -> u32 {
    let pieces = total.div_ceil(PIECE).max(1);
    total.div_ceil(pieces).next_multiple_of(LINE).min(PIECE)
}

/// Whether this VI may still use all of these.
fn are_local(port: &Port, segments: &[Segment]) -> bool {
    let (regions, tag) = (port.regions(), port.ptag());
    segments.iter().all(|segment| {
        let length = u64::from(segment.length);
        length == 0 || regions.is_local(segment.handle, segment.address, length, tag)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_of_a_message_are_alike() {
        for (total, piece) in [(16_385, 8256), (20_000, 10_048), (65_536, PIECE), (0, 0)] {
            assert_eq!(piece_of(total), piece);
        }
    }
}
