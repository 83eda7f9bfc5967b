//! The shared segment of a connection: its layout, slots, and the words that each side publishes.
//!
//! ```text
//!    1 KiB   unused, so that slot 0 of direction 1 begins a page
//!   15 KiB   direction 1: slots 16 to 255      64 bytes each, written by side 1
//!  ┌ 1 KiB   direction 1: slots 0 to 15
//!  │ 1 KiB   Side 0, Board 0, Side 1, Board 1  words of each side; large copies that both sides share
//!  └ 1 KiB   direction 0: slots 0 to 15        written by side 0
//!   15 KiB   direction 0: slots 16 to 255
//!    2 KiB   unused, so that the payload begins a page
//!  256 KiB   direction 0: payload              written by side 0
//!  256 KiB   direction 1: payload              written by side 1
//! ```
//!
//! Request-response traffic uses one page only, so a program with a thousand connections has a thousand pages in use and
//! not three thousand.
//!
//! A slot is one cache line. Its first word is written last and holds the wrap count, so the receiver detects a new slot
//! by polling the very line that carries the message. Every slot also carries the sender's own counts, which saves the
//! peer from reading them elsewhere.
//!
//! A ring may wrap early: slot numbers then skip to the next multiple of [`SLOTS`].

use std::mem::offset_of;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use vipl_plugin_sdk::refusal::Record;

use crate::board::Board;
use crate::choice::Costs;
use crate::prefetch;

/// Slots of one direction.
pub(crate) const SLOTS: u32 = 256;
/// Slots after which an empty ring wraps early. Table line "8 B over a CQ, a random one of 1000 VIs": without early wraps the ratio is
/// 3.4 to 6, with them 1.5 to 2.4 (decision 61); four slots gain no more.
const EARLY: u32 = 16;
/// One pass in so many uses all slots, see [`wrap_flag`]. A power of two, far smaller than the range of wrap counts.
const WHOLE_EVERY: u32 = 4096;
/// Bytes that fit into the slot itself.
pub(crate) const INLINE: usize = 40;
/// Payload area of one direction in bytes.
pub(crate) const PAYLOAD: u32 = 256 << 10;
/// Largest piece of a message that travels through the payload area in pieces.
pub(crate) const PIECE: u32 = 16 << 10;
/// How many slots ahead both sides of a stream of small messages prefetch, so that several lines are in transit at a time: 8 B and 64 B
/// messages with window 64, 40.0 and 37.6 M/s instead of 15.7 and 24.4 at times (decision 90).
/// The sender (`OutRing::prefetch`): the receiver read that slot one pass ago and still holds the line, so the first store
/// to it takes as long as a message. The receiver (`InRing::prefetch_slot`): hardware prefetch does not always reach as far.
const AHEAD: u32 = 6;
/// Bytes of a cache line.
pub(crate) const LINE: u32 = 64;
/// Largest message whose lines `OutRing::push` demotes: with the default `eager_max`, the largest single-frame message.
pub(crate) const PUSHED_MAX: u32 = 16 << 10;
/// Largest message after which the receiver prefetches the payload of the next one: 64 B one way, 0.17 instead of 0.18 to 0.19 µs
/// (decision 90). The sender of a larger one writes the
/// first line so long before the slot that the receiver would take the line away again.
pub(crate) const EXPECTED_MAX: u32 = 128;
/// Payload after which an early wrap also restarts the payload area. The skipped rest of the area is free when the peer
/// has consumed the slot.
const EARLY_PAYLOAD: u32 = 16 << 10;
/// Payload after which a receiver publishes its consumed count within a batch (decision 30). Published at the end of a batch only,
/// a sender short of room would wait until the area is empty, and then the receiver for the sender.
pub(crate) const PUBLISH_EVERY: u32 = 32 << 10;
/// The smallest page of any processor.
const PAGE: usize = 4096;
const RING: usize = SLOTS as usize * size_of::<Slot>();
const EARLY_RING: usize = EARLY as usize * size_of::<Slot>();
/// The slot of each direction that lies first in memory.
const FIRST: [u32; 2] = [0, EARLY];
/// Where the slots of direction 1 lie, then the words of both sides, then the slots of direction 0.
const RING_1: usize = EARLY_RING;
const WORDS: usize = RING_1 + RING;
const RING_0: usize = WORDS + 1024;
/// Where the payload of direction 0 lies; that of direction 1 follows.
const PAYLOADS: usize = (RING_0 + RING).next_multiple_of(PAGE);
/// Size of the segment.
pub(crate) const SEGMENT: usize = PAYLOADS + 2 * PAYLOAD as usize;

