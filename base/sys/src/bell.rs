//! Waking threads that wait for shared memory, and ready bits of many objects.
//!
//! A [`Bell`] belongs to one process, whose threads sleep on it; others publish data and then ring. A sleeper
//! announces itself in `want` and checks once more; a publisher stores its data and checks `want`. One of the
//! two must see the other, which requires a full fence on both sides. Publishing is far more frequent than
//! going to sleep, so the sleeper executes both: `membarrier` makes every processor that runs a registered
//! process execute a fence. If it is not available, `fences` makes publishers execute their own.
//!
//! All of this is in memory that a hostile process may write: the worst it can cause is a spurious wake-up,
//! or a thread that sleeps until its own timeout.

use std::sync::atomic::AtomicU32 as Pad;

use crate::futex;
use crate::membarrier::{self, Scope};
use crate::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use crate::sync::compiler_fence;

/// The words shared by sleepers and publishers; all zero is valid. Publishers read the second line after
/// every message, and it is rarely written.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub struct Bell {
    /// Counts rings; sleepers sleep on it.
    ring: AtomicU32,
    pad0: [Pad; 15],
    /// Number of sleepers.
    want: AtomicU32,
    /// Who executes the publishers' fences; unless [`BY_SLEEPERS`], they must do so themselves.
    fences: AtomicU32,
    pad1: [Pad; 14],
}

const BY_SLEEPERS: u32 = 0;
const BY_PUBLISHERS: u32 = 1;
/// The system has just refused a sleeper's fence, and publishers may not know yet.
const CHANGING: u32 = 2;

/// The fence between publishing data and checking for sleepers. `real`: the sleeper's barrier does not
/// execute it.
#[inline(always)]
pub fn after_publishing(real: bool) {
    if real {
        fence(Ordering::SeqCst);
    } else {
        // The sleeper's `membarrier` is the processor's fence; this one is for the compiler.
        compiler_fence(Ordering::SeqCst);
    }
}

impl Bell {
    /// Sets up the owner: this process takes part in other processes' barriers.
    pub fn prepare(&self) {
        let works = membarrier::register(Scope::Global) && membarrier::barrier(Scope::Global);
        let fences = if works { BY_SLEEPERS } else { BY_PUBLISHERS };
        self.fences.store(fences, Ordering::Release);
    }

    /// Whether the owner must execute real fences before it checks for sleepers of others: other processes'
    /// barriers do not reach it.
    #[inline(always)]
    pub fn needs_fences(&self) -> bool {
        self.fences.load(Ordering::Relaxed) != BY_SLEEPERS
    }

    /// Wakes the owner if it has sleepers. Called after data was published; `own_fences` is
    /// [`Bell::needs_fences`] of the calling process's bell.
    #[inline(always)]
    pub fn ring_if_wanted(&self, own_fences: bool) {
        compiler_fence(Ordering::SeqCst);
        let fences = u32::from(own_fences) | self.fences.load(Ordering::Relaxed);
        // One branch: without a fence to execute and without a sleeper there is nothing to do.
        if fences | self.want.load(Ordering::Relaxed) != 0 {
            self.ring_after_fence(fences != BY_SLEEPERS);
        }
    }

    #[cold]
    fn ring_after_fence(&self, own_fences: bool) {
        after_publishing(own_fences);
        if self.is_wanted() {
            self.ring();
        }
    }

    /// Whether a thread sleeps, or is about to.
    #[inline(always)]
    pub fn is_wanted(&self) -> bool {
        self.want.load(Ordering::Relaxed) != 0
    }

    /// Wakes all threads that sleep on this bell.
    #[cold]
    pub fn ring(&self) {
        self.ring.fetch_add(1, Ordering::SeqCst);
        futex::wake(&self.ring);
    }

    /// Whether the bell has rung since [`Bell::arm`] returned this.
    pub fn has_rung(&self, epoch: u32) -> bool {
        self.ring.load(Ordering::Relaxed) != epoch
    }

    /// Announces a sleeper of the owner; returns the argument of [`Bell::sleep`].
    pub fn arm(&self) -> u32 {
        let epoch = self.ring.load(Ordering::SeqCst);
        self.want.fetch_add(1, Ordering::SeqCst);
        // If publishers execute fences: the following check must not precede the announcement.
        fence(Ordering::SeqCst);
        let fences = self.fences.load(Ordering::Acquire);
        if fences == BY_SLEEPERS && !membarrier::barrier(Scope::Global) {
            self.fences.store(CHANGING, Ordering::SeqCst);
            self.wait_out_publishers();
        } else if fences == CHANGING {
            self.wait_out_publishers();
        }
        epoch
    }

