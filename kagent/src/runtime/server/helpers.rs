//! The poll loop: helpers, which receive and close descriptors of processes.

#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use nix::sys::socket::{Shutdown, shutdown};

use super::{Server, TURN_MAX};
use crate::ClientId;
use crate::runtime::sockets::packet;

impl Server<'_> {
    /// The next message of a process carries descriptors: a helper receives it.
    pub(super) fn receive_by_helper(&mut self, client: ClientId) {
        let now = self.now();
        let Some(session) = self.sessions.get_mut(&client) else {
            return;
        };
        if session.dying {
            if session.final_receives == 0 {
                return;
            }
            session.final_receives -= 1;
        }
        let who = (session.uid, client);
        let asked = self
            .helpers
            .receive(who, &session.socket, now, &self.epoll, self.log);
        match asked {
            Ok(()) => {
                session.at_helper = true;
                self.watch_session(client);
            }
            Err(cause) => {
                let uid = who.0;
                self.log
                    .warn("helper", format_args!("no helper for user {uid}: {cause}"));
                self.mark_dying(client, "sends descriptors");
            }
        }
    }

    /// A helper has answered.
    pub(super) fn helper_ready(&mut self, uid: u32) {
        for _ in 0..TURN_MAX {
            let Some(message) = self.helpers.message(uid, self.now()) else {
                return;
            };
            if !self.resume(message.client) {
                continue;
            }
            let Some(bytes) = message.bytes else {
                continue;
            };
            if message.fds.is_none() {
                self.log.debug(
                    "client",
                    format_args!(
                        "client {}: descriptors that are neither sealed memory nor an eventfd nor UDP, or too many",
                        message.client.0
                    ),
                );
            }
            self.deliver(message.client, &bytes, message.fds);
        }
    }

    /// The helper is done with a process, which is read again, or removed. Returns false if it is gone.
    fn resume(&mut self, client: ClientId) -> bool {
        let Some(session) = self.sessions.get_mut(&client) else {
            return false;
        };
        session.at_helper = false;
        if session.dying {
            self.dying.insert(client);
        } else {
            self.watch_session(client);
        }
        true
    }

    /// Closes the socket of a process that is refused or gone.
    pub(super) fn discard(&mut self, uid: u32, socket: OwnedFd) {
        // After this nothing more arrives, and what is queued stays.
        let _ = shutdown(socket.as_raw_fd(), Shutdown::Both);
        if !packet::is_empty(socket.as_fd()) {
            let now = self.now();
            let fds = vec![socket];
            self.helpers.close(uid, fds, now, &self.epoll, self.log);
        }
    }

    /// Passes dropped descriptors to the helpers, and removes the processes whose helper was lost.
    pub(super) fn tick_helpers(&mut self) {
        let now = self.now();
        let to_close = std::mem::take(&mut *self.helpers.to_close.borrow_mut());
        let mut by_user: BTreeMap<u32, Vec<OwnedFd>> = BTreeMap::new();
        for (uid, fd) in to_close {
            by_user.entry(uid).or_default().push(fd);
        }
        for (uid, fds) in by_user {
            self.helpers.close(uid, fds, now, &self.epoll, self.log);
        }
        self.helpers.tick(now, &self.epoll, self.log);
        for client in self.helpers.lost() {
            if let Some(session) = self.sessions.get_mut(&client) {
                session.at_helper = false;
                session.final_receives = 0;
                if session.dying {
                    self.dying.insert(client);
                }
            }
            self.mark_dying(client, "what it sends cannot be closed");
        }
    }
}
