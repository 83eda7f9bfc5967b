//! Synchronisation: locks of [`vipl_sys`], atomics, and cells that are written once.
//!
//! The cell is not that of the standard library, which ThreadSanitizer cannot instrument; this one is
//! compiled with the library.

pub(crate) use std::sync::atomic;

pub(crate) use once_cell::sync::OnceCell as OnceLock;
pub(crate) use vipl_sys::mutex::{Condvar, Mutex, MutexGuard};
