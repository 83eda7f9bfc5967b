//! CUBIC (RFC 9438): the congestion window on a shared path, in frames.
//!
//! As in TCP every loss counts as congestion, at most once per round trip. Afterwards the window grows fast towards
//! the size at which frames were lost, slowly around it, and fast again beyond.

use crate::config::WINDOW_SHARED;

/// Initial window (RFC 6928).
const FIRST: f64 = 10.0;
/// Smallest window.
const LEAST: f64 = 2.0;
/// Reduction of the window after a loss.
const BETA: f64 = 0.7;
/// Reduction of the window after a congestion mark (RFC 8511): routers mark before their queues are long.
const BETA_MARK: f64 = 0.85;
/// Steepness, in frames per cubic second.
const C: f64 = 0.4;
/// Growth in frames per round trip that corresponds to Reno with this `BETA`.
const RENO: f64 = 3.0 * (1.0 - BETA) / (1.0 + BETA);
/// Slow start ends when the round trip exceeds the shortest one by this: a queue has built up.
const QUEUE_MIN_NS: u64 = 4_000_000;

/// The state of one direction.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cubic {
    window: f64,
    /// Slow start below this.
    threshold: f64,
    /// Window at the last loss.
    top: f64,
    /// Window of Reno in the same situation.
    reno: f64,
    /// Start of the curve, and the seconds from there to the top. `None`: it starts with the next acknowledgement.
    curve: Option<(u64, f64)>,
    /// Time of the last reduction. Losses of frames sent before it do not reduce the window again.
    shrunk_ns: u64,
    /// State before a timeout.
    before: Option<Former>,
    /// State before the last loss, unless a timeout followed.
    before_loss: Option<Former>,
}

/// State that a reduction of the window replaces.
#[derive(Clone, Copy, Debug)]
struct Former {
    window: f64,
    threshold: f64,
    top: f64,
    curve: Option<(u64, f64)>,
}

impl Cubic {
    pub(crate) fn new() -> Cubic {
        Cubic {
            window: FIRST,
            threshold: f64::INFINITY,
            top: 0.0,
            reno: 0.0,
            curve: None,
            shrunk_ns: 0,
            before: None,
            before_loss: None,
        }
    }

    pub(crate) fn window(&self) -> u32 {
        self.window as u32
    }

    /// Whether the window is as small as marks can make it: between two reductions it grows by as much.
    pub(crate) fn is_least(&self) -> bool {
        self.window < 2.0 * LEAST
    }

    /// Whether the window doubles in each round trip.
    pub(crate) fn is_starting(&self) -> bool {
        self.window < self.threshold
    }

    /// Frames have arrived. `limited`: the window limits the sender.
    pub(crate) fn delivered(
        &mut self,
        frames: u32,
        limited: bool,
        now_ns: u64,
        (rtt_ns, shortest_ns): (u64, u64),
    ) {
        let frames = f64::from(frames);
        if !limited {
            // The curve must not advance while there is nothing to send.
            self.curve = None;
            return;
        }
        if self.is_starting() {
            self.window = (self.window + frames).min(self.threshold);
            if rtt_ns > shortest_ns + (shortest_ns / 8).max(QUEUE_MIN_NS) {
                self.threshold = self.window;
            }
        } else {
            self.grow(frames, now_ns, rtt_ns);
        }
        self.window = self.window.min(f64::from(WINDOW_SHARED));
    }

    fn grow(&mut self, frames: f64, now_ns: u64, rtt_ns: u64) {
        let (since_ns, ascent) = *self.curve.get_or_insert_with(|| {
            self.top = self.top.max(self.window);
            self.reno = self.window;
            (now_ns, ((self.top - self.window) / C).cbrt())
        });
        let time = (now_ns.saturating_sub(since_ns) + rtt_ns) as f64 / 1e9;
        let wanted = self.top + C * (time - ascent).powi(3);
        let wanted = wanted.clamp(self.window, 1.5 * self.window);
        // The RFC permits one frame per round trip above the top. Linux does not do that, and shares the path.
        self.reno += RENO * frames / self.window;
        self.window += (wanted - self.window) / self.window * frames;
        self.window = self.window.max(self.reno);
    }

