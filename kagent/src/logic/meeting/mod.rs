//! Two partners have found each other.

pub(crate) mod attach;
pub(crate) mod join;
pub(crate) mod offer;
