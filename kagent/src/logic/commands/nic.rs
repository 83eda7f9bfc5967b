//! NIC_OPEN and NIC_CLOSE.

#![forbid(unsafe_code)]

use crate::logic::agent::Agent;

use std::collections::BTreeSet;

use kagent_proto::{Budget, NicOpen, NicOpened, Op, Status};

use crate::logic::limits::{NIC_FDS_MAX, NICS_PER_CLIENT_MAX};
use crate::logic::tables::nic::Nic;
use crate::logic::values::address::Address;
use crate::logic::values::denial::{Denial, Outcome};
use crate::logic::values::ids::{CallKey, Caller, ConnectionId, NicId};

impl<F: Clone> Agent<F> {
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
            data_address: body.data_address,
            endpoint,
            calls: BTreeSet::new(),
            connections: BTreeSet::new(),
        };
        self.nics.insert(nic, fresh);
        self.reply(caller, Op::NIC_OPENED, &NicOpened { nic });
        Ok(())
    }

    /// `Op::NIC_CLOSE`: cancels waits and requests, rejects unanswered handles, and disconnects connections,
    /// as if the process had done it one by one.
    pub(crate) fn nic_close(&mut self, caller: Caller, nic: NicId) -> Result<(), Status> {
        let open = self.own_nic(caller, nic)?;
        let calls: Vec<CallKey> = open.calls.iter().copied().collect();
        let connections: Vec<ConnectionId> = open.connections.iter().copied().collect();
        for call in calls {
            self.end_call(call, Status::CANCELLED);
        }
        for connection in connections {
            self.close_connection(connection, true);
        }
        self.forget_nic(nic);
        if let Some(client) = self.clients.get_mut(&caller.client) {
            client.nics.remove(&nic);
        }
        self.done(caller, Status::OK);
        Ok(())
    }
}