    /// Frames have been lost; the last of them was sent at `sent_ns`.
    pub(crate) fn lost(&mut self, sent_ns: u64, now_ns: u64) {
        if sent_ns < self.shrunk_ns {
            return;
        }
        let former = self.former();
        self.shrink(now_ns, BETA);
        self.window = self.threshold;
        (self.before, self.before_loss) = (None, Some(former));
    }

    /// A router has marked a frame that was sent at `sent_ns`.
    pub(crate) fn marked(&mut self, sent_ns: u64, now_ns: u64) {
        if sent_ns >= self.shrunk_ns {
            self.shrink(now_ns, BETA_MARK);
            self.window = self.threshold;
            (self.before, self.before_loss) = (None, None);
        }
    }

    /// The marks meant nothing: starts again.
    pub(crate) fn start_again(&mut self, now_ns: u64) {
        *self = Cubic {
            shrunk_ns: now_ns,
            ..Cubic::new()
        };
    }

    /// The frames of the last loss have arrived: undoes the reduction.
    pub(crate) fn undo_loss(&mut self) {
        if let Some(former) = self.before_loss.take() {
            self.restore(former);
            self.curve = former.curve;
            self.shrunk_ns = 0;
        }
    }

    pub(crate) fn reduced_ns(&self) -> u64 {
        self.shrunk_ns
    }

    fn former(&self) -> Former {
        Former {
            window: self.window,
            threshold: self.threshold,
            top: self.top,
            curve: self.curve,
        }
    }

    fn restore(&mut self, former: Former) {
        self.window = self.window.max(former.window);
        (self.threshold, self.top) = (former.threshold, former.top);
    }

    fn shrink(&mut self, now_ns: u64, left: f64) {
        // Fast convergence: leave room for a new flow.
        let shrinks_again = self.window < self.top;
        self.top = self.window
            * if shrinks_again {
                (1.0 + BETA) / 2.0
            } else {
                1.0
            };
        self.threshold = (self.window * left).max(LEAST);
        self.curve = None;
        self.shrunk_ns = now_ns;
    }

    /// The length of frames has changed: keeps the number of bytes in flight.
    pub(crate) fn resize(&mut self, before: u16, after: u16) {
        let scale = f64::from(before) / f64::from(after);
        self.window = (self.window * scale).clamp(LEAST, f64::from(WINDOW_SHARED));
        (self.threshold, self.top) = (self.threshold * scale, self.top * scale);
        (self.curve, self.before) = (None, None);
    }

    /// A retransmission timeout.
    pub(crate) fn timed_out(&mut self, now_ns: u64) {
        if self.before.is_none() {
            self.before = Some(self.former());
        }
        self.before_loss = None;
        if self.window > LEAST {
            self.shrink(now_ns, BETA);
        }
        self.window = LEAST;
    }

