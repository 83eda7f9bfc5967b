//! The pages of a NIC handle and of the device.
//!
//! ```text
//!   DevicePage   asleep   odd while the device sleeps; processes map it for reading only
//!                round    odd while the device is looking at doorbells
//!   NicPage      ring     counts interrupts; sleepers of the process sleep on it
//!                want     not 0: somebody sleeps, and wants interrupts
//!                mail     counts packets that the process has sent
//!                failed   not 0: the interface has been removed
//!                ready    one bit per VI, for completion queues
//!                heed     one bit per VI that has something which completes no descriptor
//!   regions      the NIC's table of regions, 32 bytes each
//! ```
//!
//! Who goes to sleep announces it and looks once more; who publishes something looks for the
//! announcement afterwards. One of the two must see the other, which takes a fence on both sides: the
//! sleeper makes all of them (`membarrier`), so that a doorbell costs none. Where the kernel cannot,
//! `fences` says that each side makes its own.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, compiler_fence, fence};

use vipl_sys::futex;

use vipl_sys::membarrier::{Scope, barrier};

/// VIs of one NIC handle.
pub const VIS_MAX: u32 = 1024;
/// Regions of one NIC handle, a power of two.
pub const REGIONS_MAX: u32 = 4096;
/// Bytes of an entry of the table of regions.
pub const REGION_BYTES: usize = 32;
/// Where the table begins in the memory of a NIC.
pub const REGIONS_AT: usize = 4096;
/// Bytes of the memory of a NIC.
pub const NIC_BYTES: usize = REGIONS_AT + REGIONS_MAX as usize * REGION_BYTES;
/// Bytes of the device's page.
pub const DEVICE_BYTES: usize = 4096;

/// Largest payload of a frame on an interface in bytes; the interface may allow less.
pub const FRAME_MAX: u32 = 9000;
/// Frames of the receive ring of an interface. The program's side makes it, which takes the kernel a while.
pub const RING_FRAMES: usize = 1024;

const WORDS: usize = VIS_MAX as usize / 64;

/// What all processes see of the device; all zero at first.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub struct DevicePage {
    /// Odd while the device sleeps.
    pub asleep: AtomicU32,
    /// Not 0: everybody makes his own fences.
    pub fences: AtomicU32,
    pad0: [u32; 14],
    /// Odd while the device is at work, counts.
    pub round: AtomicU32,
    pad1: [u32; 15],
}

impl DevicePage {
    /// The fence between publishing something and looking whether anybody sleeps.
    #[inline(always)]
    pub fn after_publishing(&self) {
        if self.fences.load(Ordering::Relaxed) != 0 {
            fence(Ordering::SeqCst);
        } else {
            // The processor's fence comes from the sleeper's barrier; the compiler must obey too.
            compiler_fence(Ordering::SeqCst);
        }
    }

    /// The other side's fence. False: the system takes `membarrier` away, so that those who publish must fence
    /// themselves from now on.
    pub fn before_looking_again(&self) -> bool {
        fence(Ordering::SeqCst);
        self.fences.load(Ordering::Relaxed) != 0 || barrier(Scope::Global)
    }
}

/// What a NIC handle and the device share, before the regions; all zero at first.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub struct NicPage {
    ring: AtomicU32,
    pad0: [u32; 15],
    want: AtomicU32,
    pad1: [u32; 15],
    /// Counts packets on the socket, so that a device at work need not ask the kernel for them.
    pub mail: AtomicU32,
    /// Not 0: the interface has been removed; told by an interrupt.
    pub failed: AtomicU32,
    pad2: [u32; 14],
    ready: [AtomicU64; WORDS],
    heed: [AtomicU64; WORDS],
}

const _: () = assert!(size_of::<NicPage>() <= REGIONS_AT);
const _: () = assert!(size_of::<DevicePage>() <= DEVICE_BYTES);

