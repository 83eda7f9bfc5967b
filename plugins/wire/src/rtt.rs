//! Round-trip time and retransmission timeout (RFC 6298).

/// Minimum allowance beyond the round-trip time: a peer may delay its acknowledgement, or have no processor.
const SLACK_MIN_NS: u64 = 2_000_000;
/// Longest timeout.
const RTO_MAX_NS: u64 = 500_000_000;
/// Timeout before the first measurement.
const RTO_FIRST_NS: u64 = 20_000_000;
/// Maximum number of doublings on a shared path.
const BACKOFF_MAX: u32 = 8;
/// The same within a subnet. There the peer's receive ring is most likely filled by other connections of the same
/// sender, which do not wait: a connection that doubled its timeout more often would hardly get a frame through.
const BACKOFF_LOCAL_MAX: u32 = 4;

/// The measurement.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Rtt {
    smoothed_ns: u64,
    variation_ns: u64,
    shortest_ns: u64,
    /// Doublings, until a frame that was sent once is acknowledged: no other frame measures a network that has become
    /// slower.
    backoff: u32,
    /// The path has other users.
    shared: bool,
    /// The timeout has expired, and nothing has been acknowledged since.
    silent: bool,
}

impl Rtt {
    pub(crate) fn new(shared_path: bool) -> Rtt {
        Rtt {
            shared: shared_path,
            ..Rtt::default()
        }
    }

    /// Adds the round trips of frames that were sent once; others cannot be measured (Karn). Each acknowledgement
    /// gives one sample, since many equal samples would make the variation vanish.
    #[inline(always)]
    pub(crate) fn sample(&mut self, shortest_ns: u64, longest_ns: u64) {
        let ns = longest_ns.max(1);
        self.backoff = 0;
        if self.smoothed_ns == 0 {
            (self.smoothed_ns, self.variation_ns) = (ns, ns / 2);
            self.shortest_ns = shortest_ns;
            return;
        }
        self.shortest_ns = self.shortest_ns.min(shortest_ns);
        let difference = self.smoothed_ns.abs_diff(ns);
        self.variation_ns = self.variation_ns - self.variation_ns / 4 + difference / 4;
        self.smoothed_ns = self.smoothed_ns - self.smoothed_ns / 8 + ns / 8;
    }

    /// Smoothed round-trip time; 0 before the first sample.
    pub(crate) fn smoothed_ns(&self) -> u64 {
        self.smoothed_ns
    }

    /// Shortest round-trip time seen.
    pub(crate) fn shortest_ns(&self) -> u64 {
        self.shortest_ns
    }

    /// The retransmission timeout.
    pub(crate) fn timeout_ns(&self) -> u64 {
        (self.answer_ns() << self.backoff).min(RTO_MAX_NS)
    }

    /// How long an answer may take: the timeout without its doublings.
    pub(crate) fn answer_ns(&self) -> u64 {
        if self.smoothed_ns == 0 {
            RTO_FIRST_NS
        } else {
            let slack = (4 * self.variation_ns).max(SLACK_MIN_NS);
            (self.smoothed_ns + slack).min(RTO_MAX_NS)
        }
    }

    /// The timeout has expired. Returns whether this is not the first time since an acknowledgement.
    pub(crate) fn back_off(&mut self) -> bool {
        let most = if self.shared {
            BACKOFF_MAX
        } else {
            BACKOFF_LOCAL_MAX
        };
        self.backoff = (self.backoff + 1).min(most);
        std::mem::replace(&mut self.silent, true)
    }

    /// Notes that a new frame was acknowledged.
    pub(crate) fn progress(&mut self) {
        self.silent = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn follows_the_network_and_backs_off() {
        let mut rtt = Rtt::default();
        assert_eq!(rtt.timeout_ns(), RTO_FIRST_NS);
        for _ in 0..100 {
            rtt.sample(50_000, 50_000);
        }
        let steady = rtt.timeout_ns().abs_diff(50_000 + SLACK_MIN_NS);
        assert!(steady < 100, "{steady}");
        for _ in 0..100 {
            rtt.sample(30_000_000, 30_000_000);
        }
        let slow = rtt.timeout_ns();
        assert!((28_000_000..60_000_000).contains(&slow), "{slow}");
        assert_eq!(rtt.shortest_ns(), 50_000);
        assert!(!rtt.back_off());
        assert!(rtt.back_off());
        rtt.progress();
        assert_eq!(rtt.timeout_ns(), 4 * slow, "nothing was measured");
        assert!(!rtt.back_off());
        for _ in 0..100 {
            rtt.back_off();
        }
        assert_eq!(
            rtt.timeout_ns(),
            (slow << BACKOFF_LOCAL_MAX).min(RTO_MAX_NS)
        );
        rtt.shared = true;
        for _ in 0..100 {
            rtt.back_off();
        }
        assert_eq!(rtt.timeout_ns(), RTO_MAX_NS);
        rtt.sample(30_000_000, 30_000_000);
        assert!(rtt.timeout_ns() < slow + slow / 100);
    }

    /// When a sleeping peer wakes up, hundreds of frames are acknowledged at once; the next time this takes a moment
    /// longer.
    #[test]
    fn a_steady_round_trip_leaves_room_for_a_delay() {
        let mut rtt = Rtt::default();
        for _ in 0..1000 {
            rtt.sample(2_000_000, 3_000_000);
        }
        assert_eq!(rtt.shortest_ns(), 2_000_000);
        assert!(rtt.timeout_ns() >= 3_000_000 + SLACK_MIN_NS - 100);
    }
}
