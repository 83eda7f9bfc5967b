//! The segment of a connection.
//!
//! ```text
//!    1 KiB   unused, so that slot 0 of direction 1 begins a page
//!   15 KiB   direction 1: slots 16 to 255      64 bytes each, written by side 1
//!  ┌ 1 KiB   direction 1: slots 0 to 15
//!  │ 1 KiB   Side 0, Board 0, Side 1, Board 1  what each side tells the other; large copies that both work on
//!  └ 1 KiB   direction 0: slots 0 to 15        written by side 0
//!   15 KiB   direction 0: slots 16 to 255
//!    2 KiB   unused, so that the payload begins a page
//!  256 KiB   direction 0: payload              written by side 0
//!  256 KiB   direction 1: payload              written by side 1
//! ```
//!
//! What messages that wait for each other need lies on one page, so that a program with a thousand connections has a
//! thousand pages in use and not three thousand.
//!
//! A slot is one cache line. Its first word is written last and holds the lap number, so the receiver
//! knows a new slot by looking at the very line that brings the message. Every slot also carries the
//! sender's own counts, which saves the other side from reading them where they lie.
//!
//! A lap may end early: numbers of slots then skip to the next lap.

use std::mem::offset_of;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::board::Board;
use crate::cache;
use crate::road::Costs;

/// Slots of one direction.
pub(crate) const SLOTS: u32 = 256;
/// Slots of a short lap, at least.
const SHORT: u32 = 16;
/// The same for a connection whose VI the partner finds by its mark, mostly among many. One that is alone is faster with
/// more of them, which are all in the caches.
const SHORTEST: u32 = 4;
/// See [`may_turn`]. A power of two, far fewer than there are lap numbers.
const WHOLE_EVERY: u32 = 4096;
/// Bytes that fit into the slot itself.
pub(crate) const INLINE: usize = 40;
/// Payload area of one direction in bytes.
pub(crate) const PAYLOAD: u32 = 256 << 10;
/// The most bytes of one piece of a message that goes through the payload area in pieces.
pub(crate) const PIECE: u32 = 16 << 10;
/// How far ahead both sides of a stream of small messages fetch, so that several slots are under way at a time. The
/// sender (`Ends::fetch_ahead`): the receiver has read that slot a lap ago and still holds it, and the first store to it
/// takes as long as a message. The receiver (`Ends::look_further`): a processor does not always get as far by itself.
const AHEAD: u32 = 6;
/// Bytes of a cache line.
pub(crate) const LINE: u32 = 64;
/// The largest message that `Ends::hasten` moves: with the default `eager_max`, the largest that goes through the ring whole.
pub(crate) const HASTENED_MAX: u32 = 16 << 10;
/// The largest message after which a receiver expects another one like it (`Ends::look_ahead`). The sender writes the
/// first line of a larger one too early before its slot: the receiver would take it away again.
pub(crate) const EXPECTED_MAX: u32 = 128;
/// Payload after which a short lap also begins a new lap of the payload area. What is left of the area is skipped, and
/// free when the partner has consumed the slot.
const SHORT_PAYLOAD: u32 = 16 << 10;
/// Payload after which a receiver of many messages tells the sender how far it is (decision 30). Told at the end of a batch only, a
/// sender that waits for room would wait until the area is empty, and the receiver then for the sender.
pub(crate) const TELL_EVERY: u32 = 32 << 10;
/// The smallest page of any processor.
const PAGE: usize = 4096;
const RING: usize = SLOTS as usize * size_of::<Slot>();
const SHORT_RING: usize = SHORT as usize * size_of::<Slot>();
/// The slot of each direction that lies first in memory.
const FIRST: [u32; 2] = [0, SHORT];
/// Where the slots of direction 1 lie, then what both sides tell, then the slots of direction 0.
const RING_1: usize = SHORT_RING;
const TOLD: usize = RING_1 + RING;
const RING_0: usize = TOLD + 1024;
/// Where the payload of direction 0 lies; that of direction 1 follows.
const PAYLOADS: usize = (RING_0 + RING).next_multiple_of(PAGE);
/// Size of the segment.
pub(crate) const SEGMENT: usize = PAYLOADS + 2 * PAYLOAD as usize;

