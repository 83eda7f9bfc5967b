//! What `vipstat` sees of bytes and times: a descriptor now and then is looked at when it is posted and when it completes.
//!
//! ```text
//!   fast path of a post                 slow path: `posted`              the plug-in completes: `completed`
//!     until `slow_at`: nothing  ──▶       the time; `signal` |= SAMPLED  ──▶  the time, Length; the next `slow_at`
//! ```
//!
//! How many descriptors lie between two samples depends on time alone ([`Pace`]): a program with few messages has each of them
//! counted, so its bytes are exact; one with millions pays for some 2500 samples a second. One send at a time is timed.
//! A receive is sampled when the next one completes, whenever it was posted.

use vipl_abi::*;
use vipl_pages::layout;
use vipl_plugin_abi::*;
use vipl_sys::clock::now_ns;

use super::Vi;
use super::queue::{SAMPLED, Which, entry};

/// Time for each sample on average. One takes some 0.3 µs, and a message back and forth has four queues with samples.
const SAMPLE_NS: u64 = 400_000;
/// Samples that may follow each other at once, after a pause: a short burst is counted exactly.
const BURST: u64 = 64;
/// Most descriptors for each sample. At 40 million messages a second they take [`SAMPLE_NS`].
const GAP_MAX: u32 = 16_384;
/// After this time without a sample the next descriptor is one.
const QUIET_NS: u64 = 10_000_000;
/// No sample is due: the next one is being waited for.
const FAR: u32 = 1 << 31;

/// When to sample: a bucket of time that fills by the clock, and which each sample empties by [`SAMPLE_NS`].
#[derive(Clone, Copy, Debug, PartialEq)]
struct Pace {
    /// Descriptors for each sample, a power of two; 1: all are counted.
    gap: u32,
    credit: u64,
    /// The time of the latest sample; 0: none.
    at: u64,
}

impl Pace {
    const FULL: u64 = BURST * SAMPLE_NS;
    const START: Pace = Pace {
        gap: 1,
        credit: Pace::FULL,
        at: 0,
    };

    /// A sample at this time.
    fn sampled(&mut self, now: u64) {
        let filled = self.credit.saturating_add(now.saturating_sub(self.at));
        self.credit = filled.min(Pace::FULL);
        self.at = now;
        match self.credit.checked_sub(SAMPLE_NS) {
            None => self.gap = (2 * self.gap).min(GAP_MAX),
            Some(left) => {
                self.credit = left;
                if left >= Pace::FULL / 2 {
                    self.gap = (self.gap / 2).max(1);
                }
            }
        }
    }

    /// Descriptors up to the next sample, from half to one and a half of the gap: what a program does at every second message
    /// must not meet each sample.
    fn next(&self) -> u32 {
        let random = vipl_sys::random::mix(self.at) as u32;
        (self.gap / 2 + random % (self.gap + 1)).max(1)
    }
}

/// One queue.
struct Side {
    pace: Pace,
    /// Value of `completed` up to which bytes are counted.
    counted: u32,
    /// Number of the descriptor that is sampled.
    number: u32,
    /// When that was posted; `None`: its time is not taken.
    posted: Option<u64>,
    /// Length of the latest sample.
    length: u32,
}

impl Side {
    fn new(queue: &vipl_queue) -> Side {
        Side {
            pace: Pace::START,
            counted: queue.taken,
            number: queue.taken,
            posted: None,
            length: 0,
        }
    }

    /// Bytes of the descriptors that have completed and are not counted yet.
    fn count(&mut self, queue: &vipl_queue) -> u64 {
        let more = queue.completed.wrapping_sub(self.counted);
        self.counted = queue.completed;
        if self.pace.gap > 1 {
            self.length = good_length(queue, self.number).unwrap_or(self.length);
            return u64::from(self.length) * u64::from(more);
        }
        // A plug-in that does not report each completion may leave some that are taken off.
        let there = more.min(queue.completed.wrapping_sub(queue.taken));
        let mut bytes = u64::from(self.length) * u64::from(more - there);
        for place in 1..=there {
            let number = queue.completed.wrapping_sub(place);
            if let Some(length) = good_length(queue, number) {
                self.length = length;
                bytes += u64::from(length);
            }
        }
        bytes
    }
}

/// What is kept of a VI.
pub(super) struct Sampler {
    record: &'static layout::Sampled,
    sides: [Side; 2],
}

impl Sampler {
    fn new(vi: &Vi) -> Option<Box<Sampler>> {
        let record = vi.nic.process.pages().sampled(vi.handle.addr())?;
        // Another VI may have had the slot.
        record.clear();
        vi.page.sequence.change(|| vi.page.sampled.set(1_u64));
        let sides = [&vi.abi.send, &vi.abi.recv].map(Side::new);
        Some(Box::new(Sampler { record, sides }))
    }
}

/// Whether the number is that of a descriptor which is complete and not taken off, so that its entry is there.
fn is_there(queue: &vipl_queue, number: u32) -> bool {
    number.wrapping_sub(queue.taken) < queue.completed.wrapping_sub(queue.taken)
}

/// Whether the descriptor is complete without an error, if it is still there.
fn is_good(queue: &vipl_queue, number: u32) -> bool {
    // SAFETY: inside the ring, which exists: something has completed.
    let status = || unsafe { (*entry(queue, number)).status };
    is_there(queue, number) && status() & VIP_STATUS_ERROR_MASK == 0
}

