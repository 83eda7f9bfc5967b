//! Search for the largest frame that the path carries (RFC 8899, DPLPMTUD).
//!
//! A *trial* of a size sends a TRY of [`CONTROL`] bytes and one of that size. The peer answers each with a TRIED. A
//! trial fails only if the short TRY was answered: the silence of a path that carries nothing has no meaning. The
//! loss of a TRY does not count as congestion.
//!
//! ```text
//!   shared path:  BASE ──▶ the interface's size ──▶ 1472 ──▶ halving ──▶ wait ──▶ anew after ten minutes
//!                  ▲
//!   any path:      └── the size in use, at repeated timeouts: short ones pass, it does not (a black hole)
//! ```

use crate::config::NEVER;

/// Every path carries frames of this size (`BASE_PLPMTU` of RFC 8899).
const BASE: u16 = 1200;
/// Used if the base does not pass: frames in IPv4 packets of the 576 bytes that every host accepts.
const FLOOR: u16 = 548;
/// Frames in a packet of 1500 bytes over IPv4: the most common limit.
const USUAL: u16 = 1472;
/// Length of the short TRY, which should always pass.
pub(crate) const CONTROL: u16 = 64;
/// Failed trials after which a size counts as too large.
const TRIALS: u8 = 3;
/// The same for the size in use: a lossy path must not make it look too large.
const TRIALS_IN_USE: u8 = 6;
/// The search ends when at most this many bytes can be gained.
const STEP: u16 = 8;
/// Shortest time to wait for an answer.
const WAIT_MIN_NS: u64 = 100_000_000;
/// Retry interval when the device is full.
const RETRY_NS: u64 = 1_000_000;
/// Pause of a search on a path that carries nothing.
const PAUSE_NS: u64 = 15_000_000_000;
/// When a search restarts that ended below the interface's size (`PMTU_RAISE_TIMER`).
const RAISE_NS: u64 = 600_000_000_000;
/// How often the size in use is confirmed on a connection without acknowledgements (`CONFIRMATION_TIMER`).
const CONFIRM_NS: u64 = 15_000_000_000;

/// Effect of an answer or a deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    Nothing,
    /// The search has ended; the size in use stays.
    Found,
    /// The path stopped carrying the size in use.
    BlackHole,
}

/// Frames of a trial that have been sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asked {
    Nothing,
    /// The short TRY; that of the size in question follows at once. In this order they do not leave as one train,
    /// which a router forwards or drops as a whole.
    Control,
    Both,
}

/// The search on one path.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Search {
    /// Largest frame in use.
    size: u16,
    /// The interface's limit.
    most: u16,
    /// Smallest size that is known not to pass.
    beyond: u16,
    /// The size on trial: above `size` during the search, `size` itself to confirm it. 0: none.
    tried: u16,
    failed: u8,
    silent: u8,
    asked: Asked,
    /// The short TRY has been answered.
    control: bool,
    due_ns: u64,
    raise_ns: u64,
    /// [`CONFIRM_NS`], or never.
    confirm_every_ns: u64,
}

impl Search {
    /// `shared`: the path is unknown and the size is searched; otherwise it is the interface's. `blind`: there are no
    /// acknowledgements.
    pub(crate) fn new(most: u16, shared: bool, blind: bool, now_ns: u64) -> Search {
        let mut search = Search {
            size: if shared { most.min(BASE) } else { most },
            most,
            beyond: most.saturating_add(1),
            tried: 0,
            failed: 0,
            silent: 0,
            asked: Asked::Nothing,
            control: false,
            due_ns: NEVER,
            raise_ns: NEVER,
            confirm_every_ns: if shared && blind { CONFIRM_NS } else { NEVER },
        };
        if shared {
            search.next(now_ns);
        }
        search
    }

    /// Largest frame in use.
    pub(crate) fn size(&self) -> u16 {
        self.size
    }

    /// Sizes above this one are not used any more.
    pub(crate) fn limit(&mut self, bytes: u16) {
        self.most = self.most.min(bytes);
        self.size = self.size.min(bytes);
        self.beyond = self.beyond.min(self.most.saturating_add(1));
        if self.tried > self.most {
            self.tried = self.size;
        }
    }