// The short laps of both directions, and what lies between them, are one page.
const _: () = assert!((TOLD - SHORT_RING).is_multiple_of(PAGE));
const _: () = assert!(TOLD + 2 * size_of::<Told>() <= RING_0);
const _: () = assert!(RING_0 + SHORT_RING - (TOLD - SHORT_RING) <= PAGE);

/// What a slot says.
pub(crate) mod op {
    /// A message inside the slot.
    pub(crate) const INLINE: u8 = 1;
    /// A message in the payload area.
    pub(crate) const EAGER: u8 = 2;
    /// A message still in the sender's memory; its segments are in the payload area.
    pub(crate) const FETCH: u8 = 3;
    /// A piece of a message, in the payload area.
    pub(crate) const PIECE: u8 = 4;
    /// An RDMA Write with immediate data has been placed.
    pub(crate) const PLACED: u8 = 5;
    /// Unreliable only: an asynchronous error for the receiver; `length` is its code.
    pub(crate) const NEWS: u8 = 6;
    /// A piece of an RDMA Write, in the payload area.
    pub(crate) const WRITE: u8 = 7;
    /// Asks for the data of an RDMA Read.
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
    /// The RDMA Write was refused; the receive descriptor tells it.
    pub(crate) const REFUSED: u8 = 8;
    /// Unreliable only: the rest of the pieces will not come.
    pub(crate) const ABORTED: u8 = 16;
    /// The lap ends here: the next slot is the first one again.
    pub(crate) const TURN: u8 = 32;
}

/// Whether a lap may end with this slot, if the partner has consumed all before it.
///
/// A connection on which each message waits for the one before needs few slots. It turns round after these, which stay
/// in the caches of a program with many such connections; the others would be cold each time. One lap in
/// [`WHOLE_EVERY`] is a whole one, so that no slot keeps a lap number until that one comes again.
#[inline(always)]
pub(crate) fn may_turn(number: u32, is_marked: bool) -> bool {
    let least = if is_marked { SHORTEST } else { SHORT };
    number & (SLOTS - 1) >= least - 1 && !(number / SLOTS + 1).is_multiple_of(WHOLE_EVERY)
}

/// The number behind this one, for a slot with these flags.
#[inline(always)]
pub(crate) fn next(number: u32, flags: u8) -> u32 {
    let skipped = if flags & flag::TURN == 0 {
        0
    } else {
        SLOTS - 1
    };
    (number | skipped).wrapping_add(1)
}

/// The payload position behind this one, for a slot with these flags.
#[inline(always)]
pub(crate) fn next_payload(payload: u32, flags: u8) -> u32 {
    if flags & flag::TURN != 0 && payload & (PAYLOAD - 1) >= SHORT_PAYLOAD {
        (payload | (PAYLOAD - 1)).wrapping_add(1)
    } else {
        payload
    }
}

/// One slot.
#[repr(C, align(64))]
pub(crate) struct Slot {
    /// Lap 32, op 8, flags 8, receive descriptors posted by the sender 16.
    word: AtomicU64,
    length: u32,
    immediate: u32,
    /// Slots of the other direction that the sender has consumed.
    consumed: u32,
    /// Where in the payload area.
    payload: u32,
    inline: [u8; INLINE],
}

// One layout for 32-bit and 64-bit programs, as in all memory that processes share: fields have a fixed width, and lie at
// multiples of it by themselves.
const _: () = assert!(size_of::<Slot>() == 64 && offset_of!(Slot, inline) == 24);

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
    /// Where this piece begins.
    pub(crate) offset: u32,
    /// Padding.
    pub(crate) reserved: u32,
}

const _: () = assert!(size_of::<Extra>() == 24 && offset_of!(Extra, offset) == 16);

/// No address has this bit. A 32-bit process cannot name the addresses of one that sets it.
pub(crate) const WIDE: u64 = 1 << 63;

