//! From doorbells to checked descriptors (spec §5.7).
//!
//! The contents of a doorbell are used as they are; the rest of a descriptor is loaded from the application's memory,
//! once.

use std::rc::Rc;

use vipl_abi::*;
use vipl_clan_proto::message::{Request, flag};
use vipl_clan_proto::vi::{
    INLINE_MAX, RECEIVE_SEGMENTS, ReceiveLine, SEND_SEGMENTS, Segment, SendLine, ViPages, form,
};
use vipl_rules::Image;
use vipl_rules::descriptor::{self as rules, Limits, Operation, Regions};
use vipl_sys::shm::Mapping;

use crate::process::{Fault, Process, piece};
use crate::tools::Tools;

/// Most segments of a descriptor: with those that a completion adds, not more than the kernel takes in one call.
const SEGMENTS_MAX: u16 = 1000;

/// Terms of a connection.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Terms {
    pub(crate) epoch: u32,
    pub(crate) key: u64,
    pub(crate) ptag: u32,
    pub(crate) max_transfer: u64,
    pub(crate) reliability: u16,
    pub(crate) flags: u16,
    pub(crate) read_levels: u16,
    pub(crate) segments_max: u16,
}

impl Terms {
    pub(crate) fn has(&self, flag: u16) -> bool {
        self.flags & flag != 0
    }

    pub(crate) fn is_unreliable(&self) -> bool {
        self.reliability == VIP_SERVICE_UNRELIABLE
    }

    pub(crate) fn waits_for_reception(&self) -> bool {
        self.reliability == VIP_SERVICE_RELIABLE_RECEPTION
    }

    /// Whether a small message may come with its completion. Under Reliable Reception it must be in the posted buffers
    /// before the send completes.
    pub(crate) fn takes_inline(&self) -> bool {
        self.has(flag::INLINE) && !self.waits_for_reception()
    }
}

/// The queues of a VI: its pages, and the memory of its process behind them.
pub(crate) struct Queues {
    process: Rc<Process>,
    number: u32,
    pages: ViPages,
    terms: Terms,
    _memory: Mapping,
}

/// Where the data of the descriptor is that was loaded last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Data {
    /// In [`Tools::bounce`]: it came with the doorbell.
    Inline,
    /// In the segments [`Tools::out`].
    Out,
    /// In the segments [`Tools::into`].
    Into,
}

/// A send-queue descriptor that has passed all checks of its own side.
pub(crate) type Outgoing = vipl_rules::posted::Outgoing<Data>;

/// A receive descriptor that has passed all checks; its segments are in [`Tools::into`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Incoming {
    pub(crate) descriptor: u64,
    pub(crate) memory: u32,
    pub(crate) capacity: u64,
}

/// Bytes of a descriptor in one cache line.
const LINE: usize = 64;
const CONTROL: usize = 32;
const SEGMENT: usize = 16;

fn word(bytes: &[u8], at: usize) -> u32 {
    let mut word = [0; 4];
    word.copy_from_slice(&bytes[at..at + 4]);
    u32::from_ne_bytes(word)
}

fn half(bytes: &[u8], at: usize) -> u16 {
    u16::from_ne_bytes([bytes[at], bytes[at + 1]])
}

fn segment(bytes: &[u8]) -> Segment {
    let mut address = [0; 8];
    address.copy_from_slice(&bytes[..8]);
    Segment {
        address: u64::from_ne_bytes(address),
        handle: word(bytes, 8),
        length: word(bytes, 12),
    }
}

/// Loads a descriptor and up to `most` segments from the application's memory.
fn fetch(
    process: &Process,
    address: u64,
    most: u16,
    segments: &mut Vec<Segment>,
) -> Result<Image, Fault> {
    let mut line = [0; LINE];
    process.read(&[piece(address, LINE)], &mut line)?;
    let image = Image {
        seg_count: half(&line, 12),
        control: half(&line, 14),
        immediate: word(&line, 20),
        length: word(&line, 24),
        first: Segment::default(),
    };
    let count = usize::from(image.seg_count.min(most));
    let near = count.min((LINE - CONTROL) / SEGMENT);
    segments.extend(
        line[CONTROL..CONTROL + near * SEGMENT]
            .chunks(SEGMENT)
            .map(segment),
    );
    if count > near {
        let mut rest = vec![0; (count - near) * SEGMENT];
        let at = address.wrapping_add(LINE as u64);
        process.read(&[piece(at, rest.len())], &mut rest)?;
        segments.extend(rest.chunks(SEGMENT).map(segment));
    }
    Ok(image)
}

impl Queues {
    pub(crate) fn new(process: Rc<Process>, number: u32, memory: Mapping) -> Queues {
        Queues {
            process,
            number,
            // SAFETY: the mapping lives as long as the view.
            pages: unsafe { ViPages::new(memory.base()) },
            terms: Terms::default(),
            _memory: memory,
        }
    }

    pub(crate) fn attach(&mut self, request: &Request) {
        self.terms = Terms {
            epoch: request.epoch,
            key: request.key,
            ptag: request.ptag,
            max_transfer: request.max_transfer.min(u64::from(u32::MAX)),
            reliability: request.reliability,
            flags: request.flags,
            read_levels: request.read_levels,
            segments_max: request.segments_max.min(SEGMENTS_MAX),
        };
    }

    /// For the rest of this connection the device moves all data.
    pub(crate) fn stop_fetches(&mut self) {
        self.terms.flags &= !flag::FETCHES;
    }

    #[inline(always)]
    pub(crate) fn process(&self) -> &Process {
        &self.process
    }

