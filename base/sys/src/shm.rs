//! Shared memory of processes that do not trust each other: memfds sealed against resizing, mapped so that a
//! fork does not inherit them.

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

// SAFETY: the mapping does not move; users synchronise through atomics in it.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

/// Makes a zeroed memfd that cannot be resized or sealed any further.
///
/// # Errors
/// Those of the kernel.
pub fn create(name: &CStr, bytes: usize) -> io::Result<OwnedFd> {
    let fd = create_for_readers(name, bytes)?;
    seal(&fd, libc::F_SEAL_SEAL)?;
    Ok(fd)
}

/// The same for a memfd whose owner maps it and then calls [`seal_for_readers`].
///
/// # Errors
/// Those of the kernel.
pub fn create_for_readers(name: &CStr, bytes: usize) -> io::Result<OwnedFd> {
    let fd = memfd(name)?;
    fd::set_size(fd.as_fd(), bytes)?;
    seal(&fd, libc::F_SEAL_SHRINK | libc::F_SEAL_GROW)?;
    Ok(fd)
}

/// An empty memfd that can grow ([`fd::set_size`]), but not shrink or be sealed any further.
///
/// # Errors
/// Those of the kernel.
pub fn create_growing(name: &CStr) -> io::Result<OwnedFd> {
    let fd = memfd(name)?;
    seal(&fd, libc::F_SEAL_SHRINK | libc::F_SEAL_SEAL)?;
    Ok(fd)
}

fn memfd(name: &CStr) -> io::Result<OwnedFd> {
    let memfd = |flags| {
        // SAFETY: a system call; the descriptor is new and has no other owner.
        unsafe { made(libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC | flags)) }
    };
    // Some systems only permit memory files without execute permission; kernels before 6.3 lack the flag.
    match memfd(libc::MFD_NOEXEC_SEAL | libc::MFD_ALLOW_SEALING) {
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => memfd(libc::MFD_ALLOW_SEALING),
        other => other,
    }
}

fn seal(fd: &OwnedFd, seals: c_int) -> io::Result<()> {
    // SAFETY: a system call on an owned descriptor.
    match unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_ADD_SEALS, seals) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Restricts further mappings of the memfd to reading; existing mappings do not change.
///
/// # Errors
/// Kernels before 5.1 do not support it.
pub fn seal_for_readers(fd: &OwnedFd) -> io::Result<()> {
    seal(fd, libc::F_SEAL_FUTURE_WRITE | libc::F_SEAL_SEAL)
}

impl Mapping {
    /// Maps a memfd, which must be large enough and sealed against shrinking.
    ///
    /// # Errors
    /// It is not, or the error of the kernel.
    pub fn open(fd: c_int, bytes: usize, writable: bool) -> io::Result<Mapping> {
        Mapping::open_at(fd, 0, bytes, writable)
    }

    /// Maps a part of a memfd, which begins at a page.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_at(fd: c_int, offset: u64, bytes: usize, writable: bool) -> io::Result<Mapping> {
        // SAFETY: system calls; the structure is valid.
        unsafe {
            let seals = libc::fcntl(fd, libc::F_GET_SEALS);
            if seals < 0 || seals & libc::F_SEAL_SHRINK == 0 {
                return Err(io::Error::other("a shared memory is not sealed"));
            }
            let mut status: libc::stat64 = std::mem::zeroed();
            if libc::fstat64(fd, &raw mut status) != 0 {
                return Err(io::Error::last_os_error());
            }
            let end = offset.checked_add(bytes as u64);
            if end.is_none_or(|end| (status.st_size as u64) < end) {
                return Err(io::Error::other("a shared memory is too small"));
            }
            let protection = if writable {
                libc::PROT_READ | libc::PROT_WRITE
            } else {
                libc::PROT_READ
            };
            let base = libc::mmap64(
                std::ptr::null_mut(),
                bytes,
                protection,
                libc::MAP_SHARED,
                fd,
                offset as libc::off64_t,
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

#[cfg(test)]
mod tests {
    use super::*;

    fn resize(fd: &OwnedFd, bytes: i64) -> Option<i32> {
        // SAFETY: a system call.
        let done = unsafe { libc::ftruncate64(fd.as_raw_fd(), bytes) };
        (done != 0).then(|| io::Error::last_os_error().raw_os_error())?
    }

    #[test]
    fn a_memory_keeps_its_size_and_its_seals() {
        let fd = create(c"vipl-test", 8192).unwrap();
        assert_eq!(resize(&fd, 4096), Some(libc::EPERM));
        assert_eq!(resize(&fd, 16384), Some(libc::EPERM));
        assert!(seal(&fd, libc::F_SEAL_FUTURE_WRITE).is_err());
        let own = Mapping::open(fd.as_raw_fd(), 8192, true).unwrap();
        let other = Mapping::open(fd.as_raw_fd(), 4096, false).unwrap();
        // SAFETY: inside both mappings, which are not shared.
        unsafe {
            own.base().write_volatile(7);
            assert_eq!(other.base().read_volatile(), 7);
        }
        assert!(
            Mapping::open(fd.as_raw_fd(), 8193, true).is_err(),
            "too small"
        );
    }

    #[test]
    fn readers_cannot_map_it_for_writing() {
        let fd = create_for_readers(c"vipl-test", 4096).unwrap();
        let _own = Mapping::open(fd.as_raw_fd(), 4096, true).unwrap();
        seal_for_readers(&fd).unwrap();
        assert!(Mapping::open(fd.as_raw_fd(), 4096, true).is_err());
        assert!(Mapping::open(fd.as_raw_fd(), 4096, false).is_ok());
    }

    #[test]
    fn what_can_shrink_is_not_mapped() {
        // SAFETY: the descriptor is new.
        let fd = unsafe { made(libc::memfd_create(c"vipl-test".as_ptr(), libc::MFD_CLOEXEC)) };
        let fd = fd.unwrap();
        assert_eq!(resize(&fd, 4096), None);
        assert!(Mapping::open(fd.as_raw_fd(), 4096, true).is_err());
    }
}