    /// Publishers that have not yet seen that they must execute fences have executed none: every sleeper
    /// waits until their stores are visible, until one sleeper has completed that wait.
    #[cold]
    fn wait_out_publishers(&self) {
        membarrier::slow_barrier();
        // Release pairs with the acquire in `arm`: a thread that sees this need not wait.
        self.fences.store(BY_PUBLISHERS, Ordering::Release);
    }

    /// Sleeps until the bell has rung since `arm`, and withdraws the announcement.
    pub fn sleep(&self, epoch: u32, timeout_ns: u64) {
        if timeout_ns > 0 {
            futex::wait(&self.ring, epoch, timeout_ns);
        }
        self.want.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Ready bits: one per object, 64 in a word.
#[derive(Debug)]
#[repr(transparent)]
pub struct Marks<const WORDS: usize>([AtomicU64; WORDS]);

impl<const WORDS: usize> Default for Marks<WORDS> {
    fn default() -> Self {
        Marks(std::array::from_fn(|_| AtomicU64::new(0)))
    }
}

impl<const WORDS: usize> Marks<WORDS> {
    /// Sets the bit of an object. False: it is already set, or there is none with this number.
    ///
    /// The bit is set without checking it first: the check could see a bit that is just being taken, and the
    /// taker would not see the data published since.
    #[inline(always)]
    pub fn set(&self, index: u32) -> bool {
        let bit = 1 << (index % 64);
        let word = self.0.get(index as usize / 64);
        // Release pairs with the acquire in `take`.
        word.is_some_and(|word| word.fetch_or(bit, Ordering::Release) & bit == 0)
    }

    /// The bits of 64 objects, which stay set; bit n of word w is object 64 w + n.
    pub fn word(&self, place: usize) -> u64 {
        self.0
            .get(place)
            .map_or(0, |word| word.load(Ordering::Acquire))
    }

    /// Takes and clears bits, as many as there is room for: whole words only. The owner has no object behind the
    /// first `words` words: what others set there stays.
    #[inline]
    pub fn take(&self, words: usize, indices: &mut [u32]) -> usize {
        let words = &self.0[..words.min(WORDS)];
        // Most checks find nothing: one branch for all words.
        let any = |all, word: &AtomicU64| all | word.load(Ordering::Relaxed);
        if words.iter().fold(0, any) == 0 {
            return 0;
        }
        let mut found = 0;
        for (place, word) in words.iter().enumerate() {
            if word.load(Ordering::Relaxed) == 0 || found + 64 > indices.len() {
                continue;
            }
            // Acquire pairs with `set`: data published before it is visible.
            let mut bits = word.swap(0, Ordering::AcqRel);
            while bits != 0 {
                indices[found] = place as u32 * 64 + bits.trailing_zeros();
                found += 1;
                bits &= bits - 1;
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_taken_once_and_stay_inside() {
        let marks = Marks::<16>::default();
        for index in [0, 63, 64, 1023] {
            assert!(marks.set(index) && !marks.set(index));
        }
        assert!(!marks.set(1024) && !marks.set(u32::MAX));
        let mut little = [0; 64];
        assert_eq!(
            (marks.take(16, &mut little), little[0], little[1]),
            (2, 0, 63)
        );
        let mut room = [0; 256];
        assert_eq!((marks.take(15, &mut room), room[0]), (1, 64));
        assert_eq!((marks.take(usize::MAX, &mut room), room[0]), (1, 1023));
        assert_eq!(marks.take(16, &mut room), 0);
    }

    #[test]
    fn a_ring_after_arming_ends_the_sleep() {
        for own_fences in [false, true] {
            let bell = Bell::default();
            bell.prepare();
            bell.ring_if_wanted(own_fences);
            assert_eq!(bell.ring.load(Ordering::Relaxed), 0, "nobody wants it");
            let epoch = bell.arm();
            assert!(!bell.has_rung(epoch));
            bell.ring_if_wanted(own_fences);
            assert!(bell.has_rung(epoch));
            // It would wait for ever if the ring had been lost.
            bell.sleep(epoch, u64::MAX);
            assert_eq!(bell.want.load(Ordering::Relaxed), 0);
        }
    }

    #[test]
    fn publishers_execute_fences_once_a_sleeper_had_to_wait_for_them() {
        let bell = Bell::default();
        bell.fences.store(CHANGING, Ordering::Relaxed);
        assert!(bell.needs_fences());
        let epoch = bell.arm();
        assert_eq!(bell.fences.load(Ordering::Relaxed), BY_PUBLISHERS);
        bell.ring_if_wanted(false);
        bell.sleep(epoch, u64::MAX);
    }
}
