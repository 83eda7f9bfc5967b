//! The pages of a VI.
//!
//! ```text
//!   0       words      state of the application's side and of the device
//!   4096    sends      doorbells of the send queue, two lines each
//!           receives   doorbells of the receive queue, a line each
//!           sent       completions of sends, 16 bytes each
//!           received   completions of receives, a line each
//! ```
//!
//! Doorbells and completions are numbered over all connections of a VI. Number `n` has slot `n % RING`, and its `sequence`
//! word is `n + 1`, stored last: a reader sees at once whether the slot has the number that it waits for. A doorbell carries
//! as much of the descriptor as fits, and the device fetches only the rest from the application's memory.
//!
//! The side that first takes the [`Claim`] of a completion writes it into the application's memory: the application's side
//! when it polls, or the device if the application has not polled for some time.
//!
//! A long message is *offered* first: its completion states where the data is in the sender's memory. If the receiver's
//! side polls, it fetches the data from there, and then the send completes. Otherwise the device moves the data after a
//! timeout.

use std::mem::offset_of;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

pub use vipl_guard::Segment;
use vipl_rules::refusal::Record;

use crate::claim::Claim;

/// Slots of each ring: descriptors of one queue.
pub const RING: usize = 1024;
/// Data bytes in the first line of a send doorbell.
pub const HEAD: usize = 16;
/// Data bytes of a whole send doorbell.
pub const INLINE_MAX: usize = HEAD + 64;
/// Data bytes of a receive completion.
pub const SMALL: usize = 40;
/// Segments in a send doorbell.
pub const SEND_SEGMENTS: usize = 5;
/// Segments in a receive doorbell.
pub const RECEIVE_SEGMENTS: usize = 2;
/// Segments of an offered message.
pub const OFFER_SEGMENTS: usize = 2;

/// First line of a send doorbell.
#[repr(C, align(64))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SendLine {
    /// Number plus 1, stored last.
    pub sequence: u32,
    /// Memory handle of the descriptor.
    pub memory: u32,
    /// Address of the descriptor.
    pub descriptor: u64,
    /// Segments, including the address segment of RDMA.
    pub seg_count: u16,
    /// Operation and flags.
    pub control: u16,
    /// Immediate data.
    pub immediate: u32,
    /// Length of the message.
    pub length: u32,
    /// One of [`form`].
    pub form: u32,
    /// The first segment.
    pub first: Segment,
    /// The first bytes of the data, with [`form::INLINE`].
    pub head: [u8; HEAD],
}

/// How much of the descriptor a doorbell carries.
pub mod form {
    /// Its address; the device fetches it.
    pub const TOKEN: u32 = 0;
    /// All of it.
    pub const WHOLE: u32 = 1;
    /// All of it, and the data of its single segment.
    pub const INLINE: u32 = 2;
}

/// A receive doorbell.
#[repr(C, align(64))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReceiveLine {
    /// Number plus 1, stored last.
    pub sequence: u32,
    /// Memory handle of the descriptor.
    pub memory: u32,
    /// Address of the descriptor.
    pub descriptor: u64,
    /// Segments.
    pub seg_count: u16,
    /// Operation and flags.
    pub control: u16,
    /// [`form::TOKEN`] or [`form::WHOLE`].
    pub form: u32,
    /// 0.
    pub reserved: u64,
    /// The segments, with [`form::WHOLE`].
    pub segments: [Segment; RECEIVE_SEGMENTS],
}

/// Completion of a send.
#[derive(Debug, Default)]
#[repr(C, align(16))]
pub struct Sent {
    /// Number plus 1, stored last.
    pub sequence: AtomicU32,
    /// Which side writes it into the application's memory.
    pub claim: Claim,
    /// `VIP_STATUS_*` without DONE.
    pub status: AtomicU32,
    reserved: AtomicU32,
}

/// Completion of a receive.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Received {
    /// Number plus 1, stored last.
    pub sequence: AtomicU32,
    /// Which side writes it into the application's memory.
    pub claim: Claim,
    /// `VIP_STATUS_*` without DONE.
    pub status: AtomicU32,
    /// Bytes received.
    pub length: AtomicU32,
    /// Immediate data.
    pub immediate: AtomicU32,
    /// Bytes of `data`.
    pub small: AtomicU32,
    /// A small message, or the [`Offer`] of an offered one.
    pub data: [AtomicU64; SMALL / 8],
}

