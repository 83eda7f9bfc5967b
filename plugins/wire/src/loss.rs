//! Loss detection: which frames in flight are lost, judged by the transmissions that have arrived.
//!
//! A frame is lost when the peer has a frame that was transmitted later, by three frames or by more than a round
//! trip. "Later" refers to the count of transmissions, not to sequence numbers: a retransmission is a new
//! transmission. Across routers [`Rack`] decides how much later. After a timeout [`TimeoutCheck`] decides which
//! transmission has arrived.

mod rack;
mod spurious;

use crate::config::NEVER;
use crate::rtt::Rtt;
use rack::Rack;
use spurious::TimeoutCheck;

/// A frame is lost when this many later transmissions have arrived before it.
const REORDER: i32 = 3;
/// A frame that was overtaken is not lost before this time has passed.
const REORDER_MIN_NS: u64 = 200_000;

/// What is known of a frame that is judged.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Transmission {
    /// Its number among all transmissions.
    pub(crate) number: u32,
    pub(crate) sent_ns: u64,
    /// It was not the first of its frame.
    pub(crate) again: bool,
    /// The reduction of the congestion window for which the frame counted as lost ([`Rack`]).
    pub(crate) episode: u8,
}

/// Judgement of a frame in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Judgement {
    /// No later transmission has arrived.
    InOrder,
    /// It was overtaken, and is lost at this time.
    LostAt(u64),
    Lost,
}

/// The rule that is in force at one moment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rule {
    latest: u32,
    by_count: bool,
    patience_ns: u64,
    now_ns: u64,
}

impl Rule {
    #[inline(always)]
    pub(crate) fn judge(&self, frame: &Transmission) -> Judgement {
        let behind = self.latest.wrapping_sub(frame.number) as i32;
        if behind <= 0 {
            return Judgement::InOrder;
        }
        let at_ns = frame.sent_ns + self.patience_ns;
        if (self.by_count && behind >= REORDER) || at_ns <= self.now_ns {
            Judgement::Lost
        } else {
            Judgement::LostAt(at_ns)
        }
    }
}

/// Loss detection of one direction.
pub(crate) struct Loss {
    /// Latest transmission that has arrived, and its round trip.
    latest: Option<(u32, u64)>,
    timeout: TimeoutCheck,
    rack: Rack,
    /// The path has other users: [`Rack`] decides.
    shared: bool,
    due_ns: u64,
}

impl Loss {
    pub(crate) fn new(shared_path: bool) -> Loss {
        Loss {
            latest: None,
            timeout: TimeoutCheck::NONE,
            rack: Rack::new(),
            shared: shared_path,
            due_ns: NEVER,
        }
    }

    /// When the next frame counts as lost if it is not acknowledged before.
    pub(crate) fn deadline(&self) -> u64 {
        self.due_ns
    }

    /// Round trip of the latest transmission that has arrived.
    pub(crate) fn latest_rtt_ns(&self) -> u64 {
        self.latest.map_or(0, |(_, rtt_ns)| rtt_ns)
    }

    /// Whether it is unknown which transmission of a frame has arrived after a timeout.
    pub(crate) fn is_undecided(&self) -> bool {
        self.timeout.is_open()
    }

    /// This transmission was sent because of a timeout.
    pub(crate) fn retried(&mut self, transmission: u32) {
        self.timeout = TimeoutCheck::of(transmission);
    }

    /// A frame that was sent once has arrived. Returns whether that proves the last timeout spurious.
    #[inline(always)]
    pub(crate) fn arrived(&mut self, sequence: u32, transmission: u32, rtt_ns: u64) -> bool {
        let spurious = self.timeout.was_spurious(transmission);
        if !self.advance(transmission, rtt_ns) {
            self.rack.arrived_late(sequence);
        }
        spurious
    }

