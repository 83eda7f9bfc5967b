//! NIC records, and endpoints on links, which end with their NIC.

#![forbid(unsafe_code)]

use kagent_proto::{Budget, Status};

use crate::logic::agent::Agent;
use crate::logic::ids::{Caller, EndpointId, LinkId, NicId};
use crate::logic::objects::{Endpoint, Nic};

impl<F: Clone> Agent<F> {
    /// The NIC, if it belongs to the caller.
    pub(crate) fn own_nic(&self, caller: Caller, nic: NicId) -> Result<&Nic<F>, Status> {
        self.nics
            .get(&nic)
            .filter(|nic| nic.client == caller.client)
            .ok_or(Status::INVALID)
    }

    /// Removes a NIC without calls and connections.
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

    /// Assigns an endpoint of the same process to a NIC.
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
        if link.address.bytes() != host {
            return Err(Status::INVALID);
        }
        endpoint.nic = Some(nic);
        Ok(())
    }

    /// Removes an endpoint, with its NIC or its process.
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
                    self.claims
                        .free_all_of(gone.user, gone.link, &mut self.accounts);
                }
            }
        }
        self.close_idle_link(gone.link);
    }

    /// The link of a NIC.
    pub(crate) fn link_of(&self, nic: NicId) -> Option<LinkId> {
        self.endpoint_of(nic).map(|endpoint| endpoint.link)
    }

    /// The endpoint of a NIC.
    pub(crate) fn endpoint_of(&self, nic: NicId) -> Option<&Endpoint> {
        self.endpoints.get(&self.nics.get(&nic)?.endpoint?)
    }

    /// Whether a DISCONNECT is still unacknowledged.
    pub fn is_disconnecting(&self) -> bool {
        self.links.values().any(|link| link.disconnecting > 0)
    }
}
