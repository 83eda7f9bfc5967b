//! Descriptors that the agent holds, and which process closes them.

#![forbid(unsafe_code)]

use std::cell::RefCell;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::rc::Rc;

/// Descriptors to be closed by a helper, with the user they came from.
pub(crate) type CloseQueue = Rc<RefCell<Vec<(u32, OwnedFd)>>>;

/// A descriptor that may be in several queues.
pub(crate) type SharedFd = Rc<Held>;

/// A descriptor and the process that closes it.
#[derive(Debug)]
pub(crate) struct Held {
    fd: Option<OwnedFd>,
    /// Processes of this user may hold it as well: their helper closes it.
    shared: Option<(u32, CloseQueue)>,
}

impl Held {
    /// Memory, which closes immediately, whoever else holds it.
    pub(crate) fn own(fd: OwnedFd) -> Self {
        Self {
            fd: Some(fd),
            shared: None,
        }
    }

    /// Something that can be polled: a process that also holds it determines how long closing takes.
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
