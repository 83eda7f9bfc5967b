//! Reads an application's descriptor: every field once; then it is checked, then used.

use vipl_abi::*;
use vipl_guard::{Image, Segment};
use vipl_plugin_abi::VIPL_OPTION_CHECK_RECEIVE_WHOLE;

pub use crate::descriptor::Operation;
use crate::descriptor::{self as rules, Limits, Regions};
use crate::port::{Entry, Port, Queue};

/// A send-queue descriptor that has passed all checks of its own side.
pub struct Outgoing<S = Segments> {
    /// What it asks for.
    pub operation: Operation,
    /// Bytes.
    pub length: u32,
    /// Immediate data.
    pub immediate: u32,
    /// The immediate flag is set.
    pub flagged: bool,
    /// The queue fence flag is set.
    pub fenced: bool,
    /// Remote address and handle of RDMA.
    pub remote: Segment,
    /// The data segments.
    pub segments: S,
}

/// The data segments of a descriptor.
#[derive(Clone, Copy)]
pub struct Segments {
    descriptor: *const u8,
    /// The first segment of the descriptor: an address segment for RDMA, otherwise a data segment.
    in_first_place: Segment,
    total: u64,
    /// Number of the descriptor on its queue.
    number: u32,
    /// Its operation, `VIP_STATUS_OP_*`.
    opcode: u32,
    /// Place of the first data segment.
    first: u16,
    count: u16,
}

/// Why a descriptor cannot be processed: one status bit, and the operation bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// `VIP_STATUS_*_ERROR` and `VIP_STATUS_OP_*`.
    pub status: u32,
}

impl Segments {
    #[inline(always)]
    fn new(entry: &Entry, image: &Image, opcode: u32, first: u16) -> Segments {
        Segments {
            descriptor: entry.descriptor().cast_const().cast(),
            in_first_place: image.first,
            total: 0,
            number: entry.number(),
            opcode,
            first,
            count: image.seg_count - first,
        }
    }

    /// Data segments.
    #[inline(always)]
    pub fn len(&self) -> u16 {
        self.count
    }

    /// No data segment at all.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The data segment with this number; segments beyond the first are read from the application's memory again.
    #[inline(always)]
    pub fn get(&self, number: u16) -> Result<Segment, vipl_guard::Fault> {
        let place = usize::from(self.first) + usize::from(number);
        if place == 0 {
            return Ok(self.in_first_place);
        }
        read_segment(self.descriptor, place)
    }

    /// Copies all segments, so that later changes by the application have no effect.
    pub fn to_vec(&self) -> Result<Vec<Segment>, vipl_guard::Fault> {
        (0..self.count).map(|number| self.get(number)).collect()
    }

    /// Sum of the lengths when the descriptor was checked; 0 if its data segments were not checked.
    #[inline(always)]
    pub fn total(&self) -> u64 {
        self.total
    }

    /// Number of the descriptor on its queue.
    #[inline(always)]
    pub fn number(&self) -> u32 {
        self.number
    }

    /// The operation of the descriptor, `VIP_STATUS_OP_*`.
    #[inline(always)]
    pub fn opcode(&self) -> u32 {
        self.opcode
    }

    /// The queue of the descriptor.
    #[inline(always)]
    pub fn queue(&self) -> Queue {
        if self.opcode == VIP_STATUS_OP_RECEIVE {
            Queue::Recv
        } else {
            Queue::Send
        }
    }

    /// Whether they belong to the descriptor of this entry.
    #[inline(always)]
    pub(crate) fn are_of(&self, entry: &Entry) -> bool {
        self.descriptor == entry.descriptor().cast_const().cast()
    }

    /// Visits the pieces of the application's memory that hold `bytes` bytes of the message from `offset` on: the place
    /// among these bytes, address, length.
    ///
    /// # Errors
    /// That of `visit`; or the segments do not have so many bytes any more: they are read again, and the application may
    /// have changed them since they were checked.
    #[inline(always)]
    pub fn pieces(
        &self,
        offset: u32,
        bytes: usize,
        mut visit: impl FnMut(usize, *mut u8, usize) -> Result<(), vipl_guard::Fault>,
    ) -> Result<(), vipl_guard::Fault> {
        let (mut skip, mut done) = (offset as usize, 0);
        for number in 0..self.count {
            if done == bytes {
                break;
            }
            let segment = self.get(number)?;
            let length = segment.length as usize;
            if skip >= length {
                skip -= length;
                continue;
            }
            let length = (length - skip).min(bytes - done);
            let at = (segment.address as usize).wrapping_add(skip);
            visit(done, std::ptr::with_exposed_provenance_mut(at), length)?;
            done += length;
            skip = 0;
        }
        if done == bytes {
            Ok(())
        } else {
            Err(vipl_guard::Fault)
        }
    }

