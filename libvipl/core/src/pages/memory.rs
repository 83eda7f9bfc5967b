//! The memory of the records: a mapping of the file, or private.
//!
//! A page of the file takes memory when it is first written to. That raises SIGBUS where the file system is full, so that first
//! store is a guarded one; private memory then replaces the page. A page that exists stays, unless a process of the same user cuts
//! the file short, which may kill this process anyway.

use std::io;
use std::os::fd::RawFd;
use std::ptr::null_mut;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering};

use crate::sync::Mutex;

/// Bytes of the parts of a file whose first store is guarded.
const PAGE: usize = 4096;

/// A page of the mapping.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Page {
    /// Not yet written to.
    New,
    /// It can be written to.
    Present,
    /// The same, and the file has a hole there.
    Replaced,
}

/// The records' memory; never unmapped.
pub(super) struct Memory {
    /// NULL: there is none.
    base: *mut u8,
    bytes: usize,
    pages: Mutex<Vec<Page>>,
    /// Pages that the file could not have.
    left_out: AtomicU64,
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
            pages: Mutex::new(vec![Page::New; bytes / PAGE]),
            left_out: AtomicU64::new(0),
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
        self.made(place, Memory::touch)
    }

    /// The same, in private memory with all that is beside it, unless something there is in use.
    pub(super) fn hidden<T>(&self, place: usize) -> Option<&'static T> {
        self.made(place, Memory::replace)
    }

    fn made<T>(&self, place: usize, make: fn(&Memory, usize) -> Page) -> Option<&'static T> {
        debug_assert!(
            place + size_of::<T>() <= self.bytes && place.is_multiple_of(align_of::<T>())
        );
        if self.base.is_null() {
            return None;
        }
        let mut pages = self.pages.lock();
        for number in range::<T>(place) {
            if pages[number] == Page::New {
                pages[number] = make(self, number);
            }
            if pages[number] == Page::New {
                return None;
            }
        }
        // SAFETY: inside the mapping, which stays, and aligned; zeroes and whatever its writers store are valid.
        Some(unsafe { &*self.base.add(place).cast::<T>() })
    }

    /// Whether a record lies in this memory, and where the file has it if there is one.
    pub(super) fn has<T>(&self, record: &T) -> bool {
        let place = (&raw const *record).addr().wrapping_sub(self.base.addr());
        let is_inside = place < self.bytes;
        let pages = self.pages.lock();
        is_inside && range::<T>(place).all(|number| pages[number] == Page::Present)
    }

    /// Pages that the file could not have.
    pub(super) fn left_out(&self) -> u64 {
        self.left_out.load(Ordering::Relaxed)
    }

    /// Makes a page writable, and lets private memory take its place if that cannot be.
    fn touch(&self, number: usize) -> Page {
        let zero = [0_u8; 8];
        // SAFETY: inside the mapping; no record there is in use yet; a fault is caught.
        let written = unsafe {
            let at = self.base.add(number * PAGE);
            vipl_guard::copy(at, zero.as_ptr(), zero.len())
        };
        if written.is_ok() {
            return Page::Present;
        }
        self.left_out.fetch_add(1, Ordering::Relaxed);
        self.replace(number)
    }

    fn replace(&self, number: usize) -> Page {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
        // SAFETY: inside the mapping; no record there is in use yet.
        let replaced = unsafe {
            let at = self.base.add(number * PAGE);
            libc::mmap(at.cast(), PAGE, READ_WRITE, flags, -1, 0)
        };
        match replaced == libc::MAP_FAILED {
            true => Page::New,
            false => Page::Replaced,
        }
    }
}

/// The pages of a record.
fn range<T>(place: usize) -> std::ops::Range<usize> {
    place / PAGE..(place + size_of::<T>()).div_ceil(PAGE)
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
