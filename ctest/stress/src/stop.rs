//! The end of a run, which the supervisor asks for and every loop of a party looks for.

use std::sync::atomic::{AtomicBool, Ordering};

static STOP: AtomicBool = AtomicBool::new(false);

/// Asks all loops of this process to end.
pub(crate) fn request() {
    STOP.store(true, Ordering::Relaxed);
}

/// Whether the supervisor wants an end.
pub(crate) fn stopping() -> bool {
    STOP.load(Ordering::Relaxed)
}
