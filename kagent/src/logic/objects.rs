//! The objects of the agent: processes, NICs, connections, links, endpoints and exchanges.

#![forbid(unsafe_code)]

use std::collections::{BTreeMap, BTreeSet};

use kagent_proto::setup::{Accepted, Refusal};
use kagent_proto::{Attributes, Budget, DRIVER_BYTES, DataAddress, INTERFACE_BYTES, Reason};

use crate::logic::address::{Address, HostAddress, Medium};
use crate::logic::budgets::{ADOPT_TIME_MS, Accounts};
use crate::logic::ids::{
    CallKey, ClientId, ConnectionId, EndpointId, ExchangeKey, HalfName, LinkId, NicId,
};
use crate::logic::queues::{NS_PER_MS, Timers, deadline};

/// A connected process and all that is released when it exits.
#[derive(Debug, Default)]
pub(crate) struct Client {
    pub(crate) uid: u32,
    pub(crate) pid: u32,
    /// `Hello` with our version was received.
    pub(crate) greeted: bool,
    /// Feature bits of its `Hello` that this agent knows.
    pub(crate) features: u64,
    /// `Goodbye` was received: connections that end from now on end in good order.
    pub(crate) disconnecting: bool,
    pub(crate) nics: BTreeSet<NicId>,
    pub(crate) endpoints: BTreeSet<EndpointId>,
    /// Calls without a reply, by the id that the process chose.
    pub(crate) calls: BTreeMap<u64, CallKey>,
    pub(crate) connections: BTreeSet<ConnectionId>,
    /// Unanswered requests handed to it, by the id of the wait that each one answered.
    pub(crate) offers: BTreeMap<u64, ConnectionId>,
}

/// An open NIC.
#[derive(Debug)]
pub(crate) struct Nic<F> {
    pub(crate) client: ClientId,
    pub(crate) address: Address,
    /// Descriptors passed to peers.
    pub(crate) fds: Vec<F>,
    /// The address at which it receives data, for peers.
    pub(crate) data_address: DataAddress,
    /// Its endpoint, if the NIC is on a link.
    pub(crate) endpoint: Option<EndpointId>,
    pub(crate) calls: BTreeSet<CallKey>,
    pub(crate) connections: BTreeSet<ConnectionId>,
}

/// One side of a connection, or an unanswered connection handle.
///
/// Each side of a connection has its own record and identifier, so that both sides may be in one process
/// without ambiguity.
///
/// ```text
///   INCOMING ──▶ Offered ── ACCEPT ──▶ Open ── peer gone ────▶ PeerGone
///                   │                   ▲                         │
///            requester gone          PEER, and the             DISCONNECT
///                   ▼                requester's side             ▼
///                Expired ── ACCEPT: TIMEOUT, REJECT: OK ──▶    no record
/// ```
///
/// CANCEL of the wait that an offer answered withdraws the offer: the server did not take it, and the request
/// returns to its queue.
///
/// A connection with another host has one record here; the state shared by the two hosts is its exchange
/// ([`Exchange`]): Attaching ── CONFIRM ──▶ Confirming (the accepting side) ──▶ Remote.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) client: ClientId,
    pub(crate) nic: NicId,
    pub(crate) state: ConnectionState,
}

/// State of one side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ConnectionState {
    /// A server holds this request, the reply to its wait with this id, and has not answered.
    Offered(CallKey, u64),
    /// The requester gave up; the server has not been notified. The id is that of its wait.
    Expired(u64),
    /// Connected to that side, on this host.
    Open(ConnectionId),
    /// Connected by a previous agent; the other side has not been adopted yet ([`HalfState`]).
    Half(HalfName),
    /// The peer has disconnected or exited, and this side was notified.
    PeerGone,
    /// Remote: this side is attaching its VI.
    Attaching(ExchangeKey),
    /// Remote: this side attached its VI and called CONFIRM with this id.
    Confirming(ExchangeKey, u64),
    /// Remote: connected.
    Remote(ExchangeKey),
    /// Remote: lost before this side confirmed.
    Failed,
}

/// A connection of which one side has been adopted.
#[derive(Debug)]
pub(crate) struct Half {
    pub(crate) side: u32,
    pub(crate) state: HalfState,
    deadline: Option<u64>,
}

