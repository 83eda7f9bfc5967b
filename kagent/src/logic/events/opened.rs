//! Answers of the runtime to outputs: what it opened, or the error.

#![forbid(unsafe_code)]

use std::collections::{BTreeMap, BTreeSet};

use kagent_proto::{Budget, DeviceOpened, HOST_BYTES_MAX, LinkOpened, Op, Status};

use crate::logic::agent::Agent;
use crate::logic::ids::{Caller, LinkId};
use crate::logic::message;
use crate::logic::objects::{Endpoint, Interface, Link};
use crate::logic::output::{Join, Message, OpenDevice, OpenLink, Output};

impl<F: Clone> Agent<F> {
    /// A free number for a new endpoint on an interface, which need not be a link yet; `None` if all are in
    /// use.
    pub fn free_endpoint(&mut self, index: LinkId) -> Option<u16> {
        let link = match self.links.get(&index) {
            Some(link) => link,
            // The first number after a restart must not be predictable.
            None => return Some((self.keys.next_key() as u16).max(1)),
        };
        let from = link.last_endpoint;
        (1..=u16::MAX)
            .map(|step| from.wrapping_add(step))
            .find(|number| *number != 0 && !link.endpoints.contains_key(number))
    }

    /// Whether no endpoint on this link has the number.
    pub fn is_free_endpoint(&self, index: LinkId, number: u16) -> bool {
        let link = self.links.get(&index);
        link.is_none_or(|link| !link.endpoints.contains_key(&number))
    }

    /// The answer of the runtime to an [`OpenLink`], before the next input: the interface, the number, which
    /// [`is_free_endpoint`](Self::is_free_endpoint), and its sockets, the data socket last; or the error.
    pub fn handle_link_opened(
        &mut self,
        now: u64,
        open: &OpenLink,
        result: Result<(Interface, u16, Vec<F>), Status>,
    ) {
        self.advance(now);
        let caller = Caller {
            client: open.client,
            id: open.call,
        };
        let (interface, number, sockets) = match result {
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
            medium: interface.medium,
            address: interface.address,
            seals: interface.seals,
            endpoints: BTreeMap::new(),
            exchanges: [0; 2],
            asking: BTreeSet::new(),
            idle: (BTreeMap::new(), 0),
            users: BTreeMap::new(),
            disconnecting: 0,
            last_endpoint: number,
        });
        // The address of an interface may change while it has no connections.
        link.address = interface.address;
        link.seals = interface.seals;
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
        let address = interface.address.bytes();
        host[..address.len()].copy_from_slice(address);
        let body = LinkOpened {
            link: name,
            interface_index: interface.index,
            mtu: interface.mtu,
            speed_mbit: interface.speed_mbit,
            endpoint: number,
            host_len: address.len() as u16,
            host,
            interface: interface.name,
            driver: interface.driver,
        };
        self.outputs.push_back(Output::Send(Message {
            client: open.client,
            bytes: message::emit(Op::LINK_OPENED, Status::OK, open.call, &body),
            fds: sockets,
        }));
    }

    /// The answer of the runtime to an [`Output::AskLink`], before the next input.
    pub fn handle_link_asked(&mut self, now: u64, open: &OpenLink, status: Status) {
        self.advance(now);
        let caller = Caller {
            client: open.client,
            id: open.call,
        };
        self.done(caller, status);
    }

    /// The answer of the runtime to an [`OpenDevice`], before the next input: the device's process id and the
    /// client's end of the socket; or the error.
    pub fn handle_device_opened(
        &mut self,
        now: u64,
        open: &OpenDevice,
        result: Result<(u32, F), Status>,
    ) {
        self.advance(now);
        let caller = Caller {
            client: open.client,
            id: open.call,
        };
        let (pid, socket) = match result {
            Ok(made) => made,
            Err(status) => return self.done(caller, status),
        };
        if self.clients.contains_key(&open.client) {
            let body = DeviceOpened { pid, reserved: 0 };
            self.outputs.push_back(Output::Send(Message {
                client: open.client,
                bytes: message::emit(Op::DEVICE_OPENED, Status::OK, open.call, &body),
                fds: vec![socket],
            }));
        }
    }

    /// The runtime could not make the segment for a [`Join`]: both calls end with `Status::RESOURCE`, as if
    /// they had not been matched. To be called before the next input, so that neither side has used the
    /// connection.
    pub fn handle_join_failed(&mut self, now: u64, join: &Join<F>) {
        self.advance(now);
        for (message, end) in join.messages.iter().zip(join.ends) {
            self.take_connection(end.connection);
            self.done(
                Caller {
                    client: message.client,
                    id: end.call,
                },
                Status::RESOURCE,
            );
        }
    }
}
