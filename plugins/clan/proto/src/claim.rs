//! The word of a completion that decides who puts it into the program's memory.
//!
//! ```text
//!            device publishes                       device publishes a long message
//!                  │                                            │
//!                  ▼       program looks                        ▼      program looks
//!                OPEN ──────────────────▶ APPLICATION            OFFERED ──────────────▶ FETCHING
//!                  │                                            │                   │   │   │
//!                  │ nobody has looked                          │ patience is over, │   │   │ copied
//!                  ▼ for a while                                ▼ or an end         │   │   ▼
//!               DEVICE ─────────────────▶ PLACED             DEVICE ◀───────────────┘   │ FETCHED
//!                       written                                         an end          ▼
//!                                                                         cannot   REFUSED
//! ```
//!
//! Each arrow away from `OPEN`, `OFFERED` or `FETCHING` has one winner. Who finds a state sees what was
//! stored before it. `ctest/loom` compiles this file.

use crate::sync::atomic::AtomicU32;
use crate::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

/// Nobody has it yet.
pub const OPEN: u32 = 0;
/// The program's side has it.
pub const APPLICATION: u32 = 1;
/// The device is at it.
pub const DEVICE: u32 = 2;
/// The device has done it.
pub const PLACED: u32 = 3;
/// Nobody has it yet; the data is still in the sender's memory.
pub const OFFERED: u32 = 4;
/// The program's side is fetching the data.
pub const FETCHING: u32 = 5;
/// The program's side has fetched the data.
pub const FETCHED: u32 = 6;
/// The program's side could not fetch the data: the device does it.
pub const REFUSED: u32 = 7;

/// The word. Zero is [`OPEN`].
#[derive(Debug, Default)]
#[repr(transparent)]
pub struct Claim(AtomicU32);

impl Claim {
    /// The device says how far it is, after it has stored the rest.
    #[inline(always)]
    pub fn publish(&self, state: u32) {
        self.0.store(state, Release);
    }

    /// The state, with all that was stored before it.
    #[inline(always)]
    pub fn state(&self) -> u32 {
        self.0.load(Acquire)
    }

    /// The program's side wants to put it into memory.
    ///
    /// # Errors
    /// The state, if it is not [`OPEN`].
    #[inline(always)]
    pub fn take_for_application(&self) -> Result<(), u32> {
        let taken = self.0.compare_exchange(OPEN, APPLICATION, AcqRel, Acquire);
        taken.map(|_| ())
    }

    /// The device wants to put it into memory; false: the program's side was first.
    #[inline(always)]
    pub fn take_for_device(&self) -> bool {
        let taken = self.0.compare_exchange(OPEN, DEVICE, AcqRel, Relaxed);
        taken.is_ok()
    }

    /// The program's side wants to fetch; false: the offer was taken back.
    pub fn begin_fetch(&self) -> bool {
        let begun = self.0.compare_exchange(OFFERED, FETCHING, AcqRel, Acquire);
        begun.is_ok()
    }

    /// The program's side has copied, or could not. False: the offer was withdrawn meanwhile, and what was
    /// copied may be anything.
    pub fn end_fetch(&self, copied: bool) -> bool {
        let state = if copied { FETCHED } else { REFUSED };
        let told = self.0.compare_exchange(FETCHING, state, AcqRel, Acquire);
        told.is_ok()
    }

    /// The device wants an offer back that nobody has begun to fetch; false: somebody has.
    pub fn take_back(&self) -> bool {
        let taken = self.0.compare_exchange(OFFERED, DEVICE, AcqRel, Relaxed);
        taken.is_ok()
    }

    /// The device ends an offer, whoever is fetching. True: it had been fetched, and stays so.
    pub fn withdraw(&self) -> bool {
        let fetched = self.0.swap(DEVICE, AcqRel) == FETCHED;
        if fetched {
            self.0.store(FETCHED, Release);
        }
        fetched
    }
}