/// State of the side that was adopted first.
#[derive(Clone, Copy, Debug)]
pub(crate) enum HalfState {
    /// It waits for the other side to be adopted.
    Waiting(ConnectionId, Attributes),
    /// It disconnected before the other side was adopted, in good order or not.
    Parted(bool),
}

/// All connections of a previous agent of which one side has been adopted (`commands/connection.rs`).
#[derive(Debug, Default)]
pub(crate) struct Halves {
    by_name: BTreeMap<HalfName, Half>,
    timers: Timers<HalfName>,
}

impl Halves {
    pub(crate) fn get(&self, name: &HalfName) -> Option<&Half> {
        self.by_name.get(name)
    }

    /// Keeps the first side of a connection until the other is adopted or the deadline passes.
    pub(crate) fn insert(&mut self, name: HalfName, side: u32, state: HalfState, now: u64) {
        let deadline = deadline(now, ADOPT_TIME_MS);
        self.timers.start(deadline, name);
        let half = Half {
            side,
            state,
            deadline,
        };
        self.by_name.insert(name, half);
    }

    pub(crate) fn take(&mut self, name: HalfName, accounts: &mut Accounts) -> Option<Half> {
        let half = self.by_name.remove(&name)?;
        self.timers.stop(half.deadline, name);
        if let HalfState::Parted(_) = half.state {
            accounts.release(name.0, Budget::Parted, 1);
        }
        Some(half)
    }

    /// The adopted side disconnected; the other side is notified when it is adopted.
    pub(crate) fn part(
        &mut self,
        name: HalfName,
        orderly: bool,
        now: u64,
        accounts: &mut Accounts,
    ) {
        let Some(half) = self.take(name, accounts) else {
            return;
        };
        let (user, _) = name;
        if accounts.admit(user, Budget::Parted, 1).is_ok() {
            accounts.charge(user, Budget::Parted, 1);
            self.insert(name, half.side, HalfState::Parted(orderly), now);
        }
    }

    /// The earliest deadline.
    pub(crate) fn next(&self) -> Option<u64> {
        self.timers.next()
    }

    /// Drops expired entries. Returns the next side whose peer was not adopted in time.
    pub(crate) fn pop_due(&mut self, now: u64, accounts: &mut Accounts) -> Option<ConnectionId> {
        while let Some(name) = self.timers.pop_due(now) {
            let half = self.take(name, accounts);
            if let Some(HalfState::Waiting(connection, _)) = half.map(|half| half.state) {
                return Some(connection);
            }
        }
        None
    }

    pub(crate) fn len(&self) -> usize {
        self.by_name.len()
    }

    /// Users of the sides that disconnected before their peer was adopted, for tests.
    pub(crate) fn parted(&self) -> impl Iterator<Item = u32> {
        let parted = self.by_name.iter();
        let parted = parted.filter(|(_, half)| matches!(half.state, HalfState::Parted(_)));
        parted.map(|((user, _), _)| *user)
    }
}

/// Properties of the network interface of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interface {
    /// Its number.
    pub index: LinkId,
    /// Its name, zero padded.
    pub name: [u8; INTERFACE_BYTES],
    /// Its medium.
    pub medium: Medium,
    /// Its address.
    pub address: HostAddress,
    /// Largest payload of a frame in bytes.
    pub mtu: u32,
    /// Speed in Mbit/s; 0 if unknown.
    pub speed_mbit: u32,
    /// Name of its driver, zero padded.
    pub driver: [u8; DRIVER_BYTES],
    /// The secret from which those of connections are derived, if this host has one for the link.
    pub seals: Option<[u8; 32]>,
}

/// A link: a network interface on which agents of different hosts communicate, with the endpoints of processes
/// there.
///
/// An endpoint is a data socket that one process holds. Frames carry its number, so that the kernel can
/// filter them without knowing VIs. A link exists while a process has an endpoint on it, or while a
/// DISCONNECT there is unacknowledged.
#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) medium: Medium,
    pub(crate) address: HostAddress,
    pub(crate) seals: Option<[u8; 32]>,
    /// Endpoints by number.
    pub(crate) endpoints: BTreeMap<u16, EndpointId>,
    /// Number of exchanges started by this host, and by others.
    pub(crate) exchanges: [usize; 2],
    /// Exchanges in which a local call waits for an answer.
    pub(crate) asking: BTreeSet<ExchangeKey>,
    /// Number of exchanges started by others that wait for a server or are remembered after their end: per
    /// source, and in total.
    pub(crate) idle: (BTreeMap<HostAddress, usize>, usize),
    /// Number of endpoints per user.
    pub(crate) users: BTreeMap<u32, usize>,
    /// Exchanges whose DISCONNECT is unacknowledged.
    pub(crate) disconnecting: usize,
    /// The last number assigned, so that a released one is not reused soon.
    pub(crate) last_endpoint: u16,
}