// The slots used before an early wrap in both directions, and the words between them, are one page.
const _: () = assert!((WORDS - EARLY_RING).is_multiple_of(PAGE));
const _: () = assert!(WORDS + 2 * size_of::<Published>() <= RING_0);
const _: () = assert!(RING_0 + EARLY_RING - (WORDS - EARLY_RING) <= PAGE);

/// Operation of a slot.
pub(crate) mod op {
    /// A message inside the slot.
    pub(crate) const INLINE: u8 = 1;
    /// A message in the payload area.
    pub(crate) const EAGER: u8 = 2;
    /// A message still in the sender's memory; its segment list is in the payload area.
    pub(crate) const FETCH: u8 = 3;
    /// A piece of a message, in the payload area.
    pub(crate) const PIECE: u8 = 4;
    /// An RDMA Write with immediate data has been placed.
    pub(crate) const PLACED: u8 = 5;
    /// Unreliable only: an asynchronous error for the receiver; `length` is its code.
    pub(crate) const EVENT: u8 = 6;
    /// A piece of an RDMA Write, in the payload area.
    pub(crate) const WRITE: u8 = 7;
    /// Requests the data of an RDMA Read.
    pub(crate) const READ: u8 = 8;
    /// A piece of the data of an RDMA Read, in the payload area.
    pub(crate) const DATA: u8 = 9;
}

/// Flags of a slot.
pub(crate) mod flag {
    /// The program set the immediate flag.
    pub(crate) const IMMEDIATE: u8 = 1;
    /// First piece.
    pub(crate) const FIRST: u8 = 2;
    /// Last piece.
    pub(crate) const LAST: u8 = 4;
    /// The RDMA Write was refused; the receive descriptor reports it.
    pub(crate) const REFUSED: u8 = 8;
    /// Unreliable only: the remaining pieces will not follow.
    pub(crate) const ABORTED: u8 = 16;
    /// The ring wraps here: the next slot is slot 0.
    pub(crate) const WRAP: u8 = 32;
}

/// Whether the ring may wrap early behind this slot ([`wrap_flag`]), if the peer has consumed all slots before it.
///
/// Request-response traffic needs few slots. Wrapping early keeps them cached in a program with many such connections,
/// where the other slots would be cold each time.
#[inline(always)]
pub(crate) fn is_past_early(number: u32) -> bool {
    number & (SLOTS - 1) >= EARLY - 1
}

/// The flag of such a slot, or 0: one pass in [`WHOLE_EVERY`] uses all slots, so that no slot keeps a wrap count until that
/// count repeats. One message in [`EARLY`] asks for it; a function, so that the others pass it by with one branch.
#[cold]
pub(crate) fn wrap_flag(number: u32) -> u8 {
    if (number / SLOTS + 1).is_multiple_of(WHOLE_EVERY) {
        0
    } else {
        flag::WRAP
    }
}

/// The number behind this one, for a slot with these flags.
#[inline(always)]
pub(crate) fn next(number: u32, flags: u8) -> u32 {
    let skipped = if flags & flag::WRAP == 0 {
        0
    } else {
        SLOTS - 1
    };
    (number | skipped).wrapping_add(1)
}

/// The payload position behind this one, for a slot with these flags.
#[inline(always)]
pub(crate) fn next_payload(payload: u32, flags: u8) -> u32 {
    if flags & flag::WRAP != 0 && payload & (PAYLOAD - 1) >= EARLY_PAYLOAD {
        (payload | (PAYLOAD - 1)).wrapping_add(1)
    } else {
        payload
    }
}