    /// A frame that was sent more than once has arrived; `again`: not by a transmission before the last one. Returns
    /// whether all frames of the last reduction of the congestion window were late.
    #[cold]
    pub(crate) fn again_arrived(
        &mut self,
        frame: &Transmission,
        again: bool,
        now_ns: u64,
        rtt: &Rtt,
    ) -> bool {
        let rtt_ns = now_ns.saturating_sub(frame.sent_ns);
        let decided_ns = now_ns + patience_ns(rtt);
        let undecided = self.timeout.is_acknowledged(frame.number, decided_ns);
        if rtt_ns < rtt.shortest_ns() {
            // An earlier transmission has arrived, or the network has become faster.
            return again && self.was_late(frame.episode, now_ns, rtt);
        }
        if !undecided {
            self.advance(frame.number, rtt_ns);
        }
        false
    }

    /// A frame that counted as lost has arrived, without a retransmission since. Returns whether all frames of the
    /// last reduction of the congestion window were late.
    #[cold]
    pub(crate) fn was_late(&mut self, episode: u8, now_ns: u64, rtt: &Rtt) -> bool {
        self.rack.was_late(episode, now_ns, rtt)
    }

    /// A frame has arrived although one before it has not.
    pub(crate) fn arrived_early(&mut self, sequence: u32) {
        self.rack.arrived_early(sequence);
    }

    /// All frames have been acknowledged.
    #[inline(always)]
    pub(crate) fn all_arrived(&mut self) {
        self.timeout = TimeoutCheck::NONE;
        self.due_ns = NEVER;
    }

    /// The rule in force now. `None`: all frames are in order; `oldest` is the first one in flight.
    #[inline(always)]
    pub(crate) fn rule(
        &mut self,
        oldest: Option<&Transmission>,
        now_ns: u64,
        rtt: &Rtt,
    ) -> Option<Rule> {
        if let Some(transmission) = self.timeout.decide(now_ns) {
            self.advance(transmission, rtt.smoothed_ns());
        }
        self.due_ns = self.timeout.deadline();
        let (latest, rtt_ns) = self.latest?;
        if oldest.is_some_and(|oldest| !oldest.again && is_newer(oldest.number, latest)) {
            // All others were sent later.
            return None;
        }
        let (by_count, patience_ns) = if self.shared {
            let patience_ns = rtt_ns + self.rack.window_ns(rtt);
            (self.rack.keeps_order(), patience_ns.max(REORDER_MIN_NS))
        } else {
            (true, patience_ns(rtt))
        };
        Some(Rule {
            latest,
            by_count,
            patience_ns,
            now_ns,
        })
    }

    /// A frame is lost at this time unless it is acknowledged before.
    pub(crate) fn expect(&mut self, at_ns: u64) {
        self.due_ns = self.due_ns.min(at_ns);
    }

    /// The reduction of the congestion window that lost frames are counted for: the last one, or the `next`.
    pub(crate) fn episode(&self, next: bool) -> u8 {
        self.rack.episode(next)
    }

    /// Frames count as lost, of which `since` were sent after the last reduction of the congestion window and `before`
    /// earlier.
    pub(crate) fn claim(&mut self, since: u32, before: u32) {
        self.rack.claim(since, before);
    }

    /// Notes the arrival of a transmission. Returns whether no later one has arrived.
    #[inline(always)]
    fn advance(&mut self, transmission: u32, rtt_ns: u64) -> bool {
        let newest = self
            .latest
            .is_none_or(|(latest, _)| is_newer(transmission, latest));
        if newest {
            self.latest = Some((transmission, rtt_ns));
        }
        newest
    }
}

/// How long a frame may be in flight after another one has overtaken it.
fn patience_ns(rtt: &Rtt) -> u64 {
    (rtt.smoothed_ns() * 9 / 8).max(REORDER_MIN_NS)
}

/// Whether a number comes after another one.
#[inline(always)]
fn is_newer(number: u32, other: u32) -> bool {
    (number.wrapping_sub(other) as i32) > 0
}
