//! The header of every message, operation numbers and status codes.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// First word of every message: "VIPK" read as little-endian.
pub const MAGIC: u32 = u32::from_le_bytes(*b"VIPK");
/// Protocol version; an agent answers another one with `Op::WELCOME` and `Status::VERSION`, its own
/// version in the header.
pub const VERSION: u16 = 6;
/// Largest message in bytes, header included.
pub const MESSAGE_BYTES_MAX: usize = 1024;
/// Maximum file descriptors with one message.
pub const FDS_MAX: usize = 3;
/// Socket of a system-wide agent; tried first.
pub const SYSTEM_SOCKET: &str = "/run/vipl/kagent.sock";

/// The header of every message.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct Header {
    /// [`MAGIC`].
    pub magic: u32,
    /// [`VERSION`].
    pub version: u16,
    /// An [`Op`].
    pub op: u16,
    /// Bytes of the body that follows.
    pub length: u32,
    /// A [`Status`] in replies, 0 in calls.
    pub status: u32,
    /// Chosen by the caller and repeated in the reply; 0 in events.
    pub id: u64,
}

/// The type of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub struct Op(pub u16);

#[allow(missing_docs)]
impl Op {
    // Calls, User Agent to Kernel Agent.
    pub const HELLO: Op = Op(1);
    pub const NIC_OPEN: Op = Op(2);
    pub const NIC_CLOSE: Op = Op(3);
    pub const WAIT: Op = Op(4);
    pub const REQUEST: Op = Op(5);
    pub const PEER: Op = Op(6);
    pub const ACCEPT: Op = Op(7);
    pub const REJECT: Op = Op(8);
    pub const CANCEL: Op = Op(9);
    pub const DISCONNECT: Op = Op(10);
    pub const NEIGHBOURS: Op = Op(11);
    pub const GOODBYE: Op = Op(12);
    pub const LINK_OPEN: Op = Op(13);
    pub const CONFIRM: Op = Op(14);
    pub const DEVICE_OPEN: Op = Op(15);
    pub const BUDGETS: Op = Op(16);
    pub const LINK_ASK: Op = Op(17);
    pub const LINK_ADOPT: Op = Op(18);
    pub const ADOPT: Op = Op(20);
    // Replies and events, Kernel Agent to User Agent.
    pub const WELCOME: Op = Op(101);
    pub const NIC_OPENED: Op = Op(102);
    pub const DONE: Op = Op(103);
    pub const INCOMING: Op = Op(104);
    pub const CONNECTED: Op = Op(105);
    pub const NEIGHBOUR_LIST: Op = Op(106);
    pub const PEER_GONE: Op = Op(107);
    pub const LINK_OPENED: Op = Op(108);
    pub const DEVICE_OPENED: Op = Op(109);
    pub const BUDGET_LIST: Op = Op(110);
    pub const ADOPTED: Op = Op(120);
}

/// The result of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub struct Status(pub u32);

#[allow(missing_docs)]
impl Status {
    pub const OK: Status = Status(0);
    pub const TIMEOUT: Status = Status(1);
    pub const CANCELLED: Status = Status(2);
    pub const REJECTED: Status = Status(3);
    pub const NO_MATCH: Status = Status(4);
    pub const NOT_REACHABLE: Status = Status(5);
    pub const RESOURCE: Status = Status(6);
    pub const INVALID: Status = Status(7);
    pub const CONFLICT_RELIABILITY: Status = Status(8);
    pub const CONFLICT_MTU: Status = Status(9);
    pub const CONFLICT_QOS: Status = Status(10);
    pub const VERSION: Status = Status(11);
    pub const NOT_PERMITTED: Status = Status(12);
    pub const BUSY: Status = Status(13);
    /// `LINK_OPEN`: an agent for all users that may not use raw Ethernet.
    pub const NO_PRIVILEGE: Status = Status(14);
    /// `LINK_OPEN`: an agent of one user, which may not use raw Ethernet.
    pub const NO_SYSTEM_AGENT: Status = Status(15);
    /// `LINK_OPEN`: the agent cannot use its configured file with the secret.
    pub const NO_SECRET: Status = Status(16);
    /// `LINK_OPEN`, `LINK_ASK`: the process is in another network namespace than the agent.
    pub const OTHER_NETWORK: Status = Status(17);
    /// `LINK_OPEN`, `LINK_ASK`: the process requires a secret, and the agent has none.
    pub const NOT_SEALED: Status = Status(18);
}

impl Status {
    /// The name, for messages.
    pub const fn name(self) -> &'static str {
        match self {
            Status::OK => "OK",
            Status::TIMEOUT => "TIMEOUT",
            Status::CANCELLED => "CANCELLED",
            Status::REJECTED => "REJECTED",
            Status::NO_MATCH => "NO_MATCH",
            Status::NOT_REACHABLE => "NOT_REACHABLE",
            Status::RESOURCE => "RESOURCE",
            Status::INVALID => "INVALID",
            Status::CONFLICT_RELIABILITY => "CONFLICT_RELIABILITY",
            Status::CONFLICT_MTU => "CONFLICT_MTU",
            Status::CONFLICT_QOS => "CONFLICT_QOS",
            Status::VERSION => "VERSION",
            Status::NOT_PERMITTED => "NOT_PERMITTED",
            Status::BUSY => "BUSY",
            _ => "another status",
        }
    }
}
