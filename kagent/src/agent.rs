//! The agent as a whole: its tables, and the way in and out.
//!
//! One thread drives it. Each `handle_*` takes the time, does all that follows from what happened, and
//! leaves the results in a queue that `poll_output` empties. Whatever a deadline says is settled before
//! anything else, so there is never a doubt about who won a race against the clock.

#![forbid(unsafe_code)]

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use kagent_proto::{Budget, BudgetList, Op, PROGRAM_BYTES, Status, VERSION_BYTES, Welcome};
use zerocopy::{Immutable, IntoBytes};

use crate::accounts::Accounts;
use crate::adopt::Halves;
use crate::call::{Call, CallKey};
use crate::claim::Claims;
use crate::client::{Client, ClientId};
use crate::connection::{Connection, ConnectionId};
use crate::denial::{Denial, Outcome};
use crate::exchange::{Exchange, ExchangeKey};
use crate::keys::Keys;
use crate::link::{Endpoint, EndpointId, Link, LinkId};
use crate::message::{self, Command, Malformed};
use crate::nic::{Address, Nic, NicId};
use crate::output::{Message, Output};
use crate::pace::Paces;
use crate::place::{Pair, Place};
use crate::queue::Queues;
use crate::timer::Timers;

/// Who gets a reply, and under which id.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Caller {
    pub(crate) client: ClientId,
    pub(crate) id: u64,
}

/// The Kernel Agent's logic. `F` is whatever the runtime uses for a file descriptor.
#[derive(Debug)]
pub struct Agent<F> {
    /// The latest time anyone told us.
    pub(crate) now: u64,
    agent_pid: u32,
    version: [u8; VERSION_BYTES],
    program: [u8; PROGRAM_BYTES],
    network: u32,
    /// Somebody wants to know what happens.
    pub(crate) notes: bool,
    pub(crate) keys: Keys,
    pub(crate) clients: BTreeMap<ClientId, Client>,
    /// What each user has.
    pub(crate) accounts: Accounts,
    /// Whose the discriminators on links are.
    pub(crate) claims: Claims,
    /// How fast each user gets data sockets.
    pub(crate) paces: Paces,
    pub(crate) nics: BTreeMap<NicId, Nic<F>>,
    pub(crate) addresses: BTreeMap<Address, BTreeSet<NicId>>,
    pub(crate) calls: BTreeMap<CallKey, Call>,
    pub(crate) timers: Timers<CallKey>,
    /// Servers, by the place where they wait.
    pub(crate) waits: Queues<Place>,
    /// Clients within their grace, by the place where they look.
    pub(crate) seekers: Queues<Place>,
    /// Peers, by own and wanted place.
    pub(crate) peers: Queues<Pair>,
    pub(crate) connections: BTreeMap<ConnectionId, Connection>,
    /// Connections of an earlier agent of which one side has come.
    pub(crate) halves: Halves,
    pub(crate) links: BTreeMap<LinkId, Link>,
    pub(crate) endpoints: BTreeMap<EndpointId, Endpoint>,
    pub(crate) exchanges: BTreeMap<ExchangeKey, Exchange>,
    pub(crate) exchange_timers: Timers<ExchangeKey>,
    /// Questions who is on a link.
    pub(crate) searches: BTreeMap<(LinkId, u64), CallKey>,
    pub(crate) last_nic: NicId,
    pub(crate) last_endpoint: EndpointId,
    pub(crate) last_call: u64,
    pub(crate) last_connection: ConnectionId,
    pub(crate) outputs: VecDeque<Output<F>>,
}

/// How many of each thing an agent has.
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
    /// Places in the queues where partners look.
    pub queued: usize,
    /// Running timers.
    pub timers: usize,
    /// Connection records, one for each side, and unanswered handles.
    pub connections: usize,
    /// Connections of an earlier agent of which one side has come.
    pub halves: usize,
    /// Interfaces in use.
    pub links: usize,
    /// Data sockets that were given out.
    pub endpoints: usize,
    /// What is under way between this host and others, or has just been.
    pub exchanges: usize,
    /// Discriminators on links that belong to a user.
    pub names: usize,
}