/// What one side tells the other; only that side writes it, if it is honest. A line of its own for each habit of
/// writing. All of it is atomic, padding included: it stands behind shared references, and a peer may write it.
#[repr(C, align(64))]
pub(crate) struct Side {
    /// Receive descriptors posted so far. Written often, read when the other side knows of none.
    pub(crate) posted: AtomicU32,
    /// Slots consumed so far. Written often, read when the other side is short of slots.
    pub(crate) consumed: AtomicU32,
    pad0: [AtomicU32; 14],

    /// 1 when the side has filled in the rest of this line.
    pub(crate) attached: AtomicU32,
    /// Mark the VI in the bell page of this side's NIC with every message.
    pub(crate) marks: AtomicU32,
    /// This side cannot go on before slots are consumed: mark it and ring then.
    pub(crate) waiting: AtomicU32,
    /// Why this side has left, or 0 (`cm::Closed`).
    pub(crate) closed: AtomicU32,
    /// Process id in its own name space.
    pub(crate) pid: AtomicU32,
    /// Protection tag of the VI.
    pub(crate) ptag: AtomicU32,
    /// Address of the probe word in this side's process; [`WIDE`] in one with 64-bit addresses.
    pub(crate) probe_at: AtomicU64,
    /// What is there.
    pub(crate) probe: AtomicU64,
    /// Whether this side can touch the other side's memory: 0 not known yet, 1 yes, 2 no.
    pub(crate) reach: AtomicU32,
    /// What large messages cost this side.
    pub(crate) costs: Costs,
    reserved: [AtomicU32; 3],

    /// Odd while this side copies to or from the other side's memory.
    pub(crate) copying: AtomicU32,
    pad2: [AtomicU32; 15],
}

const _: () = assert!(size_of::<Side>() == 192 && offset_of!(Side, copying) == 128);
const _: () = assert!(offset_of!(Side, probe_at) == 88 && offset_of!(Side, reach) == 104);
const _: () = assert!(matches!(Board::FIELDS, [24, 32, 128]));

/// All that one side tells.
#[repr(C)]
struct Told {
    side: Side,
    board: Board,
}

/// One side's view of the segment.
#[derive(Clone, Copy)]
pub(crate) struct Ends {
    own: *const Told,
    partner: *const Told,
    out: Direction,
    in_: Direction,
}

/// Where one direction lies.
#[derive(Clone, Copy)]
struct Direction {
    slots: *mut Slot,
    payload: *mut u8,
    /// The slot that lies first.
    first: u32,
}

impl Direction {
    #[inline(always)]
    fn slot(&self, number: u32) -> *mut Slot {
        let index = number.wrapping_sub(self.first) & (SLOTS - 1);
        self.slots.wrapping_add(index as usize)
    }
}

// SAFETY: addresses; what is there is atomic or owned by one side.
unsafe impl Send for Ends {}

impl Ends {
    /// The view of side 0 or 1.
    ///
    /// # Safety
    /// `base` is a mapping of `SEGMENT` bytes that outlives the view.
    pub(crate) unsafe fn new(base: *mut u8, side: u32) -> Ends {
        let own = (side & 1) as usize;
        let told = base.wrapping_add(TOLD).cast_const().cast::<Told>();
        let direction = |side: usize| Direction {
            slots: base.wrapping_add([RING_0, RING_1][side]).cast(),
            payload: base.wrapping_add(PAYLOADS + side * PAYLOAD as usize),
            first: FIRST[side],
        };
        Ends {
            own: told.wrapping_add(own),
            partner: told.wrapping_add(own ^ 1),
            out: direction(own),
            in_: direction(own ^ 1),
        }
    }

    /// What this side tells.
    #[inline(always)]
    pub(crate) fn own(&self) -> &Side {
        // SAFETY: inside the mapping, which lives.
        unsafe { &(*self.own).side }
    }

    /// What the other side tells.
    #[inline(always)]
    pub(crate) fn partner(&self) -> &Side {
        // SAFETY: as above.
        unsafe { &(*self.partner).side }
    }