/// An endpoint.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Endpoint {
    pub(crate) client: ClientId,
    pub(crate) user: u32,
    pub(crate) link: LinkId,
    pub(crate) number: u16,
    /// The NIC that uses it.
    pub(crate) nic: Option<NicId>,
}

/// Delay before the first repetition; doubled for each further one.
pub(crate) const FIRST: u64 = 20 * NS_PER_MS;

/// Maximum delay between repetitions.
pub(crate) const SLOW: u64 = 1000 * NS_PER_MS;

/// Doublings until the maximum is reached.
pub(crate) const DOUBLINGS: u32 = 6;

/// Maximum tries of a DISCONNECT: about five seconds.
pub(crate) const DISCONNECT_TRIES: u32 = 10;

/// Time for which the end of an exchange is remembered. No frame arrives that late.
pub(crate) const REMEMBERED: u64 = 5000 * NS_PER_MS;

/// A remote call expires if it is not repeated for ten times the maximum delay.
pub(crate) const STALE: u64 = 10 * SLOW;

/// An exchange: the frames of two hosts about one connection, from the first REQUEST to the last GONE.
///
/// Frames may be lost, duplicated or late. Therefore the side that waits for an answer repeats its frame.
/// Receiving a frame twice is harmless: its effect depends on the state of the exchange, which is kept for
/// some time after the end.
///
/// ```text
///   asker                                             answerer
///   Asking ─── REQUEST or PEER, repeated ───────────▶ Called      a call in the queues, or with a server
///          ◀── ANSWER held, refused ────────────────            ─▶ Refused, remembered
///                                                     Readying    its process attaches the VI
///   Taking ◀── ANSWER accepted, repeated ──────────── Accepting
///   its process attaches the VI
///   Open   ─── ACK ─────────────────────────────────▶ Open
///   Disconnecting ── DISCONNECT, repeated ──────────▶
///          ◀── GONE ────────────────────────────────  Over, remembered
/// ```
///
/// Both VIs are attached before either application learns of the connection, so no message is sent to a VI
/// that is not ready. An exchange is identified by an unpredictable number, so a third party on the link can
/// start an exchange, but cannot affect another one.
#[derive(Debug)]
pub(crate) struct Exchange {
    pub(crate) state: State,
    /// The local user who started it, if any.
    pub(crate) user: Option<u32>,
    /// Deadline of its timer.
    pub(crate) due: Option<u64>,
    /// Number of times the frame of this state was sent.
    pub(crate) tries: u32,
    /// The reason reported if the call ends without an answer: what was last received about the remote host.
    pub(crate) last_reason: Reason,
}

/// State of an exchange on this host.
#[derive(Clone, Copy, Debug)]
pub(crate) enum State {
    /// A local call waits for an answer.
    Asking(CallKey),
    /// The answer arrived; the local process is attaching its VI.
    Taking(ConnectionId),
    /// A call of the remote host waits here.
    Called(CallKey),
    /// The local process is attaching its VI, with a deadline.
    Readying(ConnectionId, Accepted, u64),
    /// The acceptance is repeated until it is acknowledged, with a deadline.
    Accepting(ConnectionId, Accepted, u64),
    /// Connected.
    Open(ConnectionId),
    /// This side disconnected; DISCONNECT is repeated until it is acknowledged.
    Disconnecting {
        /// In good order.
        orderly: bool,
    },
    /// The call was refused.
    Refused(Refusal),
    /// The exchange ended.
    Over,
}

impl State {
    /// Whether it involves no local process, and would be recreated by the next repetition from the remote
    /// host.
    pub(crate) fn is_idle(self) -> bool {
        matches!(self, State::Called(_) | State::Refused(_) | State::Over)
    }
}

/// Delay before the next repetition.
pub(crate) fn interval(tries: u32) -> u64 {
    (FIRST << tries.min(DOUBLINGS)).min(SLOW)
}
