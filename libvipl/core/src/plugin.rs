//! Plug-ins: finding and loading them, the functions they call, and which of them a device name goes to.

pub(crate) mod host;
pub(crate) mod loader;
pub(crate) mod map;
