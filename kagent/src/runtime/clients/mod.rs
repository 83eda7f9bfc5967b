//! The connected processes: sockets, queued messages, removal, and the helpers that receive and close their
//! descriptors.

#![forbid(unsafe_code)]

mod queued;
mod quota;
mod session;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use nix::errno::Errno;
use nix::sys::epoll::EpollFlags;
use nix::sys::socket::{Shutdown, shutdown};

use self::queued::Queued;
use self::quota::Quota;
pub(crate) use self::session::Session;
use self::session::Unsendable;
use crate::runtime::context::Context;
use crate::runtime::helpers::held::SharedFd;
use crate::runtime::helpers::pool::{self, Helpers};
use crate::runtime::sockets::packet::{self, Beside, PACKET_BYTES, Received};
use crate::runtime::token::Token;
use crate::{ClientId, Message};

/// Room for one packet.
pub(crate) type Buffer = [u8; PACKET_BYTES];

/// All connected processes.
#[derive(Debug)]
pub(crate) struct Clients {
    sessions: BTreeMap<ClientId, Session>,
    /// Processes to remove.
    dying: BTreeSet<ClientId>,
    /// The same, of users who have used up their share of this pass.
    postponed: BTreeMap<u32, VecDeque<ClientId>>,
    quota: Quota,
    queued: Queued,
    helpers: Helpers,
    last: u64,
}

/// The next step in removing a process.
#[derive(Debug)]
pub(crate) enum Removal {
    /// It sent a packet of this length before it exited.
    Packet(usize),
    /// The removal continues later.
    Postponed,
    /// The process is removed.
    Done,
}

