//! The listening socket: accepting, pausing, and exiting when idle.

#![forbid(unsafe_code)]

use std::os::fd::{AsFd, OwnedFd};

use nix::errno::Errno;
use nix::sys::epoll::EpollFlags;

use crate::runtime::context::Context;
use crate::runtime::error::{Error, trying};
use crate::runtime::options::Options;
use crate::runtime::sockets::listener::Listener;
use crate::runtime::sockets::packet;
use crate::runtime::token::Token;

const NS_PER_MS: u64 = 1_000_000;
/// Pause after the agent ran out of descriptors.
const ACCEPT_PAUSE_MS: u64 = 100;
/// Interval at which the agent checks that its socket still exists.
const CHECK_NS: u64 = 5_000 * NS_PER_MS;

/// The listening socket. It is never dropped: the end of the process closes it.
#[derive(Debug)]
pub(super) struct Entrance {
    listener: Listener,
    /// Time without processes after which the agent exits; 0: never.
    idle_ms: u64,
    /// Start of the idle time.
    idle_since: Option<u64>,
    /// End of the pause in accepting, after running out of descriptors.
    pause_until: Option<u64>,
    pause_reported: bool,
    /// Next time to check that the socket still exists.
    check_at: u64,
}

impl Entrance {
    /// Listens where the options and the environment say.
    pub(super) fn open(options: &Options, uid: u32) -> Result<Self, Error> {
        Ok(Self {
            listener: Listener::open(options, uid)?,
            idle_ms: options.idle_ms(),
            idle_since: None,
            pause_until: None,
            pause_reported: false,
            check_at: 0,
        })
    }

    /// The address, for messages.
    pub(super) fn name(&self) -> String {
        self.listener.name()
    }

    /// Adds the socket to the poll set.
    pub(super) fn watch(&mut self, context: &Context<'_>) -> Result<(), Error> {
        self.pause_until = None;
        context
            .add(&self.listener, Token::Listener, EpollFlags::EPOLLIN)
            .map_err(trying("epoll"))
    }

    /// Accepts a process; `None` if there is none, or after an error, which pauses accepting.
    pub(super) fn accept(&mut self, context: &Context<'_>) -> Option<OwnedFd> {
        loop {
            match packet::accept(self.listener.as_fd()) {
                Ok(socket) => return Some(socket),
                Err(Errno::EINTR | Errno::ECONNABORTED) => {}
                // On a listener that was shut down, an empty backlog gives EINVAL.
                Err(Errno::EAGAIN | Errno::EINVAL) => {
                    self.pause_reported = false;
                    return None;
                }
                Err(cause) => {
                    self.pause(context, cause);
                    return None;
                }
            }
        }
    }

    /// Pauses when out of descriptors or memory: the pending connection would make epoll return immediately,
    /// forever.
    fn pause(&mut self, context: &Context<'_>, cause: Errno) {
        if !self.pause_reported {
            context.log.warn(
                "socket",
                format_args!("cannot accept: {cause}; trying again"),
            );
            self.pause_reported = true;
        }
        context.remove(&self.listener);
        self.pause_until = Some(context.now() + ACCEPT_PAUSE_MS * NS_PER_MS);
    }

    /// Accepts again when the pause is over.
    pub(super) fn end_pause(&mut self, context: &Context<'_>) -> Result<(), Error> {
        match self.pause_until {
            Some(until) if until <= context.now() => self.watch(context),
            _ => Ok(()),
        }
    }

    /// Whether the socket was removed, so that no process can find the agent. Checked at intervals.
    pub(super) fn is_lost(&mut self, context: &Context<'_>) -> bool {
        if !self.listener.may_be_lost() || context.now() < self.check_at {
            return false;
        }
        self.check_at = context.now() + CHECK_NS;
        self.listener.is_lost()
    }

    /// Whether the idle time has passed. `busy`: there is work, so that it has not begun.
    pub(super) fn is_idle(&mut self, context: &Context<'_>, busy: bool) -> bool {
        if self.idle_ms == 0 || busy {
            self.idle_since = None;
            return false;
        }
        let now = context.now();
        let since = *self.idle_since.get_or_insert(now);
        now >= since.saturating_add(self.idle_ns())
    }

    fn idle_ns(&self) -> u64 {
        self.idle_ms.saturating_mul(NS_PER_MS)
    }

    /// The next deadline.
    pub(super) fn next(&self) -> Option<u64> {
        let idle_end = self
            .idle_since
            .map(|since| since.saturating_add(self.idle_ns()));
        let look = self.listener.may_be_lost().then_some(self.check_at);
        [idle_end, self.pause_until, look]
            .into_iter()
            .flatten()
            .min()
    }

    /// Accepts no new connections; see [`Listener::shut`].
    pub(super) fn shut(&self) -> bool {
        self.listener.shut()
    }

    /// Listens again after [`shut`](Self::shut).
    pub(super) fn reopen(&mut self, context: &Context<'_>) -> Result<(), Error> {
        context.remove(&self.listener);
        self.listener.reopen()?;
        self.watch(context)
    }

    /// Removes the path, before the agent exits.
    pub(super) fn remove(&mut self) {
        self.listener.remove();
    }
}
