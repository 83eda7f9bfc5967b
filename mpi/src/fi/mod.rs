//! What libfabric fixes for its providers: structures, tables of functions and constants, for versions 1.17 to 2.x.
//!
//! Later versions only append to these structures. Memory that libfabric reads beyond their end must be zero:
//! [`Slack`] stands behind every object, and `attributes` allocates with the same reserve.

mod constants;
mod info;
mod object;
mod ops;
#[cfg(test)]
mod tests;

pub(crate) use constants::*;
pub(crate) use info::*;
pub(crate) use object::*;
pub(crate) use ops::*;

/// Zeroed bytes behind an object, for members that later versions appended.
pub(crate) type Slack = [usize; 16];
/// The zeroes.
pub(crate) const SLACK: Slack = [0; 16];
