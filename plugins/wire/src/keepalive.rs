//! Keepalive: PROBEs to a silent peer, and the decision that it is dead.
//!
//! After two seconds of silence a PROBE is sent, and another one every second. Meanwhile this side checks four times a
//! second, and only time between two checks counts, up to a limit: if a check is late, this side had no processor, and
//! frames that it has not read itself are no silence of the peer. So a peer is dead after many checks without a frame,
//! never after a few and a long time.
//!
//! A process has many connections, and loses frames if it has too little processor time to read them. A connection
//! whose process is heard on another connection may be silent for much longer.

use crate::config::NEVER;

/// Silence before the first PROBE, and interval of PROBEs.
const PROBE_AFTER_NS: u64 = 2_000_000_000;
const PROBE_EVERY_NS: u64 = 1_000_000_000;
/// Interval of checks after the first PROBE.
const CHECK_EVERY_NS: u64 = 250_000_000;
/// Limit of what counts between two checks.
const STEP_MAX_NS: u64 = 2 * CHECK_EVERY_NS;
/// Permitted silence of one connection while its process is heard on others.
const ALONE_NS: u64 = 58_000_000_000;

/// Result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Nothing.
    Wait,
    /// Send a PROBE.
    Probe,
    /// The peer is dead.
    Dead,
}

/// The keepalive of one connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Keepalive {
    heard_ns: u64,
    /// A PROBE is unanswered.
    probing: bool,
    probe_at_ns: u64,
    check_at_ns: u64,
    checked_ns: u64,
    /// When the process of the peer was last heard from on any connection.
    process_heard_ns: u64,
    /// Counted silence of this connection since the first PROBE, and of the process.
    silent_ns: u64,
    process_silent_ns: u64,
    patience_ns: u64,
}

impl Keepalive {
    /// Starts now. After `probes` unanswered PROBEs the peer is dead.
    pub(crate) fn new(now_ns: u64, probes: u32) -> Keepalive {
        Keepalive {
            heard_ns: now_ns,
            probing: false,
            probe_at_ns: NEVER,
            check_at_ns: now_ns + PROBE_AFTER_NS,
            checked_ns: now_ns,
            process_heard_ns: now_ns,
            silent_ns: 0,
            process_silent_ns: 0,
            patience_ns: u64::from(probes) * PROBE_EVERY_NS,
        }
    }

    /// A frame of the peer has arrived.
    #[inline(always)]
    pub(crate) fn received(&mut self, now_ns: u64) {
        self.heard_ns = now_ns;
        self.probing = false;
    }

    /// When the peer was last heard from.
    pub(crate) fn last_ns(&self) -> u64 {
        self.heard_ns
    }

    /// Whether a PROBE is unanswered.
    pub(crate) fn is_probing(&self) -> bool {
        self.probing
    }

    /// When to call [`Keepalive::check`].
    #[inline(always)]
    pub(crate) fn deadline(&self) -> u64 {
        self.check_at_ns
    }

    /// Checks, after all frames that have arrived were processed. `process_heard_ns` is when the process of the peer
    /// was last heard from on any connection.
    pub(crate) fn check(&mut self, now_ns: u64, process_heard_ns: u64) -> Verdict {
        if !self.probing {
            self.check_at_ns = self.heard_ns + PROBE_AFTER_NS;
            if self.check_at_ns > now_ns {
                return Verdict::Wait;
            }
            self.probing = true;
            (self.silent_ns, self.process_silent_ns) = (0, 0);
            self.process_heard_ns = process_heard_ns;
            self.probe_at_ns = now_ns;
        } else {
            let step = now_ns.saturating_sub(self.checked_ns).min(STEP_MAX_NS);
            self.silent_ns += step;
            self.process_silent_ns += step;
        }
        self.checked_ns = now_ns;
        self.check_at_ns = now_ns + CHECK_EVERY_NS;
        if process_heard_ns > self.process_heard_ns {
            self.process_heard_ns = process_heard_ns;
            self.process_silent_ns = 0;
        }
        if self.process_silent_ns >= self.patience_ns || self.silent_ns >= ALONE_NS {
            Verdict::Dead
        } else if self.probe_at_ns <= now_ns {
            Verdict::Probe
        } else {
            Verdict::Wait
        }
    }

    /// A PROBE was sent.
    pub(crate) fn probed(&mut self, now_ns: u64) {
        self.probe_at_ns = now_ns + PROBE_EVERY_NS;
    }
}
