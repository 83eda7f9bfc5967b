//! Whether the frames of a connection travel in trains.
//!
//! Nothing is agreed in advance: the peer may be older, a driver may refuse trains, and a switch may drop them. A
//! connection that sends many frames at a time sends a train of two TRYs. If one is answered, trains arrive, and frames
//! join them from then on. The second retransmission timeout without an acknowledgement in between ends that until a
//! train of TRYs has been answered again.
//!
//! Trains have a socket of their own at the receiver, which takes single frames first. So that none is overtaken, a
//! frame leaves alone only if nothing is in flight: the first one of a message after a pause, for which each
//! microsecond counts.

use vipl_wire::{ASKS, Kind};

/// Frames behind others after which trains are worth a question.
const CROWD: u32 = 16;
/// Length of the TRYs.
pub(crate) const TRY: u16 = ASKS.start;
/// How long an answer may take at first, in nanoseconds. Each time without an answer, and each time that trains were soon
/// stopped again, the wait for the next question is twice as long, up to [`WAIT_MAX_NS`].
const WAIT_NS: u64 = 50_000_000;
/// The longest wait, for a peer that knows no trains.
const WAIT_MAX_NS: u64 = 60_000_000_000;
/// Trains that were on for so long were worth it, whatever has stopped them.
const WORTH_NS: u64 = 1_000_000_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// They are not available.
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
    /// Questions in a row without an answer, and answers in a row after which trains were soon stopped.
    failed: u32,
    asked: bool,
    /// When to ask again; while trains are on, since when.
    due_ns: u64,
}

impl Trains {
    /// `mtu`: the longest frame in a train; `None`: there are no trains.
    pub(crate) fn new(mtu: Option<usize>) -> Trains {
        Trains {
            phase: mtu.map_or(Phase::Never, |_| Phase::Alone),
            mtu: mtu.unwrap_or(0),
            crowd: 0,
            failed: 0,
            asked: false,
            due_ns: 0,
        }
    }

    /// Whether frames are begun in trains. [`Trains::take`] decides when their contents are known.
    #[inline(always)]
    pub(crate) fn are_built(&self) -> bool {
        matches!(self.phase, Phase::Asking | Phase::On)
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
        self.phase == Phase::Alone && self.asked
    }

    /// Two TRYs are being sent, which leave in one train.
    pub(crate) fn begin_to_ask(&mut self, now: u64) {
        self.phase = Phase::Asking;
        self.asked = true;
        self.fail(now);
    }

    /// They have been sent.
    pub(crate) fn end_asking(&mut self) {
        self.phase = Phase::Alone;
    }

    /// A TRY was answered. Returns the longest frame in a train.
    pub(crate) fn answered(&mut self, now: u64) -> usize {
        self.phase = Phase::On;
        self.asked = false;
        self.due_ns = now;
        self.mtu
    }

    /// A frame was repeatedly not acknowledged in time: perhaps trains do not arrive any more.
    #[cold]
    pub(crate) fn stop(&mut self, now: u64) {
        if self.phase == Phase::On {
            self.phase = Phase::Alone;
            if now.saturating_sub(self.due_ns) >= WORTH_NS {
                self.failed = 0;
            }
            self.fail(now);
        }
    }

    /// The next question is asked later.
    fn fail(&mut self, now: u64) {
        let wait = WAIT_NS << self.failed.min(16);
        self.due_ns = now.saturating_add(wait.min(WAIT_MAX_NS));
        self.failed += 1;
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
        assert_eq!(trains.answered(9), 100);
        assert!(trains.are_on() && trains.take(&DATA) && !trains.take(&A_TRY));
        assert!(!trains.take(&[1; 101]), "too long");
        let mut none = Trains::new(None);
        (0..CROWD).for_each(|_| none.note_crowd());
        assert!(!none.want_answer(u64::MAX) && !none.take(&DATA));
    }

    /// When the questions are asked if none is answered.
    fn asked(trains: &mut Trains, end: u64) -> Vec<u64> {
        let (mut now, mut all) = (0, Vec::new());
        while now < end {
            if trains.want_answer(now) {
                trains.begin_to_ask(now);
                trains.end_asking();
                all.push(now);
            }
            now += WAIT_NS;
        }
        all
    }

    #[test]
    fn a_peer_that_never_answers_is_asked_seldom() {
        let all = asked(&mut crowded(), 10 * WAIT_MAX_NS);
        let waits: Vec<u64> = all.windows(2).map(|two| two[1] - two[0]).collect();
        assert!(waits.windows(2).all(|two| two[1] <= 2 * two[0]));
        assert_eq!((waits[0], waits.last()), (WAIT_NS, Some(&WAIT_MAX_NS)));
        assert!(all.len() < 22, "{}", all.len());
    }

    #[test]
    fn trains_that_are_soon_stopped_are_tried_seldom() {
        let (mut trains, mut now, mut tries) = (crowded(), 0, 0);
        while now < 10 * WAIT_MAX_NS {
            if trains.want_answer(now) {
                trains.begin_to_ask(now);
                trains.end_asking();
                trains.answered(now);
                trains.stop(now + 1);
                assert!(!trains.take(&DATA));
                tries += 1;
            }
            now += WAIT_NS;
        }
        assert!(tries < 22, "{tries}");
        trains.begin_to_ask(now);
        trains.end_asking();
        trains.answered(now);
        now += WORTH_NS;
        trains.stop(now);
        assert!(trains.want_answer(now + WAIT_NS), "they were worth it");
    }
}
