//! Accepting processes, and exiting when idle.

#![forbid(unsafe_code)]

use std::os::fd::{AsFd, OwnedFd};

use nix::errno::Errno;
use nix::sys::epoll::EpollFlags;
use nix::sys::socket::{UnixCredentials, getsockopt, sockopt};

use super::{NS_PER_MS, Server, TURN_MAX};
use crate::ClientId;
use crate::runtime::error::{Error, trying};
use crate::runtime::processes::watch::{Watch, watch};
use crate::runtime::server::session::Session;
use crate::runtime::sockets::listener::Listener;
use crate::runtime::sockets::packet;
use crate::runtime::token::Token;

/// Pause after the agent ran out of descriptors.
const ACCEPT_PAUSE_MS: u64 = 100;

impl Server<'_> {
    pub(super) fn watch_listener(&self, listener: &Listener) -> Result<(), Error> {
        let event = Token::Listener.event(EpollFlags::EPOLLIN);
        self.epoll.add(listener, event).map_err(trying("epoll"))
    }

    /// Whether the idle time has passed.
    pub(super) fn is_idle(&mut self) -> bool {
        if self.idle_ms == 0 || !self.sessions.is_empty() || self.agent.is_disconnecting() {
            self.idle_since = None;
            return false;
        }
        let now = self.now();
        now >= self
            .idle_since
            .get_or_insert(now)
            .saturating_add(self.idle_ns())
    }

    /// Exits unless a process connects at the last moment; then returns the listener.
    pub(super) fn try_to_leave(&mut self, listener: Listener) -> Result<Option<Listener>, Error> {
        self.accept(&listener, TURN_MAX);
        self.run_until_settled();
        if !self.sessions.is_empty() {
            return Ok(Some(listener));
        }
        if !listener.shut() {
            return Ok(None);
        }
        // A process that finds the listener shut down starts another agent. One that was accepted before must
        // not be left between two agents: either this agent stays, or the process is dropped and retries.
        self.accept(&listener, usize::MAX);
        self.run_until_settled();
        if self.sessions.is_empty() {
            self.log.info("socket", format_args!("idle, leaving"));
            listener.remove();
            return Ok(None);
        }
        let _ = self.epoll.delete(&listener);
        let listener = listener.reopen()?;
        self.pause_until = None;
        self.watch_listener(&listener)?;
        Ok(Some(listener))
    }

    pub(super) fn accept(&mut self, listener: &Listener, most: usize) {
        for _ in 0..most {
            match packet::accept(listener.as_fd()) {
                Ok(socket) => self.admit(socket),
                Err(Errno::EINTR | Errno::ECONNABORTED) => {}
                // On a listener that was shut down, an empty backlog gives EINVAL.
                Err(Errno::EAGAIN | Errno::EINVAL) => {
                    self.told_of_pause = false;
                    return;
                }
                Err(cause) => return self.pause(listener, cause),
            }
        }
    }

    /// Out of descriptors or memory: the pending connection would make epoll return immediately, forever.
    fn pause(&mut self, listener: &Listener, cause: Errno) {
        if !self.told_of_pause {
            self.log.warn(
                "socket",
                format_args!("cannot accept: {cause}; trying again"),
            );
            self.told_of_pause = true;
        }
        let _ = self.epoll.delete(listener);
        self.pause_until = Some(self.now() + ACCEPT_PAUSE_MS * NS_PER_MS);
    }

    fn admit(&mut self, socket: OwnedFd) {
        let who: UnixCredentials = match getsockopt(&socket, sockopt::PeerCredentials) {
            Ok(who) => who,
            Err(cause) => {
                return self
                    .log
                    .warn("client", format_args!("no credentials: {cause}"));
            }
        };
        let (uid, pid) = (who.uid(), who.pid());
        if self.only_user.is_some_and(|only| only != uid) {
            self.log
                .warn("client", format_args!("refused pid {pid} of user {uid}"));
            return self.discard(uid, socket);
        }
        self.last_client += 1;
        let client = ClientId(self.last_client);
        let told_pid = u32::try_from(pid).unwrap_or(0);
        if let Err(cause) = self.agent.handle_connect(self.now(), client, uid, told_pid) {
            if let Some(rejection) = cause.rejection() {
                let _ = packet::send(socket.as_fd(), &rejection, &[]);
            }
            self.log
                .warn("client", format_args!("refused pid {pid}: {cause}"));
            return self.discard(uid, socket);
        }
        packet::allow_descriptors(socket.as_fd(), true);
        let watch = watch(socket.as_fd(), pid);
        let gone = matches!(watch, Watch::Gone);
        if matches!(watch, Watch::SocketOnly) {
            self.log.info(
                "client",
                format_args!("pid {pid} cannot be watched, only its socket"),
            );
        }
        let pidfd = if let Watch::Pidfd(pidfd) = watch {
            Some(pidfd)
        } else {
            None
        };
        let session = Session::new(socket, pidfd, pid, uid);
        if let Err(cause) = self.poll_session(client, &session) {
            self.log.warn("client", format_args!("pid {pid}: {cause}"));
            self.discard(uid, session.socket);
            return self.agent.handle_hangup(self.now(), client);
        }
        self.sessions.insert(client, session);
        self.helpers.add_process(uid);
        self.log.info(
            "client",
            format_args!("client {} is pid {pid} of user {uid}", client.0),
        );
        if gone {
            self.mark_dying(client, "process ended");
        }
    }
}
