//! Details of refused calls, and the resource budgets of users.

use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

use crate::DISCRIMINATOR_BYTES_MAX;

/// A resource that an agent limits per user.
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
    /// Requests to other hosts, and the connections established by them.
    Exchanges = 5,
    /// File descriptors of the agent.
    Descriptors = 6,
    /// Discriminators in use on network interfaces.
    Names = 7,
    /// Connections of a previous agent that ended before their peer was adopted.
    Parted = 8,
}

impl Budget {
    /// The number of budgets.
    pub const COUNT: usize = 9;
    /// All budgets, in the order of their numbers.
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

    /// The name in the plural, for messages.
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
    /// `NO_MATCH`: a NIC is open at the address, and no thread waits there on this discriminator.
    pub const NO_SERVER: Reason = Reason(4);
    /// `NO_MATCH`, `NOT_REACHABLE`: a process of another user waits there.
    pub const OTHER_USER: Reason = Reason(5);
    /// `NO_MATCH`, `NOT_REACHABLE`: a process of this user waits on this discriminator, at another address or
    /// with a NIC of another plug-in.
    pub const ELSEWHERE: Reason = Reason(6);
    /// `NOT_REACHABLE`: no NIC is open at the address.
    pub const NO_SUCH_ADDRESS: Reason = Reason(7);
    /// Reported by the agent of the remote host.
    pub const OTHER_HOST: Reason = Reason(8);
    /// `NOT_REACHABLE`: the interface is down or has been removed.
    pub const LINK_DOWN: Reason = Reason(9);
    /// `NOT_REACHABLE`: the agent of the remote host uses another version of the protocol.
    pub const OTHER_VERSION: Reason = Reason(10);
    /// `NOT_REACHABLE`: the address is one of this host, and its agent is that of another user, `user`.
    pub const OTHER_AGENT: Reason = Reason(11);
    /// `TIMEOUT`: nothing was received from the remote host. With this reason and those below, `used` is 1 if
    /// its address is an IP address.
    pub const SILENT: Reason = Reason(12);
    /// `TIMEOUT`: nothing listens at the port of the remote host's agent, as that host reported.
    pub const NO_AGENT: Reason = Reason(13);
    /// `TIMEOUT`: there is no route to the remote host, as this one or a router reported.
    pub const NO_ROUTE: Reason = Reason(14);
    /// `TIMEOUT`: the agent of the remote host has answered, and no server has accepted.
    pub const NOT_ACCEPTED: Reason = Reason(15);
}

/// Body of `Op::DONE` if there is more information than the status. Other `Op::DONE` replies have no body.
/// With id 0, the process is refused, and the agent hangs up.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct Detail {
    /// The reason.
    pub reason: Reason,
    /// Number of a [`Budget`], if the reason concerns one.
    pub budget: u32,
    /// The user that the reason concerns.
    pub user: u32,
    /// 0.
    pub reserved: u32,
    /// Amount in use.
    pub used: u64,
    /// Maximum amount.
    pub limit: u64,
}

impl Detail {
    /// A detail with a reason only.
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

    /// The budget that it concerns, if both ends know it.
    pub fn budget(&self) -> Option<Budget> {
        Budget::ALL.get(self.budget as usize).copied()
    }
}

/// Maximum discriminators in a [`Waited`].
pub const WAITED_MAX: usize = 12;

/// Body of `Op::DONE` instead of a [`Detail`] with [`Reason::NO_SERVER`], for a process that asked for it by
/// [`Hello::WAITED`](crate::Hello::WAITED): other discriminators on which the same user's servers wait at this address.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct Waited {
    /// As in a refusal without them.
    pub detail: Detail,
    /// Lengths of the discriminators in bytes. Unused entries have length 0 and `names` of zeros.
    lengths: [u8; WAITED_MAX],
    /// Number of the discriminators.
    count: u32,
    /// The discriminators; unused bytes are 0.
    names: [[u8; DISCRIMINATOR_BYTES_MAX]; WAITED_MAX],
}

impl Waited {
    /// A refusal with as many of these discriminators as fit. `None` if there are none.
    pub fn new<'a>(detail: Detail, waited: impl IntoIterator<Item = &'a [u8]>) -> Option<Waited> {
        let mut body = Waited {
            detail,
            ..Waited::new_zeroed()
        };
        let slots = body.names.iter_mut().zip(&mut body.lengths);
        for ((slot, length), name) in slots.zip(waited) {
            let bytes = name.len().min(slot.len());
            slot[..bytes].copy_from_slice(&name[..bytes]);
            *length = bytes as u8;
            body.count += 1;
        }
        (body.count > 0).then_some(body)
    }

    /// The discriminators.
    pub fn names(&self) -> impl Iterator<Item = &[u8]> {
        let slots = self.names.iter().zip(&self.lengths);
        slots
            .take(self.count as usize)
            .map(|(name, length)| &name[..usize::from(*length).min(name.len())])
    }
}

const _: () = assert!(size_of::<crate::Header>() + size_of::<Waited>() <= crate::MESSAGE_BYTES_MAX);

/// One line of a [`BudgetList`].
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct BudgetLine {
    /// Amount in use by the user of the requesting process.
    pub used: u64,
    /// Current limit of this user, which depends on the usage of other users.
    pub limit: u64,
}

/// `Op::BUDGET_LIST`, reply to `Op::BUDGETS`: the budgets in the order of their numbers.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct BudgetList {
    /// The user.
    pub user: u32,
    /// 0.
    pub reserved: u32,
    /// One line for each budget.
    pub lines: [BudgetLine; Budget::COUNT],
}
