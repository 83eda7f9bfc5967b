//! The bounds of every table, so that no process can make the agent grow without end, and no user can take
//! what other users need.
//!
//! A call beyond a bound is answered with `Status::RESOURCE` and with the bound; a process beyond a bound is
//! told so and not taken. What is counted per user is a *budget* (`accounts.rs`):
//!
//! ```text
//!   a user may have   min(per_user, (room - what all others have) / 2)
//! ```
//!
//! so one user can take at most half of what the others leave, and there is always something left for one
//! who comes later. An agent of one user gives him all its room, up to `per_user`.

#![forbid(unsafe_code)]

use kagent_proto::Budget;

/// The bounds of one budget.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Of all users together.
    pub room: usize,
    /// Of one user.
    pub per_user: usize,
}

/// The bounds of a budget. That of descriptors is what the system gives the agent, if that is less.
pub const fn bounds(budget: Budget) -> Bounds {
    let (room, per_user) = match budget {
        Budget::Processes => (4096, 1024),
        Budget::Nics => (32_768, 4096),
        // About 1.6 KB each.
        Budget::Calls => (65_536, 8192),
        // About 300 bytes each. A connection within one host has two sides.
        Budget::Connections => (393_216, 131_072),
        Budget::Endpoints => (32_768, 4096),
        Budget::Exchanges => (32_768, 8192),
        Budget::Descriptors => (1 << 20, 1 << 20),
        Budget::Names => (65_536, 8192),
        Budget::Parted => (65_536, 32_768),
    };
    Bounds { room, per_user }
}

/// Descriptors that the runtime needs for itself: poll set, signals, log, listener, links.
pub const DESCRIPTORS_RESERVED: usize = 64;
/// Descriptors that the agent holds for each process: its socket and the watch on its life.
pub const DESCRIPTORS_PER_CLIENT: usize = 2;
/// Most NICs that one process may have open.
pub const NICS_PER_CLIENT_MAX: usize = 64;
/// Most data sockets of one process.
pub const ENDPOINTS_PER_CLIENT_MAX: usize = 64;
/// Most calls of one process that may be waiting for something.
pub const CALLS_PER_CLIENT_MAX: usize = 4096;
/// Most connections and unanswered connection handles of one process.
pub const CONNECTIONS_PER_CLIENT_MAX: usize = 65_536;
/// How long a discriminator on an interface stays with its user after the last wait on it, in milliseconds.
/// A server that accepts one request at a time is not waiting in between; so long it may take.
pub const NAME_GRACE_MS: u64 = 5000;
/// How long an adopted side of a connection waits for the other side, in milliseconds. A process comes
/// as soon as it notices that its agent has gone; only one that is stopped or dead takes so long.
pub const ADOPT_TIME_MS: u64 = 10_000;
/// Most exchanges on one link that other hosts began. What they begin beyond it is not answered.
pub const EXCHANGES_PER_LINK_MAX: usize = 16_384;
/// Most of them that wait for a server or are remembered after their end. One host may have half of what the
/// others leave. What other hosts begin beyond it meets a server that waits at that moment, or is dropped:
/// it is repeated.
pub const IDLE_EXCHANGES_PER_LINK_MAX: usize = 8192;
/// Most descriptors that a NIC may bring for its partners.
pub const NIC_FDS_MAX: usize = 2;
/// Size of a page; the shared segment of a connection is a whole number of these, at least one.
pub const PAGE_BYTES: u32 = 4096;
