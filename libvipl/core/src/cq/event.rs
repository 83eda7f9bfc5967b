//! The file descriptor of a CQ, for event loops ([decision 135](../../../../docs/decisions/0135-a-descriptor-of-a-completion-queue.md)).
//!
//! It is readable from the moment in which an entry found the CQ armed until the CQ is armed again. All of this happens under the
//! lock of the CQ.

use std::io;
use std::os::fd::RawFd;

use vipl_sys::fd::{Kept, made};

/// An eventfd, and what it says.
pub(super) struct Event {
    fd: Kept,
    /// Whether the event is in the line of waiters.
    pub(super) armed: bool,
    /// Whether it is readable.
    raised: bool,
}

impl Event {
    pub(super) fn new() -> io::Result<Event> {
        // SAFETY: a system call; the descriptor is new.
        let fd = unsafe { made(libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK)) }?;
        Ok(Event {
            fd: Kept::new(fd),
            armed: false,
            raised: false,
        })
    }

    /// The number for the application.
    pub(super) fn number(&self) -> RawFd {
        self.fd.number()
    }

    /// Makes it readable. If the application has closed it, nothing happens: the next `clear` says so.
    pub(super) fn raise(&mut self) {
        self.raised = true;
        let one = 1u64;
        if let Ok(fd) = self.fd.fd() {
            // SAFETY: eight bytes; a full counter is readable as well.
            unsafe { vipl_sys::uncancelled::write(fd, (&raw const one).cast(), 8) };
        }
    }

    /// Makes it unreadable. The caller looks for entries afterwards.
    ///
    /// # Errors
    /// The application has closed it.
    pub(super) fn clear(&mut self) -> io::Result<()> {
        let fd = self.fd.fd()?;
        if std::mem::take(&mut self.raised) {
            let mut count = 0u64;
            // SAFETY: room for eight bytes; it does not block, also if the application has read it.
            unsafe { vipl_sys::uncancelled::read(fd, (&raw mut count).cast(), 8) };
        }
        Ok(())
    }
}
