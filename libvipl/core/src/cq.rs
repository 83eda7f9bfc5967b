//! Completion queues (spec §3.24 to §3.29, §7).

mod calls;
mod hot;
mod lent;
pub(crate) mod queue;

pub(crate) use calls::{attach, detach, owner, release};
pub use calls::{create, destroy, done, done_fast, notify, resize, wait};
#[cfg(test)]
pub(crate) use calls::{create_on, waiting};
pub use queue::Entry;
