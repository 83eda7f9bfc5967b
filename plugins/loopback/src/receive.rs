//! The receive side of a connection: slots that arrive, and descriptors of the receive queue that they complete.

use vipl_abi::*;
use vipl_guard::{Fault, Segment};
use vipl_plugin_sdk::abi::VIPL_OPTION_CARRY_IMMEDIATE;
use vipl_plugin_sdk::descriptor::{self, Segments};
use vipl_plugin_sdk::{Entry, Port, Queue};

use crate::buffers;
use crate::ending::{Closed, Ending};
use crate::peer::{Call, Peer};
use crate::segment::{Arrival, InRing, flag};
use crate::watch;

/// What became of an arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Taken {
    /// Consumed.
    Yes,
    /// Not yet: the next poll takes it again.
    Later,
    /// It never arrived whole: the peer has closed the connection or exited.
    PeerLeft,
}

/// A message that arrives in pieces, for the head of the receive queue.
pub(crate) struct Assembly {
    pub(crate) segments: Vec<Segment>,
    /// Number of the receive descriptor.
    pub(crate) number: u32,
    /// Length of the whole message, which every piece repeats.
    pub(crate) total: u32,
    /// The receive descriptor is complete already, with an error; the rest is dropped.
    pub(crate) dropped: bool,
}

/// The receive side. It shares a cache line with the word of shared copies behind it.
#[repr(C)]
pub(crate) struct Receiver {
    ring: InRing,
    /// Where the payload of the next message is expected.
    expected: Option<u32>,
    assembly: Option<Box<Assembly>>,
    /// Whether the RDMA Write that arrives in pieces is permitted.
    writing: Option<bool>,
    /// The last poll found an empty ring and nothing else to do, so the next may take one message and no more.
    idle: bool,
    /// Whether polls may do that: neither a ready bit nor an acknowledgement stands for several messages.
    takes_one: bool,
    /// The peer is asked to set the ready bit.
    wants_ready_bit: bool,
}

const _: () = assert!(size_of::<Receiver>() <= 56);

impl Receiver {
    pub(crate) fn new(ring: InRing, reception: bool) -> Receiver {
        Receiver {
            ring,
            expected: None,
            assembly: None,
            writing: None,
            idle: false,
            takes_one: !reception,
            wants_ready_bit: false,
        }
    }

    /// The next slot, if it has arrived.
    #[inline(always)]
    pub(crate) fn arrival(&self, peer: &Peer) -> Option<Arrival> {
        self.ring.arrival(peer.consumed())
    }

    /// `bytes` bytes of incoming payload, if they lie in the payload area.
    #[inline(always)]
    pub(crate) fn payload(&self, at: u32, bytes: u32) -> Option<*const u8> {
        self.ring.payload(at, bytes)
    }

    /// Notes where the payload of the next message is expected, if this one shows it.
    #[inline(always)]
    pub(crate) fn expect(&mut self, next: Option<u32>) {
        self.expected = next;
    }

    /// Prefetches what is expected to come with the next slot.
    #[inline(always)]
    pub(crate) fn prefetch_expected(&self) {
        if let Some(place) = self.expected {
            self.ring.prefetch_payload(place);
        }
    }

    /// Prefetches a slot behind the next one of a stream.
    #[inline(always)]
    pub(crate) fn prefetch_slot(&self, peer: &Peer) {
        self.ring.prefetch_slot(peer.consumed());
    }

    /// A poll has found nothing to do.
    #[inline(always)]
    pub(crate) fn note_idle(&mut self) {
        self.idle = self.takes_one;
    }

    /// Whether this poll may take one message and no more.
    #[inline(always)]
    pub(crate) fn take_idle(&mut self) -> bool {
        std::mem::take(&mut self.idle)
    }

    #[cfg(test)]
    pub(crate) fn is_idle(&self) -> bool {
        self.idle
    }

    /// The next poll checks everything.
    pub(crate) fn clear_idle(&mut self) {
        self.idle = false;
    }

    /// Whether the peer is asked to set the ready bit.
    pub(crate) fn wants_ready_bit(&self) -> bool {
        self.wants_ready_bit
    }

    pub(crate) fn set_wants_ready_bit(&mut self, wanted: bool, reception: bool) {
        self.wants_ready_bit = wanted;
        self.takes_one = !(wanted || reception);
        self.idle = false;
    }

    /// The message that arrives in pieces.
    pub(crate) fn assembly(&self) -> Option<&Assembly> {
        self.assembly.as_deref()
    }

    pub(crate) fn set_assembly(&mut self, assembly: Option<Assembly>) {
        self.assembly = assembly.map(Box::new);
    }

    /// Whether the RDMA Write that arrives in pieces is permitted.
    pub(crate) fn writing(&self) -> Option<bool> {
        self.writing
    }

    pub(crate) fn set_writing(&mut self, writing: Option<bool>) {
        self.writing = writing;
    }
}

/// The buffer of a receive descriptor of one segment that violates no rule and takes a message of `length` bytes: the usual
/// case. `None`: any other descriptor, to be judged.
#[inline(always)]
fn usual(port: &Port, entry: Entry, length: u32) -> Option<Segment> {
    // SAFETY: a posted descriptor; faults are caught.
    let image = unsafe { vipl_guard::load_descriptor_with(entry.descriptor().cast(), 1) }?;
    let (segment, tag) = (image.first, port.ptag());
    let checked = descriptor::checked_of(port, length).unwrap_or(segment.length.into());
    let is_usual = image.control & (VIP_CONTROL_OP_MASK | VIP_CONTROL_RESERVED) == 0
        && segment.length >= length
        && port
            .regions()
            .is_local(segment.handle, segment.address, checked, tag);
    is_usual.then_some(segment)
}

