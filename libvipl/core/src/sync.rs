//! What threads share: locks of [`vipl_sys`], atomics, and cells that are written once.
//!
//! The cell is not the standard library's, which ThreadSanitizer does not see into: this one is compiled with us.

pub(crate) use std::sync::atomic;

pub(crate) use once_cell::sync::OnceCell as OnceLock;
pub(crate) use vipl_sys::mutex::{Condvar, Mutex, MutexGuard};
