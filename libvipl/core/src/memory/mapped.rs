//! Whether memory is mapped.
//!
//! A system call answers this, but takes as long as the rest of a registration. Applications register the
//! same few buffers repeatedly, so a small range found mapped is cached, and the next time one byte of each
//! of its pages is read instead, by a copy that tolerates faults. The cache is only a hint: the reads or the
//! system call determine what is mapped *now*. Pages registered for the first time are not read, since that
//! would make the kernel allocate them.

use std::ffi::c_void;
use std::sync::atomic::{AtomicU64, Ordering};

use vipl_sys::memory_file::page_size;

/// Maximum pages to read: more take longer than the system call.
const READ_MAX: u64 = 4;

/// Number of cached ranges.
const REMEMBERED: usize = 64;

/// Cached ranges: the number of the first page and, in the low bits, the number of pages; each range has one
/// entry. Not per NIC, since memory belongs to the process. A forked child inherits the hints.
static MAPPED: [AtomicU64; REMEMBERED] = [const { AtomicU64::new(0) }; REMEMBERED];

/// Whether every page of the range is mapped.
pub(super) fn is_mapped(base: u64, length: u64) -> bool {
    let size = page_size();
    let start = base & !(size - 1);
    let pages = (base + length - start).div_ceil(size);
    // On other machines the copy does not tolerate faults.
    if pages > READ_MAX || !vipl_guard::CATCHES {
        return ask_system(start, base + length - start);
    }
    let range = start | pages;
    let place = &MAPPED[(start / size) as usize % REMEMBERED];
    if place.load(Ordering::Relaxed) == range && read_pages(start, pages) {
        return true;
    }
    let mapped = ask_system(start, base + length - start);
    if mapped {
        place.store(range, Ordering::Relaxed);
    }
    mapped
}

/// Reads a byte of each page; false if one cannot be read, although it may be mapped.
fn read_pages(start: u64, pages: u64) -> bool {
    (0..pages).all(|page| {
        let mut byte = 0u8;
        let from = (start + page * page_size()) as *const u8;
        // SAFETY: one byte of the application's memory, which need not be mapped, into a local one.
        unsafe { vipl_guard::copy(&raw mut byte, from, 1).is_ok() }
    })
}

/// Checks the mappings only, not the pages. It does not use the C library's `msync`, which is a cancellation
/// point.
fn ask_system(start: u64, bytes: u64) -> bool {
    let start = start as *mut c_void;
    // SAFETY: MS_ASYNC changes nothing; the kernel checks the range.
    let found = unsafe { libc::syscall(libc::SYS_msync, start, bytes as usize, libc::MS_ASYNC) };
    // A sandbox may forbid the call. Then an unmapped range is detected when it is used.
    found == 0 || std::io::Error::last_os_error().raw_os_error() != Some(libc::ENOMEM)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn protect(at: *mut c_void, bytes: usize, protection: i32) {
        // SAFETY: within the test's own mapping.
        assert_eq!(unsafe { libc::mprotect(at, bytes, protection) }, 0);
    }

    #[test]
    fn a_range_counts_as_mapped_as_long_as_it_is() {
        vipl_guard::install();
        let size = page_size() as usize;
        for pages in [1, 3, READ_MAX as usize, READ_MAX as usize + 1] {
            let (private, readable) = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, libc::PROT_READ);
            // SAFETY: a mapping of the test's own.
            let at =
                unsafe { libc::mmap(std::ptr::null_mut(), pages * size, readable, private, -1, 0) };
            assert_ne!(at, libc::MAP_FAILED);
            let base = at.addr() as u64;
            // Not aligned: the first and the last page in part.
            let (first, length) = (base + 7, (pages * size - 14) as u64);
            for _ in 0..3 {
                assert!(is_mapped(first, length), "{pages}");
            }
            protect(at, pages * size, libc::PROT_NONE);
            assert!(is_mapped(first, length), "cannot be read, but is mapped");
            protect(at, pages * size, readable);
            let last = at.wrapping_byte_add((pages - 1) * size);
            // SAFETY: the test's own.
            assert_eq!(unsafe { libc::munmap(last, size) }, 0);
            for _ in 0..2 {
                assert!(!is_mapped(first, length), "the last of {pages}");
                assert!(pages == 1 || is_mapped(first, length - size as u64));
            }
            if pages > 1 {
                // SAFETY: the test's own.
                assert_eq!(unsafe { libc::munmap(at, (pages - 1) * size) }, 0);
            }
        }
    }
}
