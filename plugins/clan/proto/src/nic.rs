//! The pages of a NIC handle and of the device.
//!
//! ```text
//!   DevicePage   asleep   odd while the device sleeps; processes map it for reading only
//!                round    odd during a round over the doorbells
//!   NicPage      bell     threads of the process sleep on it; the device rings
//!                messages     counts packets that the process has sent
//!                failed   not 0: why the interface has failed
//!                ready    one bit per VI, for completion queues
//!                notices  one bit per VI with an event that completes no descriptor
//!   regions      the NIC's table of regions, 32 bytes each
//! ```
//!
//! The device sleeps as the threads of a process do on their bell, but processes cannot write to its page. They wake it by a
//! packet.

use std::mem::offset_of;
use std::sync::atomic::{AtomicU32, Ordering, fence};

use vipl_sys::bell::{Bell, Marks, after_publishing};
use vipl_sys::membarrier::{Scope, barrier};

/// VIs of one NIC handle.
pub const VIS_MAX: u32 = 16_384;
/// Regions of one NIC handle, a power of two.
pub const REGIONS_MAX: u32 = 4096;
/// Bytes of an entry of the table of regions.
pub const REGION_BYTES: usize = 32;
/// Offset of the table in the memory of a NIC.
pub const REGIONS_AT: usize = 8192;
/// Bytes of the memory of a NIC.
pub const NIC_BYTES: usize = REGIONS_AT + REGIONS_MAX as usize * REGION_BYTES;
/// Bytes of the device's page.
pub const DEVICE_BYTES: usize = 4096;

/// Largest payload of a frame on an interface in bytes; the interface may allow less.
pub const FRAME_MAX: u32 = 9000;
/// Frames of the receive ring of an interface. The application's side creates it, which takes the kernel some time.
pub const RING_FRAMES: usize = 1024;

const WORDS: usize = VIS_MAX as usize / 64;

/// What all processes see of the device; initially all zero.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub struct DevicePage {
    /// Odd while the device sleeps.
    pub asleep: AtomicU32,
    /// Not 0: both sides must execute their own fences.
    pub fences: AtomicU32,
    pad0: [AtomicU32; 14],
    /// Counts; odd during a round.
    pub round: AtomicU32,
    pad1: [AtomicU32; 15],
}

impl DevicePage {
    /// The fence between publishing something and checking whether the device sleeps. `own_fences`: the device's barriers do
    /// not reach this process.
    #[inline(always)]
    pub fn after_publishing(&self, own_fences: bool) {
        after_publishing(own_fences || self.needs_fences());
    }

    /// Whether both sides must execute their own fences.
    #[inline(always)]
    pub fn needs_fences(&self) -> bool {
        self.fences.load(Ordering::Relaxed) != 0
    }

    /// The other side's fence. False: `membarrier` has failed, and from now on publishers must execute their own fences.
    pub fn before_looking_again(&self) -> bool {
        fence(Ordering::SeqCst);
        self.needs_fences() || barrier(Scope::Global)
    }
}

/// Values of [`NicPage::failed`].
pub mod failed {
    /// The interface has been removed.
    pub const REMOVED: u32 = 1;
    /// It has become a port of another interface, which takes its frames.
    pub const PORT: u32 = 2;
}

/// What a NIC handle and the device share, before the regions; initially all zero.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub struct NicPage {
    /// Wakes the sleeping threads of the process.
    pub bell: Bell,
    /// Counts packets on the socket, so that a polling device need not ask the kernel.
    pub messages: AtomicU32,
    /// Not 0: why the interface has failed ([`failed`]); an interrupt reports it.
    pub failed: AtomicU32,
    pad: [AtomicU32; 14],
    /// Ready bits of the VIs, for completion queues.
    pub ready: Marks<WORDS>,
    /// VIs that the process must poll, even if the application does not.
    pub notices: Marks<WORDS>,
}

const _: () = assert!(size_of::<NicPage>() <= REGIONS_AT && offset_of!(NicPage, ready) == 192);
const _: () = assert!(size_of::<DevicePage>() <= DEVICE_BYTES);
