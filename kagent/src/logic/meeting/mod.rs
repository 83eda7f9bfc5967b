//! What happens when two partners are matched.

pub(crate) mod attach;
pub(crate) mod join;
pub(crate) mod offer;
