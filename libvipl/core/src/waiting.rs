//! Waits of the application, in slices. Between two slices the entry point acts on a cancellation of the
//! thread, which can be neither queried without ending the thread nor waited for: the C library does not wake
//! a thread with cancellation disabled ([decision 76](../../../docs/decisions/0076-cancellation.md)).

use std::time::Duration;

use vipl_sys::clock::Instant;

/// Longest time that a cancelled thread continues to sleep. Shorter slices would wake idle processes.
const SLICE: Duration = Duration::from_secs(2);

/// A wait in progress. Dropping it before it has a result gives it up, and leaves its place to other waiters.
pub trait Wait {
    /// The result.
    type Found;

    /// Waits for one slice. `None`: the wait continues, and the calling thread may be cancelled before the
    /// next slice.
    fn slice(&mut self) -> Option<Self::Found>;
}

/// The immediate result of a call that may wait.
pub enum Begun<W: Wait> {
    /// The call is complete.
    Over(W::Found),
    /// The call waits.
    Waits(W),
}

impl<W: Wait> Begun<W> {
    /// Waits for the result, for threads that are not cancelled.
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

/// Whether the deadline of a wait has passed.
pub(crate) fn is_over(deadline: Option<Instant>) -> bool {
    deadline.is_some_and(|deadline| Instant::now() >= deadline)
}
