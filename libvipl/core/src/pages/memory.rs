//! The memory of the records: a mapping of the file, or private.
//!
//! A page of the file takes memory when it is first written to. That raises SIGBUS where the file system is full, so that first
//! store is a guarded one; private memory then replaces the page. A page that exists stays, unless a process of the same user cuts
//! the file short, which may kill this process anyway.

use std::io;
use std::os::fd::RawFd;
use std::ptr::null_mut;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

use crate::sync::Mutex;

/// Bytes of the parts of a file whose first store is guarded.
const PAGE: usize = 4096;

/// The records' memory; never unmapped.
pub(super) struct Memory {
    /// NULL: there is none.
    base: *mut u8,
    bytes: usize,
    /// Whether each page can be written to.
    present: Mutex<Vec<bool>>,
}

// SAFETY: the mapping does not move, and records have atomic fields only.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    fn new(base: *mut u8, bytes: usize) -> Memory {
        Memory {
            base,
            bytes,
            present: Mutex::new(vec![false; bytes / PAGE]),
        }
    }

    /// Memory that no other process sees.
    pub(super) fn private(bytes: usize) -> Memory {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a new mapping.
        let base = unsafe { libc::mmap(null_mut(), bytes, READ_WRITE, flags, -1, 0) };
        let base = match base == libc::MAP_FAILED {
            true => null_mut(),
            false => base.cast(),
        };
        Memory::new(base, bytes)
    }

    /// A file's memory. A forked child does not inherit it, at no moment.
    pub(super) fn of_file(fd: RawFd, bytes: usize) -> io::Result<Memory> {
        // SAFETY: a new mapping.
        unsafe {
            let base = libc::mmap64(null_mut(), bytes, libc::PROT_NONE, libc::MAP_SHARED, fd, 0);
            if base == libc::MAP_FAILED {
                return Err(io::Error::last_os_error());
            }
            let is_done = libc::madvise(base, bytes, libc::MADV_DONTFORK) == 0
                && libc::mprotect(base, bytes, READ_WRITE) == 0;
            if !is_done {
                let error = io::Error::last_os_error();
                libc::munmap(base, bytes);
                return Err(error);
            }
            replace_in_children(base.cast(), bytes);
            Ok(Memory::new(base.cast(), bytes))
        }
    }

    /// The record at this place, whose pages can be written to. `None`: there is no memory.
    pub(super) fn record<T>(&self, place: usize) -> Option<&'static T> {
        debug_assert!(
            place + size_of::<T>() <= self.bytes && place.is_multiple_of(align_of::<T>())
        );
        if self.base.is_null() {
            return None;
        }
        let mut present = self.present.lock();
        for page in place / PAGE..(place + size_of::<T>()).div_ceil(PAGE) {
            if !present[page] {
                present[page] = self.touch(page);
            }
            if !present[page] {
                return None;
            }
        }
        // SAFETY: inside the mapping, which stays, and aligned; zeroes and whatever its writers store are valid.
        Some(unsafe { &*self.base.add(place).cast::<T>() })
    }

    /// Makes a page writable, and lets private memory take its place if that cannot be.
    fn touch(&self, page: usize) -> bool {
        let zero = [0_u8; 8];
        // SAFETY: inside the mapping; no record there is in use yet; a fault is caught.
        unsafe {
            let at = self.base.add(page * PAGE);
            if vipl_guard::copy(at, zero.as_ptr(), zero.len()).is_ok() {
                return true;
            }
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
            libc::mmap(at.cast(), PAGE, READ_WRITE, flags, -1, 0) != libc::MAP_FAILED
        }
    }
}

const READ_WRITE: i32 = libc::PROT_READ | libc::PROT_WRITE;

/// Where the mapping is, for children, and how large.
static MAPPED: AtomicPtr<u8> = AtomicPtr::new(null_mut());
static MAPPED_BYTES: AtomicUsize = AtomicUsize::new(0);

/// In a child of `fork` private memory takes the place of the mapping: the address of a counter is valid for ever.
fn replace_in_children(base: *mut u8, bytes: usize) {
    static REGISTERED: OnceLock<i32> = OnceLock::new();
    MAPPED_BYTES.store(bytes, Ordering::Relaxed);
    MAPPED.store(base, Ordering::Release);
    // SAFETY: the library is never unloaded, so the function stays.
    REGISTERED.get_or_init(|| unsafe { libc::pthread_atfork(None, None, Some(in_child)) });
}

/// Runs in a child, before `fork` returns there. It neither locks nor allocates.
unsafe extern "C" fn in_child() {
    let base = MAPPED.swap(null_mut(), Ordering::Acquire);
    let bytes = MAPPED_BYTES.load(Ordering::Relaxed);
    if base.is_null() {
        return;
    }
    let flags =
        libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED_NOREPLACE;
    // SAFETY: nothing is mapped there, or the call fails; kernels before 4.17 may choose another place.
    unsafe {
        let at = libc::mmap(base.cast(), bytes, READ_WRITE, flags, -1, 0);
        if at != libc::MAP_FAILED && at != base.cast() {
            libc::munmap(at, bytes);
        }
    }
}
