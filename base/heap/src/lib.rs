//! The heap of the library and of each plug-in in Rust: the system's, with a reserve for calls under way.
//!
//! A crate of its own, because a program may have one global allocator: the library and a plug-in that a test links
//! together share it, and the agent and the tools keep the system's.

use vipl_sys::reserve::Heap;

/// The global allocator of everything that links this crate.
#[global_allocator]
pub static HEAP: Heap = Heap::new();