/// Loads and judges any receive descriptor for a message of `length` bytes. Whether a longer message fits is left to the copy.
///
/// # Errors
/// A status bit of the rule that it violates (spec §5.7).
pub(crate) fn judge(port: &Port, entry: Entry, length: u32) -> Result<Segments, u32> {
    descriptor::incoming(port, &entry, Some(length)).map_err(|fault| fault.status)
}

/// Copies a single-frame message into the next receive descriptor and completes it.
///
/// # Errors
/// The connection ends: E6 to E8.
#[inline(always)]
pub(crate) fn deliver(call: Call, arrival: &Arrival, from: *const u8) -> Result<Taken, Ending> {
    let (port, length) = (call.port, arrival.length);
    let Some(entry) = port.oldest(Queue::Recv) else {
        return no_descriptor(call);
    };
    let Some(segment) = usual(port, entry, length) else {
        return deliver_any(call, *arrival, from, entry);
    };
    let to = std::ptr::with_exposed_provenance_mut(segment.address as usize);
    // SAFETY: `from` has `length` bytes, and the segment room for them; faults are caught.
    match unsafe { vipl_guard::copy(to, from, length as usize) } {
        // SAFETY: the oldest one.
        Ok(()) => unsafe { complete(call, entry, arrival, VIP_STATUS_OP_RECEIVE) },
        Err(Fault) => refuse(call, VIP_STATUS_PROTECTION_ERROR, 0),
    }
}

/// The same for any descriptor.
#[inline(never)]
fn deliver_any(
    call: Call,
    arrival: Arrival,
    from: *const u8,
    entry: Entry,
) -> Result<Taken, Ending> {
    let placed = judge(call.port, entry, arrival.length)
        .and_then(|segments| buffers::place(&segments, from, arrival.length));
    match placed {
        // SAFETY: the oldest one.
        Ok(()) => unsafe { complete(call, entry, &arrival, VIP_STATUS_OP_RECEIVE) },
        Err(status) => refuse(call, status, 0),
    }
}

/// The buffers of the next receive descriptor for a large message, cut to its length.
///
/// # Errors
/// A status bit of the rule that the descriptor violates.
pub(crate) fn buffers(port: &Port, entry: Entry, length: u32) -> Result<Vec<Segment>, u32> {
    buffers::cut(&judge(port, entry, length)?, length)
}

/// Completes the next receive descriptor with success.
///
/// # Errors
/// The completion could not be written, or none is posted.
pub(crate) fn complete_next(arrival: &Arrival, call: Call) -> Result<Taken, Ending> {
    match call.port.oldest(Queue::Recv) {
        // SAFETY: the oldest one.
        Some(entry) => unsafe { complete(call, entry, arrival, VIP_STATUS_OP_RECEIVE) },
        None => no_descriptor(call),
    }
}

/// The same, for a caller that has its entry.
///
/// # Errors
/// The completion could not be written.
///
/// # Safety
/// It is the oldest receive descriptor that is not complete.
#[inline(always)]
pub(crate) unsafe fn complete(
    call: Call,
    entry: Entry,
    arrival: &Arrival,
    opcode: u32,
) -> Result<Taken, Ending> {
    let port = call.port;
    let flagged = arrival.has(flag::IMMEDIATE);
    let carried = flagged || port.options() & VIPL_OPTION_CARRY_IMMEDIATE != 0;
    let immediate = if carried { arrival.immediate } else { 0 };
    let status = opcode | if flagged { VIP_STATUS_IMMEDIATE } else { 0 };
    let data = Some((arrival.length, immediate));
    // SAFETY: the oldest receive, as asked of the caller.
    if unsafe { port.complete_entry(Queue::Recv, entry, status, data) } {
        Ok(Taken::Yes)
    } else {
        Err(Ending::completion_failed())
    }
}

/// No receive descriptor is posted: the peer has not checked, or its count was wrong.
///
/// # Errors
/// The connection ends, on the reliable levels.
#[cold]
pub(crate) fn no_descriptor(call: Call) -> Result<Taken, Ending> {
    watch::note_arrival();
    let code = VIP_ERROR_CODE::VIP_ERROR_RECVQ_EMPTY;
    Ending::or_raise(
        call.port,
        Closed::RECEIVE_FAILED,
        code,
        VIP_STATUS_OP_RECEIVE,
    )?;
    Ok(Taken::Yes)
}

/// E7, E8: the receive descriptor reports the error; on the reliable levels the connection ends.
///
/// # Errors
/// The connection ends.
#[cold]
pub(crate) fn refuse(call: Call, status: u32, length: u32) -> Result<Taken, Ending> {
    let (port, status) = (call.port, status | VIP_STATUS_OP_RECEIVE);
    if !port.complete(Queue::Recv, status, Some((length, 0))) {
        return Err(Ending::completion_failed());
    }
    if !port.is_reliable() {
        return Ok(Taken::Yes);
    }
    Err(Ending::reported(Closed::RECEIVE_FAILED))
}