    #[inline(always)]
    fn iter(&self) -> impl Iterator<Item = Result<Segment, vipl_guard::Fault>> {
        (0..self.count).map(|number| self.get(number))
    }
}

/// Reads the data segment in this place of a posted descriptor.
#[inline(always)]
pub fn segment(entry: &Entry, place: u16) -> Result<Segment, vipl_guard::Fault> {
    read_segment(entry.descriptor().cast_const().cast(), place.into())
}

#[inline(always)]
fn read_segment(descriptor: *const u8, place: usize) -> Result<Segment, vipl_guard::Fault> {
    let mut segment = Segment::default();
    // SAFETY: a posted descriptor's memory; faults are caught; every bit pattern is a segment.
    unsafe {
        let from = descriptor.wrapping_add(32 + 16 * place);
        vipl_guard::copy((&raw mut segment).cast(), from, 16)?;
    }
    Ok(segment.local())
}

impl From<u32> for Fault {
    #[inline(always)]
    fn from(status: u32) -> Fault {
        Fault { status }
    }
}

/// Loads the control segment and the first segment of a posted descriptor.
#[inline(always)]
fn load(entry: &Entry) -> Result<Image, Fault> {
    // SAFETY: a posted descriptor; faults are caught.
    let image = unsafe { vipl_guard::load_descriptor(entry.descriptor().cast_const().cast()) };
    image.map_err(|_| Fault {
        status: VIP_STATUS_PROTECTION_ERROR,
    })
}

/// The regions that the VI may use.
#[inline(always)]
pub fn regions(port: &Port) -> Regions<'_> {
    Regions {
        table: port.regions(),
        tag: port.ptag(),
    }
}

/// Length field of a posted descriptor, unchecked. `None`: its memory is not accessible.
#[inline(always)]
pub fn length(entry: &Entry) -> Option<u32> {
    load(entry).ok().map(|image| image.length)
}

/// Reads and checks a descriptor of the send queue, in the order of spec §5.7. `read_levels` are the
/// reliability levels on which RDMA Read works.
#[inline(always)]
pub fn outgoing(port: &Port, entry: &Entry, read_levels: u16) -> Result<Outgoing, Fault> {
    let image = load(entry)?;
    let limits = Limits {
        segments_max: port.segments_max(),
        transfer_max: port.max_transfer(),
        reliability: port.reliability(),
        read_levels,
    };
    let operation = rules::operation(&image, &limits)?;
    let first = u16::from(operation != Operation::Send);
    let mut segments = Segments::new(entry, &image, operation.opcode(), first);
    segments.total = rules::outgoing(operation, &image, &limits, regions(port), segments.iter())?;
    Ok(Outgoing {
        operation,
        length: image.length,
        immediate: image.immediate,
        flagged: image.control & VIP_CONTROL_IMMEDIATE != 0,
        fenced: image.control & VIP_CONTROL_QFENCE != 0,
        remote: image.first,
        segments,
    })
}

/// Reads and checks a receive descriptor for a message (spec §5.7): FORMAT, then PROTECTION.
/// The status of a fault has no operation bits.
///
/// `message` is the length of the message whose data will be placed; it may be above
/// [`Segments::total`], which the caller checks (LENGTH). `None`: no data is placed, and the data segments
/// are not checked. Segments are checked as far as the message reaches, so that one may extend beyond its
/// region; with `VIPL_OPTION_CHECK_RECEIVE_WHOLE` they are checked whole (spec §17).
#[inline(always)]
pub fn incoming(port: &Port, entry: &Entry, message: Option<u32>) -> Result<Segments, Fault> {
    let image = load(entry)?;
    rules::receive(&image, port.segments_max())?;
    let mut segments = Segments::new(entry, &image, VIP_STATUS_OP_RECEIVE, 0);
    if let Some(length) = message {
        let bytes = checked_of(port, length).unwrap_or(u64::MAX);
        segments.total = rules::incoming(regions(port), bytes, segments.iter())?;
    }
    Ok(segments)
}

/// How many bytes of a receive descriptor's segments a message of this length has checked; `None`: all.
#[inline(always)]
pub fn checked_of(port: &Port, length: u32) -> Option<u64> {
    let whole = port.options() & VIPL_OPTION_CHECK_RECEIVE_WHOLE != 0;
    (!whole).then_some(u64::from(length))
}
