//! Who may make something on a NIC: everybody, until VipCloseNic shuts the door. What is being made counts
//! as there: the one that closes waits until those inside have come out, and then sees all that they made.

use crate::error::Error;
use crate::sync::{Condvar, Mutex};

#[derive(Default)]
struct State {
    inside: u32,
    /// Threads that want to shut it. Without one nobody is notified: that is a system call.
    shutting: u32,
    shut: bool,
}

/// The way in.
#[derive(Default)]
pub(super) struct Door {
    state: Mutex<State>,
    left: Condvar,
}

/// Somebody who makes an object; goes out when dropped.
#[must_use]
pub(crate) struct Inside<'a>(&'a Door);

impl Door {
    /// To make something. An error: the NIC is closed.
    pub(super) fn enter(&self) -> Result<Inside<'_>, Error> {
        let mut state = self.state.lock();
        if state.shut {
            return Err(Error::InvalidParameter);
        }
        state.inside += 1;
        Ok(Inside(self))
    }

    /// Shuts it for ever, if `empty` says that nothing has been left inside. Nobody enters meanwhile.
    pub(super) fn shut(&self, empty: impl FnOnce() -> Result<(), Error>) -> Result<(), Error> {
        let mut state = self.state.lock();
        while state.inside > 0 {
            state.shutting += 1;
            self.left.wait(&mut state);
            state.shutting -= 1;
        }
        if state.shut {
            return Err(Error::InvalidParameter);
        }
        empty()?;
        state.shut = true;
        Ok(())
    }
}

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        state.inside -= 1;
        if state.inside == 0 && state.shutting > 0 {
            self.0.left.notify_all();
        }
    }
}
