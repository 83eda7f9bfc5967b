//! A NIC as the agents know it: under one name after the other, if agents come and go.

use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use kagent_proto::*;
use vipl_fd::Identity;
use vipl_plugin_abi::vipl_nic_info;

use super::{Agent, GONE};
use crate::error::Error;
use crate::process;
use crate::sync::Mutex;

/// How often something that is not a wait is asked of one agent after the other.
const AGENTS_MAX: usize = 3;

/// A NIC of this process.
pub(crate) struct NicRegistration {
    body: NicOpen,
    /// The plug-in's; open as long as the NIC is, if the program does not close them.
    fds: Vec<RawFd>,
    /// What they were at VipOpenNic.
    identities: Vec<Option<Identity>>,
    place: Mutex<Option<(Arc<Agent>, u64)>>,
    closed: AtomicBool,
}

impl NicRegistration {
    pub(crate) fn new(provider: &str, info: &vipl_nic_info) -> Self {
        let mut body = NicOpen {
            provider: [0; PROVIDER_BYTES],
            host_len: info.address_len,
            reserved: [0; 3],
            host: info.address,
            link: info.link,
        };
        let name = provider.as_bytes();
        let kept = name.len().min(PROVIDER_BYTES - 1);
        body.provider[..kept].copy_from_slice(&name[..kept]);
        let fds: Vec<RawFd> = info.shared_fds.into_iter().filter(|fd| *fd >= 0).collect();
        NicRegistration {
            body,
            identities: fds.iter().map(|fd| Identity::of(*fd)).collect(),
            fds,
            place: Mutex::new(None),
            closed: AtomicBool::new(false),
        }
    }

    /// Opens it at this agent, unless it is open there. False: the agent has gone.
    pub(super) fn open_at(&self, agent: &Arc<Agent>) -> Result<(), Status> {
        let mut place = self.place.lock();
        if self.closed.load(Ordering::Acquire)
            || place.as_ref().is_some_and(|(at, _)| Arc::ptr_eq(at, agent))
        {
            return Ok(());
        }
        let now = self.fds.iter().map(|fd| Identity::of(*fd));
        if !now.eq(self.identities.iter().copied()) {
            log::error!(
                target: "agent",
                "the program has closed descriptors of an open NIC: no new connections until it is opened again"
            );
            return Err(Status::RESOURCE);
        }
        let mut reply = agent.call(Op::NIC_OPEN, &self.body, &self.fds);
        if reply.status == Status::INVALID && self.body.link != 0 {
            // The agent that gave the data socket has gone, and its endpoint with it. Connections to other
            // hosts go on, since they need no agent; new ones need a socket that the new agent knows.
            let body = NicOpen {
                link: 0,
                ..self.body
            };
            reply = agent.call(Op::NIC_OPEN, &body, &self.fds);
            log::warn!(
                target: "agent",
                "the new Kernel Agent does not know the data socket of a NIC: no new connections to other hosts until it is opened again"
            );
        }
        match (reply.status, reply.body::<NicOpened>()) {
            (Status::OK, Some(opened)) => {
                *place = Some((agent.clone(), opened.nic));
                Ok(())
            }
            (Status::OK, None) => Err(Status::RESOURCE),
            (status, _) => Err(status),
        }
    }

    /// This agent's name for it.
    pub(crate) fn name_at(&self, agent: &Arc<Agent>) -> Option<u64> {
        let place = self.place.lock();
        let (at, name) = place.as_ref()?;
        Arc::ptr_eq(at, agent).then_some(*name)
    }

    pub(super) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// The agent and its name for the NIC, if there is one right now.
    pub(crate) fn here(&self) -> Option<(Arc<Agent>, u64)> {
        let place = self.place.lock();
        place.as_ref().filter(|(at, _)| !at.is_dead()).cloned()
    }

    /// The same; waits for the next agent, if the last one has gone. An error: there is none.
    pub(crate) fn place(&self) -> Result<(Arc<Agent>, u64), Error> {
        for _ in 0..AGENTS_MAX {
            if let Some(place) = self.here() {
                return Ok(place);
            }
            let agent = process::get().agents.want()?;
            self.open_at(&agent).or_else(|why| {
                if why == GONE {
                    Ok(())
                } else {
                    Err(Error::Resource)
                }
            })?;
            if self.is_closed() {
                return Err(Error::InvalidParameter);
            }
        }
        Err(Error::Resource)
    }

    /// A call about this NIC, asked of the next agent if this one goes.
    pub(crate) fn call<B>(&self, op: Op, body: impl Fn(u64) -> B) -> Result<super::Reply, Error>
    where
        B: zerocopy::IntoBytes + zerocopy::Immutable,
    {
        for _ in 0..AGENTS_MAX {
            let (agent, nic) = self.place()?;
            let reply = agent.call(op, &body(nic), &[]);
            if reply.status != GONE {
                return Ok(reply);
            }
        }
        Err(Error::Resource)
    }

    /// The NIC is closed: waits end, unanswered requests are rejected.
    pub(crate) fn close(self: &Arc<Self>) {
        self.closed.store(true, Ordering::Release);
        process::get().agents.forget(self);
        if let Some((agent, nic)) = self.here() {
            agent.call(Op::NIC_CLOSE, &NicClose { nic }, &[]);
        }
    }
}
