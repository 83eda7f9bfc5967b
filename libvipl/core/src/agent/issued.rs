//! Links over UDP issued by agents, for handing them over to the next agent.

use std::os::fd::RawFd;
use std::sync::Arc;

use kagent_proto::{LinkAdopt, LinkOpened, Op};
use vipl_sys::fd::Identity;

use super::client::Agent;
use crate::sync::Mutex;

/// A link over UDP issued by an agent. Its data socket belongs to the plug-in. When that agent has exited,
/// the socket is passed to the next one, so that other hosts can still reach the NIC.
pub(crate) struct IssuedLink {
    link: u64,
    fd: RawFd,
    identity: Option<Identity>,
    body: LinkAdopt,
}

impl IssuedLink {
    fn new(fd: RawFd, opened: &LinkOpened) -> IssuedLink {
        IssuedLink {
            link: opened.link,
            fd,
            identity: Identity::of(fd),
            body: LinkAdopt {
                endpoint: opened.endpoint,
                host_len: opened.host_len,
                host: opened.host,
            },
        }
    }

    /// Whether the plug-in still has its socket open.
    fn is_open(&self) -> bool {
        self.identity.is_some() && Identity::of(self.fd) == self.identity
    }

    /// Hands it over to another agent; returns its identifier there.
    pub(super) fn hand_over(&self, agent: &Arc<Agent>) -> Option<u64> {
        if !self.is_open() {
            return None;
        }
        let reply = agent.call(Op::LINK_ADOPT, &self.body, &[self.fd]);
        let opened: Option<LinkOpened> = (reply.op == Op::LINK_OPENED)
            .then(|| reply.body())
            .flatten();
        if opened.is_none() {
            log::info!(
                target: "link",
                "the Kernel Agent, {}, does not take over a data socket ({:?})",
                agent.description(),
                reply.status
            );
        }
        opened.map(|opened| opened.link)
    }
}

/// Links issued to a plug-in for a NIC that it is opening.
#[derive(Default)]
pub(super) struct IssuedLinks(Mutex<Vec<IssuedLink>>);

impl IssuedLinks {
    pub(super) fn keep(&self, fd: RawFd, opened: &LinkOpened) {
        let mut all = self.0.lock();
        // Some were issued for NICs that failed to open.
        all.retain(IssuedLink::is_open);
        all.push(IssuedLink::new(fd, opened));
    }

    /// Takes the link of a NIC.
    pub(super) fn take(&self, link: u64) -> Option<IssuedLink> {
        let mut all = self.0.lock();
        let place = all.iter().position(|given| given.link == link)?;
        Some(all.swap_remove(place))
    }
}