/// One slot.
#[repr(C, align(64))]
pub(crate) struct Slot {
    /// Wrap count 32, op 8, flags 8, receive descriptors posted by the sender 16.
    word: AtomicU64,
    length: u32,
    immediate: u32,
    /// Slots of the other direction that the sender has consumed.
    consumed: u32,
    /// Position in the payload area.
    payload: u32,
    inline: [u8; INLINE],
}

// One layout for 32-bit and 64-bit programs, as in all memory that processes share: fields have a fixed width and are
// naturally aligned.
const _: () = assert!(size_of::<Slot>() == 64 && offset_of!(Slot, inline) == 24);

/// The sender's part of a slot.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Announcement {
    pub(crate) op: u8,
    pub(crate) flags: u8,
    pub(crate) length: u32,
    pub(crate) immediate: u32,
    pub(crate) payload: u32,
}

/// A slot as the receiver read it, each field once.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arrival {
    pub(crate) op: u8,
    pub(crate) flags: u8,
    pub(crate) posted: u16,
    pub(crate) consumed: u32,
    pub(crate) length: u32,
    pub(crate) immediate: u32,
    pub(crate) payload: u32,
    /// The inline bytes, still in the slot.
    pub(crate) inline: *const u8,
}

/// Words inside the slot that describe RDMA and pieces.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Extra {
    /// Remote address.
    pub(crate) address: u64,
    /// Remote handle.
    pub(crate) handle: u32,
    /// Bytes of this piece.
    pub(crate) bytes: u32,
    /// Offset of this piece in the whole.
    pub(crate) offset: u32,
    /// Padding.
    pub(crate) reserved: u32,
}

const _: () = assert!(size_of::<Extra>() == 24 && offset_of!(Extra, offset) == 16);

/// No address has this bit. A 32-bit process cannot access the addresses of a process that sets it.
pub(crate) const WIDE: u64 = 1 << 63;

/// Version of everything in this file. A plug-in of another version may be at the other side: neither sends then.
pub(crate) const LAYOUT: u32 = 2;

/// The words of one side; only that side writes them, if it is honest. Words written at different rates lie in different
/// lines. All of it is atomic, padding included: it stands behind shared references, and a hostile peer may write it.
#[repr(C, align(64))]
pub(crate) struct Side {
    /// Receive descriptors posted so far. Written often, read when the peer knows of none.
    pub(crate) posted: AtomicU32,
    /// Slots consumed so far. Written often, read when the peer is short of slots.
    pub(crate) consumed: AtomicU32,
    pad0: [AtomicU32; 14],

    /// [`LAYOUT`] when the side has filled in the rest of this line; its place never changes.
    pub(crate) attached: AtomicU32,
    /// Set the VI's ready bit in the bell page of this side's NIC with every message.
    pub(crate) marks: AtomicU32,
    /// This side waits for slots to be consumed: set its ready bit and ring then.
    pub(crate) waiting: AtomicU32,
    /// Why this side has closed the connection, or 0 (`ending::Closed`).
    pub(crate) closed: AtomicU32,
    /// Process id in its own name space.
    pub(crate) pid: AtomicU32,
    /// Protection tag of the VI.
    pub(crate) ptag: AtomicU32,
    /// Address of the probe word in this side's process; [`WIDE`] in one with 64-bit addresses.
    pub(crate) probe_at: AtomicU64,
    /// Value of the probe word.
    pub(crate) probe: AtomicU64,
    /// Whether this side can access the peer's memory: 0 not known yet, 1 yes, 2 no.
    pub(crate) reach: AtomicU32,
    /// What large messages cost this side.
    pub(crate) costs: Costs,
    reserved: [AtomicU32; 3],

    /// Odd while this side copies to or from the peer's memory.
    pub(crate) copying: AtomicU32,
    pad2: AtomicU32,
    /// The last RDMA of this side that it found not permitted by the peer. Not part of [`LAYOUT`]: a side that does not know it leaves zeros.
    pub(crate) refused: Record,
    pad3: [AtomicU32; 8],
}

const _: () = assert!(size_of::<Side>() == 192 && offset_of!(Side, copying) == 128);
const _: () = assert!(offset_of!(Side, refused) == 136);
const _: () = assert!(offset_of!(Side, attached) == 64);
const _: () = assert!(offset_of!(Side, probe_at) == 88 && offset_of!(Side, reach) == 104);
const _: () = assert!(matches!(Board::FIELDS, [24, 32, 128]));

