//! The agent's tables together, and its replies.
//!
//! One thread drives the agent. This module makes no decisions: the modules above it do, each as a block of
//! methods on [`Agent`], in the order that [`logic`](crate::logic) shows.

#![forbid(unsafe_code)]

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;

use kagent_proto::{Budget, Hello, Op, PROGRAM_BYTES, Status, VERSION_BYTES};
use zerocopy::{Immutable, IntoBytes};

use crate::logic::address::{Address, ConnectionPoint, Discriminator};
use crate::logic::budgets::{Accounts, LinkRate};
use crate::logic::calls::{Call, CallKind, Claims, Owner, PeerKey, QueueKey};
use crate::logic::ids::{
    CallKey, Caller, ClientId, ConnectionId, EndpointId, ExchangeKey, Keys, LinkId, NicId,
};
use crate::logic::message::{self, Denial};
use crate::logic::objects::{Client, Connection, Endpoint, Exchange, Halves, Link, Nic, State};
use crate::logic::output::{Message, Output};
use crate::logic::queues::{Queues, Timers};

/// The Kernel Agent's logic. `F` is the type that the runtime uses for a file descriptor.
#[derive(Debug)]
pub struct Agent<F> {
    /// The latest time passed to a `handle_*` method.
    pub(crate) now: u64,
    pub(crate) agent_pid: u32,
    pub(crate) version: [u8; VERSION_BYTES],
    pub(crate) program: [u8; PROGRAM_BYTES],
    pub(crate) network: u32,
    pub(crate) surroundings: u32,
    pub(crate) mounts: u32,
    /// Whether [`Output::Note`] is emitted.
    pub(crate) notes: bool,
    pub(crate) keys: Keys,
    pub(crate) clients: BTreeMap<ClientId, Client>,
    /// Resource usage per user.
    pub(crate) accounts: Accounts,
    /// Owners of the discriminators on links.
    pub(crate) claims: Claims,
    /// Rate limit per user for data sockets.
    pub(crate) link_rate: LinkRate,
    pub(crate) nics: BTreeMap<NicId, Nic<F>>,
    pub(crate) addresses: BTreeMap<Address, BTreeSet<NicId>>,
    pub(crate) calls: BTreeMap<CallKey, Call>,
    pub(crate) timers: Timers<CallKey>,
    /// Waiting servers.
    pub(crate) waits: Queues<QueueKey>,
    /// Client requests within their grace period.
    pub(crate) requests: Queues<QueueKey>,
    /// Peer requests, by local and remote connection point.
    pub(crate) peers: Queues<PeerKey>,
    pub(crate) connections: BTreeMap<ConnectionId, Connection>,
    /// Connections of a previous agent of which one side has been adopted.
    pub(crate) halves: Halves,
    pub(crate) links: BTreeMap<LinkId, Link>,
    pub(crate) endpoints: BTreeMap<EndpointId, Endpoint>,
    pub(crate) exchanges: BTreeMap<ExchangeKey, Exchange>,
    pub(crate) exchange_timers: Timers<ExchangeKey>,
    /// Searches for hosts on a link.
    pub(crate) searches: BTreeMap<(LinkId, u64), CallKey>,
    pub(crate) last_nic: NicId,
    pub(crate) last_endpoint: EndpointId,
    pub(crate) last_call: u64,
    pub(crate) last_connection: ConnectionId,
    pub(crate) outputs: VecDeque<Output<F>>,
}

/// Number of entries in each table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Census {
    /// Processes.
    pub clients: usize,
    /// Users with at least one process.
    pub users: usize,
    /// Open NICs.
    pub nics: usize,
    /// Distinct addresses of those.
    pub addresses: usize,
    /// Calls without a reply.
    pub calls: usize,
    /// Entries in the queues of waiting calls.
    pub queued: usize,
    /// Running timers.
    pub timers: usize,
    /// Connection records, one for each side, and unanswered handles.
    pub connections: usize,
    /// Connections of a previous agent of which one side has been adopted.
    pub halves: usize,
    /// Interfaces in use.
    pub links: usize,
    /// Data sockets handed to processes.
    pub endpoints: usize,
    /// Exchanges with other hosts, including those remembered after their end.
    pub exchanges: usize,
    /// Discriminators on links that a user owns.
    pub names: usize,
}

