//! Late or lost: the reordering window of RFC 8985 (RACK), for paths across routers.
//!
//! A frame is lost when a frame that was sent later has arrived and the reordering window has passed. The window is a
//! quarter of the shortest round trip. It grows by as much whenever a frame that counted as lost turns out to be
//! late. As long as the path has never reordered frames, three later frames are sufficient.
//!
//! Late frames are counted for each reduction of the congestion window. If all of its frames were late, the reduction
//! is undone.

use super::is_newer;
use crate::rtt::Rtt;

/// A wider window persists for this many reductions of the congestion window without a late frame.
const PERSIST: u32 = 16;

/// The state of one direction.
#[derive(Debug)]
pub(super) struct Rack {
    /// The path has reordered frames.
    reorders: bool,
    /// The reordering window, in quarters of the shortest round trip.
    quarters: u32,
    persist: u32,
    widened_ns: u64,
    /// Highest sequence number of the frames that have arrived early.
    furthest: Option<u32>,
    /// Number of the last reduction of the congestion window, and how many of its frames may still be lost.
    episode: u8,
    claims: u32,
}

impl Rack {
    pub(super) fn new() -> Rack {
        Rack {
            reorders: false,
            quarters: 1,
            persist: 0,
            widened_ns: 0,
            furthest: None,
            episode: 0,
            claims: 0,
        }
    }

    /// A frame has arrived although one before it has not.
    pub(super) fn arrived_early(&mut self, sequence: u32) {
        if self
            .furthest
            .is_none_or(|furthest| is_newer(sequence, furthest))
        {
            self.furthest = Some(sequence);
        }
    }

    /// A frame that was sent once has arrived after a later transmission. Lost acknowledgements look the same; then no
    /// frame beyond it was known to have arrived.
    pub(super) fn arrived_late(&mut self, sequence: u32) {
        self.reorders |= self
            .furthest
            .is_some_and(|furthest| is_newer(furthest, sequence));
    }

    /// Whether three later frames prove a loss without further delay.
    pub(super) fn keeps_order(&self) -> bool {
        !self.reorders
    }

    /// The reordering window, in nanoseconds.
    pub(super) fn window_ns(&self, rtt: &Rtt) -> u64 {
        (u64::from(self.quarters) * rtt.shortest_ns() / 4).min(rtt.smoothed_ns())
    }

    /// Number of the reduction that lost frames count for: the last one, or the `next`.
    pub(super) fn episode(&self, next: bool) -> u8 {
        self.episode.wrapping_add(u8::from(next))
    }

    /// Frames count as lost: `since` were sent after the last reduction, `before` earlier.
    pub(super) fn claim(&mut self, since: u32, before: u32) {
        if since == 0 {
            self.claims += before;
            return;
        }
        self.episode = self.episode.wrapping_add(1);
        self.claims = since;
        self.persist = self.persist.saturating_sub(1);
        if self.persist == 0 {
            self.quarters = 1;
        }
    }

