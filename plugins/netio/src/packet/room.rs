//! How long a sender waits for a device without room (ENOBUFS).
//!
//! A device that is full has room soon, and frames wait for it. But `veth` returns the same error for a frame that its
//! other end does not accept, each time; frames behind it must not wait. So a frame that has been refused for some time
//! is lost. If a shorter frame passes afterwards, the length was the reason, and frames of that length are lost at once.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use crate::Frame;

/// How long a frame waits, in nanoseconds. A thousand frames, the usual queue of an interface, take 12 ms at 1 Gbit/s,
/// and each one that leaves makes room.
const PATIENCE_NS: u64 = 50_000_000;

/// What a sender knows of the room in its device. Threads that send at the same time may restart each other's wait.
#[derive(Default)]
pub(crate) struct Room {
    /// Since when the first frame has been refused, or 0.
    since_ns: AtomicU64,
    /// Length of a frame that was refused until it was lost, or 0.
    lost_bytes: AtomicUsize,
    /// A shorter one has passed since.
    shorter_passes: AtomicBool,
}

impl Room {
    /// Notes that these frames have been sent.
    #[inline(always)]
    pub(crate) fn found(&self, frames: &[Frame]) {
        if self.since_ns.load(Ordering::Relaxed) != 0
            || self.lost_bytes.load(Ordering::Relaxed) != 0
        {
            let longest = frames.iter().map(|frame| frame.longest()).max();
            self.found_for(longest.unwrap_or(0));
        }
    }

    #[cold]
    fn found_for(&self, longest: usize) {
        self.since_ns.store(0, Ordering::Relaxed);
        if longest < self.lost_bytes.load(Ordering::Relaxed) {
            self.shorter_passes.store(true, Ordering::Relaxed);
        } else {
            self.lost_bytes.store(0, Ordering::Relaxed);
        }
    }

    /// Whether a frame of this length, for which there is no room, is to wait.
    #[cold]
    pub(crate) fn may_come(&self, bytes: usize, now_ns: u64) -> bool {
        let lost = self.lost_bytes.load(Ordering::Relaxed);
        if lost != 0 && bytes >= lost && self.shorter_passes.load(Ordering::Relaxed) {
            return false;
        }
        let since = self.since_ns.load(Ordering::Relaxed);
        if since == 0 {
            self.since_ns.store(now_ns, Ordering::Relaxed);
            return true;
        }
        if now_ns.saturating_sub(since) < PATIENCE_NS {
            return true;
        }
        // The next frame has a wait of its own.
        self.since_ns.store(0, Ordering::Relaxed);
        self.shorter_passes.store(false, Ordering::Relaxed);
        self.lost_bytes.store(bytes, Ordering::Relaxed);
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_frame_has_its_time() {
        let room = Room::default();
        for begin in [7, 8 + PATIENCE_NS] {
            assert!(room.may_come(100, begin));
            assert!(room.may_come(100, begin + PATIENCE_NS - 1));
            assert!(!room.may_come(100, begin + PATIENCE_NS));
        }
        room.found_for(100);
        assert!(room.may_come(100, 9), "the device was full");
    }

    #[test]
    fn frames_that_are_too_long_do_not_wait() {
        let room = Room::default();
        assert!(room.may_come(1000, 7));
        assert!(!room.may_come(1000, 7 + PATIENCE_NS));
        room.found_for(100);
        assert!(!room.may_come(1000, 9) && !room.may_come(2000, 9));
        assert!(room.may_come(999, 9), "it may fit");
        room.found_for(1000);
        assert!(room.may_come(2000, 10), "the other end has changed");
    }
}