    /// When to call [`Search::due`].
    pub(crate) fn deadline(&self) -> u64 {
        self.due_ns
    }

    /// The size to use if the current one does not pass.
    fn below(&self) -> Option<u16> {
        [BASE, FLOOR].into_iter().find(|below| *below < self.size)
    }

    /// Begins the trial of a size.
    fn begin(&mut self, size: u16, now_ns: u64) {
        self.tried = size;
        (self.failed, self.silent, self.asked) = (0, 0, Asked::Nothing);
        self.due_ns = now_ns;
    }

    /// Continues the search, or ends it and returns [`Change::Found`].
    fn next(&mut self, now_ns: u64) -> Change {
        if self.beyond - self.size > STEP {
            let usual = self.size + STEP < USUAL && USUAL < self.beyond;
            let size = match self.beyond > self.most {
                true => self.most,
                false if usual => USUAL,
                false => self.size + (self.beyond - self.size) / 2,
            };
            self.begin(size, now_ns);
            return Change::Nothing;
        }
        if self.raise_ns == NEVER && self.size < self.most {
            self.raise_ns = now_ns + RAISE_NS;
        }
        self.rest(now_ns);
        Change::Found
    }

    /// Pauses until the next timer.
    fn rest(&mut self, now_ns: u64) {
        self.tried = 0;
        self.due_ns = self
            .raise_ns
            .min(now_ns.saturating_add(self.confirm_every_ns));
    }

    /// Frames were lost repeatedly: checks whether the size in use still passes.
    pub(crate) fn suspect(&mut self, now_ns: u64) {
        if self.tried != self.size && self.below().is_some() {
            self.begin(self.size, now_ns);
        }
    }

    /// The device is full: continues later.
    pub(crate) fn postpone(&mut self, now_ns: u64) {
        self.due_ns = now_ns + RETRY_NS;
    }

    /// The deadline has passed. Returns the length of the TRY to send now; `wait_ns` is how long an answer may take.
    #[cold]
    pub(crate) fn due(&mut self, now_ns: u64, wait_ns: u64) -> (Change, Option<u16>) {
        let mut change = Change::Nothing;
        if self.asked == Asked::Control {
            self.asked = Asked::Both;
            self.due_ns = now_ns + wait_ns.max(WAIT_MIN_NS);
            return (change, Some(self.tried));
        }
        if self.tried == 0 {
            if self.raise_ns <= now_ns {
                self.raise_ns = NEVER;
                self.beyond = self.most.saturating_add(1);
                self.next(now_ns);
            } else {
                self.begin(self.size, now_ns);
            }
        } else if self.asked == Asked::Both {
            change = self.unanswered(now_ns);
        }
        if self.tried == 0 || self.due_ns > now_ns {
            return (change, None);
        }
        (self.asked, self.control) = (Asked::Control, false);
        (change, Some(CONTROL))
    }

    /// The last TRY of this size was not answered.
    fn unanswered(&mut self, now_ns: u64) -> Change {
        if self.control {
            self.failed += 1;
        } else {
            self.silent += 1;
        }
        let confirms = self.tried == self.size;
        let trials = if confirms { TRIALS_IN_USE } else { TRIALS };
        if self.failed < trials {
            // If some trials are answered the path is lossy, not silent.
            if self.silent == trials && self.failed == 0 || self.silent == 3 * trials {
                self.next(now_ns);
                if self.tried != 0 {
                    self.due_ns = now_ns + PAUSE_NS;
                }
            }
            return Change::Nothing;
        }
        self.beyond = self.tried;
        if !confirms {
            return self.next(now_ns);
        }
        match self.below() {
            Some(below) => {
                (self.size, self.raise_ns) = (below, NEVER);
                self.next(now_ns);
                Change::BlackHole
            }
            None => {
                self.rest(now_ns);
                Change::Nothing
            }
        }
    }

