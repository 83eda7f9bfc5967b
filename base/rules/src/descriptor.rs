//! Whether a descriptor is valid, in the order of spec §5.7. Errors are status bits.

use vipl_abi::*;

use crate::region::Table;
use crate::{Fault, Image, Segment};

/// What an operation is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Send.
    Send,
    /// RDMA Write.
    Write,
    /// RDMA Read.
    Read,
}

impl Operation {
    /// Its `VIP_STATUS_OP_*`.
    #[inline(always)]
    pub fn opcode(self) -> u32 {
        match self {
            Operation::Send => VIP_STATUS_OP_SEND,
            Operation::Write => VIP_STATUS_OP_RDMA_WRITE,
            Operation::Read => VIP_STATUS_OP_RDMA_READ,
        }
    }
}

/// What a VI may post.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Segments of one descriptor.
    pub segments_max: u32,
    /// Bytes of one transfer.
    pub transfer_max: u64,
    /// Reliability level of the VI.
    pub reliability: u16,
    /// Levels on which RDMA Read works.
    pub read_levels: u16,
}

/// The regions that a VI may use.
#[derive(Clone, Copy)]
pub struct Regions<'a> {
    /// Those of its NIC handle.
    pub table: Table<'a>,
    /// Its protection tag.
    pub tag: u32,
}

/// Sum of the lengths, and whether the segments, as far as their first `bytes` bytes go, may be used.
#[inline(always)]
fn survey(
    segments: impl Iterator<Item = Result<Segment, Fault>>,
    regions: Regions<'_>,
    bytes: u64,
) -> Result<(u64, bool), u32> {
    let (mut total, mut permitted) = (0, true);
    for segment in segments {
        let segment = segment.map_err(|Fault| VIP_STATUS_PROTECTION_ERROR)?;
        let length = u64::from(segment.length);
        let used = length.min(bytes.saturating_sub(total));
        total += length;
        let (handle, address) = (segment.handle, segment.address);
        permitted &= used == 0 || regions.table.is_local(handle, address, used, regions.tag);
    }
    Ok((total, permitted))
}

/// The operation of a send-queue descriptor whose control segment is well formed.
#[inline(always)]
pub fn operation(image: &Image, limits: &Limits) -> Result<Operation, u32> {
    let operation = match image.control & VIP_CONTROL_OP_MASK {
        VIP_CONTROL_OP_SENDRECV => Operation::Send,
        VIP_CONTROL_OP_RDMAWRITE => Operation::Write,
        VIP_CONTROL_OP_RDMAREAD => Operation::Read,
        _ => return Err(VIP_STATUS_FORMAT_ERROR),
    };
    let flagged = image.control & VIP_CONTROL_IMMEDIATE != 0;
    let reads = limits.reliability & limits.read_levels != 0;
    let malformed = image.control & VIP_CONTROL_RESERVED != 0
        || u32::from(image.seg_count) > limits.segments_max
        || (operation != Operation::Send && image.seg_count == 0)
        || (operation == Operation::Read && (flagged || !reads));
    if malformed {
        return Err(VIP_STATUS_FORMAT_ERROR | operation.opcode());
    }
    Ok(operation)
}

/// Checks the data segments of a send-queue descriptor; gives the sum of their lengths.
#[inline(always)]
pub fn outgoing(
    operation: Operation,
    image: &Image,
    limits: &Limits,
    regions: Regions<'_>,
    segments: impl Iterator<Item = Result<Segment, Fault>>,
) -> Result<u64, u32> {
    let opcode = operation.opcode();
    let (total, permitted) = survey(segments, regions, u64::MAX).map_err(|error| error | opcode)?;
    if total != u64::from(image.length) || total > limits.transfer_max {
        Err(VIP_STATUS_LENGTH_ERROR | opcode)
    } else if !permitted {
        Err(VIP_STATUS_PROTECTION_ERROR | opcode)
    } else {
        Ok(total)
    }
}

/// Checks the control segment of a receive descriptor.
#[inline(always)]
pub fn receive(image: &Image, segments_max: u32) -> Result<(), u32> {
    let malformed = image.control & (VIP_CONTROL_OP_MASK | VIP_CONTROL_RESERVED) != 0
        || u32::from(image.seg_count) > segments_max;
    if malformed {
        Err(VIP_STATUS_FORMAT_ERROR)
    } else {
        Ok(())
    }
}

/// Checks the segments of a receive descriptor as far as their first `bytes` bytes go; gives the sum of their
/// lengths.
#[inline(always)]
pub fn incoming(
    regions: Regions<'_>,
    bytes: u64,
    segments: impl Iterator<Item = Result<Segment, Fault>>,
) -> Result<u64, u32> {
    match survey(segments, regions, bytes)? {
        (total, true) => Ok(total),
        _ => Err(VIP_STATUS_PROTECTION_ERROR),
    }
}
