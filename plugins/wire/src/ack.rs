//! Delayed acknowledgements.

use crate::config::NEVER;

/// Received frames after which an acknowledgement is not delayed any longer.
const EVERY: u16 = 8;

/// The acknowledgement that this side owes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Acks {
    owed: u16,
    urgent: bool,
    due_ns: u64,
    delay_ns: u64,
}

impl Acks {
    pub(crate) fn new(delay_ns: u64) -> Acks {
        Acks {
            owed: 0,
            urgent: false,
            due_ns: NEVER,
            delay_ns,
        }
    }

    /// A frame has been processed.
    #[inline(always)]
    pub(crate) fn owe(&mut self, now_ns: u64) {
        // A peer that ignores the window may send more frames than this can count.
        self.owed = self.owed.saturating_add(1);
        if self.owed == 1 {
            self.due_ns = now_ns + self.delay_ns;
        }
        self.urgent |= self.owed >= EVERY;
    }

    /// Acknowledge at once: the peer has asked for it or sends frames again, or frames are missing.
    pub(crate) fn hurry(&mut self, now_ns: u64) {
        self.urgent = true;
        self.due_ns = now_ns;
    }

    /// A frame with an acknowledgement has been sent; `whole`: it included the map of missing frames.
    #[inline(always)]
    pub(crate) fn sent(&mut self, whole: bool) {
        if whole || !self.urgent {
            (self.owed, self.urgent, self.due_ns) = (0, false, NEVER);
        }
    }

    pub(crate) fn is_owed(&self) -> bool {
        self.due_ns != NEVER
    }

    pub(crate) fn is_due(&self, now_ns: u64) -> bool {
        self.urgent || self.due_ns <= now_ns
    }

    pub(crate) fn due_ns(&self) -> u64 {
        self.due_ns
    }
}