    /// Where this side asks for help with its copies.
    #[inline(always)]
    pub(crate) fn own_board(&self) -> &Board {
        // SAFETY: as above.
        unsafe { &(*self.own).board }
    }

    /// Where the other side does.
    #[inline(always)]
    pub(crate) fn partner_board(&self) -> &Board {
        // SAFETY: as above.
        unsafe { &(*self.partner).board }
    }

    /// The inline bytes of an outgoing slot.
    #[inline(always)]
    pub(crate) fn inline_out(&self, number: u32) -> *mut u8 {
        // SAFETY: inside the segment; only an address is made.
        unsafe { (&raw mut (*self.out.slot(number)).inline).cast() }
    }

    /// Writes the words that describe RDMA and pieces into an outgoing slot.
    pub(crate) fn put_extra(&self, number: u32, extra: Extra) {
        // SAFETY: inside the segment, and this side's to write.
        unsafe {
            self.inline_out(number)
                .cast::<Extra>()
                .write_unaligned(extra)
        };
    }

    /// A place in the outgoing payload area.
    #[inline(always)]
    pub(crate) fn payload_out(&self, at: u32) -> *mut u8 {
        self.out.payload.wrapping_add((at & (PAYLOAD - 1)) as usize)
    }

    /// A place in the incoming payload area, if `bytes` bytes fit there.
    #[inline(always)]
    pub(crate) fn payload_in(&self, at: u32, bytes: u32) -> Option<*const u8> {
        let at = at & (PAYLOAD - 1);
        (bytes <= PAYLOAD - at).then(|| self.in_.payload.wrapping_add(at as usize).cast_const())
    }

    /// Announces an outgoing slot; everything else of it has been written.
    #[inline(always)]
    #[allow(clippy::too_many_arguments)]
    pub(crate) fn publish(
        &self,
        number: u32,
        op: u8,
        flags: u8,
        length: u32,
        immediate: u32,
        payload: u32,
        posted: u32,
        consumed: u32,
    ) {
        let lap = number / SLOTS + 1;
        let word = u64::from(lap)
            | u64::from(op) << 32
            | u64::from(flags) << 40
            | u64::from(posted as u16) << 48;
        let slot = self.out.slot(number);
        // SAFETY: this side owns the slot until the word is stored.
        unsafe {
            (&raw mut (*slot).length).write_volatile(length);
            (&raw mut (*slot).immediate).write_volatile(immediate);
            (&raw mut (*slot).consumed).write_volatile(consumed);
            (&raw mut (*slot).payload).write_volatile(payload);
            // Release pairs with the acquire in `arrival`.
            (*slot).word.store(word, Ordering::Release);
        }
    }

    /// After `publish`, one of many messages: fetches a later slot for writing.
    #[inline(always)]
    pub(crate) fn fetch_ahead(&self, number: u32) {
        let ahead = self.out.slot(number.wrapping_add(AHEAD));
        cache::fetch_to_write(ahead.cast_const().cast());
    }

    /// After `publish`, for a receiver that has taken everything before and waits: lets it find the slot, and the
    /// message of `bytes` bytes at `payload`, sooner. The place of a message of this size at `next` is fetched for
    /// writing; that of its slot is not, because the receiver looks there next.
    #[inline(always)]
    pub(crate) fn hasten(&self, number: u32, payload: u32, bytes: u32, next: u32) {
        cache::demote(self.out.slot(number).cast_const().cast());
        if bytes > HASTENED_MAX {
            return;
        }
        let lines = bytes.div_ceil(LINE);
        for line in 0..lines {
            cache::demote(self.payload_out(payload.wrapping_add(line * LINE)));
        }
        for line in 0..lines {
            cache::fetch_to_write(self.payload_out(next.wrapping_add(line * LINE)));
        }
    }

    /// A look has found nothing: fetches the line where the next payload is expected, so that it comes together with the
    /// slot and not after it.
    #[inline(always)]
    pub(crate) fn look_ahead(&self, at: u32) {
        cache::fetch_to_read(self.in_.payload.wrapping_add((at & (PAYLOAD - 1)) as usize));
    }

