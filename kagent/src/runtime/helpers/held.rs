//! Descriptors that the agent holds, and who closes them.

#![forbid(unsafe_code)]

use std::cell::RefCell;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::rc::Rc;

/// Descriptors that were dropped and must not be closed here, with the user from whom they are.
pub(crate) type Bin = Rc<RefCell<Vec<(u32, OwnedFd)>>>;

/// A descriptor that may wait in several queues.
pub(crate) type SharedFd = Rc<Held>;

/// A descriptor of the agent's, and who closes it.
#[derive(Debug)]
pub(crate) struct Held {
    fd: Option<OwnedFd>,
    /// Processes of this user may have it as well: a helper of his closes it.
    shared: Option<(u32, Bin)>,
}

impl Held {
    /// Memory, which is closed in no time whoever has it.
    pub(crate) fn own(fd: OwnedFd) -> Self {
        Self {
            fd: Some(fd),
            shared: None,
        }
    }

    /// Something that can be polled: a process which has it as well decides how long it takes to close.
    pub(crate) fn shared(fd: OwnedFd, uid: u32, bin: &Bin) -> Self {
        Self {
            fd: Some(fd),
            shared: Some((uid, bin.clone())),
        }
    }

    pub(crate) fn raw(&self) -> Option<RawFd> {
        self.fd.as_ref().map(AsRawFd::as_raw_fd)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if let (Some(fd), Some((uid, bin))) = (self.fd.take(), &self.shared) {
            bin.borrow_mut().push((*uid, fd));
        }
    }
}
