//! Who may make something on a NIC: everybody, until VipCloseNic shuts the door. What is being made counts
//! as there: the one that closes waits until those inside have come out, and then sees all that they made.

use crate::error::Error;
use crate::sync::atomic::{AtomicU32, Ordering};
use crate::sync::{Condvar, Mutex};

/// Somebody wants to shut it: newcomers wait for the outcome.
const SHUTTING: u32 = 1 << 31;
/// It is shut for ever.
const SHUT: u32 = 1 << 30;

/// The way in. Going in and out is one atomic operation each while nobody shuts it.
#[derive(Default)]
pub(super) struct Door {
    /// How many are inside, and the two bits above; these are set under `turn`.
    state: AtomicU32,
    turn: Mutex<()>,
    changed: Condvar,
}

/// Somebody who makes an object; goes out when dropped.
#[must_use]
pub(crate) struct Inside<'a>(&'a Door);

impl Door {
    /// To make something. An error: the NIC is closed.
    #[inline]
    pub(super) fn enter(&self) -> Result<Inside<'_>, Error> {
        // Acquire pairs with the release of whoever left the door open.
        if self.state.fetch_add(1, Ordering::Acquire) & (SHUTTING | SHUT) == 0 {
            return Ok(Inside(self));
        }
        self.leave();
        self.wait_for_outcome()
    }

    #[cold]
    fn wait_for_outcome(&self) -> Result<Inside<'_>, Error> {
        let mut turn = self.turn.lock();
        while self.state.load(Ordering::Relaxed) & SHUTTING != 0 {
            self.changed.wait(&mut turn);
        }
        if self.state.load(Ordering::Relaxed) & SHUT != 0 {
            return Err(Error::InvalidParameter);
        }
        // Nobody begins to shut it under `turn`.
        self.state.fetch_add(1, Ordering::Acquire);
        Ok(Inside(self))
    }

    #[inline]
    fn leave(&self) {
        // Release pairs with the acquire in `shut`, which then sees what was made.
        let before = self.state.fetch_sub(1, Ordering::Release);
        if before & SHUTTING != 0 {
            self.tell();
        }
    }

    /// Wakes the one that shuts it, and those that wait for the outcome.
    #[cold]
    fn tell(&self) {
        let _turn = self.turn.lock();
        self.changed.notify_all();
    }

    /// Shuts it for ever, if `empty` says that nothing has been left inside. Nobody enters meanwhile.
    pub(super) fn shut(&self, empty: impl FnOnce() -> Result<(), Error>) -> Result<(), Error> {
        let mut turn = self.turn.lock();
        while self.state.load(Ordering::Relaxed) & SHUTTING != 0 {
            self.changed.wait(&mut turn);
        }
        if self.state.load(Ordering::Relaxed) & SHUT != 0 {
            return Err(Error::InvalidParameter);
        }
        self.state.fetch_or(SHUTTING, Ordering::Relaxed);
        while self.state.load(Ordering::Acquire) & !SHUTTING != 0 {
            self.changed.wait(&mut turn);
        }
        let result = empty();
        if result.is_ok() {
            self.state.fetch_or(SHUT, Ordering::Release);
        }
        self.state.fetch_and(!SHUTTING, Ordering::Release);
        self.changed.notify_all();
        result
    }
}

impl Drop for Inside<'_> {
    #[inline]
    fn drop(&mut self) {
        self.0.leave();
    }
}
