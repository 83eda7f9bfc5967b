//! Processes that have connected to the agent.

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

/// One process and all that is released when it ends.
#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) uid: u32,
    pub(crate) pid: u32,
    /// `Hello` with our version was received.
    pub(crate) greeted: bool,
    /// `Goodbye` was received: what ends from now on ends in good order.
    pub(crate) disconnecting: bool,
    pub(crate) nics: BTreeSet<NicId>,
    pub(crate) endpoints: BTreeSet<EndpointId>,
    /// Calls without a reply, by the id that the process chose.
    pub(crate) calls: BTreeMap<u64, CallKey>,
    pub(crate) connections: BTreeSet<ConnectionId>,
    /// Requests that it was given and has not answered, by the id of the wait that each is the reply to.
    pub(crate) offers: BTreeMap<u64, ConnectionId>,
}

// Open NICs.

/// An open NIC.
#[derive(Debug)]
pub(crate) struct Nic<F> {
    pub(crate) client: ClientId,
    pub(crate) address: Address,
    /// Descriptors passed to peers.
    pub(crate) fds: Vec<F>,
    /// Where it receives data, for peers.
    pub(crate) data_address: DataAddress,
    /// The endpoint that it uses, if it is on a link.
    pub(crate) endpoint: Option<EndpointId>,
    pub(crate) calls: BTreeSet<CallKey>,
    pub(crate) connections: BTreeSet<ConnectionId>,
}

// Connections, and handles of requests that a server has not answered yet.
//
// Each side of a connection has its own record and identifier, so that both sides may be in one process
// without ambiguity.
//
// ```text
//   INCOMING ──▶ Offered ── ACCEPT ──▶ Open ── partner gone ──▶ Lone
//                   │                   ▲                         │
//            requester gone          PEER, and the             DISCONNECT
//                   ▼                requester's side             ▼
//                Expired ── ACCEPT: TIMEOUT, REJECT: OK ──▶    no record
// ```
//
// CANCEL of the wait that an offer answered withdraws the offer: the server has not taken it, and the request goes back
// to its queue.
//
// A connection with another host has one record here; the state shared by the two hosts is its exchange
// (below): Attaching ── CONFIRM ──▶ Confirming (the accepting side) ──▶ Far.

/// One side of a connection.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) client: ClientId,
    pub(crate) nic: NicId,
    pub(crate) state: ConnectionState,
}

/// State of one side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ConnectionState {
    /// A server holds this request, the reply to its wait with that id, and has not answered.
    Offered(CallKey, u64),
    /// The requester gave up; the server, to whose wait it was the reply, has not been told.
    Expired(u64),
    /// Connected with that side, on this host.
    Open(ConnectionId),
    /// Connected by a previous agent; the other side has not been adopted yet ([`HalfState`]).
    Half(HalfName),
    /// The partner is gone and this side was told.
    Lone,
    /// With another host: this side is attaching its VI.
    Attaching(ExchangeKey),
    /// With another host: this side attached its VI and called CONFIRM with this id.
    Confirming(ExchangeKey, u64),
    /// Connected with another host.
    Far(ExchangeKey),
    /// With another host, and lost before this side confirmed.
    Failed,
}

// Connections of a previous agent of which one side has been adopted (`commands/connection.rs`).

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
    /// It waits for the other side.
    Waiting(ConnectionId, Attributes),
    /// It disconnected again, in good order or not.
    Parted(bool),
}

/// All connections of which one side has been adopted.
#[derive(Debug)]
pub(crate) struct Halves {
    by_name: BTreeMap<HalfName, Half>,
    timers: Timers<HalfName>,
}

impl Halves {
    pub(crate) fn new() -> Self {
        Halves {
            by_name: BTreeMap::new(),
            timers: Timers::new(),
        }
    }

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

    /// The adopted side disconnected; its partner is told when it is adopted.
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

    /// Drops expired entries. Returns the next side whose partner was not adopted in time.
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

    /// Users of the sides that disconnected before their partner was adopted, for tests.
    pub(crate) fn parted(&self) -> impl Iterator<Item = u32> {
        let parted = self.by_name.iter();
        let parted = parted.filter(|(_, half)| matches!(half.state, HalfState::Parted(_)));
        parted.map(|((user, _), _)| *user)
    }
}

// Links, the network interfaces on which agents of different hosts communicate, and the endpoints of
// processes there.
//
// An endpoint is a data socket that one process holds. Frames carry its number, so that the kernel can
// filter them without knowing VIs. A link exists while a process has an endpoint on it, or while a
// DISCONNECT there is unacknowledged.

