//! Memory of the plug-in that a device uses.

use std::io;
use std::sync::Arc;

use crate::device::{Domain, Memory};

/// Zeroed pages, which a forked child does not have.
pub(crate) struct Pages {
    base: *mut u8,
    bytes: usize,
}

// SAFETY: memory that is accessed by raw pointers and atomics.
unsafe impl Send for Pages {}
// SAFETY: as above.
unsafe impl Sync for Pages {}

impl Pages {
    pub(crate) fn new(bytes: usize) -> io::Result<Pages> {
        let bytes = bytes.max(1);
        let (access, flags) = (
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
        );
        // SAFETY: a new mapping.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), bytes, access, flags, -1, 0) };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: as above. The device has pinned the pages of the parent only.
        unsafe { libc::madvise(base, bytes, libc::MADV_DONTFORK) };
        Ok(Pages {
            base: base.cast(),
            bytes,
        })
    }

    /// The first byte.
    pub(crate) fn base(&self) -> *mut u8 {
        self.base
    }

    /// Its address, for the device.
    pub(crate) fn address(&self) -> u64 {
        self.base.expose_provenance() as u64
    }

    /// How many there are.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: mapped once, unmapped here.
        unsafe { libc::munmap(self.base.cast(), self.bytes) };
    }
}

/// Pages that are registered. They are unmapped after the device has forgotten them.
pub(crate) struct Registered {
    memory: Memory,
    pages: Pages,
}

impl Registered {
    /// New pages; `access` is a set of `IBV_ACCESS_*`.
    pub(crate) fn new(domain: &Arc<Domain>, bytes: usize, access: u32) -> io::Result<Registered> {
        let pages = Pages::new(bytes)?;
        let memory = Memory::new(domain, pages.address(), bytes as u64, access)?;
        Ok(Registered { memory, pages })
    }

    pub(crate) fn pages(&self) -> &Pages {
        &self.pages
    }

    pub(crate) fn memory(&self) -> &Memory {
        &self.memory
    }
}
