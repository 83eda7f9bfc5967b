//! Send coalescing: small messages that share a frame.
//!
//! Under [`Policy::Batch`](crate::Policy) a post need not make a frame at once, since nothing is sent before the
//! doorbell is rung. The first post after the application has looked for completions makes a frame all the same, so
//! that a single message is ready for whoever rings. The messages after it stay in the send queue until a frame is
//! full or the application looks for completions of this VI; then the protocol puts as many as fit into each frame.
//!
//! Messages in a send queue can be reached with the VI's lock only. So one VI of a NIC coalesces at a time, and when
//! the application uses another part of the NIC meanwhile, or sleeps, the watch thread serves that VI.

use std::sync::atomic::{AtomicU32, Ordering};

/// Added to the number of the VI: the watch thread has been told.
const TOLD: u32 = 1 << 31;
/// No VI coalesces.
const NOBODY: u32 = u32::MAX;

/// Which VI of the NIC coalesces.
pub(crate) struct Coalescing(AtomicU32);

impl Default for Coalescing {
    fn default() -> Coalescing {
        Coalescing(AtomicU32::new(NOBODY))
    }
}

impl Coalescing {
    /// Starts coalescing on this VI. False: another one does.
    #[inline(always)]
    pub(crate) fn begin(&self, index: u32) -> bool {
        let now = self.0.load(Ordering::Relaxed);
        now & !TOLD == index
            || (now == NOBODY
                && self
                    .0
                    .compare_exchange(NOBODY, index, Ordering::AcqRel, Ordering::Relaxed)
                    .is_ok())
    }

    /// Ends what [`Coalescing::begin`] started.
    #[inline(always)]
    pub(crate) fn end(&self) {
        self.0.store(NOBODY, Ordering::Release);
    }

    /// Whether a VI other than `own` coalesces that the watch thread has not been told of.
    #[inline(always)]
    pub(crate) fn is_untold(&self, own: u32) -> bool {
        let now = self.0.load(Ordering::Relaxed);
        now & TOLD == 0 && now != own
    }

    /// That VI, which counts as told from now on.
    pub(crate) fn tell(&self, own: u32) -> Option<u32> {
        let now = self.0.load(Ordering::Acquire);
        (now & TOLD == 0 && now != own).then_some(())?;
        self.0
            .compare_exchange(now, now | TOLD, Ordering::AcqRel, Ordering::Relaxed)
            .ok()
    }

    /// The VI that coalesces.
    pub(crate) fn vi(&self) -> Option<u32> {
        let now = self.0.load(Ordering::Acquire);
        (now != NOBODY).then_some(now & !TOLD)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_at_a_time_and_told_once() {
        let coalescing = Coalescing::default();
        assert_eq!((coalescing.vi(), coalescing.is_untold(7)), (None, false));
        assert!(coalescing.begin(7) && coalescing.begin(7) && !coalescing.begin(8));
        assert!(!coalescing.is_untold(7) && coalescing.is_untold(8));
        assert_eq!(coalescing.tell(7), None, "its own thread knows");
        assert_eq!((coalescing.tell(8), coalescing.tell(8)), (Some(7), None));
        assert_eq!(coalescing.vi(), Some(7));
        assert!(coalescing.begin(7) && !coalescing.begin(8));
        coalescing.end();
        assert_eq!((coalescing.vi(), coalescing.tell(8)), (None, None));
        assert!(coalescing.begin(8));
    }
}
