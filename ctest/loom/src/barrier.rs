//! What the biased lock needs of the machine: here both sides of the race execute a fence, and a lock is
//! earned at once.

use std::cell::Cell;

use loom::sync::atomic::{Ordering, fence};

pub(crate) const OWNERS: usize = 4;
pub(crate) const STREAK: u32 = 1;

loom::thread_local! {
    static ME: Cell<usize> = Cell::new(0);
}

/// Names the calling thread; not 0.
pub(crate) fn be(number: usize) {
    ME.with(|me| me.set(number * 2 * OWNERS));
}

pub(crate) fn this_thread() -> usize {
    ME.with(Cell::get)
}

pub(crate) fn works() -> bool {
    true
}

pub(crate) fn light() {
    fence(Ordering::SeqCst);
}

pub(crate) fn heavy() {
    fence(Ordering::SeqCst);
}

/// A thread that has waited so often gives up (`patiently`). Of several waiting threads loom always lets the
/// same one go on, so that some schedules never end; they show nothing that shorter ones do not.
const ROUNDS_MAX: u32 = 3;

struct GaveUp;

pub(crate) fn back_off(rounds: &mut u32) {
    *rounds += 1;
    if *rounds > ROUNDS_MAX {
        std::panic::resume_unwind(Box::new(GaveUp));
    }
    loom::thread::yield_now();
}

/// Runs something in which `back_off` may give up; `None` then.
pub(crate) fn patiently<R>(body: impl FnOnce() -> R) -> Option<R> {
    match std::panic::catch_unwind(std::panic::AssertUnwindSafe(body)) {
        Ok(result) => Some(result),
        Err(panic) if panic.is::<GaveUp>() => None,
        Err(panic) => std::panic::resume_unwind(panic),
    }
}
