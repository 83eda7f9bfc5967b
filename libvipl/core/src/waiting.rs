//! Waits of the application, in slices. Between two of them the edge of the library looks whether the thread has been
//! cancelled, which cannot be asked without ending it, nor waited for: the C library wakes no thread that has cancellation
//! switched off ([decision 76](../../../docs/decisions/0076-cancellation.md)).

use std::time::Duration;

use vipl_sys::clock::Instant;

/// The longest that a cancelled thread sleeps on. Shorter slices would wake processes that have nothing to do.
const SLICE: Duration = Duration::from_secs(1);

/// A wait that has begun. One that is dropped before it has found anything is given up, and leaves its place to others.
pub trait Wait {
    /// What is waited for.
    type Found;

    /// Waits for one slice. `None`: the wait goes on, and the calling thread may be cancelled before the next slice.
    fn slice(&mut self) -> Option<Self::Found>;
}

/// What a call that may wait has come to at once.
pub enum Begun<W: Wait> {
    /// Its end.
    Over(W::Found),
    /// It waits.
    Waits(W),
}

impl<W: Wait> Begun<W> {
    /// Waits for the end, for threads that are not cancelled.
    pub fn finish(self) -> W::Found {
        match self {
            Begun::Over(found) => found,
            Begun::Waits(mut wait) => loop {
                if let Some(found) = wait.slice() {
                    return found;
                }
            },
        }
    }
}

/// The end of a slice that begins now, and of the wait if that is sooner.
pub(crate) fn slice_end(deadline: Option<Instant>) -> Instant {
    let end = Instant::now() + SLICE;
    deadline.map_or(end, |deadline| deadline.min(end))
}

/// Whether a wait has lasted as long as it may.
pub(crate) fn is_over(deadline: Option<Instant>) -> bool {
    deadline.is_some_and(|deadline| Instant::now() >= deadline)
}