/// Sets a bit; whether it was not set before.
fn set(bits: &[AtomicU64; WORDS], index: u32) -> bool {
    let word = &bits[(index % VIS_MAX) as usize / 64];
    let bit = 1 << (index % 64);
    word.fetch_or(bit, Ordering::AcqRel) & bit == 0
}

fn take(bits: &[AtomicU64; WORDS], mut each: impl FnMut(u32)) {
    for (place, word) in bits.iter().enumerate() {
        if word.load(Ordering::Relaxed) == 0 {
            continue;
        }
        // Acquire pairs with `set`: what was published before it is seen.
        let mut found = word.swap(0, Ordering::AcqRel);
        while found != 0 {
            each(place as u32 * 64 + found.trailing_zeros());
            found &= found - 1;
        }
    }
}

impl NicPage {
    /// The device: this VI has something for a completion queue.
    pub fn mark(&self, index: u32) {
        set(&self.ready, index);
    }

    /// The process: takes marks off, as many as there is room for.
    pub fn take_marks(&self, indices: &mut [u32]) -> usize {
        let mut found = 0;
        for (place, word) in self.ready.iter().enumerate() {
            if word.load(Ordering::Relaxed) == 0 || found + 64 > indices.len() {
                continue;
            }
            let mut bits = word.swap(0, Ordering::AcqRel);
            while bits != 0 {
                indices[found] = place as u32 * 64 + bits.trailing_zeros();
                found += 1;
                bits &= bits - 1;
            }
        }
        found
    }

    /// The device: the process shall look at this VI, whatever its program does. False: it has been told
    /// already.
    pub fn call_heed(&self, index: u32) -> bool {
        set(&self.heed, index)
    }

    /// The process: takes off what `call_heed` has set.
    pub fn take_heed(&self, each: impl FnMut(u32)) {
        take(&self.heed, each);
    }

    /// The device: an interrupt, if somebody waits for one. Called after something was published.
    #[inline(always)]
    pub fn ring_if_wanted(&self, device: &DevicePage) {
        device.after_publishing();
        if self.want.load(Ordering::Relaxed) != 0 {
            self.ring();
        }
    }

    /// Wakes everybody who sleeps on this bell.
    #[cold]
    pub fn ring(&self) {
        self.ring.fetch_add(1, Ordering::SeqCst);
        futex::wake(&self.ring);
    }

    /// The process: announces a sleeper; gives what `sleep` needs.
    pub fn arm(&self, device: &DevicePage) -> u32 {
        let epoch = self.ring.load(Ordering::SeqCst);
        self.want.fetch_add(1, Ordering::SeqCst);
        device.before_looking_again();
        epoch
    }

    /// Sleeps until the bell has rung since `arm`, and takes the announcement back.
    pub fn sleep(&self, epoch: u32, timeout_ns: u64) {
        if timeout_ns > 0 {
            futex::wait(&self.ring, epoch, timeout_ns);
        }
        self.want.fetch_sub(1, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_taken_once_and_stay_inside() {
        let page = NicPage::default();
        for index in [0, 63, 64, 1023, 5000] {
            page.mark(index);
            page.call_heed(index);
        }
        let mut room = [0; 256];
        let found = page.take_marks(&mut room);
        assert_eq!(&room[..found], [0, 63, 64, 5000 % 1024, 1023]);
        assert_eq!(page.take_marks(&mut room), 0);
        let mut heeded = Vec::new();
        page.take_heed(|index| heeded.push(index));
        assert_eq!(heeded, [0, 63, 64, 5000 % 1024, 1023]);
    }

    #[test]
    fn a_ring_after_arming_ends_the_sleep() {
        let (page, device) = (NicPage::default(), DevicePage::default());
        device.fences.store(1, Ordering::Relaxed);
        page.ring_if_wanted(&device);
        let epoch = page.arm(&device);
        page.ring_if_wanted(&device);
        // Would wait for ever had the ring been lost.
        page.sleep(epoch, u64::MAX);
        assert_eq!(page.want.load(Ordering::Relaxed), 0);
    }
}