impl<F: Clone> Agent<F> {
    /// An agent that serves nobody yet. The seed decides the keys of connections and has to be secret
    /// wherever users shall not guess each other's.
    pub fn new(seed: [u8; 32]) -> Self {
        Self {
            now: 0,
            agent_pid: 0,
            version: [0; VERSION_BYTES],
            program: [0; PROGRAM_BYTES],
            network: 0,
            notes: false,
            keys: Keys::new(seed),
            clients: BTreeMap::new(),
            accounts: Accounts::new(),
            claims: Claims::new(),
            paces: Paces::new(),
            nics: BTreeMap::new(),
            addresses: BTreeMap::new(),
            calls: BTreeMap::new(),
            timers: Timers::new(),
            waits: Queues::new(),
            seekers: Queues::new(),
            peers: Queues::new(),
            connections: BTreeMap::new(),
            halves: Halves::default(),
            links: BTreeMap::new(),
            endpoints: BTreeMap::new(),
            exchanges: BTreeMap::new(),
            exchange_timers: Timers::new(),
            searches: BTreeMap::new(),
            last_nic: 0,
            last_endpoint: 0,
            last_call: 0,
            last_connection: 0,
            outputs: VecDeque::new(),
        }
    }

    /// Sets the process id that `Welcome` tells.
    pub fn with_pid(mut self, pid: u32) -> Self {
        self.agent_pid = pid;
        self
    }

    /// Sets the version and the path that `Welcome` tells, for messages to people.
    pub fn with_program(mut self, version: &str, path: &[u8]) -> Self {
        let fill = |to: &mut [u8], from: &[u8]| {
            // One byte stays 0.
            let kept = from.len().min(to.len() - 1);
            to[..kept].copy_from_slice(&from[..kept]);
        };
        fill(&mut self.version, version.as_bytes());
        fill(&mut self.program, path);
        self
    }

    /// Sets the network namespace that `Welcome` tells.
    pub fn with_network(mut self, inode: u32) -> Self {
        self.network = inode;
        self
    }

    /// Says that all processes are of one user, who may then have what others would need.
    pub fn for_one_user(mut self) -> Self {
        self.accounts.set_single_user();
        self
    }

    /// Says how many file descriptors the system gives to processes and what they bring.
    pub fn with_descriptors(mut self, count: usize) -> Self {
        self.accounts.set_room(Budget::Descriptors, count);
        self
    }

    /// A packet of a process. Descriptors that are not used are dropped. An error has been answered
    /// already where it can be; it is returned for the log only.
    pub fn handle_message(
        &mut self,
        now: u64,
        client: ClientId,
        bytes: &[u8],
        fds: Vec<F>,
    ) -> Result<(), Malformed> {
        self.advance(now);
        let Some(known) = self.clients.get(&client) else {
            return Err(Malformed::Client);
        };
        let greeted = known.greeted;
        let header = message::header(bytes);
        let caller = Caller {
            client,
            id: header.map_or(0, |header| header.id),
        };
        let op = header.map_or(0, |header| header.op);
        let checked = message::parse(bytes).and_then(|command| match command {
            Command::Hello if greeted => Err(Malformed::Turn(op)),
            Command::NicOpen(_) => Ok(command),
            _ if fds.is_empty() => Ok(command),
            _ => Err(Malformed::Descriptors),
        });
        let command = match checked {
            Ok(command) if greeted || matches!(command, Command::Hello) => command,
            Ok(_) => return self.refuse(caller, Malformed::Turn(op)),
            Err(Malformed::Version(version)) if Op(op) == Op::HELLO => {
                self.welcome(caller, Status::VERSION);
                return Err(Malformed::Version(version));
            }
            Err(cause) => return self.refuse(caller, cause),
        };
        if let Err(denial) = self.perform(caller, command, fds) {
            self.note(|_| {
                let (client, status) = (client.0, denial.status.name());
                format!("client {client}: operation {op}: {status}")
            });
            self.done(caller, denial);
        }
        Ok(())
    }

    /// A packet whose descriptors were too many or got lost: it is refused whatever it says.
    pub fn handle_garbled(&mut self, now: u64, client: ClientId, bytes: &[u8]) -> Malformed {
        self.advance(now);
        let id = message::header(bytes).map_or(0, |header| header.id);
        self.done(Caller { client, id }, Status::INVALID);
        Malformed::Descriptors
    }

    /// What to do next, if there is anything.
    pub fn poll_output(&mut self) -> Option<Output<F>> {
        self.outputs.pop_front()
    }

    /// When [`handle_timeout`](Self::handle_timeout) wants to be called at the latest.
    pub fn poll_timeout(&self) -> Option<u64> {
        [
            self.timers.next(),
            self.exchange_timers.next(),
            self.halves.next(),
            self.claims.next(),
            self.paces.next(),
        ]
        .into_iter()
        .flatten()
        .min()
    }

