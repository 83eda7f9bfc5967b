//! Yielding the processor after empty polls of the application (`vipl_sys::idle`).
//!
//! The application's threads count empty polls, and yield more or less often between the limits [`OFTEN`] and the setting
//! `yield_after`. Beside threads that compute they poll for a while and then sleep for a short time, 0.2 ms at most, which
//! ends when the NIC has something, like a wait ([`short_sleep`](super::wait::short_sleep)). A thread begins with few polls
//! ([`FIRST`]), because with many polling threads a yield lasts as long as one turn of all others.

use std::cell::Cell;
use std::time::Duration;

use vipl_sys::idle::{Action, Idle, Limits, alone_ns};

use crate::clock;
use crate::settings::Settings;
use crate::sync::OnceLock;

/// Empty polls counted at a time, and the minimum before a yield.
pub(crate) const OFTEN: u32 = 8;
/// Empty polls before the first yield.
const FIRST: u32 = 64;
/// How long a thread polls beside threads that compute before it sleeps, in nanoseconds. A peer that runs has answered by
/// then; twice the time wastes more of the thread's own time slice while the peer does not run.
const PATIENCE_NS: u64 = 20_000;
/// A yield of at least this many nanoseconds ran a thread that does not poll. It is longer than a round of a
/// few dozen polling threads, and shorter than a time slice of a kernel with 250 ticks per second.
const LONG_NS: u64 = 3_000_000;

fn limits(settings: &Settings) -> &'static Limits {
    static LIMITS: OnceLock<Limits> = OnceLock::new();
    LIMITS.get_or_init(|| {
        let most = settings.number("yield_after");
        Limits {
            first: most.min(FIRST.into()),
            least: most.min(OFTEN.into()),
            most,
            alone_ns: alone_ns(),
            long_ns: LONG_NS,
            patience_ns: PATIENCE_NS,
            in_pairs: true,
        }
    })
}

/// Measures the limits of [`yield_processor`], off the data path.
pub(crate) fn prepare(settings: &Settings) {
    limits(settings);
}

/// The empty polls of one thread.
#[derive(Clone, Copy)]
struct Polls {
    /// Number since the last yield or short sleep.
    empty: u32,
    idle: Idle,
}

thread_local! {
    static POLLS: Cell<Polls> = const { Cell::new(Polls { empty: 0, idle: Idle::new() }) };
    static MAY: Cell<bool> = const { Cell::new(true) };
}

/// Sets whether empty polls of the calling thread may yield its processor; returns the previous value. If a
/// thread polls while it holds a lock, all threads that wait for the lock wait for the yield as well.
pub fn set_may_yield(may: bool) -> bool {
    MAY.replace(may)
}

/// Whether [`yield_processor`] is due after this number of consecutive empty polls of a queue.
#[inline(always)]
pub(crate) fn is_due(row: u32) -> bool {
    row.is_multiple_of(OFTEN)
}

/// Whether this is the first time in a sequence of empty polls.
pub(crate) fn begins(row: u32) -> bool {
    row == OFTEN
}

/// Result of [`yield_processor`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Yielded {
    /// The thread keeps the processor.
    No,
    /// Other threads could use the processor for this time.
    For(Duration),
    /// The thread should sleep for a short time (`wait::short_sleep`).
    Sleep,
}

/// Counts [`OFTEN`] empty polls of the calling thread, which holds no lock, and yields if it is due.
/// `begins`: earlier polls are not counted.
pub(crate) fn yield_processor(settings: &Settings, begins: bool) -> Yielded {
    after_polls(settings, |polls, limits| {
        if begins {
            polls.empty = OFTEN;
            polls.idle.found();
        }
        polls.idle.next(polls.empty.into(), clock::now_ns, limits)
    })
}

/// The same in a wait, which sleeps when its polls are over and never here. The polls of several waits are counted
/// together.
pub(crate) fn yield_in_wait(settings: &Settings) -> Yielded {
    after_polls(settings, |polls, limits| {
        let is_due = polls.idle.is_due(polls.empty.into(), limits);
        match is_due && !polls.idle.is_beside_others(clock::now_ns()) {
            true => Action::Yield,
            false => Action::Poll,
        }
    })
}

fn after_polls(settings: &Settings, next: impl FnOnce(&mut Polls, &Limits) -> Action) -> Yielded {
    let limits = limits(settings);
    if limits.most == 0 || !MAY.get() {
        return Yielded::No;
    }
    let mut polls = POLLS.get();
    polls.empty = polls.empty.saturating_add(OFTEN);
    let yielded = match next(&mut polls, limits) {
        Action::Poll => Yielded::No,
        Action::Sleep => {
            polls.empty = 0;
            Yielded::Sleep
        }
        Action::Yield => {
            polls.empty = 0;
            let from = clock::now_ns();
            std::thread::yield_now();
            let to = clock::now_ns();
            polls.idle.yielded(from, to, limits);
            Yielded::For(Duration::from_nanos(to.saturating_sub(from)))
        }
    };
    POLLS.set(polls);
    yielded
}