impl Clients {
    /// For an agent with this number of descriptors for clients. `shared`: it serves all users.
    pub(crate) fn new(descriptors: usize, shared: bool) -> Self {
        Self {
            sessions: BTreeMap::new(),
            dying: BTreeSet::new(),
            postponed: BTreeMap::new(),
            quota: Quota::default(),
            queued: Queued::new(descriptors, shared),
            helpers: Helpers::new(),
            last: 0,
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.sessions.is_empty()
    }

    pub(crate) fn get(&self, client: ClientId) -> Option<&Session> {
        self.sessions.get(&client)
    }

    /// An identifier for a new process.
    pub(crate) fn fresh_id(&mut self) -> ClientId {
        self.last += 1;
        ClientId(self.last)
    }

    /// Starts to serve a process.
    ///
    /// # Errors
    /// It cannot be added to the poll set; its socket is discarded.
    pub(crate) fn insert(
        &mut self,
        context: &Context<'_>,
        client: ClientId,
        session: Session,
    ) -> Result<(), Errno> {
        let uid = session.uid;
        let watched = context
            .add(&session.socket, Token::Socket(client), interest(&session))
            .and_then(|()| match &session.pidfd {
                Some(pidfd) => context.add(pidfd, Token::Pidfd(client), EpollFlags::EPOLLIN),
                None => Ok(()),
            });
        if let Err(cause) = watched {
            self.discard(context, uid, session.socket);
            return Err(cause);
        }
        self.sessions.insert(client, session);
        self.helpers.add_process(uid);
        Ok(())
    }

    /// Starts a pass of the poll loop: each user may send its share of packets again.
    pub(crate) fn begin_pass(&mut self) {
        self.quota.begin();
    }

    /// Handles the events of a socket. Returns whether there may be packets to read.
    pub(crate) fn ready(
        &mut self,
        context: &Context<'_>,
        client: ClientId,
        events: EpollFlags,
    ) -> bool {
        if events.contains(EpollFlags::EPOLLOUT)
            && let Some(session) = self.sessions.get_mut(&client)
        {
            let before = session.queued_with_descriptors();
            let sent = session.flush();
            let after = session.queued_with_descriptors();
            self.queued.change(session.uid, before, after);
            self.after_send(context, client, sent, true);
        }
        let dying = self.sessions.get(&client).is_some_and(|s| s.dying);
        events.intersects(!EpollFlags::EPOLLOUT) && !dying
    }

    /// Reads one packet of a process and returns its length. `None` if there is none, a helper receives it,
    /// or the process or its user must wait.
    pub(crate) fn receive(
        &mut self,
        context: &Context<'_>,
        client: ClientId,
        buffer: &mut Buffer,
    ) -> Option<usize> {
        loop {
            let session = self.sessions.get(&client).filter(|s| !s.at_helper)?;
            // No reply is sent to a dying process.
            let stuck = session.is_backed_up() && !session.dying;
            if stuck || !self.quota.take(session.uid) {
                return None;
            }
            match packet::receive(session.socket.as_fd(), buffer) {
                Ok(Received::Packet(length, Beside::Nothing)) => return Some(length),
                Ok(Received::Packet(_, Beside::Descriptors)) => {
                    self.receive_by_helper(context, client);
                }
                Ok(Received::Nothing) => self.mark_read(client),
                Ok(Received::End) => {
                    self.mark_read(client);
                    self.mark_dying(context, client, "hung up");
                }
                // ECONNRESET, for a peer that died with unread data, is reported once, before the data that
                // it sent.
                Err(Errno::ECONNRESET | Errno::EINTR) => continue,
                Err(cause) => {
                    self.mark_read(client);
                    self.mark_dying(context, client, cause.desc());
                }
            }
            return None;
        }
    }

    /// A dying process sends nothing more.
    fn mark_read(&mut self, client: ClientId) {
        if let Some(session) = self.sessions.get_mut(&client)
            && session.dying
        {
            session.final_packets = 0;
        }
    }

    /// Makes a helper receive the next message of a process, which carries descriptors.
    fn receive_by_helper(&mut self, context: &Context<'_>, client: ClientId) {
        let Some(session) = self.sessions.get_mut(&client) else {
            return;
        };
        if session.dying {
            if session.final_receives == 0 {
                return;
            }
            session.final_receives -= 1;
        }
        let uid = session.uid;
        match self.helpers.receive(context, uid, client, &session.socket) {
            Ok(()) => {
                session.at_helper = true;
                self.watch(context, client);
            }
            Err(cause) => {
                context
                    .log
                    .warn("helper", format_args!("no helper for user {uid}: {cause}"));
                self.mark_dying(context, client, "sends descriptors");
            }
        }
    }

    /// The next message that the helper of a user has received. Its process is read again, or removed.
    pub(crate) fn helper_message(
        &mut self,
        context: &Context<'_>,
        uid: u32,
    ) -> Option<pool::Message> {
        let message = self.helpers.message(uid, context.now())?;
        let client = message.client;
        if let Some(session) = self.sessions.get_mut(&client) {
            session.at_helper = false;
            if session.dying {
                self.dying.insert(client);
            } else {
                self.watch(context, client);
            }
        }
        Some(message)
    }

    /// Sends a message to a process, or queues it.
    pub(crate) fn send(&mut self, context: &Context<'_>, message: Message<SharedFd>) {
        let client = message.client;
        let Some(session) = self.sessions.get_mut(&client).filter(|s| !s.dying) else {
            return;
        };
        let was_backed_up = session.is_backed_up();
        let before = session.queued_with_descriptors();
        let sent = session.send(message, self.queued.admits(session.uid));
        let after = session.queued_with_descriptors();
        self.queued.change(session.uid, before, after);
        self.after_send(context, client, sent, was_backed_up);
    }

    /// Waits for room in the socket exactly while messages are queued.
    fn after_send(
        &mut self,
        context: &Context<'_>,
        client: ClientId,
        sent: Result<(), Unsendable>,
        was_backed_up: bool,
    ) {
        let Some(session) = self.sessions.get(&client) else {
            return;
        };
        match sent {
            // While the helper is busy, the event is one-shot.
            Ok(()) if session.is_backed_up() != was_backed_up || session.at_helper => {
                self.watch(context, client);
            }
            Ok(()) => {}
            Err(Unsendable::Stuck) => {
                let pid = session.pid;
                context
                    .log
                    .warn("client", format_args!("pid {pid} does not read; dropped"));
                self.mark_dying(context, client, "does not read");
            }
            Err(Unsendable::Broken(cause)) => self.mark_dying(context, client, cause.desc()),
        }
    }

    /// Updates the events to wait for.
    fn watch(&mut self, context: &Context<'_>, client: ClientId) {
        if let Some(session) = self.sessions.get(&client)
            && let Err(cause) =
                context.modify(&session.socket, Token::Socket(client), interest(session))
        {
            self.mark_dying(context, client, cause.desc());
        }
    }

    /// Schedules the removal of a process.
    pub(crate) fn mark_dying(&mut self, context: &Context<'_>, client: ClientId, why: &str) {
        if let Some(session) = self.sessions.get_mut(&client)
            && !session.dying
        {
            session.dying = true;
            // It is read without further events, which leaves room for those of others.
            context.remove(&session.socket);
            if let Some(pidfd) = &session.pidfd {
                context.remove(pidfd);
            }
            self.dying.insert(client);
            context
                .log
                .info("client", format_args!("client {} leaves: {why}", client.0));
        }
    }

    /// The next process to remove, by [`remove`](Self::remove).
    pub(crate) fn next_dying(&mut self) -> Option<ClientId> {
        self.dying.pop_first()
    }

    /// The next process whose removal was postponed and whose user has a share left.
    pub(crate) fn next_postponed(&mut self) -> Option<ClientId> {
        let mut users = self.postponed.keys();
        let user = *users.find(|user| self.quota.has_some(**user))?;
        let of_user = self.postponed.get_mut(&user)?;
        let next = of_user.pop_front();
        if of_user.is_empty() {
            self.postponed.remove(&user);
        }
        next
    }

    pub(crate) fn has_postponed(&self) -> bool {
        !self.postponed.is_empty()
    }

    /// Continues to remove a process. What it sent before it exited is still read, above all GOODBYE, within
    /// its user's share of each pass.
    pub(crate) fn remove(
        &mut self,
        context: &Context<'_>,
        client: ClientId,
        buffer: &mut Buffer,
    ) -> Removal {
        while let Some(session) = self.sessions.get_mut(&client).filter(|s| !s.at_helper)
            && session.final_packets > 0
        {
            let uid = session.uid;
            if !self.quota.has_some(uid) {
                self.postponed.entry(uid).or_default().push_back(client);
                return Removal::Postponed;
            }
            session.final_packets -= 1;
            if let Some(length) = self.receive(context, client, buffer) {
                return Removal::Packet(length);
            }
        }
        if self.sessions.get(&client).is_none_or(|s| s.at_helper) {
            // Continues when the helper has answered.
            return Removal::Postponed;
        }
        let Some(session) = self.sessions.remove(&client) else {
            return Removal::Postponed;
        };
        let uid = session.uid;
        self.queued
            .change(uid, session.queued_with_descriptors(), 0);
        self.discard(context, uid, session.socket);
        self.helpers.remove_process(uid, context.now());
        Removal::Done
    }

    /// Closes the socket of a process that was refused or has exited.
    pub(crate) fn discard(&mut self, context: &Context<'_>, uid: u32, socket: OwnedFd) {
        // After this nothing more arrives, and queued packets stay.
        let _ = shutdown(socket.as_raw_fd(), Shutdown::Both);
        if !packet::is_empty(socket.as_fd()) {
            self.helpers.close(context, uid, vec![socket]);
        }
    }

    /// Wraps a descriptor that a process of this user will hold as well: a helper closes the agent's copy.
    pub(crate) fn share(&self, uid: u32, fd: OwnedFd) -> SharedFd {
        self.helpers.share(uid, fd)
    }

    /// Passes dropped descriptors to the helpers, and schedules the removal of the processes whose helper was
    /// lost. Returns whether a process is to be removed.
    pub(crate) fn tick(&mut self, context: &Context<'_>) -> bool {
        self.helpers.tick(context);
        for client in self.helpers.lost() {
            if let Some(session) = self.sessions.get_mut(&client) {
                session.at_helper = false;
                session.final_receives = 0;
                if session.dying {
                    self.dying.insert(client);
                }
            }
            self.mark_dying(context, client, "what it sends cannot be closed");
        }
        !self.dying.is_empty()
    }

    /// The next time at which [`tick`](Self::tick) has work.
    pub(crate) fn next_tick(&self) -> Option<u64> {
        self.helpers.next()
    }

    /// A child was reaped that is no device.
    pub(crate) fn reaped(&mut self, context: &Context<'_>, pid: i32, how: &str) {
        self.helpers.reaped(pid, how, context.log);
    }

    /// Tells all processes that the agent exits. The sockets are closed by the end of the process.
    pub(crate) fn shut_down(&self) {
        for session in self.sessions.values() {
            let _ = shutdown(session.socket.as_raw_fd(), Shutdown::Both);
        }
        self.helpers.shut_down();
    }
}

/// The events to wait for. A process that does not read its replies is not read from, so it cannot make the
/// agent queue more replies than it has calls.
fn interest(session: &Session) -> EpollFlags {
    // A hang-up cannot be masked: while the helper is busy it is reported once, and again afterwards.
    let read = match (session.at_helper, session.is_backed_up()) {
        (true, _) => EpollFlags::EPOLLONESHOT,
        (false, true) => EpollFlags::EPOLLRDHUP,
        (false, false) => EpollFlags::EPOLLIN | EpollFlags::EPOLLRDHUP,
    };
    if session.is_backed_up() {
        read | EpollFlags::EPOLLOUT
    } else {
        read
    }
}
