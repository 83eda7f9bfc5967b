//! How much may be under way, and how fast it may leave.
//!
//! A lost frame by itself says little: links lose frames by chance. Only where more than one frame in
//! sixteen is lost does the window shrink, by three tenths, at most once in [`ROUND_MIN`] frames or one
//! window. From then on, until the window is as large as it can be, frames are spaced out over the
//! round-trip time instead of leaving in bursts.

/// Frames under way in the beginning.
const FIRST: u32 = 64;
/// Fewest frames under way.
const LEAST: u32 = 4;
/// Most frames under way.
pub(crate) const MOST: u32 = 256;
/// Frames that leave together although they are spaced out.
const BURST: u64 = 8;
/// Longest time between two frames that are spaced out.
const GAP_MAX_NS: u64 = 2_000_000;
/// Frames over which losses are counted, at least.
const ROUND_MIN: u32 = 64;
/// One in so many may be lost.
const TOLERATED: u32 = 16;

/// The state of one direction.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    window: u32,
    /// Acknowledged frames that count towards the next step of the window.
    credit: u32,
    delivered: u32,
    lost: u32,
    /// The window has shrunk once: it grows slowly, and frames are spaced out.
    careful: bool,
    next_ns: u64,
}

impl Pace {
    pub(crate) fn new() -> Pace {
        Pace {
            window: FIRST,
            credit: 0,
            delivered: 0,
            lost: 0,
            careful: false,
            next_ns: 0,
        }
    }

    /// Frames that may be under way.
    #[inline(always)]
    pub(crate) fn window(&self) -> u32 {
        self.window
    }

    /// So many frames have arrived.
    #[inline(always)]
    pub(crate) fn delivered(&mut self, frames: u32) {
        self.delivered += frames;
        if self.window < MOST {
            self.credit += frames;
            let step = if self.careful { self.window } else { 1 };
            self.window = (self.window + self.credit / step).min(MOST);
            self.credit %= step;
            // What was in the way is not any more.
            self.careful &= self.window < MOST;
        }
        if self.delivered + self.lost >= self.window.max(ROUND_MIN) {
            self.round();
        }
    }

    /// So many frames are held to be lost.
    pub(crate) fn lost(&mut self, frames: u32) {
        self.lost += frames;
    }

    fn round(&mut self) {
        if self.lost * TOLERATED > self.delivered + self.lost {
            self.shrink(7);
        }
        (self.delivered, self.lost) = (0, 0);
    }

    /// Nothing was heard for as long as one waits.
    pub(crate) fn timed_out(&mut self) {
        self.shrink(5);
    }

    fn shrink(&mut self, tenths: u32) {
        self.window = (self.window * tenths / 10).max(LEAST);
        self.credit = 0;
        self.careful = true;
    }

    /// When the next frame may leave; a time that has passed means now.
    #[inline(always)]
    pub(crate) fn next_ns(&self, rtt_ns: u64) -> u64 {
        if !self.careful {
            return 0;
        }
        self.next_ns.saturating_sub(BURST * self.gap_ns(rtt_ns))
    }

    /// A frame has left.
    #[inline(always)]
    pub(crate) fn sent(&mut self, now_ns: u64, rtt_ns: u64) {
        if self.careful {
            let gap = self.gap_ns(rtt_ns);
            // Frames that leave whatever the pace says must not put off the others for ever.
            self.next_ns = self.next_ns.clamp(now_ns, now_ns + BURST * gap) + gap;
        }
    }

    /// A quarter faster than the window asks for, so that the window stays the limit.
    fn gap_ns(&self, rtt_ns: u64) -> u64 {
        (rtt_ns * 4 / 5 / u64::from(self.window)).min(GAP_MAX_NS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loss_by_chance_changes_nothing_and_congestion_does() {
        let mut pace = Pace::new();
        for _ in 0..1000 {
            pace.lost(1);
            pace.delivered(99);
        }
        assert_eq!((pace.window(), pace.next_ns(1_000_000)), (MOST, 0));
        for _ in 0..1000 {
            pace.lost(1);
            pace.delivered(4);
        }
        assert!(pace.window() < 20, "{}", pace.window());
        assert!(pace.window() >= LEAST && pace.careful);
        // It recovers, and forgets.
        for _ in 0..1000 {
            pace.delivered(100);
        }
        assert_eq!((pace.window(), pace.careful), (MOST, false));
    }

    #[test]
    fn frames_are_spaced_out_after_congestion() {
        let mut pace = Pace::new();
        pace.timed_out();
        let rtt = 1_000_000;
        let mut sent = 0;
        while pace.next_ns(rtt) <= 10_000_000 {
            pace.sent(10_000_000, rtt);
            sent += 1;
        }
        assert!((2..=BURST + 1).contains(&sent), "{sent} at once");
        let in_a_round = rtt / pace.gap_ns(rtt);
        assert!((40..=41).contains(&in_a_round), "{in_a_round} in a round");
    }
}
