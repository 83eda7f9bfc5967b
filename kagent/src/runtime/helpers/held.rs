//! Descriptors held by the agent, and the process that closes them.

#![forbid(unsafe_code)]

use std::cell::RefCell;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::rc::Rc;

/// Descriptors to be closed by a helper, with their user.
pub(crate) type CloseQueue = Rc<RefCell<Vec<(u32, OwnedFd)>>>;

/// A descriptor that may be in several queues.
pub(crate) type SharedFd = Rc<Held>;

/// A descriptor. On drop it is closed here, or queued for a helper.
#[derive(Debug)]
pub(crate) struct Held {
    fd: Option<OwnedFd>,
    /// Processes of this user may hold it as well: the user's helper closes it.
    shared: Option<(u32, CloseQueue)>,
}

impl Held {
    /// A memory file, which closes immediately, no matter which process also holds it.
    pub(crate) fn own(fd: OwnedFd) -> Self {
        Self {
            fd: Some(fd),
            shared: None,
        }
    }

    /// A pollable descriptor: a process that also holds it determines how long closing takes.
    pub(crate) fn shared(fd: OwnedFd, uid: u32, to_close: &CloseQueue) -> Self {
        Self {
            fd: Some(fd),
            shared: Some((uid, to_close.clone())),
        }
    }

    pub(crate) fn raw(&self) -> Option<RawFd> {
        self.fd.as_ref().map(AsRawFd::as_raw_fd)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if let (Some(fd), Some((uid, to_close))) = (self.fd.take(), &self.shared) {
            to_close.borrow_mut().push((*uid, fd));
        }
    }
}
