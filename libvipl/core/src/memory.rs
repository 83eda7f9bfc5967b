//! Registered memory and protection tags.
//!
//! ```text
//!   register (VipRegisterMem, VipDeregisterMem ...) ──▶ mapped, table ──┐
//!   ptag (VipCreatePtag, VipDestroyPtag) ───────────▶ tags ─────────────┴── tables belong to a NIC
//! ```
//!
//! Both tables of a NIC have one lock, because a region uses a tag, and most calls need both.

mod mapped;
pub mod ptag;
mod register;
pub(crate) mod table;
pub(crate) mod tags;

#[cfg(test)]
pub(crate) use register::register_on;
pub use register::{deregister, query, register, set_attributes};

use table::Regions;
use tags::Ptags;

/// The regions and tags of a NIC.
pub(crate) struct Memory {
    pub(crate) regions: Regions,
    pub(crate) ptags: Ptags,
}
