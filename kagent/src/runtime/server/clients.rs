//! The sockets of processes: receiving, sending, and closing.

#![forbid(unsafe_code)]

use std::os::fd::AsFd;

use nix::errno::Errno;
use nix::sys::epoll::EpollFlags;

use super::{Server, TURN_MAX};
use crate::runtime::helpers::held::SharedFd;
use crate::runtime::server::session::{Session, Unsendable};
use crate::runtime::sockets::packet::{self, Beside, PACKET_BYTES, Received};
use crate::runtime::token::Token;
use crate::{ClientId, Message};

impl Server<'_> {
    pub(super) fn poll_session(&self, client: ClientId, session: &Session) -> Result<(), Errno> {
        let socket = Token::Socket(client).event(interest(session));
        self.epoll.add(&session.socket, socket)?;
        if let Some(pidfd) = &session.pidfd {
            let ended = Token::Pidfd(client).event(EpollFlags::EPOLLIN);
            self.epoll.add(pidfd, ended)?;
        }
        Ok(())
    }

    pub(super) fn socket_ready(&mut self, client: ClientId, events: EpollFlags) {
        if events.contains(EpollFlags::EPOLLOUT)
            && let Some(session) = self.sessions.get_mut(&client)
        {
            let before = session.queued_with_descriptors();
            let sent = session.flush();
            let after = session.queued_with_descriptors();
            self.queued.change(session.uid, before, after);
            self.after_send(client, sent, true);
        }
        let dying = self.sessions.get(&client).is_some_and(|s| s.dying);
        if events.intersects(!EpollFlags::EPOLLOUT) && !dying {
            self.read(client, TURN_MAX);
        }
    }

    /// Reads packets of a process and carries out the outputs of each.
    fn read(&mut self, client: ClientId, most: usize) {
        let mut buffer = [0; PACKET_BYTES];
        for _ in 0..most {
            let Some(session) = self.sessions.get(&client).filter(|s| !s.at_helper) else {
                return;
            };
            let user = session.uid;
            // Nothing more is sent to one that is dying.
            let stuck = session.is_backed_up() && !session.dying;
            if stuck || !self.quota.take(user) {
                return;
            }
            match packet::receive(session.socket.as_fd(), &mut buffer) {
                Ok(Received::Packet(len, Beside::Nothing)) => {
                    self.deliver(client, &buffer[..len], Some(Vec::new()));
                }
                Ok(Received::Packet(_, Beside::Descriptors)) => {
                    return self.receive_by_helper(client);
                }
                Ok(Received::Nothing) => return self.mark_read(client),
                Ok(Received::End) => {
                    self.mark_read(client);
                    return self.mark_dying(client, "hung up");
                }
                // ECONNRESET, for a peer that died with unread data, is reported before the data that it
                // sent.
                Err(Errno::ECONNRESET | Errno::EINTR) => {}
                Err(cause) => {
                    self.mark_read(client);
                    return self.mark_dying(client, cause.desc());
                }
            }
        }
    }

    /// Nothing more comes from a process if it is dying.
    fn mark_read(&mut self, client: ClientId) {
        if let Some(session) = self.sessions.get_mut(&client)
            && session.dying
        {
            session.final_packets = 0;
        }
    }

    /// Passes a packet to the logic; without descriptors if they were rejected.
    pub(super) fn deliver(&mut self, client: ClientId, bytes: &[u8], fds: Option<Vec<SharedFd>>) {
        let now = self.now();
        let result = match fds {
            Some(fds) => self.agent.handle_message(now, client, bytes, fds),
            None => Err(self.agent.handle_garbled(now, client, bytes)),
        };
        if let Err(cause) = result {
            self.log
                .debug("client", format_args!("client {}: {cause}", client.0));
        }
        self.run_outputs();
    }

    pub(super) fn send(&mut self, message: Message<SharedFd>) {
        let client = message.client;
        let Some(session) = self.sessions.get_mut(&client).filter(|s| !s.dying) else {
            return;
        };
        let was_backed_up = session.is_backed_up();
        let before = session.queued_with_descriptors();
        let sent = session.send(message, self.queued.admits(session.uid));
        let after = session.queued_with_descriptors();
        self.queued.change(session.uid, before, after);
        self.after_send(client, sent, was_backed_up);
    }

    /// Waits for room in the socket exactly while there is data to send.
    fn after_send(&mut self, client: ClientId, sent: Result<(), Unsendable>, was_backed_up: bool) {
        let Some(session) = self.sessions.get(&client) else {
            return;
        };
        match sent {
            // While the helper is busy, the event is one-shot.
            Ok(()) if session.is_backed_up() != was_backed_up || session.at_helper => {
                self.watch_session(client);
            }
            Ok(()) => {}
            Err(Unsendable::Stuck) => {
                let pid = session.pid;
                self.log
                    .warn("client", format_args!("pid {pid} does not read; dropped"));
                self.mark_dying(client, "does not read");
            }
            Err(Unsendable::Broken(cause)) => self.mark_dying(client, cause.desc()),
        }
    }

    /// Updates the events to wait for.
    pub(super) fn watch_session(&mut self, client: ClientId) {
        let Some(session) = self.sessions.get(&client) else {
            return;
        };
        let mut event = Token::Socket(client).event(interest(session));
        if let Err(cause) = self.epoll.modify(&session.socket, &mut event) {
            self.mark_dying(client, cause.desc());
        }
    }

    pub(super) fn mark_dying(&mut self, client: ClientId, why: &str) {
        if let Some(session) = self.sessions.get_mut(&client)
            && !session.dying
        {
            session.dying = true;
            // It is read without being told of, and others are told of in its place.
            let _ = self.epoll.delete(&session.socket);
            if let Some(pidfd) = &session.pidfd {
                let _ = self.epoll.delete(pidfd);
            }
            self.dying.insert(client);
            self.log
                .info("client", format_args!("client {} leaves: {why}", client.0));
        }
    }

    /// Removes a process. What it sent before it died still counts, above all GOODBYE, and is read within its user's
    /// share of each pass.
    pub(super) fn reap(&mut self, client: ClientId) {
        while let Some(session) = self.sessions.get_mut(&client).filter(|s| !s.at_helper)
            && session.final_packets > 0
        {
            if !self.quota.has_some(session.uid) {
                let of_user = self.dying_later.entry(session.uid).or_default();
                of_user.push_back(client);
                return;
            }
            session.final_packets -= 1;
            self.read(client, 1);
        }
        if self.sessions.get(&client).is_none_or(|s| s.at_helper) {
            // Repeated when the helper has answered.
            return;
        }
        let Some(session) = self.sessions.remove(&client) else {
            return;
        };
        let uid = session.uid;
        self.queued
            .change(uid, session.queued_with_descriptors(), 0);
        self.discard(uid, session.socket);
        self.helpers.remove_process(uid, self.now());
        self.agent.handle_hangup(self.now(), client);
    }
}

/// A process that does not read its replies is not read from either, so it cannot make the agent queue more
/// replies than it has calls.
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
