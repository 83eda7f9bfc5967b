//! How threads that wait for shared memory are woken, and which of many objects have something for them.
//!
//! A [`Bell`] belongs to one process, whose threads sleep on it; others publish something and then ring.
//! A sleeper announces itself in `want` and looks once more; a publisher stores its data and looks at
//! `want`. One of the two must see the other, which needs a full fence on both sides. Publishing is far more
//! frequent than going to sleep, so the sleeper executes both: `membarrier` makes every processor that runs a
//! registered process execute a fence. Where it is not available, `fences` tells publishers to do it.
//!
//! Everything here lies in memory that a hostile process may write: the worst it can do is to wake a thread
//! for nothing, or to leave one asleep until its own time is over.

use std::sync::atomic::AtomicU32 as Pad;

use crate::futex;
use crate::membarrier::{self, Scope};
use crate::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use crate::sync::compiler_fence;

/// The words that sleepers and publishers share; zeroes are a valid one. Publishers read the second line
/// after every message, and it is seldom written.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub struct Bell {
    /// Counts rings; sleepers sleep on it.
    ring: AtomicU32,
    pad0: [Pad; 15],
    /// Sleepers.
    want: AtomicU32,
    /// Who executes the publishers' fences: not [`BY_SLEEPERS`], they must do it themselves.
    fences: AtomicU32,
    pad1: [Pad; 14],
}

const BY_SLEEPERS: u32 = 0;
const BY_PUBLISHERS: u32 = 1;
/// The system has just refused a sleeper's fence; publishers may not know yet.
const CHANGING: u32 = 2;

/// The fence between publishing something and looking whether anybody sleeps. `real`: the sleeper's barrier
/// does not execute it.
#[inline(always)]
pub fn after_publishing(real: bool) {
    if real {
        fence(Ordering::SeqCst);
    } else {
        // The processor's fence comes from the sleeper's `membarrier`; the compiler must obey too.
        compiler_fence(Ordering::SeqCst);
    }
}

impl Bell {
    /// The owner's set-up: this process takes part in other processes' barriers.
    pub fn prepare(&self) {
        let works = membarrier::register(Scope::Global) && membarrier::barrier(Scope::Global);
        let fences = if works { BY_SLEEPERS } else { BY_PUBLISHERS };
        self.fences.store(fences, Ordering::Release);
    }

    /// Whether the owner must execute real fences before it looks whether anybody else sleeps: other processes'
    /// barriers do not reach it.
    #[inline(always)]
    pub fn needs_fences(&self) -> bool {
        self.fences.load(Ordering::Relaxed) != BY_SLEEPERS
    }

    /// Wakes the owner if somebody sleeps. Called after something was published; `own_fences` is what
    /// [`Bell::needs_fences`] says of the calling process's bell.
    #[inline(always)]
    pub fn ring_if_wanted(&self, own_fences: bool) {
        after_publishing(own_fences || self.needs_fences());
        if self.is_wanted() {
            self.ring();
        }
    }

    /// Whether somebody sleeps, or is about to.
    #[inline(always)]
    pub fn is_wanted(&self) -> bool {
        self.want.load(Ordering::Relaxed) != 0
    }

    /// Wakes everybody who sleeps on this bell.
    #[cold]
    pub fn ring(&self) {
        self.ring.fetch_add(1, Ordering::SeqCst);
        futex::wake(&self.ring);
    }

    /// Announces a sleeper of the owner; gives what [`Bell::sleep`] needs.
    pub fn arm(&self) -> u32 {
        let epoch = self.ring.load(Ordering::SeqCst);
        self.want.fetch_add(1, Ordering::SeqCst);
        // Where publishers fence themselves: the look that follows must not come before the announcement.
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

    /// Publishers that have not seen that they must execute fences have executed none: their stores are waited out,
    /// by every sleeper that comes before one of them is done with it.
    #[cold]
    fn wait_out_publishers(&self) {
        membarrier::slow_barrier();
        // Release pairs with the acquire in `arm`: who sees this need not wait.
        self.fences.store(BY_PUBLISHERS, Ordering::Release);
    }

    /// Sleeps until the bell has rung since `arm`, and takes the announcement back.
    pub fn sleep(&self, epoch: u32, timeout_ns: u64) {
        if timeout_ns > 0 {
            futex::wait(&self.ring, epoch, timeout_ns);
        }
        self.want.fetch_sub(1, Ordering::SeqCst);
    }
}

/// One bit per object, 64 a word: which of them have something.
#[derive(Debug)]
#[repr(transparent)]
pub struct Marks<const WORDS: usize>([AtomicU64; WORDS]);

impl<const WORDS: usize> Default for Marks<WORDS> {
    fn default() -> Self {
        Marks(std::array::from_fn(|_| AtomicU64::new(0)))
    }
}

impl<const WORDS: usize> Marks<WORDS> {
    /// Marks an object. False: it is marked already, or there is none with this number.
    ///
    /// The bit is set even if it is set already: a look beforehand could be answered by a mark that is just being
    /// taken, and whoever takes it would not see what was published since.
    #[inline(always)]
    pub fn set(&self, index: u32) -> bool {
        let bit = 1 << (index % 64);
        let word = self.0.get(index as usize / 64);
        // Release pairs with the acquire in `take`.
        word.is_some_and(|word| word.fetch_or(bit, Ordering::Release) & bit == 0)
    }

    /// The marks of 64 objects, which stay; bit n of word w is object 64 w + n.
    pub fn word(&self, place: usize) -> u64 {
        self.0
            .get(place)
            .map_or(0, |word| word.load(Ordering::Acquire))
    }

    /// Takes marks off, as many as there is room for: whole words only.
    #[inline]
    pub fn take(&self, indices: &mut [u32]) -> usize {
        // Most looks find nothing: one branch for all words.
        let any = |all, word: &AtomicU64| all | word.load(Ordering::Relaxed);
        if self.0.iter().fold(0, any) == 0 {
            return 0;
        }
        let mut found = 0;
        for (place, word) in self.0.iter().enumerate() {
            if word.load(Ordering::Relaxed) == 0 || found + 64 > indices.len() {
                continue;
            }
            // Acquire pairs with `set`: what was published before it is seen.
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
        assert_eq!((marks.take(&mut little), little[0], little[1]), (2, 0, 63));
        let mut room = [0; 256];
        assert_eq!((marks.take(&mut room), room[0], room[1]), (2, 64, 1023));
        assert_eq!(marks.take(&mut room), 0);
    }

    #[test]
    fn a_ring_after_arming_ends_the_sleep() {
        for own_fences in [false, true] {
            let bell = Bell::default();
            bell.prepare();
            bell.ring_if_wanted(own_fences);
            assert_eq!(bell.ring.load(Ordering::Relaxed), 0, "nobody wants it");
            let epoch = bell.arm();
            bell.ring_if_wanted(own_fences);
            // Would wait without end had the ring been lost.
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
