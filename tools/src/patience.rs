//! The patience of every loop that polls.

#![forbid(unsafe_code)]

use std::time::{Duration, Instant};

use crate::error::PATIENCE_S;
use crate::{Error, Result};

/// Ends a spin that lasts too long. Costs an increment.
pub struct Patience {
    spins: u32,
    start: Option<Instant>,
    what: &'static str,
}

impl Patience {
    /// Patience for one spin.
    #[inline(always)]
    #[must_use]
    pub fn new(what: &'static str) -> Self {
        Self {
            spins: 0,
            start: None,
            what,
        }
    }

    /// One iteration.
    ///
    /// # Errors
    /// It has lasted too long.
    #[inline(always)]
    pub fn spend(&mut self) -> Result<()> {
        self.spins = self.spins.wrapping_add(1);
        if self.spins.is_multiple_of(1 << 20) {
            self.look()
        } else {
            Ok(())
        }
    }

    /// Checks the time.
    ///
    /// # Errors
    /// It has lasted too long.
    #[cold]
    pub fn look(&mut self) -> Result<()> {
        let start = *self.start.get_or_insert_with(Instant::now);
        if start.elapsed() > Duration::from_secs(PATIENCE_S) {
            return Err(Error::Silence(self.what));
        }
        Ok(())
    }
}
