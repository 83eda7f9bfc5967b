//! Whether the calls of the application are watched: the log at level `trace`, or layers.

use crate::sync::atomic::{AtomicBool, Ordering};

static WATCHED: AtomicBool = AtomicBool::new(false);

/// Whether calls are watched. One relaxed load: while none is, that and one branch are all that a call of the data path
/// spends on it.
#[inline(always)]
pub fn on() -> bool {
    WATCHED.load(Ordering::Relaxed)
}

/// Calls are watched from now on.
pub(crate) fn turn_on() {
    WATCHED.store(true, Ordering::Relaxed);
}