/// Location of an offered message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Offer {
    /// A thread of the sender.
    pub thread: i32,
    /// Number of segments.
    pub count: usize,
    /// The segments, without handles: the device has checked them.
    pub segments: [Segment; OFFER_SEGMENTS],
}

const _: () = assert!(8 + 16 * OFFER_SEGMENTS <= SMALL);
// One layout for the device and for programs of 32 and of 64 bits.
const _: () = assert!(offset_of!(SendLine, descriptor) == 8 && offset_of!(SendLine, first) == 32);
const _: () = assert!(offset_of!(ReceiveLine, descriptor) == 8);
const _: () = assert!(offset_of!(ReceiveLine, segments) == 32 && offset_of!(Received, data) == 24);

impl Received {
    /// Stores the location of an offered message.
    pub fn set_offer(&self, offer: &Offer) {
        let head = u64::from(offer.thread as u32) | (offer.count as u64) << 32;
        self.data[0].store(head, Ordering::Relaxed);
        for (pair, segment) in self.data[1..].chunks_exact(2).zip(&offer.segments) {
            pair[0].store(segment.address, Ordering::Relaxed);
            pair[1].store(u64::from(segment.length), Ordering::Relaxed);
        }
    }

    /// The location of an offered message.
    pub fn offer(&self) -> Offer {
        let head = self.data[0].load(Ordering::Relaxed);
        let mut offer = Offer {
            thread: head as u32 as i32,
            count: ((head >> 32) as usize).min(OFFER_SEGMENTS),
            ..Offer::default()
        };
        for (pair, segment) in self.data[1..].chunks_exact(2).zip(&mut offer.segments) {
            segment.address = pair[0].load(Ordering::Relaxed);
            segment.length = pair[1].load(Ordering::Relaxed) as u32;
        }
        offer
    }
}

/// Why the device has ended a connection: the lower half of [`Words::end`]; the upper half is its epoch.
pub mod end {
    /// It has not ended.
    pub const NONE: u32 = 0;
    /// A descriptor of this VI has reported it.
    pub const REPORTED: u32 = 1;
    /// The connection is lost.
    pub const LOST: u32 = 2;
    /// The peer disconnected.
    pub const DISCONNECTED: u32 = 3;
    /// A message found no receive descriptor.
    pub const EMPTY: u32 = 4;
    /// An RDMA Write of the peer was refused.
    pub const WRITE_REFUSED: u32 = 5;
    /// An RDMA Read of the peer was refused.
    pub const READ_REFUSED: u32 = 6;
    /// The peer fell silent during its RDMA Write.
    pub const WRITE_CUT: u32 = 7;
    /// The peer fell silent before its RDMA Read had all data.
    pub const READ_CUT: u32 = 8;
}

/// Indices of [`Words::events`]: asynchronous errors of Unreliable connections.
pub mod event {
    /// A message found no receive descriptor.
    pub const EMPTY: usize = 0;
    /// An RDMA Write was refused.
    pub const REFUSED: usize = 1;
    /// An RDMA Write was cut short.
    pub const CUT: usize = 2;
    /// Number of kinds.
    pub const KINDS: usize = 3;
}

/// State that the sides publish.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub struct Words {
    /// Application: not 0, completions set the ready bit in the NIC's page.
    pub watched: AtomicU32,
    pad0: [AtomicU32; 15],
    /// Device: why the connection has ended.
    pub end: AtomicU64,
    /// Device: counts events that do not end the connection, by [`event`].
    pub events: [AtomicU32; event::KINDS],
    pad1: AtomicU32,
    /// Device: the last RDMA that was refused, before `end`, `events` or a completion says that one was. The application's side
    /// takes it. A device that does not know it leaves it 0.
    pub refused: Record,
    pad2: [AtomicU32; 4],
}

const SENDS_AT: usize = 4096;
const SEND_BYTES: usize = 2 * size_of::<SendLine>();
const RECEIVES_AT: usize = SENDS_AT + RING * SEND_BYTES;
const SENT_AT: usize = RECEIVES_AT + RING * size_of::<ReceiveLine>();
const RECEIVED_AT: usize = SENT_AT + RING * size_of::<Sent>();
/// Bytes of the memory of a VI.
pub const VI_BYTES: usize = RECEIVED_AT + RING * size_of::<Received>();

