//! Plug-ins: finding and loading them, the functions they call, and which of them a device name goes to.

mod file;
mod folders;
pub(crate) mod host;
pub(crate) mod loaded;
pub(crate) mod loader;
pub(crate) mod map;