impl<F: Clone> Agent<F> {
    /// An agent without clients. Connection keys derive from the seed; it must be secret where users must not
    /// predict the keys of others.
    pub fn new(seed: [u8; 32]) -> Self {
        Self {
            now: 0,
            agent_pid: 0,
            version: [0; VERSION_BYTES],
            program: [0; PROGRAM_BYTES],
            network: 0,
            surroundings: 0,
            mounts: 0,
            notes: false,
            keys: Keys::new(seed),
            clients: BTreeMap::new(),
            accounts: Accounts::new(),
            claims: Claims::default(),
            link_rate: LinkRate::default(),
            nics: BTreeMap::new(),
            addresses: BTreeMap::new(),
            calls: BTreeMap::new(),
            timers: Timers::default(),
            waits: Queues::new(),
            requests: Queues::new(),
            peers: Queues::new(),
            connections: BTreeMap::new(),
            halves: Halves::default(),
            links: BTreeMap::new(),
            endpoints: BTreeMap::new(),
            exchanges: BTreeMap::new(),
            exchange_timers: Timers::default(),
            searches: BTreeMap::new(),
            last_nic: 0,
            last_endpoint: 0,
            last_call: 0,
            last_connection: 0,
            outputs: VecDeque::new(),
        }
    }

    /// Sets the process id reported in `Welcome`.
    pub fn with_pid(mut self, pid: u32) -> Self {
        self.agent_pid = pid;
        self
    }

    /// Sets the version and program path reported in `Welcome`, for diagnostics.
    pub fn with_program(mut self, version: &str, path: &[u8]) -> Self {
        let fill = |to: &mut [u8], from: &[u8]| {
            // The last byte stays 0.
            let kept = from.len().min(to.len() - 1);
            to[..kept].copy_from_slice(&from[..kept]);
        };
        fill(&mut self.version, version.as_bytes());
        fill(&mut self.program, path);
        self
    }

    /// Sets the network namespace reported in `Welcome`.
    pub fn with_network(mut self, inode: u32) -> Self {
        self.network = inode;
        self
    }

    /// Sets the environment and the mount namespace reported in `Welcome`.
    pub fn with_surroundings(mut self, bits: u32, mounts: u32) -> Self {
        self.surroundings = bits;
        self.mounts = mounts;
        self
    }

    /// Declares that all clients belong to one user, so that nothing is reserved for others.
    pub fn for_one_user(mut self) -> Self {
        self.accounts.set_single_user();
        self
    }

    /// Sets the number of file descriptors available for clients and for the descriptors that they send.
    pub fn with_descriptors(mut self, count: usize) -> Self {
        self.accounts.set_room(Budget::Descriptors, count);
        self
    }

    /// Enables [`Output::Note`].
    pub fn with_notes(mut self, wanted: bool) -> Self {
        self.notes = wanted;
        self
    }

    /// The next output, if any.
    pub fn poll_output(&mut self) -> Option<Output<F>> {
        self.outputs.pop_front()
    }

    /// Counts the entries of all tables.
    pub fn census(&self) -> Census {
        Census {
            clients: self.clients.len(),
            users: self.accounts.users_with(Budget::Processes).count(),
            nics: self.nics.len(),
            addresses: self.addresses.len(),
            calls: self.calls.len() + self.link_rate.len(),
            queued: self.waits.len() + self.requests.len() + self.peers.len(),
            timers: self.timers.len() + self.exchange_timers.len(),
            connections: self.connections.len(),
            halves: self.halves.len(),
            links: self.links.len(),
            endpoints: self.endpoints.len(),
            exchanges: self.exchanges.len(),
            names: self.claims.len(),
        }
    }

    /// The user of a client.
    pub(crate) fn user_of(&self, client: ClientId) -> u32 {
        self.clients.get(&client).map_or(0, |client| client.uid)
    }

    /// Emits a note if notes are enabled.
    pub(crate) fn note(&mut self, line: impl FnOnce(&Self) -> String) {
        if self.notes {
            let line = line(self);
            self.outputs.push_back(Output::Note(line));
        }
    }

    /// Sends the final status of a call, with a detail if there is one.
    pub(crate) fn done(&mut self, caller: Caller, end: impl Into<Denial>) {
        let Denial {
            status,
            detail,
            waited,
        } = end.into();
        let client = self.clients.get(&caller.client);
        let understands = client.is_some_and(|client| client.features & Hello::WAITED != 0);
        match (waited.filter(|_| understands), detail) {
            (Some(waited), _) => self.send(caller, Op::DONE, status, &*waited),
            (None, Some(detail)) => self.send(caller, Op::DONE, status, &detail),
            (None, None) => self.send(caller, Op::DONE, status, &()),
        }
    }

