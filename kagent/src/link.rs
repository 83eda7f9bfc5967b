//! Links: network interfaces on which the agent speaks with agents of other hosts, and the endpoints that
//! processes have there.
//!
//! An endpoint is a data socket in the hands of one process. Its number stands in every frame for it, so
//! that the kernel can sort frames without knowing any VI. A link is there while somebody has an endpoint
//! on it, or while something that was agreed with another host there is not yet at its end.
//!
//! ```text
//!   LINK_OPEN ──▶ Output::OpenLink ──▶ the runtime opens the socket ──▶ handle_link_opened ──▶ LINK_OPENED
//!   NIC_OPEN with that endpoint: the NIC reaches other hosts; both end together
//! ```

#![forbid(unsafe_code)]

use std::collections::{BTreeMap, BTreeSet};

use kagent_proto::{Budget, DRIVER_BYTES, HOST_BYTES_MAX, INTERFACE_BYTES, LinkOpened, Op, Status};

use crate::agent::{Agent, Caller};
use crate::client::ClientId;
use crate::denial::{Denial, Outcome};
use crate::exchange::ExchangeKey;
use crate::limits::ENDPOINTS_PER_CLIENT_MAX;
use crate::message;
use crate::nic::NicId;
use crate::output::{Message, OpenLink, Output};

/// Number of a network interface.
pub type LinkId = u32;

/// The address of an interface.
pub type Mac = [u8; 6];

/// The agent's name for an endpoint.
pub(crate) type EndpointId = u64;

/// What the runtime knows of a network interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interface {
    /// Its number.
    pub index: LinkId,
    /// Its name, zero padded.
    pub name: [u8; INTERFACE_BYTES],
    /// Its address.
    pub address: Mac,
    /// Largest payload of a frame in bytes.
    pub mtu: u32,
    /// Speed in Mbit/s, 0 when it does not tell.
    pub speed_mbit: u32,
    /// Name of its driver, zero padded.
    pub driver: [u8; DRIVER_BYTES],
}

/// A link.
#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) address: Mac,
    /// Endpoints by number.
    pub(crate) endpoints: BTreeMap<u16, EndpointId>,
    /// Exchanges that this host began, and that others began.
    pub(crate) exchanges: [usize; 2],
    /// Those of them in which a call of ours waits for an answer.
    pub(crate) asking: BTreeSet<ExchangeKey>,
    /// Those that others began and that wait for a server or are remembered after their end: of each host,
    /// and all.
    pub(crate) idle: (BTreeMap<Mac, usize>, usize),
    /// Endpoints of each user.
    pub(crate) users: BTreeMap<u32, usize>,
    /// Those that wait for the last word of the other host.
    pub(crate) leaving: usize,
    /// The number given out last: one that has become free is not used again soon.
    last_endpoint: u16,
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

impl<F: Clone> Agent<F> {
    /// `Op::LINK_OPEN`, when its time has come: the runtime knows the interface and whether this process may
    /// have a socket there.
    pub(crate) fn link_open_now(
        &mut self,
        caller: Caller,
        interface: [u8; INTERFACE_BYTES],
    ) -> Outcome {
        let client = self.clients.get(&caller.client).ok_or(Status::INVALID)?;
        let (user, budget, open) = (client.uid, Budget::Endpoints, client.endpoints.len());
        if open >= ENDPOINTS_PER_CLIENT_MAX {
            let most = ENDPOINTS_PER_CLIENT_MAX;
            return Err(Denial::process(budget, user, open, most));
        }
        self.accounts.admit(user, budget, 1)?;
        self.outputs.push_back(Output::OpenLink(OpenLink {
            client: caller.client,
            call: caller.id,
            interface,
        }));
        Ok(())
    }

    /// A number for a new endpoint on an interface, whether it is a link already or not; `None` when all
    /// are in use.
    pub fn free_endpoint(&mut self, index: LinkId) -> Option<u16> {
        let link = match self.links.get(&index) {
            Some(link) => link,
            // Nobody shall guess what follows a restart of the agent.
            None => return Some((self.keys.next_key() as u16).max(1)),
        };
        let from = link.last_endpoint;
        (1..=u16::MAX)
            .map(|step| from.wrapping_add(step))
            .find(|number| *number != 0 && !link.endpoints.contains_key(number))
    }

