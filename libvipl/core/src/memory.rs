//! Registered memory and protection tags.
//!
//! ```text
//!   register (VipRegisterMem, VipDeregisterMem ...) ──▶ mapped, table ──┐
//!   ptag (VipCreatePtag, VipDestroyPtag) ───────────▶ tags ─────────────┴── tables belong to a NIC
//!   alloc (vipl_alloc, vipl_free), register ────────▶ allocated             belongs to the process
//! ```
//!
//! Both tables of a NIC share one lock, because a region uses a tag, and most calls need both.

mod alloc;
pub(crate) mod allocated;
mod mapped;
pub mod ptag;
mod register;
pub(crate) mod table;
mod tags;

pub use alloc::{allocate, free};
#[cfg(test)]
pub(crate) use register::register_on;
pub use register::{deregister, query, register, set_attributes};

use table::Regions;
use tags::Ptags;
use vipl_plugin_abi::vipl_nic_info;

/// The regions and tags of a NIC.
pub(crate) struct Memory {
    pub(crate) regions: Regions,
    pub(crate) ptags: Ptags,
    /// Calls of VipSetMemAttributes between their two looks at the tables.
    changing: u32,
}

impl Memory {
    /// Empty tables of a NIC, whose handles differ from those of a NIC with another seed.
    pub(crate) fn new(info: &vipl_nic_info, seed: u32) -> Self {
        Memory {
            regions: Regions::new(info.regions, info.regions_max, seed),
            ptags: Ptags::new(seed, info.ptags_max),
            changing: 0,
        }
    }
}
