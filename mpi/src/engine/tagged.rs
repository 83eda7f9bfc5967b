//! The calls of endpoints for messages with tags: the way to a peer, receives, probes and claims, the end.

use super::Engine;
use super::queues::{Completion, Context};
use super::rdm::{Body, Message, Posted, Probe};
use crate::address::Address;
use crate::slab::Id;

/// The way to a peer.
pub(crate) enum Route {
    Connection(Id),
    /// There is none yet.
    Missing(Address),
}

impl Engine {
    /// The connection by which messages go to this peer of the address vector.
    ///
    /// # Errors
    /// EINVAL: there is no such peer; EBADF: no such endpoint.
    #[inline]
    pub(crate) fn route(&mut self, rdm: Id, to: u64) -> Result<Route, i32> {
        let known = self.shared.rdms.get(rdm).ok_or(libc::EBADF)?;
        if let Some(id) = known.routes.get(to as usize).copied()
            && self.endpoints.get(id).is_some()
        {
            return Ok(Route::Connection(id));
        }
        self.find_route(rdm, to)
    }

    #[cold]
    fn find_route(&mut self, rdm: Id, to: u64) -> Result<Route, i32> {
        let peer = self.peer(rdm, to).ok_or(libc::EINVAL)?;
        let known = self.shared.rdms.get(rdm).ok_or(libc::EBADF)?;
        let Some(id) = known.by_address.get(&peer.to_bytes()).copied() else {
            return Ok(Route::Missing(peer));
        };
        if self.endpoints.get(id).is_none() {
            known.by_address.remove(&peer.to_bytes());
            return Ok(Route::Missing(peer));
        }
        let at = to as usize;
        if known.routes.len() <= at {
            known.routes.resize(at + 1, Id::NONE);
        }
        known.routes[at] = id;
        Ok(Route::Connection(id))
    }

    /// The address of a peer.
    pub(crate) fn peer(&mut self, rdm: Id, number: u64) -> Option<Address> {
        let av = self.shared.rdms.get(rdm)?.av?;
        let peers = &self.shared.avs.get(av)?.peers;
        *peers.get(usize::try_from(number).ok()?)?
    }

    /// Posts a receive, or gives it a message that has come.
    ///
    /// # Errors
    /// EAGAIN: there is no room; EBADF: no such endpoint.
    pub(crate) fn receive_tagged(&mut self, rdm: Id, posted: Posted) -> Result<(), i32> {
        let known = self.shared.rdms.get(rdm).ok_or(libc::EBADF)?;
        let Some(at) = known.find(&posted) else {
            if known.room() == 0 {
                return Err(libc::EAGAIN);
            }
            known.posted.push_back(posted);
            return Ok(());
        };
        if let Some(message) = known.unexpected.remove(at) {
            self.give(rdm, posted, message);
        }
        Ok(())
    }

    /// Gives a message to its receive.
    fn give(&mut self, rdm: Id, posted: Posted, message: Message) {
        let Message {
            connection,
            tag,
            data,
            body,
            ..
        } = message;
        let completion = match body {
            Body::Whole(bytes) => {
                // SAFETY: memory that the program has given for this message and leaves alone until it is complete.
                let stored = unsafe { posted.iov.scatter(0, &bytes) };
                posted.completion(tag, data, bytes.len(), stored)
            }
            Body::Offered(request) => {
                let endpoint = self.endpoints.get(connection);
                let pulled = endpoint.is_some_and(|endpoint| {
                    endpoint.pull(request, &posted, tag, data, &mut self.shared)
                });
                (!pulled).then(|| posted.failure(libc::ECONNRESET))
            }
        };
        self.report(rdm, completion);
    }

    /// Looks for a message and reports what was found: its length, tag and data, or FI_ENOMSG.
    ///
    /// # Errors
    /// EBADF: no such endpoint.
    pub(crate) fn probe(&mut self, rdm: Id, posted: Posted, probe: Probe) -> Result<(), i32> {
        self.progress();
        let known = self.shared.rdms.get(rdm).ok_or(libc::EBADF)?;
        let found = known.find(&posted);
        let completion = match found.map(|at| &known.unexpected[at]) {
            None => Some(posted.failure(libc::ENOMSG)),
            Some(message) => {
                let length = message.body.len();
                posted.completion(message.tag, message.data, length, length)
            }
        };
        if (probe.claims || probe.discards)
            && let Some(message) = found.and_then(|at| known.unexpected.remove(at))
        {
            match probe.discards {
                true => self.discard(message),
                false => known.claimed.push((posted.context, message)),
            }
        }
        self.report(rdm, completion);
        Ok(())
    }

