//! Messages of processes.

#![forbid(unsafe_code)]

use crate::logic::agent::Agent;

use kagent_proto::{BudgetList, Op, Status, Welcome};

use crate::logic::values::denial::Outcome;
use crate::logic::values::ids::{Caller, ClientId};
use crate::logic::values::message::{self, Command, Malformed};

impl<F: Clone> Agent<F> {
    /// A packet of a process. Unused descriptors are dropped. A returned error has already been answered
    /// where possible; it is for the log.
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
            Command::NicOpen(_) | Command::LinkAdopt(_) => Ok(command),
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

    /// A packet with too many or lost descriptors: it is rejected whatever its content.
    pub fn handle_garbled(&mut self, now: u64, client: ClientId, bytes: &[u8]) -> Malformed {
        self.advance(now);
        let id = message::header(bytes).map_or(0, |header| header.id);
        self.done(Caller { client, id }, Status::INVALID);
        Malformed::Descriptors
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
        // No feature is defined yet, so the common set is empty.
        let body = Welcome {
            features: 0,
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
