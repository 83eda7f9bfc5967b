//! Processes: connecting, messages, exiting.

#![forbid(unsafe_code)]

use kagent_proto::{Budget, BudgetList, Hello, Op, Status, Welcome};
use thiserror::Error;

use crate::logic::agent::Agent;
use crate::logic::budgets::DESCRIPTORS_PER_CLIENT;
use crate::logic::ids::{Caller, ClientId};
use crate::logic::message::{self, Command, Denial, Malformed, Outcome};
use crate::logic::objects::Client;

/// Why a process was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Refused {
    /// The user has reached its limit.
    #[error("user {user} has {used} of {limit} {}", budget.name())]
    UserFull {
        /// The user.
        user: u32,
        /// The exhausted budget.
        budget: Budget,
        /// Current use.
        used: usize,
        /// Limit.
        limit: usize,
    },
    /// The runtime reused an identifier.
    #[error("client name in use")]
    Known,
}

impl Refused {
    /// The packet that reports the reason to the process, if there is one.
    pub fn rejection(&self) -> Option<Vec<u8>> {
        let &Refused::UserFull {
            user,
            budget,
            used,
            limit,
        } = self
        else {
            return None;
        };
        let Denial { status, detail, .. } = Denial::user(budget, user, used, limit);
        Some(message::emit(Op::DONE, status, 0, &detail?))
    }
}

impl<F: Clone> Agent<F> {
    /// A process connected. `uid` and `pid` come from the kernel, not from the process.
    pub fn handle_connect(
        &mut self,
        now: u64,
        client: ClientId,
        uid: u32,
        pid: u32,
    ) -> Result<(), Refused> {
        self.advance(now);
        if self.clients.contains_key(&client) {
            return Err(Refused::Known);
        }
        let costs = [
            (Budget::Processes, 1),
            (Budget::Descriptors, DESCRIPTORS_PER_CLIENT),
        ];
        for (budget, count) in costs {
            if self.accounts.admit(uid, budget, count).is_err() {
                return Err(Refused::UserFull {
                    user: uid,
                    budget,
                    used: self.accounts.used(uid, budget),
                    limit: self.accounts.limit(uid, budget),
                });
            }
        }
        for (budget, count) in costs {
            self.accounts.charge(uid, budget, count);
        }
        let fresh = Client {
            uid,
            pid,
            ..Client::default()
        };
        self.clients.insert(client, fresh);
        Ok(())
    }

    /// A process exited, in good order if it sent `Op::GOODBYE` before. Releases all it had and notifies its
    /// peers. An unknown client is ignored.
    pub fn handle_hangup(&mut self, now: u64, client: ClientId) {
        self.advance(now);
        // Removed first, so that nothing more is sent to it.
        let Some(gone) = self.clients.remove(&client) else {
            return;
        };
        self.note(|_| {
            let how = if gone.disconnecting { "left" } else { "died" };
            let (calls, connections) = (gone.calls.len(), gone.connections.len());
            let client = client.0;
            format!("client {client} {how}: {calls} calls and {connections} connections end")
        });
        self.accounts.release(gone.uid, Budget::Processes, 1);
        self.accounts
            .release(gone.uid, Budget::Descriptors, DESCRIPTORS_PER_CLIENT);
        self.link_rate.forget(gone.uid, client);
        // Calls before connections, so that a process that holds its own request is not notified, and servers
        // that hold its requests find them expired.
        for &call in gone.calls.values() {
            self.take_call(call);
        }
        for &connection in &gone.connections {
            self.close_connection(connection, gone.disconnecting);
        }
        for &nic in &gone.nics {
            self.forget_nic(nic);
        }
        // Endpoints that no NIC used.
        for &endpoint in &gone.endpoints {
            self.forget_endpoint(endpoint);
        }
    }
}

/// Messages of processes.
impl<F: Clone> Agent<F> {
    /// A packet of a process. Unused descriptors are dropped. A returned error has already been reported to
    /// the process where possible; it is for the log.
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
            Command::Hello(_) if greeted => Err(Malformed::Turn(op)),
            Command::NicOpen(_) | Command::LinkAdopt(_) => Ok(command),
            _ if fds.is_empty() => Ok(command),
            _ => Err(Malformed::Descriptors),
        });
        let command = match checked {
            Ok(command) if greeted || matches!(command, Command::Hello(_)) => command,
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

    /// A packet with too many or lost descriptors: rejected regardless of its content.
    pub fn handle_garbled(&mut self, now: u64, client: ClientId, bytes: &[u8]) -> Malformed {
        self.advance(now);
        let id = message::header(bytes).map_or(0, |header| header.id);
        self.done(Caller { client, id }, Status::INVALID);
        Malformed::Descriptors
    }

    fn perform(&mut self, caller: Caller, command: Command, fds: Vec<F>) -> Outcome {
        match command {
            Command::Hello(body) => {
                if let Some(client) = self.clients.get_mut(&caller.client) {
                    client.greeted = true;
                    client.features = body.features & Hello::WAITED;
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
            Command::LinkAdopt(body) => self.link_adopt(caller, &body, fds)?,
            Command::LinkAsk(body) => self.link_ask(caller, &body),
            Command::DeviceOpen(body) => self.device_open(caller, &body)?,
            Command::Budgets => self.budgets(caller),
            Command::Goodbye => {
                if let Some(client) = self.clients.get_mut(&caller.client) {
                    client.disconnecting = true;
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

    fn refuse(&mut self, caller: Caller, cause: Malformed) -> Result<(), Malformed> {
        self.done(caller, Status::INVALID);
        Err(cause)
    }

    fn welcome(&mut self, caller: Caller, status: Status) {
        let client = self.clients.get(&caller.client);
        let body = Welcome {
            features: client.map_or(0, |client| client.features),
            agent_pid: self.agent_pid,
            version: self.version,
            program: self.program,
            network: self.network,
            surroundings: self.surroundings,
            mounts: self.mounts,
        };
        self.send(caller, Op::WELCOME, status, &body);
    }
}