const _: () = assert!(size_of::<SendLine>() == 64 && size_of::<ReceiveLine>() == 64);
const _: () = assert!(size_of::<Received>() == 64 && size_of::<Sent>() == 16);
const _: () = assert!(size_of::<Words>() == 128 && offset_of!(Words, refused) == 88);
const _: () = assert!(size_of::<Words>() <= SENDS_AT && VI_BYTES.is_multiple_of(4096));
const _: () = assert!((SEND_SEGMENTS - 1) * size_of::<Segment>() == INLINE_MAX - HEAD);

/// The pages of a VI, as one side maps them.
#[derive(Clone, Copy, Debug)]
pub struct ViPages(*mut u8);

// SAFETY: the contents are atomic or copied at once, and the mapping outlives its users.
unsafe impl Send for ViPages {}

#[inline(always)]
fn slot(number: u32) -> usize {
    number as usize % RING
}

impl ViPages {
    /// The view of a mapping.
    ///
    /// # Safety
    /// `base` is a page-aligned mapping of [`VI_BYTES`] bytes that outlives the view and its copies.
    pub unsafe fn new(base: *mut u8) -> ViPages {
        ViPages(base)
    }

    #[inline(always)]
    fn at<T>(&self, offset: usize) -> *mut T {
        self.0.wrapping_add(offset).cast()
    }

    /// The words.
    #[inline(always)]
    pub fn words(&self) -> &Words {
        // SAFETY: inside the mapping; all atomic.
        unsafe { &*self.at::<Words>(0) }
    }

    /// The completion of the send with this number.
    #[inline(always)]
    pub fn sent(&self, number: u32) -> &Sent {
        // SAFETY: inside the mapping; all atomic.
        unsafe { &*self.at::<Sent>(SENT_AT + slot(number) * size_of::<Sent>()) }
    }

    /// The completion of the receive with this number.
    #[inline(always)]
    pub fn received(&self, number: u32) -> &Received {
        // SAFETY: inside the mapping; all atomic.
        unsafe { &*self.at::<Received>(RECEIVED_AT + slot(number) * size_of::<Received>()) }
    }

    #[inline(always)]
    fn send_line(&self, number: u32) -> *mut SendLine {
        self.at(SENDS_AT + slot(number) * SEND_BYTES)
    }

    #[inline(always)]
    fn receive_line(&self, number: u32) -> *mut ReceiveLine {
        self.at(RECEIVES_AT + slot(number) * size_of::<ReceiveLine>())
    }

    /// The second line of a send doorbell: the rest of the data, or the other segments.
    #[inline(always)]
    pub fn send_rest(&self, number: u32) -> *mut u8 {
        self.send_line(number).wrapping_add(1).cast()
    }

    /// Place of the first data bytes in a send doorbell.
    #[inline(always)]
    pub fn send_head(&self, number: u32) -> *mut u8 {
        // SAFETY: an address inside the mapping.
        unsafe { (&raw mut (*self.send_line(number)).head).cast() }
    }

    /// Rings: stores the first line of a send doorbell without `head` ([`ViPages::send_head`]), the sequence word last, in
    /// release order.
    #[inline(always)]
    pub fn ring_send(&self, number: u32, line: &SendLine) {
        let to = self.send_line(number);
        // SAFETY: inside the mapping; the device treats the contents as untrusted bytes.
        unsafe {
            (&raw mut (*to).memory).write_volatile(line.memory);
            (&raw mut (*to).descriptor).write_volatile(line.descriptor);
            (&raw mut (*to).seg_count).write_volatile(line.seg_count);
            (&raw mut (*to).control).write_volatile(line.control);
            (&raw mut (*to).immediate).write_volatile(line.immediate);
            (&raw mut (*to).length).write_volatile(line.length);
            (&raw mut (*to).form).write_volatile(line.form);
            (&raw mut (*to).first).write_volatile(line.first);
            sequence(to.cast()).store(number.wrapping_add(1), Ordering::Release);
        }
    }

    /// Rings: stores a receive doorbell, the sequence word last, in release order.
    #[inline(always)]
    pub fn ring_receive(&self, number: u32, line: &ReceiveLine) {
        let to = self.receive_line(number);
        // SAFETY: as above.
        unsafe {
            (&raw mut (*to).memory).write_volatile(line.memory);
            (&raw mut (*to).descriptor).write_volatile(line.descriptor);
            (&raw mut (*to).seg_count).write_volatile(line.seg_count);
            (&raw mut (*to).control).write_volatile(line.control);
            (&raw mut (*to).form).write_volatile(line.form);
            (&raw mut (*to).segments).write_volatile(line.segments);
            sequence(to.cast()).store(number.wrapping_add(1), Ordering::Release);
        }
    }

