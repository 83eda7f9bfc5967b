//! Shared memory of processes that do not trust each other: memfds that were sealed against resizing, mapped so
//! that a fork does not inherit them.

use std::ffi::{CStr, c_int};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use crate::fd;
pub use crate::fd::{Identity, Kept, duplicate, made};

/// A mapping; unmapped when dropped.
#[derive(Debug)]
pub struct Mapping {
    base: *mut u8,
    bytes: usize,
}

// SAFETY: the mapping stays where it is; users synchronise through atomics in it.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

/// Makes a memfd of zeroes that nobody can resize.
///
/// # Errors
/// Those of the kernel.
pub fn create(name: &CStr, bytes: usize) -> io::Result<OwnedFd> {
    // SAFETY: system calls on a descriptor of our own.
    unsafe {
        let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
        let fd = made(libc::memfd_create(name.as_ptr(), flags))?;
        fd::set_size(fd.as_fd(), bytes)?;
        let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW;
        if libc::fcntl(fd.as_raw_fd(), libc::F_ADD_SEALS, seals) != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(fd)
    }
}

/// Lets others map the memfd for reading only; mappings that exist stay as they are.
///
/// # Errors
/// Kernels before 5.1 cannot.
pub fn seal_for_readers(fd: &OwnedFd) -> io::Result<()> {
    const F_SEAL_FUTURE_WRITE: c_int = 0x10;
    let seals = F_SEAL_FUTURE_WRITE | libc::F_SEAL_SEAL;
    // SAFETY: a system call on a descriptor of our own.
    match unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_ADD_SEALS, seals) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

impl Mapping {
    /// Maps a memfd: it must be as large as we need it and must not shrink under us.
    ///
    /// # Errors
    /// It is not, or the kernel refuses.
    pub fn open(fd: c_int, bytes: usize, writable: bool) -> io::Result<Mapping> {
        // SAFETY: system calls; the structure is valid.
        unsafe {
            let seals = libc::fcntl(fd, libc::F_GET_SEALS);
            if seals < 0 || seals & libc::F_SEAL_SHRINK == 0 {
                return Err(io::Error::other("a shared memory is not sealed"));
            }
            let mut status: libc::stat = std::mem::zeroed();
            if libc::fstat(fd, &raw mut status) != 0 {
                return Err(io::Error::last_os_error());
            }
            if (status.st_size as u64) < bytes as u64 {
                return Err(io::Error::other("a shared memory is too small"));
            }
            let protection = if writable {
                libc::PROT_READ | libc::PROT_WRITE
            } else {
                libc::PROT_READ
            };
            let base = libc::mmap(
                std::ptr::null_mut(),
                bytes,
                protection,
                libc::MAP_SHARED,
                fd,
                0,
            );
            if base == libc::MAP_FAILED {
                return Err(io::Error::last_os_error());
            }
            libc::madvise(base, bytes, libc::MADV_DONTFORK);
            Ok(Mapping {
                base: base.cast(),
                bytes,
            })
        }
    }

    /// First byte; the mapping is page aligned.
    pub fn base(&self) -> *mut u8 {
        self.base
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped by `open`, unmapped once.
        unsafe { libc::munmap(self.base.cast(), self.bytes) };
    }
}
