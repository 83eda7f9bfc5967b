//! The bounds of every table, so that no process can make the agent grow without end.
//!
//! A call beyond a bound is answered with `Status::RESOURCE`; a process beyond a bound is not taken.

#![forbid(unsafe_code)]

/// Most processes at one time.
pub const CLIENTS_MAX: usize = 4096;
/// Most processes of one user at one time; below [`CLIENTS_MAX`] so that one user of a system-wide
/// agent cannot shut out the others.
pub const CLIENTS_PER_USER_MAX: usize = 1024;
/// Most NICs that one process may have open.
pub const NICS_PER_CLIENT_MAX: usize = 64;
/// Most data sockets of one process.
pub const ENDPOINTS_PER_CLIENT_MAX: usize = 64;
/// Most calls of one process that may be waiting for something.
pub const CALLS_PER_CLIENT_MAX: usize = 4096;
/// Most connections and unanswered connection handles of one process.
pub const CONNECTIONS_PER_CLIENT_MAX: usize = 65_536;
/// How long an adopted side of a connection waits for the other side, in milliseconds. A process comes
/// as soon as it notices that its agent has gone; only one that is stopped or dead takes so long.
pub const ADOPT_TIME_MS: u64 = 10_000;
/// Most sides that are remembered after they have left before their partner came.
pub const PARTED_MAX: usize = 65_536;
/// Most exchanges on one link that this host began, and as many that others began. Beyond it nothing is
/// begun, and what others begin is not answered.
pub const EXCHANGES_PER_LINK_MAX: usize = 16_384;
/// Most descriptors that a NIC may bring for its partners.
pub const NIC_FDS_MAX: usize = 2;
/// Size of a page; the shared segment of a connection is a whole number of these, at least one.
pub const PAGE_BYTES: u32 = 4096;
