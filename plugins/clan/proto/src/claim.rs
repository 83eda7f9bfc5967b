//! The word of a completion that decides which side writes it into the application's memory.
//!
//! ```text
//!            device publishes                       device publishes a long message
//!                  │                                            │
//!                  ▼     application polls                      ▼    application polls
//!                OPEN ──────────────────▶ APPLICATION        OFFERED ──────────────▶ FETCHING
//!                  │                                            │                   │   │   │
//!                  │ not polled                                 │ timeout, or the   │   │   │ copied
//!                  ▼ for some time                              ▼ connection ends   │   │   ▼
//!               DEVICE ─────────────────▶ PLACED             DEVICE ◀───────────────┘   │ FETCHED
//!                       written                                  connection ends        ▼
//!                                                                         cannot   REFUSED
//! ```
//!
//! Only one side succeeds in a transition from `OPEN`, `OFFERED` or `FETCHING`. A side that reads a state sees all that was
//! stored before it. `ctest/loom` compiles this file.

use crate::sync::atomic::AtomicU32;
use crate::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

/// Neither side has claimed it.
pub const OPEN: u32 = 0;
/// The application's side writes it.
pub const APPLICATION: u32 = 1;
/// The device writes it.
pub const DEVICE: u32 = 2;
/// The device has written it.
pub const PLACED: u32 = 3;
/// Neither side has claimed it; the data is still in the sender's memory.
pub const OFFERED: u32 = 4;
/// The application's side is fetching the data.
pub const FETCHING: u32 = 5;
/// The application's side has fetched the data.
pub const FETCHED: u32 = 6;
/// The application's side could not fetch the data: the device moves it.
pub const REFUSED: u32 = 7;

/// The word. Zero is [`OPEN`].
#[derive(Debug, Default)]
#[repr(transparent)]
pub struct Claim(AtomicU32);

impl Claim {
    /// The device publishes a state, after it has stored everything else.
    #[inline(always)]
    pub fn publish(&self, state: u32) {
        self.0.store(state, Release);
    }

    /// The state. Everything that was stored before it is visible afterwards.
    #[inline(always)]
    pub fn state(&self) -> u32 {
        self.0.load(Acquire)
    }

    /// The application's side claims it.
    ///
    /// # Errors
    /// The state, if it is not [`OPEN`].
    #[inline(always)]
    pub fn take_for_application(&self) -> Result<(), u32> {
        let taken = self.0.compare_exchange(OPEN, APPLICATION, AcqRel, Acquire);
        taken.map(|_| ())
    }

    /// The device claims it. False: the application's side was first.
    #[inline(always)]
    pub fn take_for_device(&self) -> bool {
        let taken = self.0.compare_exchange(OPEN, DEVICE, AcqRel, Relaxed);
        taken.is_ok()
    }

    /// The application's side begins to fetch. False: the offer was taken back.
    pub fn begin_fetch(&self) -> bool {
        let begun = self.0.compare_exchange(OFFERED, FETCHING, AcqRel, Acquire);
        begun.is_ok()
    }

    /// The application's side has copied the data, or could not. False: the offer was withdrawn meanwhile, and the copy is
    /// worthless.
    pub fn end_fetch(&self, copied: bool) -> bool {
        let state = if copied { FETCHED } else { REFUSED };
        let ended = self.0.compare_exchange(FETCHING, state, AcqRel, Acquire);
        ended.is_ok()
    }

    /// The device takes back an offer. False: the application has begun to fetch.
    pub fn take_back(&self) -> bool {
        let taken = self.0.compare_exchange(OFFERED, DEVICE, AcqRel, Relaxed);
        taken.is_ok()
    }

    /// The device ends an offer, even while it is being fetched. True: it had been fetched, and stays so.
    pub fn withdraw(&self) -> bool {
        let fetched = self.0.swap(DEVICE, AcqRel) == FETCHED;
        if fetched {
            self.0.store(FETCHED, Release);
        }
        fetched
    }
}