    /// Whether the send doorbell with this number has been rung.
    #[inline(always)]
    pub fn is_send_rung(&self, number: u32) -> bool {
        // SAFETY: inside the mapping.
        let word = unsafe { sequence(self.send_line(number).cast()) };
        word.load(Ordering::Acquire) == number.wrapping_add(1)
    }

    /// A copy of the first line of a send doorbell, rung or not.
    #[inline(always)]
    pub fn send_doorbell(&self, number: u32) -> SendLine {
        // SAFETY: inside the mapping; every bit pattern is valid. A process that changes it meanwhile damages only itself.
        unsafe { self.send_line(number).read_volatile() }
    }

    /// A copy of the second line.
    #[inline(always)]
    pub fn send_second(&self, number: u32) -> [u8; 64] {
        // SAFETY: as above.
        unsafe { self.send_rest(number).cast::<[u8; 64]>().read_volatile() }
    }

    /// Whether the receive doorbell with this number has been rung.
    #[inline(always)]
    pub fn is_receive_rung(&self, number: u32) -> bool {
        // SAFETY: inside the mapping.
        let word = unsafe { sequence(self.receive_line(number).cast()) };
        word.load(Ordering::Acquire) == number.wrapping_add(1)
    }

    /// A copy of the receive doorbell with this number, if it has been rung.
    #[inline(always)]
    pub fn receive_doorbell(&self, number: u32) -> Option<ReceiveLine> {
        let line = self.receive_line(number);
        // SAFETY: as above.
        unsafe {
            let rung = sequence(line.cast()).load(Ordering::Acquire) == number.wrapping_add(1);
            rung.then(|| line.read_volatile())
        }
    }
}

/// The sequence word of a doorbell.
///
/// # Safety
/// `line` is inside the mapping.
#[inline(always)]
unsafe fn sequence<'a>(line: *mut u32) -> &'a AtomicU32 {
    // SAFETY: the first word of a line, aligned, only accessed atomically here.
    unsafe { AtomicU32::from_ptr(line) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;
    use vipl_sys::shm::{Mapping, create};

    #[test]
    fn an_offer_is_read_as_it_was_stored() {
        let fd = create(c"test", VI_BYTES).expect("memory");
        let mapping = Mapping::open(fd.as_raw_fd(), VI_BYTES, true).expect("mapping");
        // SAFETY: the mapping lives to the end.
        let pages = unsafe { ViPages::new(mapping.base()) };
        let part = |address, length| Segment {
            address,
            length,
            handle: 0,
        };
        let offer = Offer {
            thread: 4711,
            count: 2,
            segments: [part(u64::MAX - 7, u32::MAX), part(5, 6)],
        };
        pages.received(9).set_offer(&offer);
        assert_eq!(pages.received(9).offer(), offer);
        // An invalid count is bounded.
        pages.received(9).data[0].store(u64::MAX, Ordering::Relaxed);
        assert_eq!(pages.received(9).offer().count, OFFER_SEGMENTS);
    }

    #[test]
    fn a_doorbell_is_seen_under_its_own_number_only() {
        let fd = create(c"test", VI_BYTES).expect("memory");
        let mapping = Mapping::open(fd.as_raw_fd(), VI_BYTES, true).expect("mapping");
        // SAFETY: the mapping lives to the end.
        let pages = unsafe { ViPages::new(mapping.base()) };
        let number = u32::MAX - 3;
        for step in 0..8u32 {
            let number = number.wrapping_add(step);
            assert!(!pages.is_send_rung(number) || number == u32::MAX);
            let line = SendLine {
                descriptor: u64::from(step),
                ..SendLine::default()
            };
            pages.ring_send(number, &line);
            assert!(pages.is_send_rung(number));
            assert!(!pages.is_send_rung(number.wrapping_add(RING as u32)));
            assert_eq!(pages.send_doorbell(number).descriptor, u64::from(step));
            assert_eq!(pages.receive_doorbell(number.wrapping_add(5)), None);
        }
    }
}
