//! Commands that open and close: NICs; and with the help of the runtime data sockets and devices.

#![forbid(unsafe_code)]

use std::collections::BTreeSet;

use kagent_proto::{
    Budget, DeviceOpen, LINK_BYTES, LinkAdopt, LinkOpen, NicOpen, NicOpened, Op, Status,
};

use crate::logic::address::Address;
use crate::logic::agent::Agent;
use crate::logic::budgets::{ENDPOINTS_PER_CLIENT_MAX, NIC_FDS_MAX, NICS_PER_CLIENT_MAX};
use crate::logic::ids::{CallKey, Caller, ConnectionId, NicId};
use crate::logic::message::{Denial, Outcome};
use crate::logic::objects::Nic;
use crate::logic::output::{AdoptLink, OpenDevice, OpenLink, Output};

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

/// Data sockets on links, and connections to device processes, which the runtime opens. It answers each output
/// before the next input.
///
/// ```text
///   LINK_OPEN ──▶ Output::OpenLink ──▶ the runtime opens the socket ──▶ handle_link_opened ──▶ LINK_OPENED
///   NIC_OPEN with that endpoint: the NIC reaches other hosts; both end together
///
///   DEVICE_OPEN ──▶ Output::OpenDevice ──▶ the runtime starts the device, makes a pair of sockets
///                                            ├── Introduction + one end ──▶ the device
///   DEVICE_OPENED + the other end ◀── handle_device_opened
/// ```
///
/// A device process is a NIC in software that runs outside the applications. The agent knows only its name,
/// introduces clients to it, and takes no part in what follows. A device serves one user and ends with the
/// agent.
impl<F: Clone> Agent<F> {
    /// `Op::LINK_OPEN`: at once, or when the rate limit allows.
    pub(crate) fn link_open(&mut self, caller: Caller, body: &LinkOpen) -> Outcome {
        let client = self.clients.get(&caller.client).ok_or(Status::INVALID)?;
        let user = client.uid;
        if !self.accounts.is_shared() {
            return self.link_open_now(caller, body.interface);
        }
        let waiting = self.link_rate.waiting(user);
        self.accounts.admit(user, Budget::Endpoints, waiting + 1)?;
        self.link_rate.push(user, caller, body.interface, self.now);
        self.open_links_of(user);
        Ok(())
    }

    fn open_links_of(&mut self, user: u32) {
        while let Some((caller, interface)) = self.link_rate.pop(user, self.now) {
            if let Err(denial) = self.link_open_now(caller, interface) {
                self.done(caller, denial);
            }
        }
    }

    /// Serves the queued requests that are due.
    pub(crate) fn open_links_due(&mut self) {
        while let Some(user) = self.link_rate.pop_due(self.now) {
            self.open_links_of(user);
        }
    }

    /// Checks the limits for one more data socket.
    fn admit_endpoint(&self, caller: Caller) -> Outcome {
        let client = self.clients.get(&caller.client).ok_or(Status::INVALID)?;
        let (user, open) = (client.uid, client.endpoints.len());
        if open >= ENDPOINTS_PER_CLIENT_MAX {
            let most = ENDPOINTS_PER_CLIENT_MAX;
            return Err(Denial::process(Budget::Endpoints, user, open, most));
        }
        self.accounts.admit(user, Budget::Endpoints, 1)
    }

    /// `Op::LINK_OPEN` after the rate limit. The runtime knows the interface and whether this process may
    /// have a socket there.
    pub(crate) fn link_open_now(&mut self, caller: Caller, interface: [u8; LINK_BYTES]) -> Outcome {
        self.admit_endpoint(caller)?;
        self.outputs.push_back(Output::OpenLink(OpenLink {
            client: caller.client,
            call: caller.id,
            interface,
        }));
        Ok(())
    }

    /// `Op::LINK_ADOPT`. It makes no socket, so the rate limit does not apply.
    pub(crate) fn link_adopt(&mut self, caller: Caller, body: &LinkAdopt, fds: Vec<F>) -> Outcome {
        self.admit_endpoint(caller)?;
        let (Some(host), Ok([socket])) = (body.address(), <[F; 1]>::try_from(fds)) else {
            return Err(Status::INVALID.into());
        };
        let mut interface = [0; LINK_BYTES];
        let name = format!("udp:{}", host.ip());
        interface[..name.len()].copy_from_slice(name.as_bytes());
        self.outputs.push_back(Output::AdoptLink(AdoptLink {
            open: OpenLink {
                client: caller.client,
                call: caller.id,
                interface,
            },
            host,
            endpoint: body.endpoint,
            socket,
        }));
        Ok(())
    }

    /// `Op::LINK_ASK`.
    pub(crate) fn link_ask(&mut self, caller: Caller, body: &LinkOpen) {
        self.outputs.push_back(Output::AskLink(OpenLink {
            client: caller.client,
            call: caller.id,
            interface: body.interface,
        }));
    }

    /// `Op::DEVICE_OPEN`: the runtime knows which devices exist.
    pub(crate) fn device_open(&mut self, caller: Caller, body: &DeviceOpen) -> Result<(), Status> {
        let client = self.clients.get(&caller.client).ok_or(Status::INVALID)?;
        self.outputs.push_back(Output::OpenDevice(OpenDevice {
            client: caller.client,
            call: caller.id,
            uid: client.uid,
            pid: client.pid,
            device: body.device,
        }));
        Ok(())
    }
}
