//! The part of the poll loop that is about what processes send beside their messages.

#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use nix::sys::socket::{Shutdown, shutdown};

use super::{Server, TURN_MAX};
use crate::ClientId;
use crate::runtime::sockets::packet;

impl Server<'_> {
    /// The next message of a process has descriptors beside it.
    pub(super) fn ask_helper(&mut self, client: ClientId) {
        let now = self.now();
        let Some(session) = self.sessions.get_mut(&client) else {
            return;
        };
        if session.dying {
            if session.last_favours == 0 {
                return;
            }
            session.last_favours -= 1;
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

    /// A helper has answers.
    pub(super) fn helper_ready(&mut self, uid: u32) {
        for _ in 0..TURN_MAX {
            let Some(message) = self.helpers.message(uid, self.now()) else {
                return;
            };
            if !self.let_go(message.client) {
                continue;
            }
            let Some(bytes) = message.bytes else {
                continue;
            };
            if message.fds.is_none() {
                self.log.debug(
                    "client",
                    format_args!(
                        "client {}: descriptors that are neither sealed memory nor an eventfd, or too many",
                        message.client.0
                    ),
                );
            }
            self.hand_over(message.client, &bytes, message.fds);
        }
    }

    /// The helper has done with a process: it is read again, or buried. False: it has gone.
    fn let_go(&mut self, client: ClientId) -> bool {
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

    /// Closes the socket of a process that is not served, or not any more.
    pub(super) fn discard(&mut self, uid: u32, socket: OwnedFd) {
        // From here on nothing comes in, and what is there stays.
        let _ = shutdown(socket.as_raw_fd(), Shutdown::Both);
        if !packet::is_empty(socket.as_fd()) {
            let now = self.now();
            let fds = vec![socket];
            self.helpers.close(uid, fds, now, &self.epoll, self.log);
        }
    }

    /// Empties the bin, and drops the processes that a helper has lost.
    pub(super) fn look_after_helpers(&mut self) {
        let now = self.now();
        let bin = std::mem::take(&mut *self.helpers.bin.borrow_mut());
        let mut by_user: BTreeMap<u32, Vec<OwnedFd>> = BTreeMap::new();
        for (uid, fd) in bin {
            by_user.entry(uid).or_default().push(fd);
        }
        for (uid, fds) in by_user {
            self.helpers.close(uid, fds, now, &self.epoll, self.log);
        }
        self.helpers.tick(now, &self.epoll, self.log);
        for client in self.helpers.lost() {
            if let Some(session) = self.sessions.get_mut(&client) {
                session.at_helper = false;
                session.last_favours = 0;
                if session.dying {
                    self.dying.insert(client);
                }
            }
            self.mark_dying(client, "what it sends cannot be closed");
        }
    }
}
