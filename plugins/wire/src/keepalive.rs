//! Keepalive: PROBEs to a silent peer, and the decision that it is dead.
//!
//! After two to four seconds of silence a PROBE is sent, then two every second. Meanwhile this side checks four times per
//! second. The time between two checks counts as silence, up to a limit: if a check is late, this side had no
//! processor, and unread frames are not silence of the peer. So a peer counts as dead after many checks without a
//! frame, never after a few checks and a long time.
//!
//! The first PROBEs of all connections leave at the same times, the ticks of the clock: a process with many idle
//! connections wakes up once for all of them.
//!
//! A process has many connections, and drops frames if it has too little processor time to read them. Therefore a
//! connection may be silent for much longer if frames of the peer's process arrive on another connection.

use crate::config::NEVER;

/// Least silence before the first PROBE, which leaves at a multiple of this time.
const TICK_NS: u64 = 2_000_000_000;
/// Interval of the next ones.
const PROBE_EVERY_NS: u64 = 500_000_000;
/// Side 1 waits longer by this time, so that it answers the PROBEs of side 0 and sends none of its own.
const PROBE_LATER_NS: u64 = 250_000_000;
/// Interval of checks after the first PROBE.
const CHECK_EVERY_NS: u64 = 250_000_000;
/// Maximum time that counts between two checks.
const STEP_MAX_NS: u64 = 350_000_000;
/// Maximum time that counts at the first PROBE.
const FIRST_MAX_NS: u64 = 2 * TICK_NS + PROBE_LATER_NS;
/// Permitted silence of one connection while frames of the peer's process arrive on others.
const ONE_SILENT_NS: u64 = 60_000_000_000;

/// Result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Do nothing.
    Wait,
    /// Send a PROBE.
    Probe,
    /// The peer is dead.
    Dead,
}

/// The keepalive of one connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Keepalive {
    last_ns: u64,
    /// How long after a tick this side checks.
    later_ns: u64,
    /// A PROBE is unanswered.
    probing: bool,
    probe_at_ns: u64,
    check_at_ns: u64,
    /// The next check has been put off.
    put_off: bool,
    checked_ns: u64,
    /// When a frame of the peer's process was last received on any connection.
    process_ns: u64,
    /// Counted silence of this connection, and of the process.
    silent_ns: u64,
    process_silent_ns: u64,
    patience_ns: u64,
}

impl Keepalive {
    /// Starts now, at this side. The peer counts as dead after a silence of `patience_ns`.
    pub(crate) fn new(now_ns: u64, side: u32, patience_ns: u64) -> Keepalive {
        let later_ns = u64::from(side & 1) * PROBE_LATER_NS;
        Keepalive {
            last_ns: now_ns,
            later_ns,
            probing: false,
            probe_at_ns: NEVER,
            check_at_ns: first_check(now_ns, later_ns),
            put_off: false,
            checked_ns: now_ns,
            process_ns: now_ns,
            silent_ns: 0,
            process_silent_ns: 0,
            patience_ns,
        }
    }

    /// Notes the arrival of a frame of the peer.
    #[inline(always)]
    pub(crate) fn received(&mut self, now_ns: u64) {
        self.last_ns = now_ns;
        if self.probing {
            self.probing = false;
            self.put_off(now_ns);
        }
    }

    /// Notes a PROBE of the peer.
    pub(crate) fn peer_probed(&mut self, now_ns: u64) {
        self.put_off(now_ns);
    }

    /// Puts the next check off until something may be due: one in between would find nothing to do.
    #[cold]
    fn put_off(&mut self, now_ns: u64) {
        self.check_at_ns = first_check(now_ns, self.later_ns);
        self.put_off = true;
    }

    /// Whether the next check has been put off since the last call.
    #[inline(always)]
    pub(crate) fn take_put_off(&mut self) -> bool {
        self.put_off && std::mem::take(&mut self.put_off)
    }

    /// When a frame of the peer was last received.
    pub(crate) fn last_ns(&self) -> u64 {
        self.last_ns
    }

    /// Whether a PROBE is unanswered.
    pub(crate) fn is_probing(&self) -> bool {
        self.probing
    }

    /// When to call [`Keepalive::check`].
    pub(crate) fn deadline(&self) -> u64 {
        self.check_at_ns
    }

    /// Decides what to do, after all frames that have arrived were processed. `process_ns` is when a frame of the
    /// peer's process was last received on any connection.
    pub(crate) fn check(&mut self, now_ns: u64, process_ns: u64) -> Verdict {
        if !self.probing {
            self.check_at_ns = first_check(self.last_ns, self.later_ns);
            if self.check_at_ns > now_ns {
                return Verdict::Wait;
            }
            self.probing = true;
            let since = |last_ns| now_ns.saturating_sub(last_ns).min(FIRST_MAX_NS);
            (self.silent_ns, self.process_silent_ns) = (since(self.last_ns), since(process_ns));
            self.process_ns = process_ns;
            self.probe_at_ns = now_ns;
        } else {
            let step = now_ns.saturating_sub(self.checked_ns).min(STEP_MAX_NS);
            self.silent_ns += step;
            self.process_silent_ns += step;
        }
        self.checked_ns = now_ns;
        self.check_at_ns = now_ns + CHECK_EVERY_NS;
        if process_ns > self.process_ns {
            self.process_ns = process_ns;
            self.process_silent_ns = 0;
        }
        if self.process_silent_ns >= self.patience_ns || self.silent_ns >= ONE_SILENT_NS {
            Verdict::Dead
        } else if self.probe_at_ns <= now_ns {
            Verdict::Probe
        } else {
            Verdict::Wait
        }
    }

    /// Notes that a PROBE was sent.
    pub(crate) fn probed(&mut self, now_ns: u64) {
        self.probe_at_ns = now_ns + PROBE_EVERY_NS;
    }
}

/// When the first PROBE is due after a frame.
fn first_check(last_ns: u64, later_ns: u64) -> u64 {
    (last_ns + TICK_NS).next_multiple_of(TICK_NS) + later_ns
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn idle_connections_probe_at_the_same_times_and_seldom() {
        let begin = 12_345 * MS;
        let mut all: Vec<_> = (0..100)
            .map(|number| Keepalive::new(begin + number * 17 * MS, 0, 9_000 * MS))
            .collect();
        let (mut wakes, mut probes) = (0, 0);
        let mut now = begin;
        while now < begin + 100_000 * MS {
            now = all.iter().map(Keepalive::deadline).min().unwrap();
            wakes += 1;
            for one in all.iter_mut().filter(|one| one.deadline() <= now) {
                if one.check(now, one.last_ns()) == Verdict::Probe {
                    one.probed(now);
                    probes += 1;
                    one.received(now + MS);
                    assert!(one.take_put_off() && !one.take_put_off());
                }
            }
        }
        assert!(wakes <= 51, "{wakes} wake-ups in 100 s");
        assert!((2300..=2600).contains(&probes), "{probes} PROBEs in 100 s");
    }

    #[test]
    fn the_other_side_answers_and_sends_none() {
        let [mut asks, mut answers] = [0, 1].map(|side| Keepalive::new(7 * MS, side, 9_000 * MS));
        for _ in 0..50 {
            let now = asks.deadline();
            assert!(now < answers.deadline());
            assert_eq!(asks.check(now, 0), Verdict::Probe);
            asks.probed(now);
            answers.received(now + MS);
            answers.peer_probed(now + MS);
            asks.received(now + 2 * MS);
        }
    }
}