    /// Fetches a slot behind this one, whose message is one of many: it comes while those before it are copied.
    #[inline(always)]
    pub(crate) fn look_further(&self, number: u32) {
        let slot = self.in_.slot(number.wrapping_add(AHEAD));
        cache::fetch_to_read(slot.cast_const().cast());
    }

    /// The incoming slot with this number, if it has arrived.
    #[inline(always)]
    pub(crate) fn arrival(&self, number: u32) -> Option<Arrival> {
        let slot = self.in_.slot(number);
        // SAFETY: inside the segment; every field is read once, with volatile or atomic loads.
        unsafe {
            let word = (*slot).word.load(Ordering::Acquire);
            let lap = number / SLOTS + 1;
            if word as u32 != lap {
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
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hints_leave_the_segment_as_it_is() {
        let mut memory: Vec<u64> = (0..SEGMENT as u64 / 8).collect();
        let base = memory.as_mut_ptr().cast::<u8>();
        // SAFETY: large enough, and alive.
        let ends = unsafe { Ends::new(base, 1) };
        for (number, payload, bytes) in [(0, 0, 0), (255, PAYLOAD - 64, 41), (9, 5, HASTENED_MAX)] {
            ends.hasten(number, payload, bytes, payload + bytes);
            ends.fetch_ahead(number);
            ends.look_ahead(payload + bytes);
            ends.look_further(number);
        }
        let memory = std::hint::black_box(memory);
        assert!(memory.into_iter().eq(0..SEGMENT as u64 / 8));
    }

    #[test]
    fn short_laps_and_what_the_sides_tell_lie_on_one_page() {
        let base = std::ptr::null_mut::<u8>();
        // SAFETY: only addresses are made.
        let ends = unsafe { [Ends::new(base, 0), Ends::new(base, 1)] };
        let mut lines: Vec<usize> = (TOLD..TOLD + 2 * size_of::<Told>())
            .step_by(64)
            .chain((PAYLOADS..SEGMENT).step_by(64))
            .collect();
        for (side, ends) in ends.iter().enumerate() {
            assert_eq!(ends.own.addr(), TOLD + side * size_of::<Told>());
            let slots: Vec<_> = (0..SLOTS).map(|slot| ends.out.slot(slot).addr()).collect();
            for (number, at) in slots.iter().enumerate() {
                assert!(number >= SHORT as usize || at / PAGE == TOLD / PAGE);
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
    fn a_lap_number_that_comes_again_finds_no_old_slot() {
        for (marked, least) in [(false, SHORT), (true, SHORTEST)] {
            for lap in 0..2 * WHOLE_EVERY {
                let first = lap * SLOTS;
                let turns = (first..first + SLOTS).filter(|number| may_turn(*number, marked));
                let whole = (lap + 1).is_multiple_of(WHOLE_EVERY);
                let expected = if whole { 0 } else { SLOTS - least + 1 };
                assert_eq!(turns.count() as u32, expected, "lap {lap}");
            }
        }
        assert!(u64::from(WHOLE_EVERY) < (1u64 << 32) / u64::from(SLOTS) / 2);
        let last = u32::MAX - SLOTS + SHORT;
        assert_eq!((next(last, flag::TURN), next(u32::MAX, 0)), (0, 0));
        assert_eq!((next(15, flag::TURN), next(15, 0)), (SLOTS, 16));
    }

    #[test]
    fn a_slot_is_seen_once_it_is_published() {
        let mut memory = vec![0u64; SEGMENT / 8];
        let base = memory.as_mut_ptr().cast::<u8>();
        // SAFETY: large enough, and alive.
        let (left, right) = unsafe { (Ends::new(base, 0), Ends::new(base, 1)) };
        for number in [0u32, 1, SLOTS - 1, SLOTS, 5 * SLOTS + 3] {
            assert!(right.arrival(number).is_none());
            left.publish(number, op::INLINE, flag::IMMEDIATE, 7, 8, 9, 70_000, 65_537);
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
