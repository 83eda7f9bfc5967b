//! Congestion window and pacing: how many frames may be in flight, and how fast they may leave.
//!
//! Links lose frames at random, so a single loss does not count as congestion. If more than one frame in sixteen is
//! lost, the window shrinks by three tenths, at most once per [`ROUND_MIN`] frames or one window. From then on, until
//! the window is at its maximum, frames are paced over the round-trip time instead of leaving in bursts. A sender
//! that wakes up late sends the frames that would have left meanwhile.
//!
//! On a shared path the window is that of [`Cubic`], and frames are always paced.
//!
//! Each repeated retransmission timeout halves the window. If a timeout turns out to be spurious, the reduction is
//! undone. Otherwise the window grows fast up to half of its former size, and slowly from there.

use crate::cubic::Cubic;
use crate::rtt::Rtt;

/// Initial window.
const FIRST: u32 = 64;
/// Smallest window.
const LEAST: u32 = 4;
/// Largest window.
const MOST: u32 = 256;
/// Paced frames that may leave together.
const BURST: u64 = 8;
/// Longest interval between two paced frames.
const GAP_MAX_NS: u64 = 2_000_000;
/// Maximum delay that a late sender catches up: twice the sleep of a watch thread.
const LATE_MAX_NS: u64 = 2_000_000;
/// Smallest number of frames over which losses are counted.
const ROUND_MIN: u32 = 64;
/// Tolerated share of losses: one in this many frames.
const TOLERATED: u32 = 16;

/// The state of one direction.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    window: u32,
    /// Decides the window on a shared path.
    cubic: Option<Cubic>,
    /// Acknowledged frames that count towards the next step of the window.
    credit: u32,
    delivered: u32,
    lost: u32,
    /// The window has shrunk: it grows slowly, and frames are paced.
    careful: bool,
    /// The window grows fast up to here.
    target: u32,
    /// Window, `careful` and `target` at the last timeout that followed an acknowledgement.
    before: Option<(u32, bool, u32)>,
    next_ns: u64,
    /// When the sender resumed late after a pause of the pace, and how late.
    resumed_ns: u64,
    late_ns: u64,
}

impl Pace {
    pub(crate) fn new(shared_path: bool) -> Pace {
        let cubic = shared_path.then(Cubic::new);
        Pace {
            window: cubic.map_or(FIRST, |cubic| cubic.window()),
            cubic,
            credit: 0,
            delivered: 0,
            lost: 0,
            careful: shared_path,
            target: MOST,
            before: None,
            next_ns: 0,
            resumed_ns: 0,
            late_ns: 0,
        }
    }

    /// The window, in frames.
    pub(crate) fn window(&self) -> u32 {
        self.window
    }

    /// Whether frames are paced.
    pub(crate) fn is_careful(&self) -> bool {
        self.careful
    }

    /// Frames have arrived; `in_flight` are left.
    #[inline(always)]
    pub(crate) fn delivered(&mut self, frames: u32, in_flight: u32, now_ns: u64, rtt: &Rtt) {
        if let Some(cubic) = &mut self.cubic {
            let limited = 2 * (in_flight + frames) > self.window;
            let times = (rtt.smoothed_ns(), rtt.shortest_ns());
            cubic.delivered(frames, limited, now_ns, times);
            self.window = cubic.window();
            return;
        }
        self.delivered += frames;
        if self.window < MOST {
            if self.careful && self.window >= self.target {
                self.credit += frames;
                self.window = (self.window + self.credit / self.window).min(MOST);
                self.credit %= self.window;
            } else {
                let top = if self.careful { self.target } else { MOST };
                self.window = (self.window + frames).min(top);
            }
            // The congestion is over.
            self.careful &= self.window < MOST;
        }
        if self.delivered + self.lost >= self.window.max(ROUND_MIN) {
            self.round();
        }
    }

    /// Frames have been lost; the last of them was sent at `sent_ns`.
    pub(crate) fn lost(&mut self, frames: u32, sent_ns: u64, now_ns: u64) {
        match &mut self.cubic {
            Some(cubic) if frames > 0 => {
                cubic.lost(sent_ns, now_ns);
                self.window = cubic.window();
            }
            _ => self.lost += frames,
        }
    }