    /// Time has passed.
    pub fn handle_timeout(&mut self, now: u64) {
        self.advance(now);
    }

    /// Counts everything.
    pub fn census(&self) -> Census {
        Census {
            clients: self.clients.len(),
            users: self.accounts.users_with(Budget::Processes).count(),
            nics: self.nics.len(),
            addresses: self.addresses.len(),
            calls: self.calls.len() + self.paces.len(),
            queued: self.waits.len() + self.seekers.len() + self.peers.len(),
            timers: self.timers.len() + self.exchange_timers.len(),
            connections: self.connections.len(),
            halves: self.halves.len(),
            links: self.links.len(),
            endpoints: self.endpoints.len(),
            exchanges: self.exchanges.len(),
            names: self.claims.len(),
        }
    }

    fn perform(&mut self, caller: Caller, command: Command, fds: Vec<F>) -> Outcome {
        match command {
            Command::Hello => {
                if let Some(client) = self.clients.get_mut(&caller.client) {
                    client.greeted = true;
                }
                self.welcome(caller, Status::OK);
            }
            Command::NicOpen(body) => self.nic_open(caller, &body, fds)?,
            Command::NicClose(body) => self.nic_close(caller, body.nic)?,
            Command::Wait(body) => self.wait(caller, &body)?,
            Command::Request(body) => self.request(caller, &body)?,
            Command::Peer(body) => self.peer(caller, &body)?,
            Command::Accept(body) => self.accept(caller, &body)?,
            Command::Reject(body) => self.reject(caller, body.connection)?,
            Command::Cancel(body) => self.cancel(caller, body.call)?,
            Command::Confirm(body) => self.confirm(caller, body.connection)?,
            Command::Disconnect(body) => self.disconnect(caller, body.connection)?,
            Command::Adopt(body) => self.adopt(caller, &body)?,
            Command::Neighbours(body) => self.neighbours(caller, body.nic)?,
            Command::LinkOpen(body) => self.link_open(caller, &body)?,
            Command::DeviceOpen(body) => self.device_open(caller, &body)?,
            Command::Budgets => self.budgets(caller),
            Command::Goodbye => {
                if let Some(client) = self.clients.get_mut(&caller.client) {
                    client.leaving = true;
                }
            }
        }
        Ok(())
    }

    /// `Op::BUDGETS`.
    fn budgets(&mut self, caller: Caller) {
        let user = self.user_of(caller.client);
        let list = BudgetList {
            user,
            reserved: 0,
            lines: self.accounts.lines(user),
        };
        self.reply(caller, Op::BUDGET_LIST, &list);
    }

    /// Whose a process is.
    pub(crate) fn user_of(&self, client: ClientId) -> u32 {
        self.clients.get(&client).map_or(0, |client| client.uid)
    }

    /// Moves the clock, never backwards, and ends what is due.
    pub(crate) fn advance(&mut self, now: u64) {
        self.now = self.now.max(now);
        while let Some(call) = self.timers.pop_due(self.now) {
            self.call_due(call);
        }
        self.end_halves_due();
        self.free_claims_due();
        self.open_links_due();
        while let Some(exchange) = self.exchange_timers.pop_due(self.now) {
            self.exchange_due(exchange);
        }
    }

    fn refuse(&mut self, caller: Caller, cause: Malformed) -> Result<(), Malformed> {
        self.done(caller, Status::INVALID);
        Err(cause)
    }

    fn welcome(&mut self, caller: Caller, status: Status) {
        // No feature is defined yet, so there is none that both have.
        let body = Welcome {
            features: 0,
            agent_pid: self.agent_pid,
            version: self.version,
            program: self.program,
            network: self.network,
        };
        self.send(caller, Op::WELCOME, status, &body);
    }

    /// A reply that says how a call ended, and in more detail if there is any.
    pub(crate) fn done(&mut self, caller: Caller, end: impl Into<Denial>) {
        let Denial { status, detail } = end.into();
        match detail {
            Some(detail) => self.send(caller, Op::DONE, status, &detail),
            None => self.send(caller, Op::DONE, status, &()),
        }
    }

    /// A reply, or with id 0 an event.
    pub(crate) fn reply<T: IntoBytes + Immutable>(&mut self, caller: Caller, op: Op, body: &T) {
        self.send(caller, op, Status::OK, body);
    }

    fn send<T: IntoBytes + Immutable>(&mut self, to: Caller, op: Op, status: Status, body: &T) {
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
