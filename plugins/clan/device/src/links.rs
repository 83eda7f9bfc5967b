//! The links to other hosts, one for each NIC handle with an interface.

use std::io;
use std::os::fd::OwnedFd;

use vipl_clan_proto::message::Request;
use vipl_clan_proto::vi::end;
use vipl_wire::Reason;

use crate::client::{Client, Clients};
use crate::events::{Events, NEVER, Source};
use crate::link::Link;
use crate::vis::Vis;

/// Links by a number that does not change.
#[derive(Default)]
pub(crate) struct Links(Vec<Option<Box<Link>>>);

fn client<'a>(link: &Link, clients: &'a Clients) -> Option<&'a Client> {
    link.client().and_then(|place| clients.get(place))
}

impl Links {
    /// A NIC handle brings an interface; returns the number of its link.
    ///
    /// # Errors
    /// `InvalidInput`: there is no usable data socket. Others: those of the kernel.
    pub(crate) fn open(
        &mut self,
        place: usize,
        request: &Request,
        socket: OwnedFd,
        events: &Events,
    ) -> io::Result<usize> {
        let link = Link::open(place, request, socket)?;
        let free = self.0.iter().position(Option::is_none);
        let index = free.unwrap_or(self.0.len());
        events.listen(link.socket(), Source::Link(index))?;
        if free.is_none() {
            self.0.push(None);
        }
        self.0[index] = Some(Box::new(link));
        Ok(index)
    }

    fn get_mut(&mut self, index: usize) -> Option<&mut Link> {
        self.0.get_mut(index)?.as_deref_mut()
    }

    /// The link of a VI that has a peer on another host, and the number of the VI on it.
    fn of_vi(&mut self, vis: &Vis, id: usize) -> Option<(&mut Link, u32)> {
        let vi = vis.get(id)?;
        let number = vi.queues().number();
        Some((self.get_mut(vi.link()?)?, number))
    }

    /// Attaches a VI to one on another host.
    pub(crate) fn attach(
        &mut self,
        vis: &mut Vis,
        id: usize,
        index: Option<usize>,
        request: &Request,
    ) {
        let Some((vi, tools)) = vis.at_work(id) else {
            return;
        };
        vi.attach(request);
        let link = index.and_then(|index| self.get_mut(index));
        if link.is_some_and(|link| link.attach(id, vi, request)) {
            vi.set_link(index);
            vis.warm(id);
        } else {
            vi.die(tools, end::LOST);
        }
    }

    /// Passes to the engine of a VI what has been posted.
    pub(crate) fn pump(&mut self, vis: &mut Vis, id: usize) -> bool {
        let rung = vis.get(id).is_some_and(|vi| vi.is_rung());
        let Some((link, number)) = self.of_vi(vis, id).filter(|_| rung) else {
            return false;
        };
        link.pump(vis, number);
        vis.warm(id);
        true
    }

    /// Takes a VI off its connection to another host, and informs the peer of the reason. `None`: its process has
    /// exited, and the agent informs the peer.
    pub(crate) fn part(&mut self, vis: &mut Vis, id: usize, reason: Option<Reason>) {
        if let Some((link, number)) = self.of_vi(vis, id) {
            link.part(vis, number, reason);
        }
    }

    /// The agent reports that the peer has exited or disconnected.
    pub(crate) fn peer_gone(&mut self, vis: &mut Vis, clients: &Clients, id: usize, orderly: bool) {
        if let Some((link, number)) = self.of_vi(vis, id) {
            let client = client(link, clients);
            link.peer_gone(vis, client, number, orderly);
        }
    }

    /// Serves all links at the end of a round. True: there was work.
    #[inline(always)]
    pub(crate) fn serve(&mut self, vis: &mut Vis, clients: &Clients, events: &Events) -> bool {
        let mut worked = false;
        for slot in &mut self.0 {
            let Some(link) = slot else { continue };
            let client = client(link, clients);
            worked |= link.serve(vis, client);
            if link.is_over()
                && let Some(link) = slot.take()
            {
                events.unlisten(link.socket());
                link.close();
            }
        }
        worked
    }

    /// The device is about to sleep: sends delayed acknowledgements, and returns the time at which it must wake up.
    pub(crate) fn flush(&mut self, vis: &mut Vis) -> u64 {
        let links = self.0.iter_mut().flatten();
        let deadlines = links.map(|link| link.flush(vis));
        deadlines.min().unwrap_or(NEVER)
    }

    /// The kernel has reported an error on the socket of a link.
    pub(crate) fn check_interface(&mut self, index: usize, clients: &Clients) {
        if let Some(link) = self.get_mut(index) {
            let client = client(link, clients);
            link.check_interface(client);
        }
    }

    /// The process of a link has exited.
    pub(crate) fn forget_client(&mut self, index: usize) {
        if let Some(link) = self.get_mut(index) {
            link.forget_client();
        }
    }
}