    /// Gives the message that was claimed with this context to its receive, or drops it.
    ///
    /// # Errors
    /// EINVAL: there is none; EBADF: no such endpoint.
    pub(crate) fn take_claimed(
        &mut self,
        rdm: Id,
        posted: Posted,
        discards: bool,
    ) -> Result<(), i32> {
        let known = self.shared.rdms.get(rdm).ok_or(libc::EBADF)?;
        let mut claimed = known.claimed.iter();
        let at = claimed.position(|(context, _)| *context == posted.context);
        let (_, message) = known.claimed.swap_remove(at.ok_or(libc::EINVAL)?);
        if discards {
            let completion = posted.completion(message.tag, message.data, 0, 0);
            self.discard(message);
            self.report(rdm, completion);
        } else {
            self.give(rdm, posted, message);
        }
        Ok(())
    }

    /// Drops a message; its sender does not wait for it.
    fn discard(&mut self, message: Message) {
        if let Body::Offered(request) = message.body
            && let Some(endpoint) = self.endpoints.get(message.connection)
        {
            endpoint.refuse(request, &mut self.shared);
        }
    }

    /// Withdraws a receive; false if there is none with this context.
    pub(crate) fn cancel_tagged(&mut self, rdm: Id, context: Context) -> bool {
        let Some(known) = self.shared.rdms.get(rdm) else {
            return false;
        };
        let mut posted = known.posted.iter();
        let at = posted.position(|posted| posted.context == context);
        let withdrawn = at.and_then(|at| known.posted.remove(at));
        let completion = withdrawn.map(|posted| posted.failure(libc::ECANCELED));
        self.report(rdm, completion);
        completion.is_some()
    }

    /// Ends a connection that has not come about, or that is over.
    pub(crate) fn drop_connection(&mut self, rdm: Id, id: Id) {
        if let Some(endpoint) = self.endpoints.remove(id) {
            endpoint.destroy(&mut self.shared);
        }
        if let Some(known) = self.shared.rdms.get(rdm) {
            known.connections.retain(|other| *other != id);
            known.by_address.retain(|_, other| *other != id);
        }
    }

    /// Destroys the connections of an endpoint that are over, for their VIs; false: there are none. The messages that came by them
    /// stay.
    pub(crate) fn drop_ended(&mut self, rdm: Id) -> bool {
        let known = self.shared.rdms.get(rdm);
        let mut ended = known.map_or(Vec::new(), |known| known.connections.clone());
        ended.retain(|id| {
            let endpoint = self.endpoints.get(*id);
            endpoint.is_some_and(|endpoint| endpoint.is_over())
        });
        for id in &ended {
            self.drop_connection(rdm, *id);
        }
        !ended.is_empty()
    }

    /// A peer is not to be named any more; None: there is none with this number.
    pub(crate) fn forget_peer(&mut self, av: Id, number: usize) -> Option<()> {
        self.shared.avs.get(av)?.peers.get_mut(number)?.take()?;
        for (_, rdm) in self.shared.rdms.iter() {
            if rdm.av == Some(av)
                && let Some(route) = rdm.routes.get_mut(number)
            {
                *route = Id::NONE;
            }
        }
        Some(())
    }

    /// Whether only receives that request it complete to the queue.
    pub(crate) fn is_selective(&mut self, rdm: Id) -> bool {
        let rdm = self.shared.rdms.get(rdm);
        rdm.is_some_and(|rdm| rdm.reports.receives.selective)
    }

    fn report(&mut self, rdm: Id, completion: Option<Completion>) {
        if let Some(completion) = completion
            && let Some(queue) = self
                .shared
                .rdms
                .get(rdm)
                .map(|rdm| rdm.reports.receives.queue)
        {
            self.shared.complete(queue, completion);
        }
    }

    /// Ends an endpoint with all its connections; its receives end with an error.
    pub(crate) fn close_tagged(&mut self, rdm: Id) {
        let connections = self
            .shared
            .rdms
            .get(rdm)
            .map(|rdm| std::mem::take(&mut rdm.connections));
        for id in connections.into_iter().flatten() {
            if let Some(endpoint) = self.endpoints.remove(id) {
                endpoint.destroy(&mut self.shared);
            }
        }
        let posted = self
            .shared
            .rdms
            .get(rdm)
            .map(|rdm| std::mem::take(&mut rdm.posted));
        for posted in posted.into_iter().flatten() {
            self.report(rdm, Some(posted.failure(libc::ECANCELED)));
        }
        self.shared.rdms.remove(rdm);
    }

    /// Whether a connection of it still has something to send.
    pub(crate) fn is_busy_tagged(&mut self, rdm: Id) -> bool {
        let connections = self.shared.rdms.get(rdm).map(|rdm| rdm.connections.clone());
        let mut connections = connections.into_iter().flatten();
        connections.any(|id| {
            let endpoint = self.endpoints.get(id);
            endpoint.is_some_and(|endpoint| endpoint.is_busy())
        })
    }
}