/// Everything that one side publishes.
#[repr(C)]
struct Published {
    side: Side,
    board: Board,
}

/// The words of both sides.
#[derive(Clone, Copy)]
pub(crate) struct Words {
    own: *const Published,
    peer: *const Published,
}

// SAFETY: addresses; all that is there is atomic.
unsafe impl Send for Words {}

impl Words {
    /// What this side publishes.
    #[inline(always)]
    pub(crate) fn own(&self) -> &Side {
        // SAFETY: inside the mapping, which outlives the view.
        unsafe { &(*self.own).side }
    }

    /// What the peer publishes.
    #[inline(always)]
    pub(crate) fn peer(&self) -> &Side {
        // SAFETY: as above.
        unsafe { &(*self.peer).side }
    }

    /// Where this side offers its copies.
    #[inline(always)]
    pub(crate) fn own_board(&self) -> &Board {
        // SAFETY: as above.
        unsafe { &(*self.own).board }
    }

    /// Where the peer offers its copies.
    #[inline(always)]
    pub(crate) fn peer_board(&self) -> &Board {
        // SAFETY: as above.
        unsafe { &(*self.peer).board }
    }
}

/// Location of one direction.
#[derive(Clone, Copy)]
struct Ring {
    slots: *mut Slot,
    payload: *mut u8,
    /// The slot that lies first.
    first: u32,
}

// SAFETY: addresses; what is there is atomic or owned by one side.
unsafe impl Send for Ring {}

impl Ring {
    fn new(base: *mut u8, side: usize) -> Ring {
        Ring {
            slots: base.wrapping_add([RING_0, RING_1][side]).cast(),
            payload: base.wrapping_add(PAYLOADS + side * PAYLOAD as usize),
            first: FIRST[side],
        }
    }

    #[inline(always)]
    fn slot(&self, number: u32) -> *mut Slot {
        let index = number.wrapping_sub(self.first) & (SLOTS - 1);
        self.slots.wrapping_add(index as usize)
    }

    #[inline(always)]
    fn place(&self, at: u32) -> *mut u8 {
        self.payload.wrapping_add((at & (PAYLOAD - 1)) as usize)
    }
}

/// The direction that this side writes.
pub(crate) struct OutRing(Ring);

/// The direction that the peer writes.
pub(crate) struct InRing(Ring);

/// The views of side 0 or 1.
///
/// # Safety
/// `base` is a mapping of `SEGMENT` bytes that outlives the views.
pub(crate) unsafe fn views(base: *mut u8, side: u32) -> (Words, OutRing, InRing) {
    let own = (side & 1) as usize;
    let published = base.wrapping_add(WORDS).cast_const().cast::<Published>();
    let words = Words {
        own: published.wrapping_add(own),
        peer: published.wrapping_add(own ^ 1),
    };
    let (out, in_) = (Ring::new(base, own), Ring::new(base, own ^ 1));
    (words, OutRing(out), InRing(in_))
}

impl OutRing {
    /// The inline bytes of a slot.
    #[inline(always)]
    pub(crate) fn inline(&self, number: u32) -> *mut u8 {
        // SAFETY: inside the segment; only an address is made.
        unsafe { (&raw mut (*self.0.slot(number)).inline).cast() }
    }

    /// Writes the words that describe RDMA and pieces into a slot.
    pub(crate) fn put_extra(&self, number: u32, extra: Extra) {
        // SAFETY: inside the segment, and this side's to write.
        unsafe { self.inline(number).cast::<Extra>().write_unaligned(extra) };
    }

    /// A position of the payload area.
    #[inline(always)]
    pub(crate) fn payload(&self, at: u32) -> *mut u8 {
        self.0.place(at)
    }