    /// Undoes a spurious timeout.
    pub(crate) fn undo_timeout(&mut self) {
        if let Some(former) = self.before.take() {
            self.restore(former);
            // The curve would have advanced during the silence.
            self.curve = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;
    const RTT: (u64, u64) = (100 * MS, 100 * MS);

    /// Acknowledges a window in each round trip. Returns the windows.
    fn rounds(cubic: &mut Cubic, now: &mut u64, count: usize) -> Vec<u32> {
        let round = |_| {
            *now += RTT.0;
            cubic.delivered(cubic.window(), true, *now, RTT);
            cubic.window()
        };
        (0..count).map(round).collect()
    }

    /// The curve of RFC 9438, section 4.2, for a window of 200 at a loss and a round trip of 100 ms.
    #[test]
    fn after_a_loss_the_window_follows_the_curve() {
        let (mut cubic, mut now) = (Cubic::new(), 1000 * MS);
        assert_eq!(rounds(&mut cubic, &mut now, 3), [20, 40, 80]);
        rounds(&mut cubic, &mut now, 1);
        cubic.window = 200.0;
        cubic.lost(now, now);
        assert_eq!((cubic.window(), cubic.is_starting()), (140, false));
        // Other losses of the same round trip do not count.
        cubic.lost(now - 1, now + 50 * MS);
        assert_eq!(cubic.window(), 140);
        let ascent = (60.0 / C).cbrt();
        let windows = rounds(&mut cubic, &mut now, 60);
        for (round, window) in windows.iter().enumerate() {
            let time = (round + 1) as f64 * 0.1;
            let curve = 200.0 + C * (time - ascent).powi(3);
            assert!(
                (f64::from(*window) - curve).abs() < 4.0,
                "{round}: {window} {curve}"
            );
        }
        // Another loss below the old top leaves more room.
        cubic.window = 150.0;
        cubic.top = 200.0;
        cubic.lost(now, now);
        assert!((cubic.top - 127.5).abs() < 0.1, "{}", cubic.top);
    }

    #[test]
    fn on_a_short_path_it_is_as_fast_as_reno() {
        let (mut cubic, mut now) = (Cubic::new(), 1000 * MS);
        cubic.window = 60.0;
        cubic.lost(now, now);
        let short = (MS, MS);
        for _ in 0..40 {
            now += MS;
            cubic.delivered(cubic.window(), true, now, short);
        }
        // 42 frames, and 0.53 more in each round trip; the curve alone would be near 42.
        assert!((61..=64).contains(&cubic.window()), "{}", cubic.window());
    }

    #[test]
    fn a_window_that_is_not_used_does_not_grow() {
        let mut cubic = Cubic::new();
        cubic.delivered(5, false, MS, RTT);
        assert_eq!(cubic.window(), 10);
    }

    #[test]
    fn with_longer_frames_there_are_fewer() {
        let mut cubic = Cubic::new();
        cubic.resize(1200, 9000);
        assert_eq!((cubic.window(), cubic.is_starting()), (2, true));
        cubic.window = 200.0;
        cubic.resize(9000, 1200);
        assert_eq!(cubic.window(), u32::from(WINDOW_SHARED));
    }

    #[test]
    fn slow_start_ends_when_a_queue_builds_up() {
        let mut cubic = Cubic::new();
        cubic.delivered(10, true, MS, (105 * MS, 100 * MS));
        assert!(cubic.is_starting());
        cubic.delivered(20, true, MS, (113 * MS, 100 * MS));
        assert!(!cubic.is_starting());
    }

    #[test]
    fn a_timeout_begins_anew_and_a_spurious_one_is_undone() {
        let mut cubic = Cubic::new();
        cubic.window = 100.0;
        cubic.timed_out(MS);
        cubic.timed_out(2 * MS);
        assert_eq!((cubic.window(), cubic.is_starting()), (2, true));
        let mut real = cubic;
        cubic.undo_timeout();
        assert_eq!(cubic.window(), 100);
        real.delivered(200, true, 3 * MS, (MS, MS));
        assert_eq!((real.window(), real.is_starting()), (70, false));
    }

    #[test]
    fn a_loss_that_was_none_leaves_no_trace() {
        let (mut cubic, mut now) = (Cubic::new(), 1000 * MS);
        cubic.window = 100.0;
        cubic.lost(now, now);
        rounds(&mut cubic, &mut now, 3);
        let mut same = cubic;
        cubic.lost(now, now);
        assert!(cubic.window() < same.window());
        cubic.undo_loss();
        assert_eq!(
            rounds(&mut cubic, &mut now.clone(), 20),
            rounds(&mut same, &mut now, 20)
        );
        // Only the last one, and none that a timeout confirms.
        cubic.lost(now, now);
        cubic.timed_out(now);
        cubic.undo_loss();
        assert_eq!(cubic.window(), 2);
    }
}
