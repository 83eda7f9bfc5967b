//! The registration of a NIC at agents, each of which has its own identifier of it.

use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use kagent_proto::*;
use vipl_plugin_abi::{VIPL_ADDRESS_IP, vipl_nic_info};
use vipl_sys::fd::Identity;

use super::client::Agent;
use super::issued::IssuedLink;
use crate::sync::Mutex;
use crate::text;

/// A NIC of this process.
pub(crate) struct NicRegistration {
    body: NicOpen,
    /// Descriptors of the plug-in, open as long as the NIC, unless the application closes them.
    fds: Vec<RawFd>,
    /// Their identities at VipOpenNic.
    identities: Vec<Option<Identity>>,
    /// Whether its addresses are IP addresses with ports.
    is_ip: bool,
    place: Mutex<Option<(Arc<Agent>, u64)>>,
    closed: AtomicBool,
    /// Its link over UDP, to be handed over to the next agent.
    issued: Option<IssuedLink>,
    /// Whether it has a link that its agent does not know.
    unreachable: AtomicBool,
}

impl NicRegistration {
    pub(crate) fn new(provider: &str, info: &vipl_nic_info, issued: Option<IssuedLink>) -> Self {
        let mut body = NicOpen {
            provider: [0; PROVIDER_BYTES],
            host_len: info.address_len,
            reserved: [0; 3],
            host: info.address,
            link: info.link,
            data_address: DataAddress {
                length: info.data_address_len,
                reserved: 0,
                bytes: info.data_address,
            },
        };
        let name = provider.as_bytes();
        let kept = name.len().min(PROVIDER_BYTES - 1);
        body.provider[..kept].copy_from_slice(&name[..kept]);
        let fds: Vec<RawFd> = info.shared_fds.into_iter().filter(|fd| *fd >= 0).collect();
        NicRegistration {
            body,
            identities: fds.iter().map(|fd| Identity::of(*fd)).collect(),
            fds,
            is_ip: info.address_form == VIPL_ADDRESS_IP,
            place: Mutex::new(None),
            closed: AtomicBool::new(false),
            issued,
            unreachable: AtomicBool::new(false),
        }
    }

    /// Formats an address of this kind of network.
    pub(crate) fn host_text(&self, host: &[u8]) -> String {
        text::host(host, self.is_ip)
    }

    /// Opens the NIC at this agent, unless it is open there.
    pub(super) fn open_at(&self, agent: &Arc<Agent>) -> Result<(), Status> {
        let mut place = self.place.lock();
        if self.closed.load(Ordering::Acquire)
            || place.as_ref().is_some_and(|(at, _)| Arc::ptr_eq(at, agent))
        {
            return Ok(());
        }
        let mut kept = self.fds.iter().zip(&self.identities);
        if !kept.all(|(fd, identity)| Identity::still(*fd, *identity)) {
            if !self.unreachable.swap(true, Ordering::AcqRel) {
                log::error!(
                    target: "agent",
                    "the program has closed descriptors of an open NIC: no new connections until it is opened again"
                );
            }
            return Err(Status::RESOURCE);
        }
        let mut body = self.body;
        if place.is_some() {
            body.link = self.link_at(agent);
        }
        let mut reply = agent.call(Op::NIC_OPEN, &body, &self.fds);
        if reply.status == Status::INVALID && body.link != 0 {
            // The agent that issued the data socket has exited meanwhile, and its endpoint with it.
            body.link = self.link_at(agent);
            reply = agent.call(Op::NIC_OPEN, &body, &self.fds);
        }
        // Connections to other hosts continue, since they need no agent; new ones need a socket that the new
        // agent knows.
        let unreachable = self.body.link != 0 && body.link == 0;
        if unreachable && !self.unreachable.load(Ordering::Acquire) {
            log::warn!(
                target: "agent",
                "the new Kernel Agent does not know the data socket of a NIC: no new connections to other hosts until it is opened again"
            );
        }
        self.unreachable.store(unreachable, Ordering::Release);
        match (reply.status, reply.body::<NicOpened>()) {
            (Status::OK, Some(opened)) => {
                *place = Some((agent.clone(), opened.nic));
                if self.closed.load(Ordering::Acquire) {
                    agent.notify(Op::NIC_CLOSE, &NicClose { nic: opened.nic });
                }
                Ok(())
            }
            (Status::OK, None) => Err(Status::RESOURCE),
            (status, _) => Err(status),
        }
    }

    /// The identifier of its link at an agent that did not issue it; 0: it has none there.
    fn link_at(&self, agent: &Arc<Agent>) -> u64 {
        let given = self.body.link != 0;
        let given = given.then_some(self.issued.as_ref()).flatten();
        given.and_then(|given| given.hand_over(agent)).unwrap_or(0)
    }

    /// Whether its agent does not know its link, so that other hosts cannot reach the NIC, or the program has closed its descriptors.
    pub(crate) fn is_unreachable(&self) -> bool {
        self.unreachable.load(Ordering::Acquire)
    }

    /// This agent's identifier of the NIC.
    pub(crate) fn name_at(&self, agent: &Arc<Agent>) -> Option<u64> {
        let place = self.place.lock();
        let (at, name) = place.as_ref()?;
        Arc::ptr_eq(at, agent).then_some(*name)
    }

    pub(super) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// The current agent and its identifier of the NIC, if any. There is none while the NIC is being opened
    /// at an agent, which may take long.
    pub(crate) fn here(&self) -> Option<(Arc<Agent>, u64)> {
        let place = self.place.try_lock()?;
        place.as_ref().filter(|(at, _)| !at.is_dead()).cloned()
    }

    /// The NIC is closed and will not be opened at another agent.
    pub(super) fn end(&self) {
        self.closed.store(true, Ordering::Release);
    }
}
