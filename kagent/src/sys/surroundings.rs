//! What the system gives this process.

#![forbid(unsafe_code)]

use std::os::unix::fs::MetadataExt;

use nix::sys::resource::{Resource, getrlimit};

use crate::limits::DESCRIPTORS_RESERVED;

/// How many descriptors there are for processes and what they bring.
pub(crate) fn descriptors() -> usize {
    getrlimit(Resource::RLIMIT_NOFILE).map_or(0, |(soft, _)| {
        let all = usize::try_from(soft).unwrap_or(usize::MAX);
        all - DESCRIPTORS_RESERVED.min(all / 2)
    })
}

/// The inode of our network namespace; 0: unknown, as where `/proc` is not mounted. The kernel's numbers of
/// namespaces have 32 bits.
pub(crate) fn network() -> u32 {
    let namespace = std::fs::metadata("/proc/thread-self/ns/net");
    namespace.map_or(0, |file| u32::try_from(file.ino()).unwrap_or(0))
}
