//! Small messages that share a frame.
//!
//! Under [`Policy::Batch`](crate::Policy) a post need not make a frame at once: nothing leaves before the
//! doorbell rings. The first post after a look at completions does all the same, so that a single message is
//! ready when the bell rings, whoever rings it. The ones behind it stay in the send queue until a frame is
//! full or the program looks for completions of this VI; then the protocol puts as many as fit into each
//! frame.
//!
//! What stays in a queue can only be had with the VI's lock. So one VI of a NIC gathers at a time, and when
//! the program does something else with the NIC meanwhile, or sleeps, the watch thread looks after that VI.

use std::sync::atomic::{AtomicU32, Ordering};

/// Added to the number of the VI: the watch thread has been told.
const TOLD: u32 = 1 << 31;
/// No VI gathers.
const NOBODY: u32 = u32::MAX;

/// Which VI of the NIC gathers.
pub(crate) struct Gathering(AtomicU32);

impl Default for Gathering {
    fn default() -> Gathering {
        Gathering(AtomicU32::new(NOBODY))
    }
}

impl Gathering {
    /// This VI wants to gather. False: another one does.
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

    /// The VI, which has begun to, gathers no more.
    #[inline(always)]
    pub(crate) fn end(&self) {
        self.0.store(NOBODY, Ordering::Release);
    }

    /// Whether a VI gathers of which the watch thread has not been told: any but `own`.
    #[inline(always)]
    pub(crate) fn is_untold(&self, own: u32) -> bool {
        let now = self.0.load(Ordering::Relaxed);
        now & TOLD == 0 && now != own
    }

    /// That VI; it counts as told now.
    pub(crate) fn tell(&self, own: u32) -> Option<u32> {
        let now = self.0.load(Ordering::Acquire);
        (now & TOLD == 0 && now != own).then_some(())?;
        self.0
            .compare_exchange(now, now | TOLD, Ordering::AcqRel, Ordering::Relaxed)
            .ok()
    }

    /// The VI that gathers, told of or not.
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
        let gathering = Gathering::default();
        assert_eq!((gathering.vi(), gathering.is_untold(7)), (None, false));
        assert!(gathering.begin(7) && gathering.begin(7) && !gathering.begin(8));
        assert!(!gathering.is_untold(7) && gathering.is_untold(8));
        assert_eq!(gathering.tell(7), None, "its own thread knows");
        assert_eq!((gathering.tell(8), gathering.tell(8)), (Some(7), None));
        assert_eq!(gathering.vi(), Some(7));
        assert!(gathering.begin(7) && !gathering.begin(8));
        gathering.end();
        assert_eq!((gathering.vi(), gathering.tell(8)), (None, None));
        assert!(gathering.begin(8));
    }
}
