//! When a partner that says nothing is dead.
//!
//! After two seconds of silence it is asked for a sign of life, and again every second. Meanwhile this side looks
//! four times a second, and only time between two such looks counts: if the second one comes late this side had
//! no processor, and what it did not take itself is no silence of the partner. So a partner is dead after many
//! looks that found nothing, never after a few and a long time.
//!
//! A process has many connections, and frames get lost where it has too little processor to take them. One whose
//! process is heard on another connection lives; this connection alone may be silent for much longer.

use crate::config::NEVER;

/// Silence after which the partner is asked for a sign of life, and how often it is asked.
const ASK_AFTER_NS: u64 = 2_000_000_000;
const ASK_EVERY_NS: u64 = 1_000_000_000;
/// How often this side looks meanwhile.
const LOOK_EVERY_NS: u64 = 250_000_000;
/// What counts between two looks, at most.
const STEP_MAX_NS: u64 = 2 * LOOK_EVERY_NS;
/// Silence of one connection while the partner's process is heard on others.
const ALONE_NS: u64 = 58_000_000_000;

/// What is to be done about the silence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Nothing.
    Wait,
    /// The partner is to be asked.
    Ask,
    /// The partner is dead.
    Dead,
}

/// The silence of one partner.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Silence {
    heard_ns: u64,
    /// A question has no answer yet.
    asking: bool,
    ask_at_ns: u64,
    look_at_ns: u64,
    looked_ns: u64,
    /// When the partner's process was last heard on any connection.
    life_ns: u64,
    /// What counts as silence of this connection since the first question, and as silence of the process.
    silent_ns: u64,
    deserted_ns: u64,
    patience_ns: u64,
}

impl Silence {
    /// The partner has just been heard of. So many questions without an answer are its end.
    pub(crate) fn new(now_ns: u64, questions: u32) -> Silence {
        Silence {
            heard_ns: now_ns,
            asking: false,
            ask_at_ns: NEVER,
            look_at_ns: now_ns + ASK_AFTER_NS,
            looked_ns: now_ns,
            life_ns: now_ns,
            silent_ns: 0,
            deserted_ns: 0,
            patience_ns: u64::from(questions) * ASK_EVERY_NS,
        }
    }

    /// The partner has said something.
    #[inline(always)]
    pub(crate) fn heard(&mut self, now_ns: u64) {
        self.heard_ns = now_ns;
        self.asking = false;
    }

    /// When it was last heard.
    pub(crate) fn heard_ns(&self) -> u64 {
        self.heard_ns
    }

    /// Whether a question has no answer yet.
    pub(crate) fn is_asking(&self) -> bool {
        self.asking
    }

    /// When [`Silence::look`] wants to be called.
    #[inline(always)]
    pub(crate) fn deadline(&self) -> u64 {
        self.look_at_ns
    }

    /// A look, after all frames that have arrived were taken. `life_ns` is when the partner's process was last
    /// heard on any connection.
    pub(crate) fn look(&mut self, now_ns: u64, life_ns: u64) -> Verdict {
        if !self.asking {
            self.look_at_ns = self.heard_ns + ASK_AFTER_NS;
            if self.look_at_ns > now_ns {
                return Verdict::Wait;
            }
            self.asking = true;
            (self.silent_ns, self.deserted_ns) = (0, 0);
            self.life_ns = life_ns;
            self.ask_at_ns = now_ns;
        } else {
            let step = now_ns.saturating_sub(self.looked_ns).min(STEP_MAX_NS);
            self.silent_ns += step;
            self.deserted_ns += step;
        }
        self.looked_ns = now_ns;
        self.look_at_ns = now_ns + LOOK_EVERY_NS;
        if life_ns > self.life_ns {
            self.life_ns = life_ns;
            self.deserted_ns = 0;
        }
        if self.deserted_ns >= self.patience_ns || self.silent_ns >= ALONE_NS {
            Verdict::Dead
        } else if self.ask_at_ns <= now_ns {
            Verdict::Ask
        } else {
            Verdict::Wait
        }
    }

    /// A question has left.
    pub(crate) fn asked(&mut self, now_ns: u64) {
        self.ask_at_ns = now_ns + ASK_EVERY_NS;
    }
}
