//! The connections of this process, as they are handed from one agent to the next.

use std::collections::HashMap;

use std::sync::Arc;

use kagent_proto::*;

use super::registration::NicRegistration;
use super::{Agent, Call, Ticket};
use crate::sync::Mutex;
use crate::table::Slot;
use crate::vi::Vi;

/// One side of one connection, under whatever agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Link {
    /// The connection's key.
    pub(crate) key: u64,
    /// Which of the two sides.
    pub(crate) side: u32,
}

/// What another agent has to be told of it.
#[derive(Clone)]
pub(crate) struct Live {
    pub(crate) slot: &'static Slot<Vi>,
    pub(crate) generation: u32,
    pub(crate) vi: u32,
    pub(crate) attributes: Attributes,
    pub(crate) registration: Arc<NicRegistration>,
    /// The agent that knows it, and its name there.
    pub(crate) at: Option<(Arc<Agent>, u64)>,
    /// No later agent has to know it: an agent has said that the partner has gone, or the partner is on
    /// another host, where the plug-in's own farewell and keep-alive tell of an end.
    pub(crate) lone: bool,
}

impl Live {
    fn adopt(&self, link: Link, nic: u64) -> Adopt {
        Adopt {
            nic,
            key: link.key,
            vi: u64::from(self.vi),
            side: link.side,
            reserved: 0,
            attributes: self.attributes,
        }
    }
}

/// All connections of the process.
#[derive(Default)]
pub(crate) struct Connections {
    live: Mutex<HashMap<Link, Live>>,
    /// Disconnected while there was no agent.
    parted: Mutex<Vec<(Link, Live)>>,
}

impl Connections {
    /// A connection has come about.
    pub(crate) fn insert(&self, link: Link, live: Live) {
        self.live.lock().insert(link, live);
    }

    /// Whether there is any that an agent should know.
    pub(super) fn is_empty(&self) -> bool {
        self.live.lock().is_empty() && self.parted.lock().is_empty()
    }

    /// A connection has come to nothing, and its agent knows.
    pub(crate) fn forget(&self, link: Link) {
        self.live.lock().remove(&link);
    }

    /// VipDisconnect. The partner is told by this agent or by the next one.
    pub(crate) fn disconnect(&self, link: Link) {
        let Some(live) = self.live.lock().remove(&link) else {
            return;
        };
        match &live.at {
            Some((agent, name)) if !agent.is_dead() => agent.disconnect(*name),
            _ if live.lone => {}
            _ => self.parted.lock().push((link, live)),
        }
    }

    /// The agent says that the partner has gone.
    pub(super) fn partner_gone(&self, link: Link) {
        if let Some(live) = self.live.lock().get_mut(&link) {
            live.lone = true;
        }
    }

    /// The new agent's name for a connection. Runs on the thread that reads its messages, before
    /// anything that it says about the connection is read.
    pub(super) fn adopted(&self, agent: &Arc<Agent>, link: Link, name: u64) {
        let mut all = self.live.lock();
        if let Some(live) = all.get_mut(&link) {
            live.at = Some((agent.clone(), name));
            agent.connected(name, link, live.slot, live.generation);
        } else {
            drop(all);
            agent.disconnect(name);
        }
    }

    /// Tells a new agent, at which the NICs are open, of all connections. False: it has gone as well.
    pub(super) fn hand_over(&self, agent: &Arc<Agent>) -> bool {
        // Copies: the program goes on connecting and disconnecting meanwhile.
        let all: Vec<(Link, Live)> = self
            .live
            .lock()
            .iter()
            .filter(|(_, live)| !live.lone)
            .map(|(link, live)| (*link, live.clone()))
            .collect();
        for (link, live) in all {
            let Some(nic) = live.registration.name_at(agent) else {
                continue;
            };
            let ticket = Ticket::new();
            let call = Call::Adopt(link, ticket.clone());
            agent.start(
                Agent::next_id(),
                call,
                Op::ADOPT,
                &live.adopt(link, nic),
                &[],
            );
            match ticket.wait() {
                Ok(Status::OK) => {}
                Ok(super::GONE) => return false,
                refused => log::error!(
                    target: "agent",
                    "the new Kernel Agent does not take over a connection ({refused:?}): the end of its \
                     partner may go unnoticed"
                ),
            }
        }
        let parted = std::mem::take(&mut *self.parted.lock());
        for (link, live) in parted {
            let Some(nic) = live.registration.name_at(agent) else {
                continue;
            };
            let reply = agent.call(Op::ADOPT, &live.adopt(link, nic), &[]);
            if let Some(Adopted { connection }) = reply.body() {
                agent.tell(Op::DISCONNECT, &ConnectionRef { connection });
            }
        }
        !agent.is_dead()
    }
}