/// Length of a descriptor that has completed without an error. The application may have reused or unmapped it by now: it is a
/// figure for people, and used for nothing else.
fn good_length(queue: &vipl_queue, number: u32) -> Option<u32> {
    if !is_good(queue, number) {
        return None;
    }
    let mut length = [0; 4];
    // SAFETY: inside the ring as above; Length is at offset 24 of an application's descriptor (spec §2.4), and a fault is caught.
    unsafe {
        let at = (*entry(queue, number)).descriptor.cast::<u8>();
        vipl_guard::copy(length.as_mut_ptr(), at.wrapping_add(24), 4).ok()?;
    }
    Some(u32::from_ne_bytes(length))
}

/// A descriptor was added at which the fast path ends: the next sample begins.
#[cold]
pub(super) fn posted(vi: &mut Vi, which: Which) {
    let is_seen = vi.nic.process.pages().is_published();
    // Every post is a slow one there.
    let is_checked = vi.check_descriptor;
    let mut sampler = vi.sampler.take();
    let side = sampler
        .as_mut()
        .map(|sampler| &mut sampler.sides[which.number()]);
    let (queue, own) = vi.queue(which);
    let number = queue.posted.wrapping_sub(1);
    let gap = side.as_ref().map_or(1, |side| side.pace.gap);
    let is_due = is_seen && (!is_checked || number.is_multiple_of(gap));
    let is_first = is_due && (gap == 1 || queue.signal & SAMPLED == 0);
    if let Some(side) = side.filter(|_| is_first) {
        match which {
            Which::Send if side.posted.is_none() => {
                side.number = number;
                side.posted = Some(now_ns());
            }
            Which::Send => {}
            Which::Recv => side.number = queue.completed,
        }
    }
    if is_due {
        queue.signal |= SAMPLED;
    }
    let is_next_due = is_checked || (is_seen && gap == 1 && which == Which::Send);
    own.set_slow(queue, if is_next_due { 0 } else { FAR });
    vi.sampler = sampler;
}

/// Something may have completed on a queue with a sample: is that the sample?
#[cold]
pub(super) fn completed(vi: &mut Vi, which: Which) {
    let is_checked = vi.check_descriptor;
    let Some(mut sampler) = vi.sampler.take().or_else(|| Sampler::new(vi)) else {
        let (queue, own) = vi.queue(which);
        queue.signal &= !SAMPLED;
        own.set_slow(queue, if is_checked { 0 } else { FAR });
        return;
    };
    let side = &mut sampler.sides[which.number()];
    let (queue, own) = vi.queue(which);
    let gap = side.pace.gap;
    let is_complete = queue.completed.wrapping_sub(side.number).wrapping_sub(1) <= u32::MAX / 2;
    if queue.completed != side.counted && (gap == 1 || is_complete) {
        let now = now_ns();
        sampler.record.latest.set(now);
        if is_complete
            && let Some(posted) = side.posted.take()
            && is_good(queue, side.number)
        {
            sampler.record.took(now.saturating_sub(posted));
        }
        sampler.record.bytes[which.number()].count(side.count(queue));
        side.pace.sampled(now);
        let after = match (side.pace.gap, which) {
            (1, Which::Send) => 0,
            (1, Which::Recv) => FAR,
            _ => {
                queue.signal &= !SAMPLED;
                side.posted = None;
                side.pace.next()
            }
        };
        own.set_slow(queue, if is_checked { 0 } else { after });
        let completed = queue.completed;
        vi.page.count_up(vi.counts, which.number(), completed);
    }
    vi.sampler = Some(sampler);
}

/// Counts what the samples have not, if the last one is long ago; the next descriptor is a sample then. For calls and threads
/// that do not hurry.
pub(super) fn settle(vi: &mut Vi) {
    let Some(mut sampler) = vi.sampler.take() else {
        return;
    };
    if sampler.sides.iter().any(|side| side.pace.gap > 1) {
        settle_at(vi, &mut sampler, now_ns());
    }
    vi.sampler = Some(sampler);
}

#[cold]
fn settle_at(vi: &mut Vi, sampler: &mut Sampler, now: u64) {
    let is_checked = vi.check_descriptor;
    for (which, side) in [Which::Send, Which::Recv]
        .into_iter()
        .zip(&mut sampler.sides)
    {
        if side.pace.gap == 1 || now.saturating_sub(side.pace.at) < QUIET_NS {
            continue;
        }
        let (queue, own) = vi.queue(which);
        sampler.record.bytes[which.number()].count(side.count(queue));
        side.pace = Pace {
            at: now,
            ..Pace::START
        };
        queue.signal |= SAMPLED;
        let is_next_due = is_checked || which == Which::Send;
        own.set_slow(queue, if is_next_due { 0 } else { FAR });
    }
}

/// What is on a queue is about to be flushed: counts what has completed, and nothing of the rest.
pub(super) fn flushed(vi: &mut Vi, which: Which) {
    let mut sampler = vi.sampler.take();
    let (queue, own) = vi.queue(which);
    queue.signal &= !SAMPLED;
    own.set_slow(queue, 0);
    if let Some(sampler) = &mut sampler {
        let side = &mut sampler.sides[which.number()];
        sampler.record.bytes[which.number()].count(side.count(queue));
        side.counted = queue.posted;
        side.posted = None;
    }
    vi.sampler = sampler;
}

#[cfg(test)]
mod tests;
