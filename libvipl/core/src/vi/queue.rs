//! The ring of a work queue.
//!
//! A queue is a ring of entries visible to the plug-in (`vipl_queue`): the application posts descriptors
//! (`posted`), the plug-in completes them (`completed`), and the application or a waiter removes them
//! (`taken`).
//!
//! ```text
//!     taken          completed             posted
//!       ▼                ▼                    ▼
//!   ────┬────────────────┬────────────────────┬────
//!       │ complete       │ the plug-in's      │ free
//! ```

use std::alloc::Layout;

use vipl_abi::*;
use vipl_pages::layout;
use vipl_plugin_abi::*;
use vipl_sys::wrap;

use super::Vi;
use crate::cq::queue::Cq;
use crate::nic::events::NotifyHandler;
use crate::nic::waiters::Waiters;
use crate::object::table::Slot;

/// A completion queue of VIs.
pub(crate) type CqSlot = &'static Slot<Cq<Slot<Vi>>>;

/// Initial entries of a ring: one cache line, the only one that a short queue touches.
const RING_FIRST: u32 = 4;
/// Bytes of a cache line.
const LINE: usize = 64;

const _: () = assert!(size_of::<vipl_entry>() * RING_FIRST as usize <= LINE);

/// One of a VI's two queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    /// The send queue.
    Send,
    /// The receive queue.
    Recv,
}

impl Which {
    /// Its number in a record of `vipl_pages`.
    #[inline(always)]
    pub(crate) fn number(self) -> usize {
        usize::from(self == Which::Recv)
    }
}

/// Why a ring cannot grow.
pub(super) enum Full {
    /// It has the maximum number of entries of the device.
    Limit,
    Memory,
}

/// The result of Done and Wait.
pub struct Dequeued {
    /// The return code.
    pub result: VIP_RETURN,
    /// The removed descriptor, or NULL.
    pub descriptor: *mut VIP_DESCRIPTOR,
}

impl Dequeued {
    #[inline(always)]
    pub(super) fn none(result: VIP_RETURN) -> Dequeued {
        Dequeued {
            result,
            descriptor: std::ptr::null_mut(),
        }
    }

    #[inline(always)]
    pub(super) fn of(entry: &vipl_entry) -> Dequeued {
        let failed = entry.status & VIP_STATUS_ERROR_MASK != 0;
        let result = if failed {
            VIP_RETURN::VIP_DESCRIPTOR_ERROR
        } else {
            VIP_RETURN::VIP_SUCCESS
        };
        Dequeued {
            result,
            descriptor: entry.descriptor,
        }
    }
}

/// In `vipl_queue.signal`: a CQ, a thread or a notify request waits for completions.
pub(super) const WAITED_FOR: u32 = 1;
/// In `vipl_queue.signal`: a completion is sampled.
pub(super) const SAMPLED: u32 = 2;

/// Sets or clears [`WAITED_FOR`].
pub(super) fn set_waited_for(queue: &mut vipl_queue, on: bool) {
    queue.signal = queue.signal & !WAITED_FOR | u32::from(on);
}

/// The host's part of a work queue.
#[repr(C)]
pub(crate) struct WorkQueue {
    /// Number of the next descriptor that is not posted on the fast path: the first one, for which there is no ring yet, one that
    /// is sampled, or each if its memory must be checked.
    slow_at: u32,
    /// Number of completions reported to the CQ.
    pub(super) signalled: u32,
    /// Consecutive empty polls, and the value of `taken` at the first of them.
    empty_polls: u32,
    empty_at: u32,
    pub(crate) cq: Option<CqSlot>,
    pub(crate) waiters: Waiters<NotifyHandler, vipl_entry>,
}

impl WorkQueue {
    pub(crate) fn new(cq: Option<CqSlot>) -> Self {
        WorkQueue {
            slow_at: wrap::start(0),
            signalled: wrap::start(0),
            cq,
            waiters: Waiters::new(),
            empty_polls: 0,
            empty_at: 0,
        }
    }

    /// Whether the next descriptor may be posted on the fast path, if there is room.
    #[inline(always)]
    pub(super) fn may_be_fast(&self, queue: &vipl_queue) -> bool {
        queue.posted != self.slow_at
    }

    /// After so many more descriptors one is not posted on the fast path.
    pub(super) fn set_slow(&mut self, queue: &vipl_queue, after: u32) {
        self.slow_at = queue.posted.wrapping_add(after);
    }

