//! Completion queues (spec §3.24 to §3.29, §7).

mod calls;
mod event;
mod hot;
mod lent;
pub(crate) mod queue;

pub use calls::{arm, create, destroy, done, done_fast, fd, notify, resize, wait};
pub(crate) use calls::{attach, detach, owner, release};
#[cfg(test)]
pub(crate) use calls::{create_on, waiting};
pub use queue::Entry;
