//! Why a call was refused, beyond its status, and what a user may have at an agent.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Something that an agent counts for each user.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u32)]
pub enum Budget {
    /// Processes that are connected to the agent.
    Processes = 0,
    /// Open NICs.
    Nics = 1,
    /// Waits, requests and peer requests without a result.
    Calls = 2,
    /// Sides of connections, and requests that a server has not answered.
    Connections = 3,
    /// Data sockets on network interfaces.
    Endpoints = 4,
    /// Requests to other hosts, and connections that came of them.
    Exchanges = 5,
    /// File descriptors of the agent.
    Descriptors = 6,
    /// Discriminators in use on network interfaces.
    Names = 7,
    /// Connections of an earlier agent that ended before their partner was heard of.
    Parted = 8,
}

impl Budget {
    /// How many there are.
    pub const COUNT: usize = 9;
    /// All of them, in the order of their numbers.
    pub const ALL: [Budget; Self::COUNT] = [
        Budget::Processes,
        Budget::Nics,
        Budget::Calls,
        Budget::Connections,
        Budget::Endpoints,
        Budget::Exchanges,
        Budget::Descriptors,
        Budget::Names,
        Budget::Parted,
    ];

    /// What people call it, in the plural.
    pub const fn name(self) -> &'static str {
        match self {
            Budget::Processes => "processes",
            Budget::Nics => "open NICs",
            Budget::Calls => "pending requests",
            Budget::Connections => "connections",
            Budget::Endpoints => "data sockets",
            Budget::Exchanges => "exchanges with other hosts",
            Budget::Descriptors => "file descriptors",
            Budget::Names => "discriminators on interfaces",
            Budget::Parted => "ended connections of an earlier agent",
        }
    }
}

/// Why a call was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(transparent)]
pub struct Reason(pub u32);

impl Reason {
    /// `RESOURCE`: `user` has `used` of `limit` in the budget.
    pub const USER_BUDGET: Reason = Reason(1);
    /// `RESOURCE`: the process has `used` of `limit` in the budget.
    pub const PROCESS_BUDGET: Reason = Reason(2);
    /// `RESOURCE`: another user, `user`, waits on this discriminator of the interface, or did so at most
    /// `limit` milliseconds ago.
    pub const NAME_TAKEN: Reason = Reason(3);
    /// `NO_MATCH`: a NIC is open at the address, and nobody waits there on this discriminator.
    pub const NOBODY_WAITS: Reason = Reason(4);
    /// `NO_MATCH`, `NOT_REACHABLE`: a process of another user waits there.
    pub const OTHER_USER: Reason = Reason(5);
    /// `NO_MATCH`, `NOT_REACHABLE`: a process of this user waits on this discriminator, at another address or
    /// with a NIC of another plug-in.
    pub const ELSEWHERE: Reason = Reason(6);
    /// `NOT_REACHABLE`: nobody has opened a NIC at the address.
    pub const NO_SUCH_ADDRESS: Reason = Reason(7);
    /// The agent of the other host said so.
    pub const OTHER_HOST: Reason = Reason(8);
    /// `NOT_REACHABLE`: the interface is down or has been removed.
    pub const LINK_DOWN: Reason = Reason(9);
    /// `NOT_REACHABLE`: the agent of the other host speaks another version of the protocol.
    pub const OTHER_VERSION: Reason = Reason(10);
    /// `NOT_REACHABLE`: the address is one of this host, and its agent is that of another user, `user`.
    pub const OTHER_AGENT: Reason = Reason(11);
    /// `TIMEOUT`: nothing has come from the other host. Of this reason and those below, `used` is 1 if its address is one of IP.
    pub const SILENT: Reason = Reason(12);
    /// `TIMEOUT`: nothing listens at the port of the other host's agent, as that host said.
    pub const NO_AGENT: Reason = Reason(13);
    /// `TIMEOUT`: there is no way to the other host, as this one or a router said.
    pub const NO_ROUTE: Reason = Reason(14);
    /// `TIMEOUT`: the agent of the other host has answered, and no server has accepted.
    pub const NOT_ACCEPTED: Reason = Reason(15);
}

/// Body of `Op::DONE` where the agent can say more than the status does. Other replies `Op::DONE` have no
/// body. With id 0: the process is not taken, and the agent hangs up.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct Detail {
    /// Why.
    pub reason: Reason,
    /// Number of a [`Budget`], where the reason is about one.
    pub budget: u32,
    /// The user that the reason is about.
    pub user: u32,
    /// 0.
    pub reserved: u32,
    /// How much of it is in use.
    pub used: u64,
    /// The most that there may be.
    pub limit: u64,
}

impl Detail {
    /// Nothing but a reason.
    pub const fn new(reason: Reason) -> Detail {
        Detail {
            reason,
            budget: 0,
            user: 0,
            reserved: 0,
            used: 0,
            limit: 0,
        }
    }

    /// The budget that it is about, if both ends know it.
    pub fn budget(&self) -> Option<Budget> {
        Budget::ALL.get(self.budget as usize).copied()
    }
}

/// One line of a [`BudgetList`].
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct BudgetLine {
    /// How much of it is in use by the user of the process that asks.
    pub used: u64,
    /// The most that this user may have now. It depends on what other users have.
    pub limit: u64,
}

/// `Op::BUDGET_LIST`, reply to `Op::BUDGETS`: the budgets in the order of their numbers.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct BudgetList {
    /// Whose they are.
    pub user: u32,
    /// 0.
    pub reserved: u32,
    /// One line for each budget.
    pub lines: [BudgetLine; Budget::COUNT],
}
