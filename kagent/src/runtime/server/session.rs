//! One process as the runtime sees it: its socket, the watch on its life, and what it has not read.

#![forbid(unsafe_code)]

use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd, RawFd};

use nix::errno::Errno;

use crate::Message;
use crate::runtime::helpers::held::SharedFd;
use crate::runtime::sockets::packet;

/// Most messages kept for a process that does not read. A sane process has far fewer calls out.
const BACKLOG_MAX: usize = 1024;
/// Most of them that may hold descriptors open.
const BACKLOG_FDS_MAX: usize = 128;
/// Most messages with descriptors that are still received for a process which has died.
const LAST_FAVOURS_MAX: u32 = 8;

/// A connected process.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) socket: OwnedFd,
    pub(crate) pidfd: Option<OwnedFd>,
    pub(crate) pid: i32,
    pub(crate) uid: u32,
    /// The helper is receiving its next message; nothing behind that is read before.
    pub(crate) at_helper: bool,
    /// Messages that a helper may still receive for it after it has died.
    pub(crate) last_favours: u32,
    /// It is to be dropped: nothing is sent any more.
    pub(crate) dying: bool,
    backlog: VecDeque<Message<SharedFd>>,
    /// Messages in it that have descriptors.
    backlog_fds: usize,
}

/// Why a process cannot be sent to.
#[derive(Debug)]
pub(crate) enum Unsendable {
    /// It does not read.
    Stuck,
    /// Its socket does not work.
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
            last_favours: LAST_FAVOURS_MAX,
            dying: false,
            backlog: VecDeque::new(),
            backlog_fds: 0,
        }
    }

    /// Whether there are messages that wait for room.
    pub(crate) fn is_backed_up(&self) -> bool {
        !self.backlog.is_empty()
    }

    /// Sends a message now, or keeps it until there is room.
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

    /// Sends what has been kept, as far as there is room.
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
