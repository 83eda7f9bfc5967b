//! The bell page of a NIC: how partners wake it, and which of its VIs have something.
//!
//! ```text
//!   line 0   ring    counts everything that may have to be looked at; sleepers sleep on it
//!   line 1   want    not 0: somebody sleeps; partners read it after every message, seldom written
//!   line 2…  ready   one bit per VI
//! ```
//!
//! A sleeper announces itself in `want` and looks once more; a sender writes its message and looks at
//! `want`. One of the two must see the other, which needs a full fence on both sides. Sending is far more
//! frequent than going to sleep, so the sleeper pays for both: `membarrier` makes every processor that
//! runs a process of ours execute a fence. Where it is not available, `fences` tells senders to do it.

use crate::nic::VIS_MAX;
use crate::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use crate::sync::{Scope, compiler_fence, futex_wait, futex_wake, membarrier};

const WORDS: usize = VIS_MAX as usize / 64;

/// What `bell` looks like in shared memory; all zero at first.
#[derive(Default)]
#[repr(C, align(64))]
pub(crate) struct Bell {
    ring: AtomicU32,
    pad0: [u32; 15],
    want: AtomicU32,
    fences: AtomicU32,
    pad1: [u32; 14],
    ready: [AtomicU64; WORDS],
}

const _: () = assert!(size_of::<Bell>() <= 4096);

impl Bell {
    /// The owner's set-up: this process takes part in other processes' barriers.
    pub(crate) fn prepare(&self) {
        let works = membarrier::register(Scope::Global) && membarrier::barrier(Scope::Global);
        self.fences.store(u32::from(!works), Ordering::Release);
    }

    /// Wakes the owner if somebody sleeps. Called after something was published.
    #[inline(always)]
    pub(crate) fn ring_if_wanted(&self, own_fences: bool) {
        if own_fences || self.fences.load(Ordering::Relaxed) != 0 {
            fence(Ordering::SeqCst);
        } else {
            // The processor's fence comes from the sleeper's `membarrier`; the compiler must obey too.
            compiler_fence(Ordering::SeqCst);
        }
        if self.want.load(Ordering::Relaxed) != 0 {
            self.ring();
        }
    }

    /// Wakes everybody who sleeps on this bell.
    #[cold]
    pub(crate) fn ring(&self) {
        self.ring.fetch_add(1, Ordering::SeqCst);
        futex_wake(&self.ring);
    }

    /// Marks a VI of the owner.
    #[inline(always)]
    pub(crate) fn mark(&self, index: u32) {
        if let Some(word) = self.ready.get(index as usize / 64) {
            word.fetch_or(1 << (index % 64), Ordering::Release);
        }
    }

    /// Takes marks off, as many as there is room for.
    #[inline]
    pub(crate) fn take_marks(&self, indices: &mut [u32]) -> usize {
        let mut found = 0;
        for (place, word) in self.ready.iter().enumerate() {
            if word.load(Ordering::Relaxed) == 0 || found + 64 > indices.len() {
                continue;
            }
            // Acquire pairs with `mark`: what was published before it is seen.
            let mut bits = word.swap(0, Ordering::AcqRel);
            while bits != 0 {
                indices[found] = place as u32 * 64 + bits.trailing_zeros();
                found += 1;
                bits &= bits - 1;
            }
        }
        found
    }

    /// Announces a sleeper of the owner; gives what `sleep` needs.
    pub(crate) fn arm(&self) -> u32 {
        let epoch = self.ring.load(Ordering::SeqCst);
        self.want.fetch_add(1, Ordering::SeqCst);
        // Where senders fence themselves: the look that follows must not come before the announcement.
        fence(Ordering::SeqCst);
        if self.fences.load(Ordering::Relaxed) == 0 {
            let works = membarrier::barrier(Scope::Global);
            self.fences.store(u32::from(!works), Ordering::SeqCst);
        }
        epoch
    }

    /// Sleeps until the bell has rung since `arm`, and takes the announcement back.
    pub(crate) fn sleep(&self, epoch: u32, timeout_ns: u64) {
        if timeout_ns > 0 {
            futex_wait(&self.ring, epoch, timeout_ns);
        }
        self.want.fetch_sub(1, Ordering::SeqCst);
    }

    /// Whether this process must fence itself before it looks at anybody's `want`.
    pub(crate) fn needs_fences(&self) -> bool {
        self.fences.load(Ordering::Relaxed) != 0
    }
}
