//! A connected process: its socket, its pidfd, and its unsent messages.

#![forbid(unsafe_code)]

use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd, RawFd};

use nix::errno::Errno;

use crate::Message;
use crate::runtime::helpers::held::SharedFd;
use crate::runtime::sockets::packet;

/// Maximum messages queued for a process that does not read. A well-behaved process has far fewer calls in
/// progress.
const BACKLOG_MAX: usize = 1024;
/// Maximum queued messages with descriptors.
const BACKLOG_FDS_MAX: usize = 128;
/// Maximum messages with descriptors that are still received after the process died.
const FINAL_RECEIVES_MAX: u32 = 8;

/// A connected process.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) socket: OwnedFd,
    pub(crate) pidfd: Option<OwnedFd>,
    pub(crate) pid: i32,
    pub(crate) uid: u32,
    /// The helper is receiving its next message; later messages are not read until it is done.
    pub(crate) at_helper: bool,
    /// Messages that a helper may still receive after the process died.
    pub(crate) final_receives: u32,
    /// It is to be removed: nothing more is sent.
    pub(crate) dying: bool,
    backlog: VecDeque<Message<SharedFd>>,
    /// Queued messages with descriptors.
    backlog_fds: usize,
}

/// Why sending to a process failed.
#[derive(Debug)]
pub(crate) enum Unsendable {
    /// It does not read.
    Stuck,
    /// Its socket failed.
    Broken(Errno),
}

impl Session {
    pub(crate) fn new(socket: OwnedFd, pidfd: Option<OwnedFd>, pid: i32, uid: u32) -> Self {
        Self {
            socket,
            pidfd,
            pid,
            uid,
            at_helper: false,
            final_receives: FINAL_RECEIVES_MAX,
            dying: false,
            backlog: VecDeque::new(),
            backlog_fds: 0,
        }
    }

    /// Whether messages are queued.
    pub(crate) fn is_backed_up(&self) -> bool {
        !self.backlog.is_empty()
    }

    /// Sends a message, or queues it until there is room.
    pub(crate) fn send(&mut self, message: Message<SharedFd>) -> Result<(), Unsendable> {
        let with_fds = usize::from(!message.fds.is_empty());
        let too_many_fds = with_fds > 0 && self.backlog_fds >= BACKLOG_FDS_MAX;
        if self.backlog.len() >= BACKLOG_MAX || too_many_fds {
            return Err(Unsendable::Stuck);
        }
        self.backlog_fds += with_fds;
        self.backlog.push_back(message);
        if self.backlog.len() == 1 {
            self.flush()
        } else {
            Ok(())
        }
    }

    /// Sends queued messages as far as there is room.
    pub(crate) fn flush(&mut self) -> Result<(), Unsendable> {
        while let Some(message) = self.backlog.front() {
            let fds: Vec<RawFd> = message.fds.iter().filter_map(|fd| fd.raw()).collect();
            match packet::send(self.socket.as_fd(), &message.bytes, &fds) {
                Ok(true) => {
                    self.backlog_fds -= usize::from(!fds.is_empty());
                    self.backlog.pop_front();
                }
                Ok(false) => break,
                Err(cause) => return Err(Unsendable::Broken(cause)),
            }
        }
        Ok(())
    }
}
