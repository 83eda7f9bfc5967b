//! The C tables between the library (the *host*) and a plug-in; `headers/vipl_plugin.h` is made from it.
//!
//! A plug-in exports one data symbol, [`vipl_plugin`] under the name `vipl_plugin_v1`. The host checks it
//! before any code of the plug-in runs, then calls `init` once per process with its own table
//! ([`vipl_host`]); the plug-in fills a [`vipl_provider`] table.
//!
//! Every structure that one side makes and the other reads starts with its size and grows at its end only; the
//! reader goes no further than the smaller of the two sizes. So a plug-in works with an older and a newer
//! library. The structures that both sides use while data moves have no size and are frozen within a major
//! version: [`vipl_entry`], [`vipl_queue`], [`vipl_region`], [`vipl_nic`], [`vipl_vi`]. The fingerprint covers them.
//!
//! Ownership: the host owns VIs, the queues of posted descriptors, completion queues, waiters,
//! regions, tags and the connection manager. The plug-in owns the transport: it takes posted
//! descriptors from the queues in order and completes them, as VIA hardware does.
//!
//! ```text
//!            host                                            plug-in
//!   VipPostSend ── lock VI ── queue[posted++] ── post_send ──▶ sends what it can
//!   VipRecvDone ── lock VI ── nothing done? ──── progress ───▶ takes what has arrived
//!                     ◀── completed (only if queue.signal) ──  status, DONE last, completed++
//!   agent: connected ─ lock VI ───────────────── attach ─────▶ maps the segment
//! ```
//!
//! Rules for every operation: the host holds the VI's lock during operations that take a `vipl_vi`, and
//! the plug-in calls the host functions that take a `vipl_vi` only from within such an operation. No
//! operation may unwind, use `errno` as a result, keep a pointer past the call unless its text says so,
//! or call a `Vip…` function. Unless its text says so an operation does not block.

#![no_std]
#![allow(non_camel_case_types)]

use core::ffi::{c_char, c_int};

mod constants;
mod layers;
mod objects;
mod tables;
pub mod text;

pub use constants::*;
pub use layers::*;
pub use objects::*;
pub use tables::*;

/// What a plug-in is; exported as `vipl_plugin_v1`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct vipl_plugin {
    /// `VIPL_PLUGIN_MAGIC`.
    pub magic: u64,
    /// `sizeof(vipl_plugin)` as the plug-in knows it.
    pub size: u32,
    /// `VIPL_PLUGIN_ABI_MAJOR`.
    pub abi_major: u16,
    /// `VIPL_PLUGIN_ABI_MINOR`.
    pub abi_minor: u16,
    /// `VIPL_PLUGIN_FINGERPRINT`.
    pub fingerprint: u64,
    /// `VIPL_KIND_*`.
    pub kind: u32,
    /// 0.
    pub reserved: u32,
    /// Name; the file is `libvipl_NAME.so`, that of a layer `libvipl_layer_NAME.so`.
    pub name: *const c_char,
    /// Version, for people.
    pub version: *const c_char,
    /// Feature bits that the host must know; unknown ones refuse the plug-in. None are defined yet.
    pub required: u64,
    /// Feature bits that the host may ignore.
    pub optional: u64,
    /// Called once per process. `out->size` is the host's: the plug-in writes no further than that, and sets
    /// `out->size` to `sizeof(vipl_provider)` as it knows it.
    pub init:
        Option<unsafe extern "C" fn(host: *const vipl_host, out: *mut vipl_provider) -> c_int>,
    /// Settings of this plug-in, or NULL.
    pub settings: *const vipl_setting,
    /// How many.
    pub setting_count: u32,
    /// 0.
    pub reserved_2: u32,
    /// Layers: called once per process instead of `init`, which is NULL; again in a child made by `fork`, which then
    /// starts anew. `out->size` as for `init`. Since minor version 2.
    pub init_layer:
        Option<unsafe extern "C" fn(host: *const vipl_layer_host, out: *mut vipl_layer) -> c_int>,
}
// SAFETY: constant data.
unsafe impl Sync for vipl_plugin {}

/// A setting that a plug-in declares, in a table of them. The user gives it as `VIPL_NAME` or
/// `VIPL_PLUGIN_NAME` in the environment, or as `name` in the table `[plugin]` of the configuration file.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct vipl_setting {
    /// `sizeof(vipl_setting)` as the plug-in knows it.
    pub size: u32,
    /// `VIPL_SETTING_*`.
    pub kind: u32,
    /// Lower-case letters, digits and `_`.
    pub name: *const c_char,
    /// Its unit or what it names, for people: "frames", "microseconds"; or NULL.
    pub unit: *const c_char,
    /// Its value when the user gives none, or NULL: `vipl_host.setting` then gives NULL.
    pub default_value: *const c_char,
    /// Smallest value, for the kinds that have one.
    pub minimum: u64,
    /// Largest value, for the kinds that have one.
    pub maximum: u64,
    /// One line that says what it does.
    pub help: *const c_char,
}
