//! Copies between processes by the kernel (`process_vm_readv`, `process_vm_writev`).

use std::ffi::CStr;
use std::io::{self, Write};
use std::os::fd::AsRawFd;

use crate::fd;

/// Direction of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// From the other process into this one.
    Read,
    /// From this process into the other.
    Write,
}

/// A range of memory, of either process. The kernel checks it when it is used.
#[inline]
pub fn piece(address: u64, bytes: usize) -> libc::iovec {
    libc::iovec {
        iov_base: std::ptr::with_exposed_provenance_mut(address as usize),
        iov_len: bytes,
    }
}

/// Copies between ranges of this process and ranges of another, in order; `thread` is any living thread of
/// it. Returns the number of copied bytes: fewer than requested if an address of either side is invalid.
///
/// # Errors
/// Nothing was copied: `ESRCH`, the thread has ended; `EPERM`, this process lacks the permission; `EFAULT`,
/// the first address is invalid.
///
/// # Safety
/// With [`Way::Read`] the kernel writes to the ranges of `local` if they are mapped: no other code may rely
/// on their content, as with the buffers posted by the application for this message.
#[inline]
pub unsafe fn copy(
    thread: i32,
    way: Way,
    local: &[libc::iovec],
    remote: &[libc::iovec],
) -> io::Result<usize> {
    let (near, far) = (local.len() as libc::c_ulong, remote.len() as libc::c_ulong);
    // SAFETY: both lists are valid, the kernel checks every address in them; the rest is guaranteed by the
    // caller.
    let copied = unsafe {
        match way {
            Way::Read => {
                libc::process_vm_readv(thread, local.as_ptr(), near, remote.as_ptr(), far, 0)
            }
            Way::Write => {
                libc::process_vm_writev(thread, local.as_ptr(), near, remote.as_ptr(), far, 0)
            }
        }
    };
    usize::try_from(copied).map_err(|_| io::Error::last_os_error())
}

/// A living thread of a process that `reaches` its memory: the first thread, whose number is the process's,
/// may end before the others, and has no memory from then on. `None` if there is none, or `/proc` is not
/// available.
///
/// It does not allocate, so that a message cannot fail for lack of memory.
#[cold]
pub fn find_thread(process: i32, mut reaches: impl FnMut(i32) -> bool) -> Option<i32> {
    let mut path = [0u8; 32];
    // Room for the longest number and the terminating zero.
    write!(&mut path[..31], "/proc/{process}/task").ok()?;
    // SAFETY: a text with its zero; the descriptor is new.
    let folder = unsafe {
        let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC;
        fd::made(libc::open(path.as_ptr().cast(), flags))
    };
    let folder = folder.ok()?;
    let mut room = Entries([0; 2048]);
    loop {
        // SAFETY: the kernel writes at most so many bytes.
        let bytes = unsafe {
            let room = room.0.as_mut_ptr();
            libc::syscall(libc::SYS_getdents64, folder.as_raw_fd(), room, 2048)
        };
        let mut rest = match usize::try_from(bytes) {
            Ok(bytes @ 1..) => room.0.get(..bytes)?,
            _ => return None,
        };
        while let Some(length) = rest.get(LENGTH_AT..NAME_AT - 1) {
            let length = usize::from(u16::from_ne_bytes(length.try_into().ok()?));
            let name = rest.get(NAME_AT..length)?;
            let name = CStr::from_bytes_until_nul(name).ok()?.to_str().ok()?;
            if let Ok(thread) = name.parse()
                && reaches(thread)
            {
                return Some(thread);
            }
            rest = rest.get(length..)?;
        }
    }
}

/// Buffer for `getdents64`: number, offset, length (2 bytes), kind (1 byte), name.
#[repr(align(8))]
struct Entries([u8; 2048]);

const LENGTH_AT: usize = 16;
const NAME_AT: usize = 19;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_threads_of_a_process_are_found() {
        let own = std::process::id() as i32;
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let (sender, receiver) = std::sync::mpsc::channel();
        let other = std::thread::spawn(move || {
            // SAFETY: no arguments.
            let _ = sender.send(unsafe { libc::gettid() });
            ended.recv()
        });
        let thread = receiver.recv().unwrap();
        assert_eq!(find_thread(own, |found| found == own), Some(own));
        assert_eq!(find_thread(own, |found| found == thread), Some(thread));
        assert_eq!(find_thread(own, |_| false), None);
        assert_eq!(find_thread(i32::MAX, |_| true), None);
        drop(end);
        let _ = other.join();
    }

    fn address<T>(of: *const T) -> u64 {
        of.expose_provenance() as u64
    }

    #[test]
    fn ranges_are_copied_in_order_until_a_bad_one() {
        let own = std::process::id() as i32;
        let from = *b"abcdef";
        let mut into = [0u8; 6];
        let far = [
            piece(address(&raw const from) + 4, 2),
            piece(address(&raw const from), 4),
            piece(8, 100),
        ];
        let near = [piece(address(&raw mut into), 6)];
        // SAFETY: `into` is ours.
        let copied = unsafe { copy(own, Way::Read, &near, &far[..2]) };
        assert_eq!(copied.ok(), Some(6));
        // SAFETY: as above; written by the kernel.
        assert_eq!(&unsafe { (&raw const into).read_volatile() }, b"efabcd");
        // SAFETY: as above.
        let bad = unsafe { copy(own, Way::Read, &near, &far[2..]) };
        assert_eq!(
            bad.map_err(|error| error.raw_os_error()),
            Err(Some(libc::EFAULT))
        );
        let near = [piece(address(&raw const from), 6), piece(8, 8)];
        let far = [piece(address(&raw mut into), 6), piece(8, 8)];
        // SAFETY: `into` is ours.
        let copied = unsafe { copy(own, Way::Write, &near[..1], &far) };
        assert_eq!(copied.ok(), Some(6));
        // SAFETY: as above.
        assert_eq!(unsafe { (&raw const into).read_volatile() }, from);
    }

    #[test]
    fn a_process_that_is_not_there_is_an_error() {
        // SAFETY: nothing is copied.
        let gone = unsafe { copy(i32::MAX, Way::Read, &[piece(8, 1)], &[piece(8, 1)]) };
        assert_eq!(
            gone.map_err(|error| error.raw_os_error()),
            Err(Some(libc::ESRCH))
        );
    }
}
