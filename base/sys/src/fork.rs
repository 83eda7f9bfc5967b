//! Memory that is zero in a forked child, whatever its parent has written. The library's state is reachable
//! from such memory only, so that a child starts with a fresh state (spec §10.4).
//!
//! The kernel wipes it (`MADV_WIPEONFORK`, Linux 4.14). Older kernels, sandboxes and emulators refuse that;
//! then a function that the C library calls in the child of `fork` wipes it, and a child made by a raw system
//! call inherits the parent's content.

use std::io;
use std::ptr::null_mut;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, Ordering};

/// Whole pages in a static, for [`wipe`].
#[repr(C, align(4096))]
pub struct Page<T> {
    /// The content.
    pub content: T,
}

/// Maps zeroed memory that is wiped on fork.
///
/// # Errors
/// The error of `mmap`.
pub fn map_wiped(bytes: usize) -> io::Result<*mut u8> {
    // SAFETY: a fresh anonymous mapping, not shared before it is returned.
    unsafe {
        let memory = libc::mmap(
            null_mut(),
            bytes,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        );
        if memory == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        if let Err(error) = wipe(memory.cast(), bytes) {
            libc::munmap(memory, bytes);
            return Err(error);
        }
        Ok(memory.cast())
    }
}

/// Makes memory zero in a child.
///
/// # Errors
/// The system can neither do it nor call a function in the child.
///
/// # Safety
/// Whole pages of private memory that is never freed, for which zero is a valid initial state, and on whose
/// content no child relies.
pub unsafe fn wipe(memory: *mut u8, bytes: usize) -> io::Result<()> {
    if kernel_wipes() {
        // SAFETY: guaranteed by the caller.
        let done = unsafe { libc::madvise(memory.cast(), bytes, libc::MADV_WIPEONFORK) };
        if done == 0 {
            return Ok(());
        }
    }
    // SAFETY: guaranteed by the caller.
    unsafe { wipe_in_child(memory, bytes) }
}

/// Whether the advice is checked: some emulators accept any value.
fn kernel_wipes() -> bool {
    // SAFETY: no memory is named.
    unsafe { libc::madvise(null_mut(), 0, -1) != 0 }
}

/// Memory wiped by the function.
struct Wiped {
    memory: *mut u8,
    bytes: usize,
    next: *mut Wiped,
}

static WIPED: AtomicPtr<Wiped> = AtomicPtr::new(null_mut());

/// Without the kernel's help.
///
/// # Safety
/// As for [`wipe`].
unsafe fn wipe_in_child(memory: *mut u8, bytes: usize) -> io::Result<()> {
    static REGISTERED: OnceLock<i32> = OnceLock::new();
    // SAFETY: the function stays: neither the library nor a plug-in is ever unloaded.
    let status =
        *REGISTERED.get_or_init(|| unsafe { libc::pthread_atfork(None, None, Some(in_child)) });
    if status != 0 {
        return Err(io::Error::from_raw_os_error(status));
    }
    let entry = Box::into_raw(Box::new(Wiped {
        memory,
        bytes,
        next: null_mut(),
    }));
    let link = |first: *mut Wiped| {
        // SAFETY: not in the list yet.
        unsafe { (*entry).next = first };
        Some(entry)
    };
    let _ = WIPED.fetch_update(Ordering::Release, Ordering::Acquire, link);
    Ok(())
}

/// Runs in a child, before `fork` returns there. It neither locks nor allocates.
unsafe extern "C" fn in_child() {
    let mut next = WIPED.load(Ordering::Acquire);
    // SAFETY: entries and their memory are never freed; no other thread of this process runs.
    unsafe {
        while let Some(entry) = next.as_ref() {
            entry.memory.write_bytes(0, entry.bytes);
            next = entry.next;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The value seen by a child where its parent has written 7, which the parent keeps.
    fn found_by_a_child(memory: *mut u8) -> i32 {
        // SAFETY: ours; the child makes system calls and ends.
        unsafe {
            memory.write_volatile(7);
            let child = libc::fork();
            if child == 0 {
                libc::_exit(i32::from(memory.read_volatile()));
            }
            let mut status = -1;
            libc::waitpid(child, &raw mut status, 0);
            assert_eq!(memory.read_volatile(), 7, "the parent keeps it");
            status
        }
    }

    #[test]
    fn a_child_finds_zeroes() {
        assert_eq!(found_by_a_child(map_wiped(4096).unwrap()), 0);
    }

    #[test]
    fn a_child_finds_zeroes_without_the_kernel() {
        for bytes in [4096, 3 * 4096] {
            let memory = Box::leak(vec![0u8; bytes].into_boxed_slice()).as_mut_ptr();
            // SAFETY: leaked.
            unsafe { wipe_in_child(memory, bytes) }.unwrap();
            assert_eq!(found_by_a_child(memory), 0);
        }
    }

    #[test]
    fn a_page_of_the_program_is_wiped_without_room() {
        static PAGE: Page<AtomicPtr<u8>> = Page {
            content: AtomicPtr::new(null_mut()),
        };
        let memory = (&raw const PAGE).cast_mut().cast::<u8>();
        // SAFETY: a page without other users.
        unsafe { wipe(memory, size_of_val(&PAGE)) }.unwrap();
        assert_eq!(found_by_a_child(memory), 0);
    }

    #[test]
    fn no_room_is_an_error() {
        assert!(map_wiped(usize::MAX - 0xFFF).is_err());
    }
}
