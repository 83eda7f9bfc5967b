//! The device's page, which all processes map for reading only.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::Ordering;

use vipl_clan_proto::nic::{DEVICE_BYTES, DevicePage};
use vipl_sys::membarrier::{self, Scope};
use vipl_sys::shm::{Mapping, create_for_readers, seal_for_readers};

/// The device's page.
pub(crate) struct Page {
    memory: OwnedFd,
    mapping: Mapping,
}

impl Page {
    /// # Errors
    /// The kernel has no memory for it, or is older than 5.3.
    pub(crate) fn new() -> io::Result<Page> {
        let memory = create_for_readers(c"vipl-clan", DEVICE_BYTES)?;
        let mapping = Mapping::open(memory.as_raw_fd(), DEVICE_BYTES, true)?;
        seal_for_readers(&memory)?;
        let page = Page { memory, mapping };
        let barriers = membarrier::register(Scope::Global) && membarrier::barrier(Scope::Global);
        let fences = u32::from(!barriers);
        page.words().fences.store(fences, Ordering::Release);
        Ok(page)
    }

    fn words(&self) -> &DevicePage {
        // SAFETY: a page of zeroes at first, which is valid, and all atomic.
        unsafe { &*self.mapping.base().cast::<DevicePage>() }
    }

    /// Another file descriptor of the page, which can be mapped for reading only.
    pub(crate) fn for_readers(&self) -> io::Result<OwnedFd> {
        self.memory.try_clone()
    }

    /// Whether both sides must execute their own fences.
    pub(crate) fn needs_fences(&self) -> bool {
        self.words().needs_fences()
    }

    /// A round begins. Until it ends the device may access all memory that was registered at its begin.
    pub(crate) fn begin_round(&self) {
        self.end_round();
        self.words().after_publishing(false);
    }

    /// The round has ended.
    pub(crate) fn end_round(&self) {
        let round = &self.words().round;
        let next = round.load(Ordering::Relaxed).wrapping_add(1);
        round.store(next, Ordering::Release);
    }

    /// Announces that the device is about to sleep. It must poll all doorbells once more afterwards.
    pub(crate) fn announce_sleep(&self) {
        let page = self.words();
        page.asleep.fetch_add(1, Ordering::SeqCst);
        if !page.before_looking_again() {
            page.fences.store(1, Ordering::SeqCst);
        }
    }

    /// The device is awake again.
    pub(crate) fn end_sleep(&self) {
        self.words().asleep.fetch_add(1, Ordering::SeqCst);
    }
}
