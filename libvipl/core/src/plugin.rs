//! Plug-ins: finding and loading them, the functions that they call, and the plug-in of a device name.

mod file;
mod folders;
pub(crate) mod host;
pub(crate) mod layer_host;
pub(crate) mod layers;
pub(crate) mod loaded;
pub(crate) mod loader;
pub(crate) mod map;