    fn round(&mut self) {
        if self.lost * TOLERATED > self.delivered + self.lost {
            self.shrink(7);
            self.target = self.window;
            self.before = None;
        }
        (self.delivered, self.lost) = (0, 0);
    }

    /// A retransmission timeout. A single one may be the end of a lost burst, or a peer without a processor. The
    /// window shrinks if it happens `again`.
    pub(crate) fn timed_out(&mut self, again: bool, now_ns: u64) {
        let shared = self.on_shared_path(|cubic| cubic.timed_out(now_ns));
        if again && !shared {
            self.shrink(5);
        } else if !shared {
            self.before = Some((self.window, self.careful, self.target));
            self.target = (self.window / 2).max(LEAST);
        }
    }

    /// The length of frames has changed.
    pub(crate) fn resize(&mut self, before: u16, after: u16) {
        self.on_shared_path(|cubic| cubic.resize(before, after));
    }

    /// Undoes a spurious timeout.
    pub(crate) fn undo_timeout(&mut self) {
        self.on_shared_path(Cubic::undo_timeout);
        if let Some((window, careful, target)) = self.before.take() {
            self.window = self.window.max(window);
            (self.careful, self.target, self.credit) = (careful, target, 0);
        }
    }

    /// Undoes the last reduction: all of its frames have arrived.
    pub(crate) fn undo_loss(&mut self) {
        self.on_shared_path(Cubic::undo_loss);
    }

    /// A router has marked a frame that was sent at `sent_ns` or later.
    pub(crate) fn marked(&mut self, sent_ns: u64, now_ns: u64) {
        self.on_shared_path(|cubic| cubic.marked(sent_ns, now_ns));
    }

    /// Starts again if the window is as small as marks can make it: they mean nothing. Returns whether it is.
    pub(crate) fn forget_marks(&mut self, now_ns: u64) -> bool {
        let Some(cubic) = self.cubic.as_mut().filter(|cubic| cubic.is_least()) else {
            return false;
        };
        cubic.start_again(now_ns);
        self.window = cubic.window();
        true
    }

    /// When the window of a shared path was last reduced.
    pub(crate) fn reduced_ns(&self) -> u64 {
        self.cubic.map_or(0, |cubic| cubic.reduced_ns())
    }

    /// Lets CUBIC decide if the path is shared. Returns whether it is.
    fn on_shared_path(&mut self, change: impl FnOnce(&mut Cubic)) -> bool {
        let Some(cubic) = &mut self.cubic else {
            return false;
        };
        change(cubic);
        self.window = cubic.window();
        true
    }

    fn shrink(&mut self, tenths: u32) {
        self.window = (self.window * tenths / 10).max(LEAST);
        self.credit = 0;
        self.careful = true;
    }

    /// The sender continues after a pause that lasted until `held_ns`.
    #[cold]
    pub(crate) fn resume(&mut self, now_ns: u64, held_ns: u64) {
        self.resumed_ns = now_ns;
        self.late_ns = (now_ns - held_ns).min(LATE_MAX_NS);
    }

    /// When the next frame may leave; a time in the past means now.
    #[inline(always)]
    pub(crate) fn next_ns(&self, rtt_ns: u64) -> u64 {
        if !self.careful {
            return 0;
        }
        self.next_ns.saturating_sub(BURST * self.gap_ns(rtt_ns))
    }

    /// Notes that a frame was sent.
    #[inline(always)]
    pub(crate) fn sent(&mut self, now_ns: u64, rtt_ns: u64) {
        if self.careful {
            let gap = self.gap_ns(rtt_ns);
            let is_late = now_ns == self.resumed_ns;
            let earliest = now_ns - if is_late { self.late_ns } else { 0 };
            // Frames that are sent regardless of the pace must not delay later ones without limit.
            self.next_ns = self.next_ns.clamp(earliest, now_ns + BURST * gap) + gap;
        }
    }

