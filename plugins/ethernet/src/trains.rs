//! Whether the frames of a connection travel in trains.
//!
//! Nothing is agreed in advance: the peer may be older, a driver may refuse trains, and a switch may drop them. A
//! connection that sends many frames at a time sends a train of two TRYs. If one is answered, trains arrive, and frames
//! join them from then on. A retransmission timeout ends that until a train of TRYs has been answered again.
//!
//! Trains have a socket of their own at the receiver, which takes single frames first. So that none is overtaken, a
//! frame leaves alone only if nothing is in flight: the first one of a message after a pause, for which each
//! microsecond counts.

use vipl_wire::{ASKS, Kind};

/// Frames behind others after which trains are worth a question.
const CROWD: u32 = 16;
/// Length of the TRYs.
pub(crate) const TRY: u16 = ASKS.start;
/// How long an answer may take at first, in nanoseconds; twice as long each time.
const WAIT_NS: u64 = 50_000_000;
/// Questions without an answer after which the peer knows no trains.
const ASKED_MAX: u32 = 5;
/// Timeouts of a connection after which trains are not used again.
const STOPPED_MAX: u32 = 8;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// They are not available, or not worth it.
    Never,
    /// Frames travel alone: there were few so far, or the peer has not answered.
    Alone,
    /// Two TRYs are being sent.
    Asking,
    /// Frames travel in trains.
    On,
}

/// The trains of one connection.
pub(crate) struct Trains {
    phase: Phase,
    /// Longest frame in a train.
    mtu: usize,
    /// Frames that were sent behind others.
    crowd: u32,
    asked: u32,
    stopped: u32,
    /// When to ask again.
    due_ns: u64,
}

impl Trains {
    /// `mtu`: the longest frame in a train; `None`: there are no trains.
    pub(crate) fn new(mtu: Option<usize>) -> Trains {
        Trains {
            phase: mtu.map_or(Phase::Never, |_| Phase::Alone),
            mtu: mtu.unwrap_or(0),
            crowd: 0,
            asked: 0,
            stopped: 0,
            due_ns: 0,
        }
    }

    /// Whether this frame joins a train.
    #[inline(always)]
    pub(crate) fn take(&self, frame: &[u8]) -> bool {
        match self.phase {
            Phase::Never | Phase::Alone => false,
            Phase::Asking => true,
            // What a search of the path sends has a fate of its own.
            Phase::On => frame.len() <= self.mtu && !Kind::Try.is_of(frame),
        }
    }

    /// Whether frames join trains, and one that nothing precedes does not.
    #[inline(always)]
    pub(crate) fn are_on(&self) -> bool {
        self.phase == Phase::On
    }

    /// Notes a frame that was sent behind others.
    #[inline(always)]
    pub(crate) fn note_crowd(&mut self) {
        self.crowd = self.crowd.saturating_add(1);
    }

    /// Whether to ask now.
    #[inline(always)]
    pub(crate) fn want_answer(&self, now: u64) -> bool {
        self.phase == Phase::Alone && self.crowd >= CROWD && self.due_ns <= now
    }

    /// Whether an answer may come.
    #[inline(always)]
    pub(crate) fn await_answer(&self) -> bool {
        self.phase == Phase::Alone && self.asked > 0
    }

    /// Two TRYs are being sent, which leave in one train.
    pub(crate) fn begin_to_ask(&mut self, now: u64) {
        self.phase = Phase::Asking;
        self.due_ns = now.saturating_add(WAIT_NS << self.asked);
        self.asked += 1;
    }

    /// They have been sent.
    pub(crate) fn end_asking(&mut self) {
        let last = self.asked >= ASKED_MAX;
        self.phase = if last { Phase::Never } else { Phase::Alone };
    }

    /// A TRY was answered. Returns the longest frame in a train.
    pub(crate) fn answered(&mut self) -> usize {
        self.phase = Phase::On;
        self.asked = 0;
        self.mtu
    }

    /// A frame was not acknowledged in time: perhaps trains do not arrive any more.
    #[cold]
    pub(crate) fn stop(&mut self) {
        if self.phase == Phase::On {
            self.stopped += 1;
            let last = self.stopped >= STOPPED_MAX;
            self.phase = if last { Phase::Never } else { Phase::Alone };
            self.due_ns = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DATA: [u8; 2] = [vipl_wire::VERSION, Kind::Data as u8];
    const A_TRY: [u8; 2] = [vipl_wire::VERSION, Kind::Try as u8];

    fn crowded() -> Trains {
        let mut trains = Trains::new(Some(100));
        (0..CROWD).for_each(|_| trains.note_crowd());
        trains
    }

    #[test]
    fn a_crowd_asks_and_an_answer_starts_trains() {
        let mut trains = Trains::new(Some(100));
        for _ in 0..CROWD {
            assert!(!trains.want_answer(7));
            trains.note_crowd();
        }
        assert!(trains.want_answer(7) && !trains.take(&DATA));
        trains.begin_to_ask(7);
        assert!(trains.take(&A_TRY));
        trains.end_asking();
        assert!(!trains.take(&DATA) && trains.await_answer() && !trains.want_answer(8));
        trains.answered();
        assert!(trains.are_on() && trains.take(&DATA) && !trains.take(&A_TRY));
        assert!(!trains.take(&[1; 101]), "too long");
    }

    #[test]
    fn a_peer_that_never_answers_is_asked_a_few_times() {
        let (mut trains, mut now, mut asked) = (crowded(), 0, 0);
        while trains.want_answer(now) {
            trains.begin_to_ask(now);
            trains.end_asking();
            assert!(!trains.want_answer(now + WAIT_NS - 1), "it has time");
            now += WAIT_NS << ASKED_MAX;
            asked += 1;
        }
        assert_eq!(asked, ASKED_MAX);
        assert!(!trains.take(&DATA) && !trains.await_answer());
    }

    #[test]
    fn a_timeout_stops_trains_until_the_next_answer() {
        let mut trains = crowded();
        for round in 0..STOPPED_MAX {
            assert!(trains.want_answer(1000), "round {round}");
            trains.begin_to_ask(1000);
            trains.end_asking();
            trains.answered();
            assert!(trains.take(&DATA));
            trains.stop();
            assert!(!trains.take(&DATA));
        }
        assert!(!trains.want_answer(u64::MAX), "often enough");
        let mut none = Trains::new(None);
        (0..CROWD).for_each(|_| none.note_crowd());
        assert!(!none.want_answer(u64::MAX) && !none.take(&DATA));
    }
}
