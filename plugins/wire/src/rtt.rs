//! Round-trip time, and from it how long to wait before something is sent again (RFC 6298).

/// Shortest wait; covers a partner that delays its acknowledgement.
const RTO_MIN_NS: u64 = 2_000_000;
/// Longest wait.
const RTO_MAX_NS: u64 = 500_000_000;
/// Wait before anything has been measured.
const RTO_FIRST_NS: u64 = 20_000_000;
/// Doublings.
const BACKOFF_MAX: u32 = 8;

/// What has been measured.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Rtt {
    smoothed_ns: u64,
    variation_ns: u64,
    shortest_ns: u64,
    backoff: u32,
}

impl Rtt {
    /// A frame that was sent once has been acknowledged after this time (Karn: others tell nothing).
    pub(crate) fn sample(&mut self, ns: u64) {
        let ns = ns.max(1);
        if self.smoothed_ns == 0 {
            (self.smoothed_ns, self.variation_ns, self.shortest_ns) = (ns, ns / 2, ns);
            return;
        }
        self.shortest_ns = self.shortest_ns.min(ns);
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

    /// How long to wait for an acknowledgement.
    pub(crate) fn timeout_ns(&self) -> u64 {
        let base = if self.smoothed_ns == 0 {
            RTO_FIRST_NS
        } else {
            (self.smoothed_ns + 4 * self.variation_ns).clamp(RTO_MIN_NS, RTO_MAX_NS)
        };
        (base << self.backoff).min(RTO_MAX_NS)
    }

    /// The wait was in vain. True if the one before was in vain too.
    pub(crate) fn back_off(&mut self) -> bool {
        let again = self.backoff > 0;
        self.backoff = (self.backoff + 1).min(BACKOFF_MAX);
        again
    }

    /// Something new was acknowledged.
    pub(crate) fn progress(&mut self) {
        self.backoff = 0;
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
            rtt.sample(50_000);
        }
        assert_eq!(rtt.timeout_ns(), RTO_MIN_NS, "steady");
        for _ in 0..100 {
            rtt.sample(30_000_000);
        }
        let slow = rtt.timeout_ns();
        assert!((28_000_000..60_000_000).contains(&slow), "{slow}");
        assert_eq!(rtt.shortest_ns(), 50_000);
        assert!(!rtt.back_off());
        assert!(rtt.back_off());
        rtt.progress();
        rtt.back_off();
        assert_eq!(rtt.timeout_ns(), 2 * slow);
        for _ in 0..100 {
            rtt.back_off();
        }
        assert_eq!(rtt.timeout_ns(), RTO_MAX_NS);
        rtt.progress();
        assert_eq!(rtt.timeout_ns(), slow);
    }
}
