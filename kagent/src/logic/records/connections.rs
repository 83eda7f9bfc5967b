//! Connection records: insertion and removal, with the tables of processes, NICs and accounts.

#![forbid(unsafe_code)]

use kagent_proto::{Budget, Status};

use crate::logic::agent::Agent;
use crate::logic::ids::{CallKey, Caller, ConnectionId, NicId};
use crate::logic::objects::{Connection, ConnectionState};

impl<F: Clone> Agent<F> {
    pub(crate) fn fresh_connection(&mut self) -> ConnectionId {
        self.last_connection += 1;
        self.last_connection
    }

    pub(crate) fn own_connection(
        &self,
        caller: Caller,
        name: ConnectionId,
    ) -> Result<&Connection, Status> {
        self.connections
            .get(&name)
            .filter(|c| c.client == caller.client)
            .ok_or(Status::INVALID)
    }

    pub(crate) fn keep_connection(&mut self, name: ConnectionId, connection: Connection) {
        if let Some(client) = self.clients.get_mut(&connection.client) {
            client.connections.insert(name);
        }
        if let Some(nic) = self.nics.get_mut(&connection.nic) {
            nic.connections.insert(name);
            let user = nic.address.uid;
            self.accounts.charge(user, Budget::Connections, 1);
        }
        self.connections.insert(name, connection);
    }

    pub(crate) fn take_connection(&mut self, name: ConnectionId) -> Option<Connection> {
        let connection = self.connections.remove(&name)?;
        if let Some(client) = self.clients.get_mut(&connection.client) {
            client.connections.remove(&name);
            if let ConnectionState::Offered(_, wait) | ConnectionState::Expired(wait) =
                connection.state
            {
                client.offers.remove(&wait);
            }
        }
        if let Some(nic) = self.nics.get_mut(&connection.nic) {
            nic.connections.remove(&name);
            let user = nic.address.uid;
            self.accounts.release(user, Budget::Connections, 1);
        }
        Some(connection)
    }

    /// Records that a request was handed to a server.
    pub(crate) fn keep_offer(
        &mut self,
        name: ConnectionId,
        server: Caller,
        nic: NicId,
        request: CallKey,
    ) {
        let (client, state) = (server.client, ConnectionState::Offered(request, server.id));
        self.keep_connection(name, Connection { client, nic, state });
        if let Some(client) = self.clients.get_mut(&client) {
            client.offers.insert(server.id, name);
        }
    }

    /// Marks an unanswered handle as expired: its requester has exited or gave up.
    pub(crate) fn expire_offer(&mut self, name: ConnectionId) {
        if let Some(connection) = self.connections.get_mut(&name)
            && let ConnectionState::Offered(_, wait) = connection.state
        {
            connection.state = ConnectionState::Expired(wait);
        }
    }

    pub(crate) fn set_connection(&mut self, name: ConnectionId, state: ConnectionState) {
        if let Some(connection) = self.connections.get_mut(&name) {
            connection.state = state;
        }
    }
}