    /// Counts an empty poll at this value of `taken`; returns the number of consecutive ones.
    #[inline(always)]
    pub(super) fn count_empty_poll(&mut self, taken: u32) -> u32 {
        if self.empty_at != taken {
            (self.empty_polls, self.empty_at) = (0, taken);
        }
        self.empty_polls = self.empty_polls.wrapping_add(1);
        self.empty_polls
    }
}

/// The entry with this number.
#[inline(always)]
pub(super) fn entry(queue: &vipl_queue, number: u32) -> *mut vipl_entry {
    // SAFETY: masked, so inside the ring.
    unsafe { queue.entries.add((number & queue.mask) as usize) }
}

/// Removes the oldest entry, which the caller has seen to be complete, and returns its descriptor. `None`, and
/// it stays, if it has failed.
#[inline(always)]
pub(super) fn take_good(
    queue: &mut vipl_queue,
    which: Which,
    counts: &layout::Counts,
) -> Option<*mut VIP_DESCRIPTOR> {
    let place = entry(queue, queue.taken);
    // SAFETY: as in `take`.
    let status = unsafe { (&raw const (*place).status).read_volatile() };
    if status & VIP_STATUS_ERROR_MASK != 0 {
        return None;
    }
    queue.taken = queue.taken.wrapping_add(1);
    counts.taken(which.number(), queue.taken);
    // SAFETY: as above.
    Some(unsafe { (&raw const (*place).descriptor).read_volatile() })
}

/// Removes the oldest entry, which the caller has seen to be complete.
#[inline(always)]
pub(super) fn take(queue: &mut vipl_queue, which: Which, counts: &layout::Counts) -> vipl_entry {
    let place = entry(queue, queue.taken);
    // SAFETY: `taken` is below `completed`. Each field is loaded separately, as it was stored: one wide load
    // right after narrow stores would have to wait for them.
    let entry = unsafe {
        vipl_entry {
            descriptor: (&raw const (*place).descriptor).read_volatile(),
            memory: 0,
            status: (&raw const (*place).status).read_volatile(),
        }
    };
    queue.taken = queue.taken.wrapping_add(1);
    counts.taken(which.number(), queue.taken);
    if entry.status & VIP_STATUS_ERROR_MASK != 0 {
        counts.failed[which.number()].add(1);
    }
    entry
}

/// The layout of a ring, aligned to a cache line.
fn ring_layout(room: u32) -> Option<Layout> {
    Layout::array::<vipl_entry>(room as usize)
        .ok()?
        .align_to(LINE)
        .ok()
}

/// Number of entries of the ring; 0 before the first post.
pub(super) fn room(queue: &vipl_queue) -> u32 {
    if queue.entries.is_null() {
        0
    } else {
        queue.mask + 1
    }
}

/// Makes the ring where it is recorded.
#[cold]
fn place(queue: &mut vipl_queue, max: u32, recorder: *mut vipl_entry) {
    let room = 1 << (layout::FLIGHT as u32).min(max).max(1).ilog2();
    // SAFETY: room for so many, of this queue's slot, whose last queue is no more.
    unsafe { recorder.write_bytes(0, room as usize) };
    queue.entries = recorder;
    queue.mask = room - 1;
}

/// Doubles the ring, up to `max` entries. One that is recorded begins at `recorder`, which is NULL else, and leaves it when it
/// becomes too large.
#[cold]
pub(super) fn grow(
    queue: &mut vipl_queue,
    max: u32,
    recorder: *mut vipl_entry,
) -> Result<(), Full> {
    if queue.entries.is_null() && !recorder.is_null() {
        place(queue, max, recorder);
        return Ok(());
    }
    let room = match room(queue) {
        0 => RING_FIRST.min(max),
        room => room * 2,
    };
    if room > max {
        return Err(Full::Limit);
    }
    let layout = ring_layout(room).ok_or(Full::Memory)?;
    // SAFETY: the layout is not empty.
    let entries = unsafe { std::alloc::alloc_zeroed(layout) }.cast::<vipl_entry>();
    if entries.is_null() {
        return Err(Full::Memory);
    }
    let mut number = queue.taken;
    while number != queue.posted {
        // SAFETY: both rings have room for every entry in use.
        unsafe {
            entries
                .add((number & (room - 1)) as usize)
                .write(*entry(queue, number))
        };
        number = number.wrapping_add(1);
    }
    free_ring(queue, recorder);
    queue.entries = entries;
    queue.mask = room - 1;
    Ok(())
}