    /// The answer of the runtime to an [`OpenLink`], before the next input: the interface, the number from
    /// [`free_endpoint`](Self::free_endpoint), and the data socket; or why there is none.
    pub fn handle_link_opened(
        &mut self,
        now: u64,
        open: &OpenLink,
        result: Result<(Interface, u16, F), Status>,
    ) {
        self.advance(now);
        let caller = Caller {
            client: open.client,
            id: open.call,
        };
        let (interface, number, socket) = match result {
            Ok(made) => made,
            Err(status) => return self.done(caller, status),
        };
        let Some(client) = self.clients.get_mut(&open.client) else {
            return self.close_idle_link(interface.index);
        };
        self.last_endpoint += 1;
        let name = self.last_endpoint;
        client.endpoints.insert(name);
        let user = client.uid;
        self.accounts.charge(user, Budget::Endpoints, 1);
        let link = self.links.entry(interface.index).or_insert(Link {
            address: interface.address,
            endpoints: BTreeMap::new(),
            exchanges: [0; 2],
            asking: BTreeSet::new(),
            idle: (BTreeMap::new(), 0),
            users: BTreeMap::new(),
            leaving: 0,
            last_endpoint: number,
        });
        // An interface may be given another address while nobody is connected through it.
        link.address = interface.address;
        link.last_endpoint = number;
        link.endpoints.insert(number, name);
        *link.users.entry(user).or_default() += 1;
        let endpoint = Endpoint {
            client: open.client,
            user,
            link: interface.index,
            number,
            nic: None,
        };
        self.endpoints.insert(name, endpoint);
        let mut host = [0; HOST_BYTES_MAX];
        host[..interface.address.len()].copy_from_slice(&interface.address);
        let body = LinkOpened {
            link: name,
            interface_index: interface.index,
            mtu: interface.mtu,
            speed_mbit: interface.speed_mbit,
            endpoint: number,
            host_len: interface.address.len() as u16,
            host,
            interface: interface.name,
            driver: interface.driver,
        };
        self.outputs.push_back(Output::Send(Message {
            client: open.client,
            bytes: message::emit(Op::LINK_OPENED, Status::OK, open.call, &body),
            fds: vec![socket],
        }));
    }

    /// Puts a NIC on an endpoint of the same process.
    pub(crate) fn take_endpoint(
        &mut self,
        caller: Caller,
        name: EndpointId,
        nic: NicId,
        host: &[u8],
    ) -> Result<(), Status> {
        let endpoint = self
            .endpoints
            .get_mut(&name)
            .filter(|e| e.client == caller.client && e.nic.is_none())
            .ok_or(Status::INVALID)?;
        let link = self.links.get(&endpoint.link).ok_or(Status::INVALID)?;
        if link.address != host {
            return Err(Status::INVALID);
        }
        endpoint.nic = Some(nic);
        Ok(())
    }

    /// An endpoint has ended with its NIC or its process.
    pub(crate) fn forget_endpoint(&mut self, name: EndpointId) {
        let Some(gone) = self.endpoints.remove(&name) else {
            return;
        };
        if let Some(client) = self.clients.get_mut(&gone.client) {
            client.endpoints.remove(&name);
        }
        self.accounts.release(gone.user, Budget::Endpoints, 1);
        if let Some(link) = self.links.get_mut(&gone.link) {
            link.endpoints.remove(&gone.number);
            if let Some(left) = link.users.get_mut(&gone.user) {
                *left -= 1;
                if *left == 0 {
                    link.users.remove(&gone.user);
                    self.free_claims_of(gone.user, gone.link);
                }
            }
        }
        self.close_idle_link(gone.link);
    }

    /// The link that a NIC is on.
    pub(crate) fn link_of(&self, nic: NicId) -> Option<LinkId> {
        self.endpoint_of(nic).map(|endpoint| endpoint.link)
    }

    /// The endpoint that a NIC is on.
    pub(crate) fn endpoint_of(&self, nic: NicId) -> Option<&Endpoint> {
        self.endpoints.get(&self.nics.get(&nic)?.endpoint?)
    }

    /// Whether the agent has something to say to another host that must not be left unsaid.
    pub fn has_last_words(&self) -> bool {
        self.links.values().any(|link| link.leaving > 0)
    }

    /// The runtime has opened a link for a data socket that came to nothing.
    pub fn close_link_if_idle(&mut self, index: LinkId) {
        self.close_idle_link(index);
    }

    /// Lets go of a link on which nobody has an endpoint and nothing is left to be said. What the agent
    /// remembers of exchanges there is of no use any more: nobody waits there.
    pub(crate) fn close_idle_link(&mut self, index: LinkId) {
        let idle = self
            .links
            .get(&index)
            .is_none_or(|link| link.endpoints.is_empty() && link.leaving == 0);
        if idle {
            self.links.remove(&index);
            self.forget_exchanges(index);
            self.outputs.push_back(Output::CloseLink(index));
        }
    }
}
