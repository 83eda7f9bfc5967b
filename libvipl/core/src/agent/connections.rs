//! The connections of this process, for handing them over to the next agent.

use std::collections::BTreeMap;
use std::sync::Arc;
use vipl_sys::clock::Instant;

use kagent_proto::*;

use super::client::{Agent, GONE, Owner, Side};
use super::registration::NicRegistration;
use super::ticket::Ticket;
use crate::sync::Mutex;

/// A connection, as reported to the next agent.
#[derive(Clone)]
pub(crate) struct Live {
    pub(crate) owner: Owner,
    /// Number of the VI on its NIC.
    pub(crate) vi: u32,
    pub(crate) attributes: Attributes,
    pub(crate) registration: Arc<NicRegistration>,
    /// The agent that knows it, and its identifier there.
    pub(crate) at: Option<(Arc<Agent>, u64)>,
    /// Whether it need not be handed over: the peer has disconnected or exited, or is on another host, where
    /// the plug-in's lingering close and keep-alive detect the end.
    pub(crate) no_handover: bool,
}

impl Live {
    fn adopt(&self, side: Side, nic: u64) -> Adopt {
        Adopt {
            nic,
            key: side.key,
            vi: u64::from(self.vi),
            side: side.side,
            reserved: 0,
            attributes: self.attributes,
        }
    }
}

/// All connections of the process.
#[derive(Default)]
pub(crate) struct Connections {
    live: Mutex<BTreeMap<Side, Live>>,
    /// Disconnected while there was no agent.
    disconnected: Mutex<Vec<(Side, Live)>>,
}

impl Connections {
    /// Adds a connection.
    pub(crate) fn insert(&self, side: Side, live: Live) {
        self.live.lock().insert(side, live);
    }

    /// Whether there is nothing to hand over.
    pub(super) fn is_empty(&self) -> bool {
        self.live.lock().is_empty() && self.disconnected.lock().is_empty()
    }

    /// Removes a connection that was not completed, which its agent knows.
    pub(crate) fn forget(&self, side: Side) {
        self.live.lock().remove(&side);
    }

    /// VipDisconnect. This agent or the next one notifies the peer.
    pub(crate) fn disconnect(&self, side: Side) {
        let Some(live) = self.live.lock().remove(&side) else {
            return;
        };
        match &live.at {
            Some((agent, name)) if !agent.is_dead() => agent.disconnect(*name),
            _ if live.no_handover => {}
            _ => self.disconnected.lock().push((side, live)),
        }
    }

    /// The agent has reported that the peer has disconnected or exited.
    pub(crate) fn peer_gone(&self, side: Side) {
        if let Some(live) = self.live.lock().get_mut(&side) {
            live.no_handover = true;
        }
    }

    /// Sets the new agent's identifier of a connection. Runs on the reading thread, before it reads any
    /// message about the connection.
    fn adopted(&self, agent: &Arc<Agent>, side: Side, name: u64) {
        let mut all = self.live.lock();
        if let Some(live) = all.get_mut(&side) {
            live.at = Some((agent.clone(), name));
            agent.connected(name, live.owner);
        } else {
            drop(all);
            agent.disconnect(name);
        }
    }

    /// Hands all connections over to a new agent, at which the NICs are open. Returns false if it has exited
    /// as well.
    pub(super) fn hand_over(&'static self, agent: &Arc<Agent>) -> bool {
        // Copies, since the application may connect and disconnect meanwhile.
        let all: Vec<(Side, Live)> = self
            .live
            .lock()
            .iter()
            .filter(|(_, live)| !live.no_handover)
            .map(|(side, live)| (*side, live.clone()))
            .collect();
        // An agent that has become silent is sent the others nevertheless, and may process them later.
        let mut wait = true;
        for (side, live) in all {
            let Some(nic) = live.registration.name_at(agent) else {
                continue;
            };
            let (ticket, body) = (Ticket::new(), live.adopt(side, nic));
            let adopted = ticket.clone();
            agent.start(
                Agent::next_id(),
                Op::ADOPT,
                &body,
                &[],
                move |agent, reply| {
                    if let Some(Adopted { connection }) = reply.body() {
                        self.adopted(agent, side, connection);
                    }
                    adopted.complete(reply.status);
                },
            );
            if !wait {
                continue;
            }
            let asked = Instant::now();
            match ticket.wait_until(asked + agent.patience()) {
                Ok(Some(Status::OK)) => {}
                Ok(Some(GONE)) => return false,
                Ok(None) => {
                    agent.log_silence(Op::ADOPT, asked.elapsed());
                    wait = false;
                }
                refused => log::error!(
                    target: "agent",
                    "the new Kernel Agent does not take over a connection ({refused:?}): the death of \
                     its peer may go unnoticed"
                ),
            }
        }
        let disconnected = std::mem::take(&mut *self.disconnected.lock());
        for (side, live) in disconnected {
            let Some(nic) = live.registration.name_at(agent) else {
                continue;
            };
            let reply = agent.call(Op::ADOPT, &live.adopt(side, nic), &[]);
            if let Some(Adopted { connection }) = reply.body() {
                agent.notify(Op::DISCONNECT, &ConnectionRef { connection });
            }
        }
        !agent.is_dead()
    }
}
