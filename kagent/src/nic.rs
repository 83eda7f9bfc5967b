//! NICs that processes have opened, and the addresses they stand for.
//!
//! An address belongs to a user and a provider: NICs of different users never meet, and neither do
//! NICs of different plug-ins. Several NICs, of one process or of many, may share one address; they
//! then share its discriminators too (spec §9.1).

#![forbid(unsafe_code)]

use std::collections::BTreeSet;

use kagent_proto::{
    Budget, DISCRIMINATOR_BYTES_MAX, HOST_BYTES_MAX, NEIGHBOURS_MAX, NeighbourList, NicOpen,
    NicOpened, Op, PROVIDER_BYTES, Point, Reason, Status,
};

use crate::agent::{Agent, Caller};
use crate::call::CallKey;
use crate::client::ClientId;
use crate::connection::ConnectionId;
use crate::denial::{Denial, Outcome};
use crate::limits::{NIC_FDS_MAX, NICS_PER_CLIENT_MAX};
use crate::link::{EndpointId, Mac};
use crate::place::Place;

/// The agent's name for a NIC.
pub(crate) type NicId = u64;

/// Most addresses and users among which the cause of a `NO_MATCH` is looked for: programs ask in a loop.
const LOOKED_AT_MAX: usize = 64;

/// A host address in the name space of one user and one provider.
///
/// The order of the fields matters: addresses that are one another's neighbours are neighbours in a
/// sorted table as well.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Address {
    pub(crate) uid: u32,
    provider: [u8; PROVIDER_BYTES],
    host_len: usize,
    host: [u8; HOST_BYTES_MAX],
}

impl Address {
    /// Bytes after the end of the name or the host do not count.
    fn new(uid: u32, provider: &[u8; PROVIDER_BYTES], host: &[u8]) -> Self {
        let name_len = provider
            .iter()
            .position(|&byte| byte == 0)
            .unwrap_or(PROVIDER_BYTES);
        let mut address = Self {
            uid,
            provider: [0; PROVIDER_BYTES],
            host_len: host.len(),
            host: [0; HOST_BYTES_MAX],
        };
        address.provider[..name_len].copy_from_slice(&provider[..name_len]);
        address.host[..host.len()].copy_from_slice(host);
        address
    }

    pub(crate) fn host(&self) -> &[u8] {
        &self.host[..self.host_len]
    }
}

/// A discriminator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Name {
    len: usize,
    bytes: [u8; DISCRIMINATOR_BYTES_MAX],
}

impl Name {
    /// Bytes beyond the longest discriminator do not count; nobody sends any.
    pub(crate) fn new(bytes: &[u8]) -> Self {
        let len = bytes.len().min(DISCRIMINATOR_BYTES_MAX);
        let mut name = Self {
            len,
            bytes: [0; DISCRIMINATOR_BYTES_MAX],
        };
        name.bytes[..len].copy_from_slice(&bytes[..len]);
        name
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// A connection point: an address and a discriminator there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Spot {
    pub(crate) address: Address,
    pub(crate) name: Name,
}

impl Spot {
    /// The discriminator of `point` at `address`; the host in `point` does not count.
    pub(crate) fn local(address: Address, point: &Point) -> Self {
        let name = Name::new(point.discriminator());
        Self { address, name }
    }

    /// What `point` means to someone at `from`.
    pub(crate) fn remote(from: Address, point: &Point) -> Self {
        Self::local(Address::new(from.uid, &from.provider, point.host()), point)
    }

    /// The form in which partners see it.
    pub(crate) fn point(&self) -> Point {
        Point {
            host_len: self.address.host_len as u16,
            discriminator_len: self.name.len as u16,
            host: self.address.host,
            discriminator: self.name.bytes,
        }
    }
}

/// An open NIC.
#[derive(Debug)]
pub(crate) struct Nic<F> {
    pub(crate) client: ClientId,
    pub(crate) address: Address,
    /// Descriptors that partners get.
    pub(crate) fds: Vec<F>,
    /// On which endpoint it is, if on any.
    pub(crate) endpoint: Option<EndpointId>,
    pub(crate) calls: BTreeSet<CallKey>,
    pub(crate) connections: BTreeSet<ConnectionId>,
}

impl<F: Clone> Agent<F> {
    /// The NIC of that name, if it is the caller's.
    pub(crate) fn own_nic(&self, caller: Caller, nic: NicId) -> Result<&Nic<F>, Status> {
        self.nics
            .get(&nic)
            .filter(|nic| nic.client == caller.client)
            .ok_or(Status::INVALID)
    }

    /// `Op::NIC_OPEN`.
    pub(crate) fn nic_open(&mut self, caller: Caller, body: &NicOpen, fds: Vec<F>) -> Outcome {
        if fds.len() > NIC_FDS_MAX {
            return Err(Status::INVALID.into());
        }
        let client = self.clients.get(&caller.client).ok_or(Status::INVALID)?;
        let (user, open) = (client.uid, client.nics.len());
        if open >= NICS_PER_CLIENT_MAX {
            let denial = Denial::process(Budget::Nics, user, open, NICS_PER_CLIENT_MAX);
            return Err(denial);
        }
        self.accounts.admit(user, Budget::Nics, 1)?;
        self.accounts.admit(user, Budget::Descriptors, fds.len())?;
        let host = body
            .host
            .get(..usize::from(body.host_len))
            .ok_or(Status::INVALID)?;
        let address = Address::new(client.uid, &body.provider, host);
        self.last_nic += 1;
        let nic = self.last_nic;
        let endpoint = (body.link != 0).then_some(body.link);
        if let Some(endpoint) = endpoint {
            self.take_endpoint(caller, endpoint, nic, host)?;
        }
        if let Some(client) = self.clients.get_mut(&caller.client) {
            client.nics.insert(nic);
        }
        self.addresses.entry(address).or_default().insert(nic);
        self.accounts.charge(user, Budget::Nics, 1);
        self.accounts.charge(user, Budget::Descriptors, fds.len());
        let fresh = Nic {
            client: caller.client,
            address,
            fds,
            endpoint,
            calls: BTreeSet::new(),
            connections: BTreeSet::new(),
        };
        self.nics.insert(nic, fresh);
        self.reply(caller, Op::NIC_OPENED, &NicOpened { nic });
        Ok(())
    }

