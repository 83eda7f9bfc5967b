//! Limits of every table: no process can make the agent grow without bound, and no user can take what other
//! users need.
//!
//! A call beyond a limit is answered with `Status::RESOURCE` and the limit; a process beyond a limit is
//! refused with the reason. Limits per user are *budgets* (`accounts.rs`):
//!
//! ```text
//!   a user may have   min(per_user, (room - what all others have) / 2)
//! ```
//!
//! so a user can take at most half of what the others leave, and something is always left for the next user.
//! An agent that serves one user gives it all room, up to `per_user`.

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

/// The limits of a budget. Descriptors are also limited by what the system gives the agent.
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

/// Descriptors reserved for the runtime: epoll, signals, log, listener, links.
pub const DESCRIPTORS_RESERVED: usize = 64;
/// Descriptors that the agent holds per client: its socket and its pidfd.
pub const DESCRIPTORS_PER_CLIENT: usize = 2;
/// Maximum open NICs per process.
pub const NICS_PER_CLIENT_MAX: usize = 64;
/// Maximum data sockets per process.
pub const ENDPOINTS_PER_CLIENT_MAX: usize = 64;
/// Maximum waiting calls per process.
pub const CALLS_PER_CLIENT_MAX: usize = 4096;
/// Maximum connections and unanswered connection handles per process.
pub const CONNECTIONS_PER_CLIENT_MAX: usize = 65_536;
/// Time a user keeps a discriminator on an interface after its last wait there, in milliseconds. A server
/// that accepts one request at a time is not waiting while it handles it.
pub const NAME_GRACE_MS: u64 = 5000;
/// Time an adopted side of a connection waits for the other side, in milliseconds. A process reports as soon
/// as it notices that its agent is gone; only a stopped or dead one takes this long.
pub const ADOPT_TIME_MS: u64 = 10_000;
/// Maximum exchanges on one link that other hosts started. Further ones are not answered.
pub const EXCHANGES_PER_LINK_MAX: usize = 16_384;
/// Maximum of these that wait for a server or are remembered after their end. One host may have half of what
/// the others leave. A request beyond the limit is matched if a server waits at that moment, and otherwise
/// dropped; the sender repeats it.
pub const IDLE_EXCHANGES_PER_LINK_MAX: usize = 8192;
/// Maximum descriptors that a NIC passes to its peers.
pub const NIC_FDS_MAX: usize = 2;
/// Page size; the shared segment of a connection is a whole number of pages, at least one.
pub const PAGE_BYTES: u32 = 4096;
