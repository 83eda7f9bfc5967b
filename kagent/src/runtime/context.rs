//! Shared by all parts of the runtime: the poll set, the clock and the log.

#![forbid(unsafe_code)]

use std::os::fd::AsFd;

use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use vipl_sys::clock::Instant;

use crate::runtime::error::{Error, trying};
use crate::runtime::log::Log;
use crate::runtime::token::Token;

/// The poll set, the clock, and the log.
pub(crate) struct Context<'a> {
    pub(crate) log: &'a Log,
    epoll: Epoll,
    epoch: Instant,
}

impl<'a> Context<'a> {
    pub(crate) fn new(log: &'a Log) -> Result<Self, Error> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).map_err(trying("epoll"))?;
        let epoch = Instant::now();
        Ok(Self { log, epoll, epoch })
    }

    /// Nanoseconds since the agent started.
    pub(crate) fn now(&self) -> u64 {
        self.epoch.elapsed().as_nanos() as u64
    }

    /// Adds a descriptor to the poll set; its events carry the token.
    pub(crate) fn add(&self, fd: impl AsFd, token: Token, events: EpollFlags) -> Result<(), Errno> {
        self.epoll.add(fd, token.event(events))
    }

    /// Changes the events to wait for.
    pub(crate) fn modify(
        &self,
        fd: impl AsFd,
        token: Token,
        events: EpollFlags,
    ) -> Result<(), Errno> {
        self.epoll.modify(fd, &mut token.event(events))
    }

    /// Removes a descriptor from the poll set. It may be absent.
    pub(crate) fn remove(&self, fd: impl AsFd) {
        let _ = self.epoll.delete(fd);
    }

    pub(crate) fn wait(
        &self,
        events: &mut [EpollEvent],
        timeout: EpollTimeout,
    ) -> Result<usize, Errno> {
        self.epoll.wait(events, timeout)
    }
}