    /// Publishes a slot, whose inline bytes and payload have been written; gives its line.
    #[inline(always)]
    pub(crate) fn publish(
        &self,
        number: u32,
        slot: Announcement,
        posted: u32,
        consumed: u32,
    ) -> *const u8 {
        // The upper half as 32 bits, and sums: four instructions less than the shifts of 64 bits.
        let upper = (posted << 16) + (u32::from(slot.flags) << 8) + u32::from(slot.op);
        let word = (u64::from(upper) << 32) + u64::from(number / SLOTS + 1);
        let place = self.0.slot(number);
        // SAFETY: this side owns the slot until the word is stored.
        unsafe {
            (&raw mut (*place).length).write_volatile(slot.length);
            (&raw mut (*place).immediate).write_volatile(slot.immediate);
            (&raw mut (*place).consumed).write_volatile(consumed);
            (&raw mut (*place).payload).write_volatile(slot.payload);
            // Release pairs with the acquire in `arrival`.
            (*place).word.store(word, Ordering::Release);
        }
        place.cast_const().cast()
    }

    /// After `publish`, in a stream: prefetches a later slot for writing.
    #[inline(always)]
    pub(crate) fn prefetch(&self, number: u32) {
        let ahead = self.0.slot(number.wrapping_add(AHEAD));
        prefetch::for_write(ahead.cast_const().cast());
    }

    /// After `publish`, for a receiver that has consumed everything before and polls: demotes the `line` of the slot and those of
    /// the message of `bytes` bytes at `payload`, so that the receiver finds them sooner. The place of an equal message at
    /// `next` is prefetched for writing; its slot is not, because the receiver polls it next.
    #[inline(always)]
    pub(crate) fn push(&self, line: *const u8, payload: u32, bytes: u32, next: u32) {
        prefetch::demote(line);
        if bytes > PUSHED_MAX {
            return;
        }
        let lines = bytes.div_ceil(LINE);
        for line in 0..lines {
            prefetch::demote(self.payload(payload.wrapping_add(line * LINE)));
        }
        for line in 0..lines {
            prefetch::for_write(self.payload(next.wrapping_add(line * LINE)));
        }
    }
}

impl InRing {
    /// A position of the payload area, if `bytes` bytes fit there.
    #[inline(always)]
    pub(crate) fn payload(&self, at: u32, bytes: u32) -> Option<*const u8> {
        (bytes <= PAYLOAD - (at & (PAYLOAD - 1))).then(|| self.0.place(at).cast_const())
    }

    /// After a poll that found nothing: prefetches the line where the next payload is expected, so that it arrives together
    /// with the slot.
    #[inline(always)]
    pub(crate) fn prefetch_payload(&self, at: u32) {
        prefetch::for_read(self.0.place(at));
    }

    /// In a stream: prefetches a slot behind this one while those before it are copied.
    #[inline(always)]
    pub(crate) fn prefetch_slot(&self, number: u32) {
        let slot = self.0.slot(number.wrapping_add(AHEAD));
        prefetch::for_read(slot.cast_const().cast());
    }

    /// The slot with this number, if it has arrived.
    #[inline(always)]
    pub(crate) fn arrival(&self, number: u32) -> Option<Arrival> {
        let slot = self.0.slot(number);
        // SAFETY: inside the segment; every field is read once, with volatile or atomic loads.
        unsafe {
            let word = (*slot).word.load(Ordering::Acquire);
            if word as u32 != number / SLOTS + 1 {
                return None;
            }
            Some(Arrival {
                op: (word >> 32) as u8,
                flags: (word >> 40) as u8,
                posted: (word >> 48) as u16,
                consumed: (&raw const (*slot).consumed).read_volatile(),
                length: (&raw const (*slot).length).read_volatile(),
                immediate: (&raw const (*slot).immediate).read_volatile(),
                payload: (&raw const (*slot).payload).read_volatile(),
                inline: (&raw const (*slot).inline).cast(),
            })
        }
    }
}

impl Arrival {
    /// Where the payload of the next message begins, if the sender lets it follow this one.
    #[inline(always)]
    pub(crate) fn next_payload(&self) -> u32 {
        let end = self
            .payload
            .wrapping_add(self.length.next_multiple_of(LINE));
        next_payload(end, self.flags)
    }

    /// The words that describe RDMA and pieces, read once.
    pub(crate) fn extra(&self) -> Extra {
        // SAFETY: inside the slot; every bit pattern is valid.
        unsafe { self.inline.cast::<Extra>().read_unaligned() }
    }

