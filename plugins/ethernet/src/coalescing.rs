//! Send coalescing: small messages that share a frame.
//!
//! Under [`Policy::Batch`](crate::Policy) a post need not make a frame at once, since nothing is sent before the
//! doorbell rings. The first post after the application has polled for completions makes a frame all the same, so that
//! a single message is ready for the next ring. The messages after it stay in the send queue until a frame is full or
//! the application polls for completions of this VI; then the protocol puts as many as fit into each frame.
//!
//! Messages in a send queue can be reached with the VI's lock only. So one VI of a NIC coalesces at a time. When the
//! application uses another part of the NIC meanwhile, or sleeps, the watch thread serves that VI.

use std::sync::atomic::{AtomicU32, Ordering};

/// Added to the number of the VI: it has been reported to the watch thread.
const REPORTED: u32 = 1 << 31;
/// No VI coalesces.
const NONE: u32 = u32::MAX;

/// Which VI of the NIC coalesces.
pub(crate) struct Coalescing(AtomicU32);

impl Default for Coalescing {
    fn default() -> Coalescing {
        Coalescing(AtomicU32::new(NONE))
    }
}

impl Coalescing {
    /// Starts coalescing on this VI. False: another one does.
    #[inline(always)]
    pub(crate) fn begin(&self, index: u32) -> bool {
        let now = self.0.load(Ordering::Relaxed);
        now & !REPORTED == index
            || (now == NONE
                && self
                    .0
                    .compare_exchange(NONE, index, Ordering::AcqRel, Ordering::Relaxed)
                    .is_ok())
    }

    /// Ends what [`Coalescing::begin`] started.
    #[inline(always)]
    pub(crate) fn end(&self) {
        self.0.store(NONE, Ordering::Release);
    }

    /// Whether a VI other than `own` coalesces that has not been reported to the watch thread.
    #[inline(always)]
    pub(crate) fn is_unreported(&self, own: u32) -> bool {
        let now = self.0.load(Ordering::Relaxed);
        now & REPORTED == 0 && now != own
    }

    /// That VI, which counts as reported from now on.
    pub(crate) fn report(&self, own: u32) -> Option<u32> {
        let now = self.0.load(Ordering::Acquire);
        (now & REPORTED == 0 && now != own).then_some(())?;
        self.0
            .compare_exchange(now, now | REPORTED, Ordering::AcqRel, Ordering::Relaxed)
            .ok()
    }

    /// The VI that coalesces.
    pub(crate) fn vi(&self) -> Option<u32> {
        let now = self.0.load(Ordering::Acquire);
        (now != NONE).then_some(now & !REPORTED)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_at_a_time_and_reported_once() {
        let coalescing = Coalescing::default();
        assert_eq!(
            (coalescing.vi(), coalescing.is_unreported(7)),
            (None, false)
        );
        assert!(coalescing.begin(7) && coalescing.begin(7) && !coalescing.begin(8));
        assert!(!coalescing.is_unreported(7) && coalescing.is_unreported(8));
        assert_eq!(coalescing.report(7), None, "its own thread knows");
        assert_eq!(
            (coalescing.report(8), coalescing.report(8)),
            (Some(7), None)
        );
        assert_eq!(coalescing.vi(), Some(7));
        assert!(coalescing.begin(7) && !coalescing.begin(8));
        coalescing.end();
        assert_eq!((coalescing.vi(), coalescing.report(8)), (None, None));
        assert!(coalescing.begin(8));
    }
}