    /// A TRY of this length has arrived.
    #[cold]
    pub(crate) fn answered(&mut self, bytes: u16, now_ns: u64) -> Change {
        if bytes == CONTROL {
            self.control = true;
        } else if bytes == self.tried && self.tried != 0 {
            self.size = bytes;
            return self.next(now_ns);
        }
        Change::Nothing
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// Carries frames of at most `path` bytes until nothing is left to try for a minute. Returns what has changed, and
    /// the number of trials.
    fn carry(search: &mut Search, path: u16, now: &mut u64) -> (Vec<Change>, u32) {
        let (mut changes, mut trials) = (Vec::new(), 0);
        let end = *now + 60_000 * MS;
        while search.deadline() <= end {
            *now = (*now).max(search.deadline());
            let (change, size) = search.due(*now, MS);
            changes.push(change);
            let Some(size) = size else { continue };
            trials += u32::from(size != CONTROL);
            *now += MS;
            if size <= path {
                changes.push(search.answered(size, *now));
            }
        }
        changes.retain(|change| *change != Change::Nothing);
        (changes, trials)
    }

    #[test]
    fn every_size_of_a_path_is_found() {
        let mut worst = 0;
        for most in [256, 1100, 1200, 1208, 1472, 1500, 8972, 9000] {
            for path in [
                548, 600, 1200, 1201, 1272, 1400, 1471, 1472, 1473, 4000, 8972, 9000,
            ] {
                let mut now = 5;
                let mut search = Search::new(most, true, false, now);
                let before = search.size();
                assert!(before <= 1200);
                let (changes, trials) = carry(&mut search, path, &mut now);
                worst = worst.max(trials);
                let best = most.min(path).max(before);
                assert!(search.size() <= best, "{most} {path}: {}", search.size());
                assert!(
                    best - search.size() < STEP,
                    "{most} {path}: {}",
                    search.size()
                );
                let searched = most + 1 - before > STEP;
                assert_eq!(changes, vec![Change::Found; usize::from(searched)]);
            }
        }
        assert!(worst < 40, "{worst} trials");
    }

    #[test]
    fn a_path_that_shrinks_and_grows_is_followed() {
        let mut now = 5;
        let mut search = Search::new(1472, true, false, now);
        carry(&mut search, 1472, &mut now);
        assert_eq!(
            (search.size(), search.deadline()),
            (1472, NEVER),
            "no more to win"
        );
        search.suspect(now);
        assert_eq!(
            carry(&mut search, 1472, &mut now),
            (vec![Change::Found], 1),
            "it was not the size"
        );
        search.suspect(now);
        let (changes, _) = carry(&mut search, 1300, &mut now);
        assert_eq!(changes, [Change::BlackHole, Change::Found]);
        assert!((1293..=1300).contains(&search.size()), "{}", search.size());
        search.suspect(now);
        let (changes, _) = carry(&mut search, 576, &mut now);
        assert_eq!(changes, [Change::BlackHole, Change::Found]);
        assert_eq!(search.size(), BASE);
        search.suspect(now);
        let (changes, _) = carry(&mut search, 576, &mut now);
        assert_eq!(changes, [Change::BlackHole, Change::Found]);
        assert!((569..=576).contains(&search.size()), "{}", search.size());
        assert!(search.deadline() > now, "later");
        now += RAISE_NS;
        carry(&mut search, 1472, &mut now);
        assert_eq!(search.size(), 1472);
    }

    #[test]
    fn a_path_that_carries_nothing_shows_nothing() {
        for shared in [false, true] {
            let mut now = 5;
            let mut search = Search::new(9000, shared, false, now);
            let before = search.size();
            search.suspect(now);
            let (changes, trials) = carry(&mut search, 0, &mut now);
            assert_eq!((changes, search.size()), (vec![], before));
            assert!(trials < 20, "{trials} in a minute");
            let (_, _) = carry(&mut search, 9000, &mut now);
            assert_eq!(search.size(), 9000, "when it is there again");
        }
    }

    #[test]
    fn without_acknowledgements_the_size_is_confirmed() {
        let mut now = 5;
        let mut search = Search::new(1472, true, true, now);
        let (_, trials) = carry(&mut search, 1472, &mut now);
        assert!((3..9).contains(&trials), "{trials} in a minute");
        let (changes, _) = carry(&mut search, 1350, &mut now);
        assert!(changes.contains(&Change::BlackHole));
        assert!((1343..=1350).contains(&search.size()));
    }
}