    /// Whether the slot has this flag.
    #[inline(always)]
    pub(crate) fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hints_leave_the_segment_as_it_is() {
        let mut memory: Vec<u64> = (0..SEGMENT as u64 / 8).collect();
        let base = memory.as_mut_ptr().cast::<u8>();
        // SAFETY: large enough, and alive.
        let (_, out, in_) = unsafe { views(base, 1) };
        for (number, payload, bytes) in [(0, 0, 0), (255, PAYLOAD - 64, 41), (9, 5, PUSHED_MAX)] {
            let line = out.0.slot(number).cast_const().cast();
            out.push(line, payload, bytes, payload + bytes);
            out.prefetch(number);
            in_.prefetch_payload(payload + bytes);
            in_.prefetch_slot(number);
        }
        let memory = std::hint::black_box(memory);
        assert!(memory.into_iter().eq(0..SEGMENT as u64 / 8));
    }

    #[test]
    fn slots_before_an_early_wrap_and_the_words_lie_on_one_page() {
        let base = std::ptr::null_mut::<u8>();
        // SAFETY: only addresses are made.
        let sides = unsafe { [views(base, 0), views(base, 1)] };
        let mut lines: Vec<usize> = (WORDS..WORDS + 2 * size_of::<Published>())
            .step_by(64)
            .chain((PAYLOADS..SEGMENT).step_by(64))
            .collect();
        for (side, (words, out, _)) in sides.iter().enumerate() {
            assert_eq!(words.own.addr(), WORDS + side * size_of::<Published>());
            let slots: Vec<_> = (0..SLOTS).map(|slot| out.0.slot(slot).addr()).collect();
            for (number, at) in slots.iter().enumerate() {
                assert!(number >= EARLY as usize || at / PAGE == WORDS / PAGE);
            }
            lines.extend(slots);
        }
        assert!(lines.iter().all(|line| line % 64 == 0 && *line < SEGMENT));
        let count = lines.len();
        lines.sort_unstable();
        lines.dedup();
        assert_eq!(lines.len(), count, "two things at one place");
    }

    #[test]
    fn a_wrap_count_that_repeats_finds_no_old_slot() {
        for pass in 0..2 * WHOLE_EVERY {
            let first = pass * SLOTS;
            let wraps = (first..first + SLOTS)
                .filter(|number| is_past_early(*number) && wrap_flag(*number) != 0);
            let whole = (pass + 1).is_multiple_of(WHOLE_EVERY);
            let expected = if whole { 0 } else { SLOTS - EARLY + 1 };
            assert_eq!(wraps.count() as u32, expected, "pass {pass}");
        }
        assert!(u64::from(WHOLE_EVERY) < (1u64 << 32) / u64::from(SLOTS) / 2);
        let last = u32::MAX - SLOTS + EARLY;
        assert_eq!((next(last, flag::WRAP), next(u32::MAX, 0)), (0, 0));
        assert_eq!((next(15, flag::WRAP), next(15, 0)), (SLOTS, 16));
    }

    #[test]
    fn a_slot_is_seen_once_it_is_published() {
        let mut memory = vec![0u64; SEGMENT / 8];
        let base = memory.as_mut_ptr().cast::<u8>();
        // SAFETY: large enough, and alive.
        let ((_, left, _), (_, _, right)) = unsafe { (views(base, 0), views(base, 1)) };
        for number in [0u32, 1, SLOTS - 1, SLOTS, 5 * SLOTS + 3] {
            assert!(right.arrival(number).is_none());
            let slot = Announcement {
                op: op::INLINE,
                flags: flag::IMMEDIATE,
                length: 7,
                immediate: 8,
                payload: 9,
            };
            left.publish(number, slot, 70_000, 65_537);
            let arrival = right.arrival(number).unwrap();
            assert_eq!((arrival.op, arrival.flags), (op::INLINE, flag::IMMEDIATE));
            assert_eq!(
                (arrival.length, arrival.immediate, arrival.payload),
                (7, 8, 9)
            );
            assert_eq!(
                (arrival.posted, arrival.consumed),
                (70_000u32 as u16, 65_537)
            );
        }
    }
}