/// What the runtime knows of the network interface of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interface {
    /// Its number.
    pub index: LinkId,
    /// Its name, zero padded.
    pub name: [u8; INTERFACE_BYTES],
    /// What it is made of.
    pub medium: Medium,
    /// Its address there.
    pub address: HostAddress,
    /// Largest payload of a frame in bytes.
    pub mtu: u32,
    /// Speed in Mbit/s; 0 if unknown.
    pub speed_mbit: u32,
    /// Name of its driver, zero padded.
    pub driver: [u8; DRIVER_BYTES],
    /// The secret from which those of connections are made, if this host has one for the link.
    pub seals: Option<[u8; 32]>,
}

/// A link.
#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) medium: Medium,
    pub(crate) address: HostAddress,
    pub(crate) seals: Option<[u8; 32]>,
    /// Endpoints by number.
    pub(crate) endpoints: BTreeMap<u16, EndpointId>,
    /// Exchanges that this host started, and that others started.
    pub(crate) exchanges: [usize; 2],
    /// Exchanges in which a local call waits for an answer.
    pub(crate) asking: BTreeSet<ExchangeKey>,
    /// Exchanges that others started and that wait for a server or are remembered after their end: per
    /// source, and in total.
    pub(crate) idle: (BTreeMap<HostAddress, usize>, usize),
    /// Number of endpoints per user.
    pub(crate) users: BTreeMap<u32, usize>,
    /// Exchanges whose DISCONNECT is unacknowledged.
    pub(crate) disconnecting: usize,
    /// The last number assigned: a released one is not reused soon.
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

// Exchanges: what two hosts tell each other about one connection, from the first REQUEST to the last GONE.
//
// Frames may be lost, duplicated or late. Therefore the side that waits for an answer repeats its frame, and
// receiving a frame twice is harmless: its effect depends on the state of the exchange, which is remembered
// for some time after the end.
//
// ```text
//   asker                                             answerer
//   Asking ─── REQUEST or PEER, repeated ───────────▶ Called      a call in the queues, or with a server
//          ◀── ANSWER held, refused ────────────────            ─▶ Refused, remembered
//                                                     Readying    its process attaches the VI
//   Taking ◀── ANSWER accepted, repeated ──────────── Accepting
//   its process attaches the VI
//   Open   ─── ACK ─────────────────────────────────▶ Open
//   Disconnecting ── DISCONNECT, repeated ──────────▶
//          ◀── GONE ────────────────────────────────  Over, remembered
// ```
//
// Both VIs are attached before either application learns of the connection, so no message is sent to a VI
// that is not ready. An exchange is identified by an unpredictable number, so a third party on the link can
// start an exchange but not affect another one.

/// Delay before the first repetition; doubled for each further one.
pub(crate) const FIRST: u64 = 20 * NS_PER_MS;

/// Maximum delay between repetitions.
pub(crate) const SLOW: u64 = 1000 * NS_PER_MS;

/// Doublings until the maximum is reached.
pub(crate) const DOUBLINGS: u32 = 6;

/// Tries for a DISCONNECT: about five seconds.
pub(crate) const DISCONNECT_TRIES: u32 = 10;

/// Time for which the end of an exchange is remembered. No frame is that late.
pub(crate) const REMEMBERED: u64 = 5000 * NS_PER_MS;

/// A remote call expires if it is not repeated for ten times the maximum delay.
pub(crate) const STALE: u64 = 10 * SLOW;

/// An exchange.
#[derive(Debug)]
pub(crate) struct Exchange {
    pub(crate) state: State,
    /// The local user who started it, if any.
    pub(crate) user: Option<u32>,
    /// Deadline of its timer.
    pub(crate) due: Option<u64>,
    /// Number of times the frame of this state was sent.
    pub(crate) tries: u32,
    /// What has been heard of the other host, for a call that ends without an answer.
    pub(crate) heard: Reason,
}

/// State of an exchange on this host.
#[derive(Clone, Copy, Debug)]
pub(crate) enum State {
    /// A local call waits for an answer.
    Asking(CallKey),
    /// The answer arrived; the local process is attaching its VI.
    Taking(ConnectionId),
    /// A call of the other host waits here.
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
    /// Involves no local process, and would be recreated by the next repetition from the other host.
    pub(crate) fn is_idle(self) -> bool {
        matches!(self, State::Called(_) | State::Refused(_) | State::Over)
    }
}

/// Delay before the next repetition.
pub(crate) fn interval(tries: u32) -> u64 {
    (FIRST << tries.min(DOUBLINGS)).min(SLOW)
}
