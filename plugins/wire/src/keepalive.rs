//! Keepalive: PROBEs to a silent peer, and the decision that it is dead.
//!
//! After two seconds of silence a PROBE is sent, then one every second. Meanwhile this side checks four times per
//! second. The time between two checks counts as silence, up to a limit: if a check is late, this side had no
//! processor, and unread frames are not silence of the peer. So a peer counts as dead after many checks without a
//! frame, never after a few checks and a long time.
//!
//! A process has many connections, and drops frames if it has too little processor time to read them. Therefore a
//! connection may be silent for much longer if frames of the peer's process arrive on another connection.

use crate::config::NEVER;

/// Silence before the first PROBE, and interval of PROBEs.
const PROBE_AFTER_NS: u64 = 2_000_000_000;
const PROBE_EVERY_NS: u64 = 1_000_000_000;
/// Side 1 waits longer by this time, so that it answers the PROBEs of side 0 and sends none of its own.
const PROBE_LATER_NS: u64 = 250_000_000;
/// Interval of checks after the first PROBE.
const CHECK_EVERY_NS: u64 = 250_000_000;
/// Maximum time that counts between two checks.
const STEP_MAX_NS: u64 = 2 * CHECK_EVERY_NS;
/// Permitted silence of one connection while frames of the peer's process arrive on others.
const ONE_SILENT_NS: u64 = 58_000_000_000;

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
    /// Silence before the first PROBE.
    after_ns: u64,
    /// A PROBE is unanswered.
    probing: bool,
    probe_at_ns: u64,
    check_at_ns: u64,
    checked_ns: u64,
    /// When a frame of the peer's process was last received on any connection.
    process_ns: u64,
    /// Counted silence of this connection since the first PROBE, and of the process.
    silent_ns: u64,
    process_silent_ns: u64,
    patience_ns: u64,
}

impl Keepalive {
    /// Starts now, at this side. The peer counts as dead after `probes` unanswered PROBEs.
    pub(crate) fn new(now_ns: u64, side: u32, probes: u32) -> Keepalive {
        let after_ns = PROBE_AFTER_NS + u64::from(side & 1) * PROBE_LATER_NS;
        Keepalive {
            last_ns: now_ns,
            after_ns,
            probing: false,
            probe_at_ns: NEVER,
            check_at_ns: now_ns + after_ns,
            checked_ns: now_ns,
            process_ns: now_ns,
            silent_ns: 0,
            process_silent_ns: 0,
            patience_ns: u64::from(probes) * PROBE_EVERY_NS,
        }
    }

    /// Notes the arrival of a frame of the peer.
    #[inline(always)]
    pub(crate) fn received(&mut self, now_ns: u64) {
        self.last_ns = now_ns;
        if self.probing {
            self.probing = false;
            // Without a check in between, which would find nothing to do.
            self.check_at_ns = now_ns + self.after_ns;
        }
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
            self.check_at_ns = self.last_ns + self.after_ns;
            if self.check_at_ns > now_ns {
                return Verdict::Wait;
            }
            self.probing = true;
            (self.silent_ns, self.process_silent_ns) = (0, 0);
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
