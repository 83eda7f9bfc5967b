//! A send-queue descriptor, loaded once and judged once, and the method by which it travels.

use std::sync::atomic::Ordering;

use vipl_abi::*;
use vipl_guard::Segment;
use vipl_plugin_sdk::descriptor::{self, Operation};
use vipl_plugin_sdk::{Entry, Port};

use crate::buffers::Buffers;
use crate::choice::{Choice, Large};
use crate::copy;
use crate::nic::{LoopbackNic, READ_LEVELS};
use crate::peer::{Peer, Reach};
use crate::segment::{INLINE, PIECE};
use crate::send::Sender;

/// What a valid descriptor asks for.
pub(crate) struct Request {
    pub(crate) operation: Operation,
    /// Bytes.
    pub(crate) length: u32,
    pub(crate) immediate: u32,
    /// The immediate flag is set.
    pub(crate) flagged: bool,
    /// Remote range of RDMA.
    pub(crate) remote: Segment,
    /// The data segments.
    pub(crate) data: Buffers,
}

/// How a request travels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Method {
    /// A message inside the slot.
    Inline,
    /// A message in the payload area.
    Eager,
    /// A message that the receiver fetches from this side's memory.
    Fetch,
    /// A message through the payload area in pieces.
    Pieces,
    /// RDMA Write by this side into the peer's memory.
    Write,
    /// RDMA Write through the payload area in pieces.
    WritePieces,
    /// RDMA Read by this side from the peer's memory.
    Read,
    /// RDMA Read whose data the peer sends.
    AskToRead,
    /// Not known before the peer has attached, or not allowed before it has consumed earlier pieces.
    Wait,
}

impl Request {
    /// A send of one segment that violates no rule: the usual case. `None`: any other descriptor, to be judged.
    #[inline(always)]
    pub(crate) fn usual(port: &Port, entry: Entry) -> Option<Request> {
        // SAFETY: a posted descriptor; faults are caught.
        let image = unsafe { vipl_guard::load_descriptor_with(entry.descriptor().cast(), 1) }?;
        let (segment, length) = (image.first, image.length);
        let (tag, bytes) = (port.ptag(), u64::from(length));
        // One branch for both.
        let unusual = image.control & !(VIP_CONTROL_IMMEDIATE | VIP_CONTROL_QFENCE);
        if u32::from(unusual) | (segment.length ^ length) != 0 {
            return None;
        }
        // Not 0, which wraps, and no more than that.
        let is_usual = bytes.wrapping_sub(1) < port.max_transfer()
            && port
                .regions()
                .is_local(segment.handle, segment.address, bytes, tag);
        is_usual.then_some(Request {
            operation: Operation::Send,
            length,
            immediate: image.immediate,
            flagged: image.control & VIP_CONTROL_IMMEDIATE != 0,
            remote: Segment::default(),
            data: Buffers::One(segment),
        })
    }

    /// An RDMA Write of one segment without immediate data that violates no rule of this side: the usual one. `None`: any other
    /// descriptor, to be judged.
    #[inline(always)]
    pub(crate) fn usual_write(port: &Port, entry: Entry) -> Option<Request> {
        // SAFETY: a posted descriptor; faults are caught.
        let image = unsafe { vipl_guard::load_descriptor(entry.descriptor().cast()) }.ok()?;
        let length = image.length;
        let is_usual = image.control & !VIP_CONTROL_QFENCE == VIP_CONTROL_OP_RDMAWRITE
            && image.seg_count == 2
            && length != 0
            && u64::from(length) <= port.max_transfer();
        if !is_usual {
            return None;
        }
        let segment = descriptor::segment(&entry, 1).ok()?;
        let (tag, bytes) = (port.ptag(), u64::from(length));
        let is_local = segment.length == length
            && port
                .regions()
                .is_local(segment.handle, segment.address, bytes, tag);
        is_local.then_some(Request {
            operation: Operation::Write,
            length,
            immediate: 0,
            flagged: false,
            remote: image.first,
            data: Buffers::One(segment),
        })
    }

    /// Loads and judges any descriptor of the send queue (spec §5.7). One that is not usual is loaded again: to keep its image
    /// at hand for this costs every usual send 12 instructions.
    ///
    /// # Errors
    /// Status bits of the rule that it violates.
    pub(crate) fn judge(port: &Port, entry: Entry) -> Result<Request, u32> {
        let outgoing =
            descriptor::outgoing(port, &entry, READ_LEVELS).map_err(|fault| fault.status)?;
        let segments = outgoing.segments;
        Ok(Request {
            operation: outgoing.operation,
            length: outgoing.length,
            immediate: outgoing.immediate,
            flagged: outgoing.flagged,
            remote: outgoing.remote,
            data: Buffers::Any(segments),
        })
    }

    /// The method of a single-frame message. `None`: it is something else.
    #[inline(always)]
    pub(crate) fn frame_method(&self, nic: &LoopbackNic) -> Option<Method> {
        match self.operation {
            Operation::Send if self.length as usize <= INLINE => Some(Method::Inline),
            Operation::Send if self.length <= nic.eager_max() => Some(Method::Eager),
            _ => None,
        }
    }

    /// How it travels.
    pub(crate) fn method(
        &self,
        nic: &LoopbackNic,
        peer: &Peer,
        sender: &mut Sender,
        choice: &mut Choice,
    ) -> Method {
        if sender.pieces().is_none()
            && let Some(method) = self.frame_method(nic)
        {
            return method;
        }
        copy::find_reach(peer);
        let (reach, begun) = (peer.reach(), sender.pieces().is_some());
        match self.operation {
            Operation::Send if begun => Method::Pieces,
            Operation::Send => match peer.side().reach.load(Ordering::Acquire) {
                0 => {
                    peer.alert();
                    Method::Wait
                }
                // Within a process both methods are a plain copy.
                1 if reach == Reach::Same || self.length <= PIECE => Method::Fetch,
                1 if choice.next(&peer.side().costs) == Large::Fetch => Method::Fetch,
                _ => Method::Pieces,
            },
            _ if reach == Reach::Unknown => Method::Wait,
            // It began so, before the kernel's permission was known or after it was lost, or it must not overtake one that did.
            Operation::Write if begun || reach == Reach::None => Method::WritePieces,
            Operation::Write if sender.has_writes_in_ring(peer) => Method::WritePieces,
            Operation::Write => Method::Write,
            Operation::Read if reach == Reach::None => Method::AskToRead,
            // A read must see what earlier writes wrote.
            Operation::Read if sender.has_writes_in_ring(peer) => Method::Wait,
            Operation::Read => Method::Read,
        }
    }

    /// The remote range, whose address has 32 bits if the peer's have, whatever a program of 32 bits has left in the upper
    /// half (spec §2.4).
    #[inline(always)]
    pub(crate) fn range(&self, peer: &Peer) -> Segment {
        let bits = if peer.is_wide() {
            u64::MAX
        } else {
            u32::MAX.into()
        };
        Segment {
            address: self.remote.address & bits,
            handle: self.remote.handle,
            length: self.length,
        }
    }
}
