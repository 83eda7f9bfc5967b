//! What a test program keeps until its end. Statics are never dropped, and an agent in one would outlive its tests.

use std::any::Any;
use std::sync::{Mutex, PoisonError};

/// What is dropped at the end, last come first.
static KEPT: Mutex<Vec<Box<dyn Any + Send>>> = Mutex::new(Vec::new());

/// Drops a value when this process exits.
pub fn until_exit(value: impl Any + Send) {
    let mut kept = KEPT.lock().unwrap_or_else(PoisonError::into_inner);
    if kept.is_empty() {
        // SAFETY: a function that may be called at any time.
        let status = unsafe { libc::atexit(end) };
        assert_eq!(status, 0, "atexit has no room");
    }
    kept.push(Box::new(value));
}

extern "C" fn end() {
    let kept = std::mem::take(&mut *KEPT.lock().unwrap_or_else(PoisonError::into_inner));
    kept.into_iter().rev().for_each(drop);
}