    /// `Op::NIC_CLOSE`: waits and requests are cancelled, unanswered handles rejected, and what was
    /// connected is disconnected as if the process had done it one by one.
    pub(crate) fn nic_close(&mut self, caller: Caller, nic: NicId) -> Result<(), Status> {
        let open = self.own_nic(caller, nic)?;
        let calls: Vec<CallKey> = open.calls.iter().copied().collect();
        let connections: Vec<ConnectionId> = open.connections.iter().copied().collect();
        for call in calls {
            self.end_call(call, Status::CANCELLED);
        }
        for connection in connections {
            self.abandon(connection, true);
        }
        self.forget_nic(nic);
        if let Some(client) = self.clients.get_mut(&caller.client) {
            client.nics.remove(&nic);
        }
        self.done(caller, Status::OK);
        Ok(())
    }

    /// Drops a NIC that has no calls and no connections any more.
    pub(crate) fn forget_nic(&mut self, nic: NicId) {
        let Some(gone) = self.nics.remove(&nic) else {
            return;
        };
        let user = gone.address.uid;
        self.accounts.release(user, Budget::Nics, 1);
        self.accounts
            .release(user, Budget::Descriptors, gone.fds.len());
        if let Some(endpoint) = gone.endpoint {
            self.forget_endpoint(endpoint);
        }
        if let Some(nics) = self.addresses.get_mut(&gone.address) {
            nics.remove(&nic);
            if nics.is_empty() {
                self.addresses.remove(&gone.address);
            }
        }
    }

    /// `Op::NEIGHBOURS`: on a link other hosts are asked first.
    pub(crate) fn neighbours(&mut self, caller: Caller, nic: NicId) -> Outcome {
        if self.own_nic(caller, nic)?.endpoint.is_some() {
            return self.search(caller, nic);
        }
        Ok(self.list_neighbours(caller, nic, &[])?)
    }

    /// Lists the asker's own address, then those of this host in order, then those found elsewhere, each
    /// once and as many as fit.
    pub(crate) fn list_neighbours(
        &mut self,
        caller: Caller,
        nic: NicId,
        found: &[Mac],
    ) -> Result<(), Status> {
        let own = self.own_nic(caller, nic)?.address;
        let first = Address {
            host: [0; HOST_BYTES_MAX],
            ..own
        };
        let last = Address {
            host: [u8::MAX; HOST_BYTES_MAX],
            ..own
        };
        let here = self
            .addresses
            .range(first..=last)
            .map(|(other, _)| other.host());
        let there = found.iter().map(|mac| &mac[..]);
        let mut hosts = [[0; HOST_BYTES_MAX]; NEIGHBOURS_MAX];
        let mut count = 0;
        for address in std::iter::once(own.host()).chain(here).chain(there) {
            let known = hosts[..count]
                .iter()
                .any(|host| host[..own.host_len] == *address);
            if count == hosts.len() {
                break;
            }
            if !known && address.len() == own.host_len {
                hosts[count][..own.host_len].copy_from_slice(address);
                count += 1;
            }
        }
        let list = NeighbourList {
            host_len: own.host_len as u32,
            count: count as u32,
            hosts,
        };
        self.reply(caller, Op::NEIGHBOUR_LIST, &list);
        Ok(())
    }

    /// How to say that nobody waits at a connection point, and the likely cause.
    pub(crate) fn nobody_there(&self, spot: &Spot) -> Denial {
        let (status, reason) = if self.addresses.contains_key(&spot.address) {
            (Status::NO_MATCH, Reason::NOBODY_WAITS)
        } else {
            (Status::NOT_REACHABLE, Reason::NO_SUCH_ADDRESS)
        };
        let waits = |address: Address| {
            let name = spot.name;
            let place = Place::Near(Spot { address, name });
            self.waits.oldest(&place).is_some()
        };
        let user = spot.address.uid;
        let first = Address::new(user, &[0; PROVIDER_BYTES], &[]);
        let own = self.addresses.range(first..).map(|(address, _)| *address);
        let mut own = own.take_while(|address| address.uid == user);
        let others = self.accounts.users_with(Budget::Processes);
        let others = others.filter(|other| *other != user);
        let mut others = others.map(|uid| Address {
            uid,
            ..spot.address
        });
        let reason = if own.by_ref().take(LOOKED_AT_MAX).any(waits) {
            Reason::ELSEWHERE
        } else if others.by_ref().take(LOOKED_AT_MAX).any(waits) {
            Reason::OTHER_USER
        } else {
            reason
        };
        Denial::because(status, reason)
    }
}