    /// Interval between two frames: a quarter shorter than the window demands, so that the window remains the limit;
    /// half of it in slow start.
    fn gap_ns(&self, rtt_ns: u64) -> u64 {
        let starting = self.cubic.is_some_and(|cubic| cubic.is_starting());
        let round_ns = if starting { rtt_ns / 2 } else { rtt_ns * 4 / 5 };
        (round_ns / u64::from(self.window)).min(GAP_MAX_NS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loss_by_chance_changes_nothing_and_congestion_does() {
        let mut pace = Pace::new(false);
        for _ in 0..1000 {
            pace.lost(1, 0, 0);
            pace.delivered(99, 0, 0, &Rtt::default());
        }
        assert_eq!((pace.window(), pace.next_ns(1_000_000)), (MOST, 0));
        for _ in 0..1000 {
            pace.lost(1, 0, 0);
            pace.delivered(4, 0, 0, &Rtt::default());
        }
        assert!(pace.window() < 20, "{}", pace.window());
        assert!(pace.window() >= LEAST && pace.careful);
        // It recovers, and forgets.
        for _ in 0..1000 {
            pace.delivered(100, 0, 0, &Rtt::default());
        }
        assert_eq!((pace.window(), pace.careful), (MOST, false));
    }

    #[test]
    fn frames_are_spaced_out_after_congestion() {
        let mut pace = Pace::new(false);
        pace.timed_out(false, 0);
        pace.timed_out(true, 0);
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

    /// Number of frames that leave when a sender with many frames polls at this time.
    fn look(pace: &mut Pace, now: u64, rtt: u64) -> u64 {
        let held = pace.next_ns(rtt);
        if held <= now {
            pace.resume(now, held);
        }
        let mut sent = 0;
        while pace.next_ns(rtt) <= now {
            pace.sent(now, rtt);
            sent += 1;
        }
        sent
    }

    #[test]
    fn who_looks_once_a_millisecond_sends_as_much_as_who_looks_always() {
        let rtt = 2_000_000;
        let total = |every: u64| {
            let mut pace = Pace::new(false);
            pace.timed_out(false, 0);
            pace.timed_out(true, 0);
            let mut now = 10_000_000;
            let (mut sent, mut most) = (look(&mut pace, now, rtt), 0);
            while now < 110_000_000 {
                now += every;
                let burst = look(&mut pace, now, rtt);
                most = most.max(burst);
                sent += burst;
            }
            (sent, most, pace.gap_ns(rtt))
        };
        let (always, most, _) = total(10_000);
        assert_eq!(most, 1, "spaced out");
        let (rarely, most, gap) = total(1_000_000);
        assert!(rarely.abs_diff(always) <= BURST, "{rarely} and {always}");
        assert!(most <= 1_000_000 / gap + 1, "{most} at once");
        // What is not made up for: more than that would be a burst like any other.
        let (_, most, gap) = total(50_000_000);
        assert!(most <= LATE_MAX_NS / gap + BURST + 1, "{most} at once");
    }

    #[test]
    fn time_in_which_nothing_was_to_be_sent_makes_no_burst() {
        let (mut pace, rtt) = (Pace::new(false), 2_000_000);
        pace.timed_out(false, 0);
        pace.timed_out(true, 0);
        look(&mut pace, 10_000_000, rtt);
        let mut sent = 0;
        while pace.next_ns(rtt) <= 50_000_000 {
            pace.sent(50_000_000, rtt);
            sent += 1;
        }
        assert!(sent <= BURST + 1, "{sent} at once");
    }

    #[test]
    fn a_silence_that_was_no_loss_is_taken_back_and_one_that_was_is_not() {
        let mut late = Pace::new(false);
        late.delivered(1000, 0, 0, &Rtt::default());
        late.timed_out(false, 0);
        assert_eq!(
            (late.window(), late.careful),
            (MOST, false),
            "once is not enough"
        );
        late.timed_out(true, 0);
        late.timed_out(true, 0);
        assert_eq!((late.window(), late.careful), (MOST / 4, true));
        let mut lost = late;
        late.undo_timeout();
        assert_eq!((late.window(), late.careful), (MOST, false));
        // Up to half of what it was it grows fast, and slowly from there.
        lost.delivered(MOST / 4, 0, 0, &Rtt::default());
        assert_eq!(lost.window(), MOST / 2);
        lost.delivered(MOST / 2, 0, 0, &Rtt::default());
        assert_eq!(lost.window(), MOST / 2 + 1);
        // What is found later about an older silence does not count.
        lost.lost(100, 0, 0);
        lost.delivered(100, 0, 0, &Rtt::default());
        let shrunk = lost.window();
        lost.undo_timeout();
        assert!(shrunk < MOST / 2);
        assert_eq!((lost.window(), lost.careful), (shrunk, true));
    }
}
