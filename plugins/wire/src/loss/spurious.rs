//! Spurious retransmission timeouts. After a timeout one frame is retransmitted, and its acknowledgement does not
//! show which of the two transmissions has arrived. If it was the second, all frames sent between them are lost. If
//! it was the first, possibly nothing is lost: the others arrive after it. So the decision is delayed by one more
//! round trip.

use super::is_newer;
use crate::config::NEVER;

/// Transmission of the oldest frame after a timeout, while the decision is open.
#[derive(Clone, Copy, Debug)]
pub(super) struct TimeoutCheck {
    transmission: Option<u32>,
    /// Time of the decision, once the frame has been acknowledged.
    until_ns: u64,
}

impl TimeoutCheck {
    /// No decision is open.
    pub(super) const NONE: TimeoutCheck = TimeoutCheck {
        transmission: None,
        until_ns: NEVER,
    };

    /// Whether a decision is open.
    pub(super) fn is_open(&self) -> bool {
        self.transmission.is_some()
    }

    /// This transmission was sent after a timeout.
    pub(super) fn of(transmission: u32) -> TimeoutCheck {
        TimeoutCheck {
            transmission: Some(transmission),
            until_ns: NEVER,
        }
    }

    /// A retransmitted frame is acknowledged. Returns whether it is this one: then it proves nothing about others
    /// until `until_ns`.
    pub(super) fn is_acknowledged(&mut self, transmission: u32, until_ns: u64) -> bool {
        let same = self.transmission == Some(transmission);
        if same {
            self.until_ns = until_ns;
        }
        same
    }

    /// A frame that was sent once has arrived. Returns whether this proves the timeout spurious.
    #[inline(always)]
    pub(super) fn was_spurious(&mut self, transmission: u32) -> bool {
        let late = self
            .transmission
            .is_some_and(|retry| is_newer(retry, transmission));
        if late {
            *self = TimeoutCheck::NONE;
        }
        late
    }

    /// Time of the decision.
    pub(super) fn deadline(&self) -> u64 {
        self.until_ns
    }

    /// Returns the transmission that has arrived, once this is decided.
    pub(super) fn decide(&mut self, now_ns: u64) -> Option<u32> {
        if self.until_ns > now_ns {
            return None;
        }
        std::mem::replace(self, TimeoutCheck::NONE).transmission
    }
}

#[cfg(test)]
mod tests {
    use crate::config::NEVER;
    use crate::inflight::{Inflight, Load};
    use crate::rtt::Rtt;

    /// Six frames, of which the first is sent again after a timeout, and arrives so much later; and the time then.
    fn retried(rtt: &mut Rtt, took_ns: u64) -> (Inflight, u64) {
        let mut inflight = Inflight::new(0, false);
        for first in 0..6 {
            inflight.push(Load::Whole { first, count: 1 });
            inflight.sent(first, 1000);
        }
        rtt.sample(1_000_000, 1_000_000);
        inflight.lose_first();
        inflight.retransmit(0, true);
        inflight.sent(0, 4_000_000);
        let now = 4_000_000 + took_ns;
        let progress = inflight.acknowledged(1, now, rtt).unwrap();
        assert!(!progress.spurious);
        assert_eq!(inflight.find_lost(now, rtt, 0).0, 0, "not decided");
        (inflight, now)
    }

    #[test]
    fn what_comes_late_is_not_lost() {
        for took_ns in [100_000, 1_000_000] {
            let mut rtt = Rtt::default();
            let (mut inflight, now) = retried(&mut rtt, took_ns);
            let progress = inflight.acknowledged(3, now + 500_000, &rtt).unwrap();
            assert!(progress.spurious);
            assert_eq!(inflight.find_lost(now + 4_000_000, &rtt, 0).0, 0);
            assert_eq!((inflight.deadline(), inflight.in_flight()), (NEVER, 3));
        }
    }

    /// The round trip may have been measured while the network was slower than it is now.
    #[test]
    fn what_does_not_come_is_lost() {
        for took_ns in [100_000, 1_000_000] {
            let mut rtt = Rtt::default();
            let (mut inflight, now) = retried(&mut rtt, took_ns);
            let decided = inflight.deadline();
            assert_eq!(decided, now + 1_125_000);
            assert_eq!(inflight.find_lost(decided - 1, &rtt, 0).0, 0);
            assert_eq!(inflight.find_lost(decided, &rtt, 0).0, 5);
            assert_eq!((inflight.deadline(), inflight.in_flight()), (NEVER, 0));
        }
    }
}
