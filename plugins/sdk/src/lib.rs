//! What a plug-in in Rust stands on.
//!
//! A plug-in implements three traits, one per object: [`Provider`] (the plug-in itself), [`Nic`] (one
//! opening of a device) and [`Vi`] (its part of a VI), and names itself with [`plugin!`]. The macro makes
//! the C table and the data symbol; every operation is wrapped so that a panic stays inside. The host
//! holds the VI's lock during every operation of a [`Vi`], which is why they take `&mut self`.
//!
//! [`Port`] is the plug-in's view of the host's VI: queues, attributes, and what may be told to the host.
//! [`descriptor`] walks descriptors and [`region`] checks memory; both read the program's memory through
//! `vipl-guard`, so that a bad address ends as an error and never as a crash. [`settings`] reads what the user
//! has set. [`shm`], [`futex`] and [`thread`] are what plug-ins do with the system, each with the care that a
//! library inside somebody else's program needs. [`kit`] is the same for plug-ins in C: functions of the host's
//! table.
//!
//! ```text
//!   shim       the C table of a plug-in, made from its traits        transfer   a message into memory, or out of it
//!   host port  what the library offers: for the plug-in, for a VI    descriptor settings kit
//! ```

pub mod descriptor;
mod host;
pub mod kit;
mod port;
pub mod settings;
mod shim;
mod transfer;

/// The heap of the library and of each plug-in: it has a reserve for calls under way. A plug-in in Rust has no other.
#[global_allocator]
pub static HEAP: vipl_sys::reserve::Heap = vipl_sys::reserve::Heap::new();

pub use host::{Host, Link, Poll};
pub use port::{Entry, Port, Queue};
pub use shim::{Nic, Provider, Status, Vi, describe, table};
pub use vipl_guard as guard;
pub use vipl_plugin_abi as abi;
pub use vipl_rules::region;
pub use vipl_sys::{futex, shm, thread};

/// Makes the symbol `vipl_plugin_v1` for a [`Provider`].
#[macro_export]
macro_rules! plugin {
    ($provider:ty) => {
        /// What the library finds in this file.
        #[unsafe(no_mangle)]
        #[allow(non_upper_case_globals)]
        pub static vipl_plugin_v1: $crate::abi::vipl_plugin = $crate::table::<$provider>();
    };
}
