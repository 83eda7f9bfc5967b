//! What the fuzz targets share: a way to read an input bit by bit, a host that drives a plug-in without
//! the library, and memory whose every byte is watched.

pub mod host;
pub mod input;
pub mod memory;
pub mod plain;