    /// Number of the VI within its NIC.
    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    #[inline(always)]
    pub(crate) fn pages(&self) -> &ViPages {
        &self.pages
    }

    #[inline(always)]
    pub(crate) fn terms(&self) -> &Terms {
        &self.terms
    }

    pub(crate) fn regions(&self) -> Regions<'_> {
        Regions {
            table: self.process.table(),
            tag: self.terms.ptag,
        }
    }

    /// Whether a descriptor may be written, as far as its own region is concerned.
    pub(crate) fn may_write(&self, descriptor: u64, memory: u32) -> bool {
        let (table, tag) = (self.process.table(), self.terms.ptag);
        !self.terms.has(flag::CHECK_DESCRIPTOR)
            || table.is_local(memory, descriptor, CONTROL as u64, tag)
    }

    /// Loads and checks the send-queue descriptor with this number, which has been rung for.
    pub(crate) fn outgoing(&self, number: u32, tools: &mut Tools) -> Result<Outgoing, u32> {
        let line = self.pages.send_doorbell(number);
        tools.out.clear();
        let whole = matches!(line.form, form::WHOLE | form::INLINE)
            && usize::from(line.seg_count) <= SEND_SEGMENTS;
        let image = if whole {
            self.take_whole(number, &line, &mut tools.out);
            Image {
                seg_count: line.seg_count,
                control: line.control,
                immediate: line.immediate,
                length: line.length,
                first: line.first,
            }
        } else {
            let most = self.terms.segments_max;
            fetch(&self.process, line.descriptor, most, &mut tools.out)
                .map_err(|Fault| VIP_STATUS_PROTECTION_ERROR)?
        };
        let limits = Limits {
            segments_max: self.terms.segments_max.into(),
            transfer_max: self.terms.max_transfer,
            reliability: self.terms.reliability,
            read_levels: self.terms.read_levels,
        };
        let operation = rules::operation(&image, &limits)?;
        let rdma = operation != Operation::Send;
        let remote = if rdma {
            tools.out.remove(0)
        } else {
            Segment::default()
        };
        for segment in &mut tools.out {
            *segment = self.process.own(*segment);
        }
        let segments = tools.out.iter().copied().map(Ok);
        let total = rules::outgoing(operation, &image, &limits, self.regions(), segments)?;
        let inline = line.form == form::INLINE
            && whole
            && !rdma
            && tools.out.len() == 1
            && total <= INLINE_MAX as u64;
        if inline {
            self.take_data(number, &line, tools);
        }
        Ok(Outgoing {
            operation,
            length: image.length,
            immediate: image.immediate,
            flagged: image.control & VIP_CONTROL_IMMEDIATE != 0,
            fenced: image.control & VIP_CONTROL_QFENCE != 0,
            remote,
            segments: if inline { Data::Inline } else { Data::Out },
        })
    }

    /// The segments that the doorbell carries.
    fn take_whole(&self, number: u32, line: &SendLine, segments: &mut Vec<Segment>) {
        if line.seg_count > 0 {
            segments.push(line.first);
        }
        if line.seg_count > 1 {
            let second = self.pages.send_second(number);
            let rest = second.chunks(SEGMENT).map(segment);
            segments.extend(rest.take(usize::from(line.seg_count) - 1));
        }
    }

    /// The data that the doorbell carries.
    fn take_data(&self, number: u32, line: &SendLine, tools: &mut Tools) {
        tools.bounce[..line.head.len()].copy_from_slice(&line.head);
        if line.length as usize > line.head.len() {
            let second = self.pages.send_second(number);
            tools.bounce[line.head.len()..INLINE_MAX].copy_from_slice(&second);
        }
    }

    /// Loads and checks a receive descriptor. Segments are checked as far as a `message` of this length needs them, or
    /// all of them if the process wants that, or none without data.
    pub(crate) fn incoming(
        &self,
        line: &ReceiveLine,
        message: Option<u32>,
        tools: &mut Tools,
    ) -> Result<Incoming, u32> {
        tools.into.clear();
        let whole = line.form == form::WHOLE && usize::from(line.seg_count) <= RECEIVE_SEGMENTS;
        let most = self.terms.segments_max;
        let image = if whole {
            let count = usize::from(line.seg_count);
            tools.into.extend(&line.segments[..count]);
            Image {
                seg_count: line.seg_count,
                control: line.control,
                ..Image::default()
            }
        } else {
            fetch(&self.process, line.descriptor, most, &mut tools.into)
                .map_err(|Fault| VIP_STATUS_PROTECTION_ERROR)?
        };
        rules::receive(&image, most.into())?;
        let checked = message.map_or(0, |length| {
            match self.terms.has(flag::CHECK_RECEIVE_WHOLE) {
                true => u64::MAX,
                false => u64::from(length),
            }
        });
        for segment in &mut tools.into {
            *segment = self.process.own(*segment);
        }
        let segments = tools.into.iter().copied().map(Ok);
        let capacity = rules::incoming(self.regions(), checked, segments)?;
        Ok(Incoming {
            descriptor: line.descriptor,
            memory: line.memory,
            capacity,
        })
    }

    /// Whether a peer may access this whole range of the process's memory by RDMA, according to `enable` of the VI and
    /// `flag` of the region. A range of no bytes is not checked (spec §5.6).
    pub(crate) fn permits(&self, range: &Segment, enable: u16, flag: u32) -> bool {
        let (table, length) = (self.process.table(), u64::from(range.length));
        let (handle, address, tag) = (range.handle, range.address, self.terms.ptag);
        length == 0
            || (self.terms.has(enable) && table.is_remote(handle, address, length, tag, flag))
    }
}