    /// Sends a reply, or an event if the id is 0.
    pub(crate) fn reply<T: IntoBytes + Immutable>(&mut self, caller: Caller, op: Op, body: &T) {
        self.send(caller, op, Status::OK, body);
    }

    pub(crate) fn send<T: IntoBytes + Immutable>(
        &mut self,
        to: Caller,
        op: Op,
        status: Status,
        body: &T,
    ) {
        if self.clients.contains_key(&to.client) {
            let bytes = message::emit(op, status, to.id, body);
            self.outputs.push_back(Output::Send(Message {
                client: to.client,
                bytes,
                fds: Vec::new(),
            }));
        }
    }
}

/// Describes a call that starts to wait.
pub(crate) fn describe(call: &Call, user_of: impl Fn(ClientId) -> u32) -> String {
    let who = match call.owner {
        Owner::Process(caller, _) => {
            let user = user_of(caller.client);
            format!("client {} of user {user}", caller.client.0)
        }
        Owner::Remote(exchange) => format!("{}", Shown(exchange)),
    };
    let what = match &call.kind {
        CallKind::Wait(point, None) => format!("waits at {}", Shown(*point)),
        CallKind::Wait(point, Some(link)) => {
            format!("waits at {} and on interface {link}", Shown(*point))
        }
        CallKind::Request(initiator, _) => format!("requests {}", Shown(initiator.remote)),
        CallKind::Peer(initiator, _) => format!(
            "is peer {} of {}",
            Shown(initiator.local),
            Shown(initiator.remote)
        ),
        CallKind::Asking(initiator, exchange, _) => {
            format!(
                "asks for {} by {}",
                Shown(initiator.remote),
                Shown(*exchange)
            )
        }
        CallKind::RemoteRequest(remote_call, _) => {
            format!("requests {}", Shown(remote_call.remote))
        }
        CallKind::RemotePeer(remote_call, _) => {
            format!(
                "is peer {} of {}",
                Shown(remote_call.local),
                Shown(remote_call.remote)
            )
        }
        CallKind::Search(_) => "asks who is on the link".to_owned(),
    };
    format!("{who} {what}")
}

/// Formats a value for the debug log.
pub(crate) struct Shown<T>(pub(crate) T);

impl fmt::Display for Shown<Discriminator> {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match std::str::from_utf8(self.0.bytes()) {
            Ok(text) if text.bytes().all(|byte| byte.is_ascii_graphic()) => {
                write!(to, "\"{text}\"")
            }
            _ => hexadecimal(self.0.bytes(), to),
        }
    }
}

impl fmt::Display for Shown<ConnectionPoint> {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(to, "{} at ", Shown(self.0.name))?;
        hexadecimal(self.0.address.host(), to)
    }
}

/// Shows the side, the remote host and half of the number: anyone who knows the whole number could end the
/// exchange.
impl fmt::Display for Shown<ExchangeKey> {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (number, side) = (self.0.number >> 32, self.0.side);
        let host = self.0.host;
        write!(to, "exchange {number:08x} with {host} ({side:?})")
    }
}

impl fmt::Display for Shown<State> {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            State::Asking(call) => write!(to, "asking (call {})", call.0),
            State::Called(call) => write!(to, "called (call {})", call.0),
            State::Taking(name) => write!(to, "taking (connection {name})"),
            State::Readying(name, ..) => write!(to, "readying (connection {name})"),
            State::Accepting(name, ..) => write!(to, "accepting (connection {name})"),
            State::Open(name) => write!(to, "open (connection {name})"),
            State::Disconnecting { orderly: true } => write!(to, "disconnecting"),
            State::Disconnecting { orderly: false } => {
                write!(to, "disconnecting, its process died")
            }
            State::Refused(why) => write!(to, "refused ({why:?})"),
            State::Over => write!(to, "over"),
        }
    }
}

fn hexadecimal(bytes: &[u8], to: &mut fmt::Formatter<'_>) -> fmt::Result {
    for (place, byte) in bytes.iter().enumerate() {
        let colon = if place == 0 { "" } else { ":" };
        write!(to, "{colon}{byte:02x}")?;
    }
    Ok(())
}
