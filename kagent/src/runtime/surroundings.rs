//! The environment of this process: limits and restrictions inherited from the system and from the program
//! that started it.

#![forbid(unsafe_code)]

use std::os::unix::fs::MetadataExt;

use kagent_proto::Welcome;
use nix::sys::resource::{Resource, getrlimit};

use crate::budgets::DESCRIPTORS_RESERVED;

/// Number of descriptors available for clients and for the descriptors that they send.
pub(crate) fn descriptors() -> usize {
    getrlimit(Resource::RLIMIT_NOFILE).map_or(0, |(soft, _)| {
        let all = usize::try_from(soft).unwrap_or(usize::MAX);
        all - DESCRIPTORS_RESERVED.min(all / 2)
    })
}

/// Inherited restrictions that cannot be dropped, as reported to programs.
pub(crate) fn bits() -> u32 {
    let Ok(status) = std::fs::read_to_string("/proc/self/status") else {
        return Welcome::NO_PROC;
    };
    let seccomp = status
        .lines()
        .find_map(|line| line.strip_prefix("Seccomp:"));
    match seccomp.is_some_and(|mode| mode.trim() != "0") {
        true => Welcome::SECCOMP,
        false => 0,
    }
}

/// Inherited restrictions for the log, one line each.
pub(crate) fn inherited() -> Vec<String> {
    /// Below this limit only few processes can be served.
    const FEW: u64 = 1024;
    let mut all = Vec::new();
    let bits = bits();
    if bits & Welcome::SECCOMP != 0 {
        all.push("a seccomp filter of the program that started the agent".to_owned());
    }
    let mounts = |pid: &str| std::fs::read_link(format!("/proc/{pid}/ns/mnt")).ok();
    if let (Some(ours), Some(init)) = (mounts("self"), mounts("1"))
        && ours != init
    {
        all.push("a mount namespace that is not that of process 1".to_owned());
    }
    if bits & Welcome::NO_PROC != 0 {
        all.push("no /proc".to_owned());
    }
    if let Ok((_, hard)) = getrlimit(Resource::RLIMIT_NOFILE)
        && (hard as u64) < FEW
    {
        all.push(format!("a limit of {hard} descriptors"));
    }
    all
}

/// Inode of the network namespace; 0 if unknown, for example without `/proc`. Namespace numbers have 32 bits.
pub(crate) fn network() -> u32 {
    namespace("net")
}

/// Inode of the mount namespace.
pub(crate) fn mounts() -> u32 {
    namespace("mnt")
}

fn namespace(kind: &str) -> u32 {
    let namespace = std::fs::metadata(format!("/proc/thread-self/ns/{kind}"));
    namespace.map_or(0, |file| u32::try_from(file.ino()).unwrap_or(0))
}
