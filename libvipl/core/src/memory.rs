//! Registered memory and protection tags.
//!
//! ```text
//!   register (VipRegisterMem, VipDeregisterMem ...) ──▶ mapped, table ──┐
//!   ptag (VipCreatePtag, VipDestroyPtag) ───────────▶ tags ─────────────┴── tables belong to a NIC
//! ```

mod mapped;
pub mod ptag;
mod register;
pub(crate) mod table;
pub(crate) mod tags;

#[cfg(test)]
pub(crate) use register::register_on;
pub use register::{deregister, query, register, set_attributes};