/// Frees the ring of a queue, unless it is the one that is recorded.
pub(super) fn free_ring(queue: &mut vipl_queue, recorder: *mut vipl_entry) {
    if queue.entries.is_null() {
        return;
    }
    if queue.entries != recorder
        && let Some(layout) = ring_layout(queue.mask + 1)
    {
        // SAFETY: allocated by `grow` with this layout.
        unsafe { std::alloc::dealloc(queue.entries.cast(), layout) };
    }
    queue.entries = std::ptr::null_mut();
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ring() -> vipl_queue {
        vipl_queue {
            entries: std::ptr::null_mut(),
            mask: 0,
            // Counters wrap around, which must not affect the ring.
            posted: u32::MAX - 3,
            completed: u32::MAX - 3,
            taken: u32::MAX - 3,
            signal: 0,
            which: 0,
        }
    }

    fn post(queue: &mut vipl_queue, number: usize) {
        // SAFETY: the test has grown the ring.
        unsafe {
            entry(queue, queue.posted).write(vipl_entry {
                descriptor: std::ptr::without_provenance_mut(number * 64),
                memory: 0,
                status: number as u32,
            });
        }
        queue.posted = queue.posted.wrapping_add(1);
    }

    #[test]
    fn entries_keep_their_order_when_the_ring_grows() {
        let counts = layout::Counts::default();
        let mut queue = ring();
        let mut number = 0;
        for room in [4, 8, 16, 32, 64] {
            assert!(grow(&mut queue, 64, std::ptr::null_mut()).is_ok());
            assert_eq!(super::room(&queue), room);
            assert!(queue.entries.addr().is_multiple_of(LINE));
            while queue.posted.wrapping_sub(queue.taken) < room {
                number += 1;
                post(&mut queue, number);
            }
        }
        let again = grow(&mut queue, 64, std::ptr::null_mut());
        assert!(matches!(again, Err(Full::Limit)));
        for expected in 1..=64 {
            let entry = take(&mut queue, Which::Recv, &counts);
            assert_eq!(entry.descriptor.addr(), expected * 64);
            assert_eq!(entry.status, expected as u32);
            let taken = counts.queues[1]
                .taken
                .load(std::sync::atomic::Ordering::Relaxed);
            assert_eq!(taken, queue.taken);
        }
        assert_eq!(queue.taken, queue.posted);
        free_ring(&mut queue, std::ptr::null_mut());
        assert!(queue.entries.is_null());
    }

    #[test]
    fn a_ring_that_is_recorded_leaves_its_place_when_it_is_too_large() {
        // SAFETY: zeroes are valid entries.
        let mut place: Box<[vipl_entry; layout::FLIGHT]> = unsafe { Box::new(std::mem::zeroed()) };
        let (recorder, mut queue) = (place.as_mut_ptr(), ring());
        assert!(grow(&mut queue, 8, recorder).is_ok());
        assert_eq!((queue.entries, super::room(&queue)), (recorder, 8));
        free_ring(&mut queue, recorder);
        assert!(grow(&mut queue, 1024, recorder).is_ok());
        assert_eq!(super::room(&queue) as usize, layout::FLIGHT);
        for number in 1..=layout::FLIGHT {
            post(&mut queue, number);
        }
        assert!(grow(&mut queue, 1024, recorder).is_ok());
        assert!(queue.entries != recorder);
        let counts = layout::Counts::default();
        for number in 1..=layout::FLIGHT {
            let taken = take(&mut queue, Which::Send, &counts);
            assert_eq!(taken.descriptor.addr(), number * 64);
        }
        free_ring(&mut queue, recorder);
    }

    #[test]
    fn empty_polls_are_counted_until_something_is_taken() {
        let mut own = WorkQueue::new(None);
        assert_eq!(
            [7, 7, 7].map(|taken| own.count_empty_poll(taken)),
            [1, 2, 3]
        );
        assert_eq!(own.count_empty_poll(8), 1);
    }

    #[test]
    fn an_error_in_status_is_a_descriptor_error() {
        for (status, result) in [
            (VIP_STATUS_DONE, VIP_RETURN::VIP_SUCCESS),
            (
                VIP_STATUS_DONE | VIP_STATUS_LENGTH_ERROR,
                VIP_RETURN::VIP_DESCRIPTOR_ERROR,
            ),
        ] {
            let descriptor = std::ptr::without_provenance_mut(64);
            let entry = vipl_entry {
                descriptor,
                memory: 0,
                status,
            };
            let dequeued = Dequeued::of(&entry);
            assert_eq!((dequeued.result, dequeued.descriptor), (result, descriptor));
        }
    }
}
