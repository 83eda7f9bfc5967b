//! Attach and detach: connections within this host and to others.

use std::io;
use std::os::fd::OwnedFd;

use vipl_clan_proto::message::{Request, flag};
use vipl_clan_proto::vi::end;
use vipl_wire::Reason;

use crate::client::{Client, Clients};
use crate::events::Events;
use crate::links::Links;
use crate::tools::Tools;
use crate::vi::Vi;
use crate::vis::Vis;

/// What a VI may send in one round.
const ROUND_MESSAGES: u32 = 16;
const ROUND_BYTES: usize = 256 << 10;

/// All VIs, and the links to other hosts.
pub(crate) struct Connections {
    vis: Vis,
    links: Links,
}

impl Connections {
    pub(crate) fn new(tools: Tools) -> Connections {
        Connections {
            vis: Vis::new(tools),
            links: Links::default(),
        }
    }

    /// When this round began.
    pub(crate) fn now(&self) -> u64 {
        self.vis.now()
    }

    pub(crate) fn set_now(&mut self, now: u64) {
        self.vis.set_now(now);
    }

    pub(crate) fn add(&mut self, vi: Vi) -> usize {
        self.vis.add(vi)
    }

    /// Polls all shared memory except the counts of messages. True: there was work.
    pub(crate) fn look(&mut self, clients: &Clients, events: &Events) -> bool {
        let mut worked = false;
        let mut place = 0;
        while let Some(id) = self.vis.hot(place) {
            worked |= self.pump(id);
            if self.vis.keep_hot(place) {
                place += 1;
            }
        }
        worked |= self.vis.warm_some();
        worked | self.links.serve(&mut self.vis, clients, events)
    }

    /// Processes the send queue of a VI.
    #[inline(always)]
    fn pump(&mut self, id: usize) -> bool {
        match self.vis.get(id) {
            Some(vi) if !vi.has_work() => false,
            Some(vi) if vi.link().is_some() => self.links.pump(&mut self.vis, id),
            Some(_) => self.vis.pump(id, ROUND_MESSAGES, ROUND_BYTES),
            None => false,
        }
    }

    /// Before the device sleeps: finishes all that does not wait for others. Returns the time at which it must wake up.
    pub(crate) fn prepare_sleep(&mut self) -> u64 {
        self.vis.write_back_all();
        self.vis.report_orphans();
        let deadline = self.links.flush(&mut self.vis);
        deadline.min(self.vis.orphans_due())
    }

    /// Whether a doorbell has been rung, or a peer has finished fetching.
    pub(crate) fn have_work(&self) -> bool {
        self.vis.have_work()
    }

    /// After a sleep: makes all VIs hot whose doorbell has been rung.
    pub(crate) fn warm_all_rung(&mut self) {
        self.vis.warm_all_rung();
    }

    /// Ends connections whose peer's process has exited, if the agent has not reported how.
    pub(crate) fn report_orphans(&mut self) {
        self.vis.report_orphans();
    }

    /// A NIC handle brings an interface; returns its link.
    ///
    /// # Errors
    /// `InvalidInput`: there is no usable data socket. Others: those of the kernel.
    pub(crate) fn open_link(
        &mut self,
        place: usize,
        request: &Request,
        socket: Option<OwnedFd>,
        events: &Events,
    ) -> io::Result<usize> {
        let socket = socket.ok_or(io::ErrorKind::InvalidInput)?;
        self.links.open(place, request, socket, events)
    }

    /// The kernel has reported an error on the socket of a link.
    pub(crate) fn check_interface(&mut self, link: usize, clients: &Clients) {
        self.links.check_interface(link, clients);
    }

    /// The VI is connected; `link` is that of its NIC handle.
    pub(crate) fn attach(&mut self, id: usize, link: Option<usize>, request: &Request) {
        self.detach(id);
        if request.mtu == 0 {
            self.vis.attach(id, request);
        } else {
            self.links.attach(&mut self.vis, id, link, request);
        }
    }

    /// The application disconnects: what it has posted is sent first, as far as that can happen at once.
    pub(crate) fn detach(&mut self, id: usize) {
        let Some(vi) = self.vis.get(id).filter(|vi| vi.is_attached()) else {
            return;
        };
        if vi.link().is_some() {
            self.links.pump(&mut self.vis, id);
            let reason = Some(Reason::Disconnected);
            self.links.part(&mut self.vis, id, reason);
        } else {
            self.vis.pump_last(id);
        }
        if let Some(peer) = self.vis.detach(id) {
            self.vis.die(peer, end::DISCONNECTED);
        }
    }

    /// Takes back the offers of a VI. False: the peer is fetching one.
    pub(crate) fn recall(&mut self, id: usize) -> bool {
        self.vis.recall(id)
    }

    /// The application's side found an error that the device cannot see.
    pub(crate) fn break_off(&mut self, id: usize, epoch: u32) {
        let Some(vi) = self.vis.get(id).filter(|vi| vi.has_connection(epoch)) else {
            return;
        };
        let peer = vi.peer();
        self.part(id, Some(Reason::Lost));
        self.vis.withdraw(id);
        self.vis.die(id, end::REPORTED);
        if let Some(peer) = peer {
            self.vis.die(peer, end::LOST);
        }
    }

    /// The agent reports that the peer on another host has exited or disconnected. Frames that have been received still
    /// count.
    pub(crate) fn peer_gone(&mut self, id: usize, clients: &Clients, request: &Request) {
        if self
            .vis
            .get(id)
            .is_some_and(|vi| vi.has_connection(request.epoch))
        {
            let orderly = request.flags & flag::ORDERLY != 0;
            self.links.peer_gone(&mut self.vis, clients, id, orderly);
        }
    }

    /// A process has exited, or has lost the device (`expelled`). How it has exited, the agent reports.
    pub(crate) fn forget(&mut self, client: &Client, expelled: bool) {
        for id in client.vis() {
            self.part(id, expelled.then_some(Reason::Lost));
            match self.vis.detach(id) {
                Some(peer) if expelled => self.vis.die(peer, end::LOST),
                Some(peer) => self.vis.orphan(peer),
                None => {}
            }
            self.vis.remove(id);
        }
        if let Some(link) = client.link() {
            self.links.forget_client(link);
        }
    }

    /// The application destroys a VI.
    pub(crate) fn destroy(&mut self, id: usize) {
        self.detach(id);
        self.vis.remove(id);
    }

    /// Takes a VI off its connection to another host, and informs the peer of the reason. `None`: its process has
    /// exited, and the agent informs the peer.
    fn part(&mut self, id: usize, reason: Option<Reason>) {
        if reason.is_some() {
            self.links.pump(&mut self.vis, id);
        }
        self.links.part(&mut self.vis, id, reason);
    }
}