    /// A frame that counted as lost was late. Returns whether all frames of the last reduction were.
    pub(super) fn was_late(&mut self, episode: u8, now_ns: u64, rtt: &Rtt) -> bool {
        if episode != self.episode || self.claims == 0 {
            return false;
        }
        self.reorders = true;
        self.persist = PERSIST;
        // At most once per round trip: frames that were late together count once.
        if now_ns >= self.widened_ns && self.window_ns(rtt) < rtt.smoothed_ns() {
            self.quarters += 1;
            self.widened_ns = now_ns + rtt.smoothed_ns();
        }
        self.claims -= 1;
        self.claims == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inflight::{Inflight, Load};

    const MS: u64 = 1_000_000;

    /// Frames sent a millisecond apart on a path of 40 ms, and what is acknowledged of them.
    struct Path {
        inflight: Inflight,
        rtt: Rtt,
        /// When the window was reduced last.
        reduced_ns: u64,
    }

    impl Path {
        fn new() -> Path {
            let mut rtt = Rtt::default();
            rtt.sample(40 * MS, 40 * MS);
            Path {
                inflight: Inflight::new(0, true),
                rtt,
                reduced_ns: 0,
            }
        }

        fn send(&mut self, count: u64, from_ns: u64) {
            for number in 0..count {
                let sequence = self.inflight.next();
                let first = sequence;
                self.inflight.push(Load::Whole { first, count: 1 });
                self.inflight.sent(sequence, from_ns + number * MS);
            }
        }

        /// Acknowledges all frames before `next` and those in the map. Returns the number of frames found lost,
        /// and whether all of an earlier loss were late.
        fn acknowledge(&mut self, next: u32, map: u8, now_ns: u64) -> (u32, bool) {
            let mut progress = self.inflight.acknowledged(next, now_ns, &self.rtt).unwrap();
            self.inflight
                .selected(&[map], now_ns, &self.rtt, &mut progress);
            let lost = self.find(now_ns);
            (lost, progress.all_late)
        }

        fn find(&mut self, now_ns: u64) -> u32 {
            let (lost, sent_ns) = self.inflight.find_lost(now_ns, &self.rtt, self.reduced_ns);
            if lost > 0 && sent_ns >= self.reduced_ns {
                self.reduced_ns = now_ns;
            }
            lost
        }

        fn send_again(&mut self, now_ns: u64) {
            while let Some((sequence, _)) = self.inflight.lost() {
                self.inflight.retransmit(sequence, false);
                self.inflight.sent(sequence, now_ns);
            }
        }
    }

    #[test]
    fn a_frame_that_comes_after_all_undoes_its_loss_and_widens_the_window() {
        let mut path = Path::new();
        path.send(6, 0);
        assert_eq!(
            path.acknowledge(0, 0b11, 42 * MS),
            (0, false),
            "two overtook it"
        );
        assert_eq!(path.acknowledge(0, 0b111, 43 * MS), (1, false), "three did");
        path.send_again(43 * MS);
        assert_eq!(
            path.acknowledge(4, 0, 44 * MS),
            (0, true),
            "it has not been lost"
        );
        // From now on time decides: a quarter of the round trip was too little, half of it is waited.
        path.send(5, 50 * MS);
        path.acknowledge(6, 0, 50 * MS);
        assert_eq!(path.acknowledge(6, 0b1111, 94 * MS), (0, false));
        assert_eq!(path.inflight.deadline(), (50 + 40 + 20) * MS);
        assert_eq!(path.find(110 * MS - 1), 0);
        assert_eq!(path.find(110 * MS), 1);
    }

    #[test]
    fn a_frame_that_comes_late_and_in_time_changes_the_rule() {
        let mut path = Path::new();
        path.send(6, 0);
        assert_eq!(path.acknowledge(0, 0b1, 41 * MS), (0, false));
        assert_eq!(path.acknowledge(2, 0, 41 * MS), (0, false), "late");
        path.send(5, 50 * MS);
        path.acknowledge(6, 0, 50 * MS);
        assert_eq!(path.acknowledge(6, 0b1111, 94 * MS), (0, false));
        assert_eq!(path.inflight.deadline(), (50 + 40 + 10) * MS);
    }

    #[test]
    fn a_loss_among_late_ones_is_not_undone() {
        let mut path = Path::new();
        path.send(8, 0);
        // Frames 0 and 1 are missing.
        assert_eq!(path.acknowledge(0, 0b11_1110, 46 * MS), (2, false));
        path.send_again(46 * MS);
        assert_eq!(
            path.acknowledge(1, 0, 47 * MS),
            (0, false),
            "one of them was late"
        );
        assert_eq!(
            path.acknowledge(8, 0, 87 * MS),
            (0, false),
            "the other was not"
        );
    }

    #[test]
    fn the_window_is_a_round_trip_at_most_and_forgets() {
        let (mut rack, mut rtt) = (Rack::new(), Rtt::default());
        rtt.sample(40 * MS, 40 * MS);
        let mut now_ns = 0;
        for round in 1..=9 {
            rack.claim(2, 0);
            let episode = rack.episode(false);
            assert!(!rack.was_late(episode.wrapping_sub(1), now_ns, &rtt), "old");
            assert!(!rack.was_late(episode, now_ns, &rtt));
            assert!(rack.was_late(episode, now_ns, &rtt), "both");
            assert!(!rack.was_late(episode, now_ns, &rtt));
            let window_ns = rack.window_ns(&rtt);
            assert_eq!(window_ns, (10 + 10 * round).min(40) * MS, "round {round}");
            now_ns += 40 * MS;
        }
        for _ in 0..PERSIST {
            assert_eq!(rack.window_ns(&rtt), 40 * MS);
            rack.claim(1, 0);
        }
        assert_eq!(rack.window_ns(&rtt), 10 * MS);
    }

    #[test]
    fn acknowledgements_that_were_lost_are_no_change_of_the_order() {
        let mut path = Path::new();
        path.send(6, 0);
        assert_eq!(path.acknowledge(0, 0b111, 43 * MS), (1, false));
        path.send_again(43 * MS);
        // What was said of frames 4 and 5 was lost; both come with the retransmission.
        assert_eq!(path.acknowledge(6, 0, 83 * MS), (0, false));
        path.send(5, 90 * MS);
        assert_eq!(
            path.acknowledge(6, 0b1111, 134 * MS).0,
            1,
            "three are enough"
        );
    }
}
