//! File descriptors of a library that lives in somebody else's process: the program may have closed 0 to 2,
//! may close what it has not opened, and may have limits and signal handlers of its own.

use std::io;
use std::mem::zeroed;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

/// The first descriptor that nobody takes for standard input, output or error.
const FIRST: RawFd = 3;

/// Moves a descriptor that has just been made off the numbers 0 to 2. A program that was started without
/// them prints into whatever gets them.
///
/// # Errors
/// The process has no more descriptors.
pub fn above_standard(fd: OwnedFd) -> io::Result<OwnedFd> {
    if fd.as_raw_fd() >= FIRST {
        return Ok(fd);
    }
    duplicate_from(fd.as_raw_fd(), FIRST)
}

/// The same for the result of a system call that makes a descriptor, or gives -1 and sets `errno`.
///
/// # Errors
/// Those of the call, or as above.
///
/// # Safety
/// If it is not -1, the descriptor is new and nobody's.
pub unsafe fn made(raw: RawFd) -> io::Result<OwnedFd> {
    if raw < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: by contract.
    above_standard(unsafe { OwnedFd::from_raw_fd(raw) })
}

/// Another descriptor for the same thing.
///
/// # Errors
/// As above, or it is not open.
pub fn duplicate(fd: RawFd) -> io::Result<OwnedFd> {
    duplicate_from(fd, FIRST)
}

/// The same with a number that is not below `first`.
///
/// # Errors
/// The process has no such descriptors left.
pub fn duplicate_from(fd: RawFd, first: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: a system call; the descriptor is new.
    unsafe {
        let raw = libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, first);
        if raw >= 0 {
            return Ok(OwnedFd::from_raw_fd(raw));
        }
        let error = io::Error::last_os_error();
        // What the kernel says when `first` is beyond the limit.
        if error.raw_os_error() == Some(libc::EINVAL) {
            return Err(io::Error::from_raw_os_error(libc::EMFILE));
        }
        Err(error)
    }
}

/// Gives a new memfd its size. Where the limit of the file size forbids that the kernel sends SIGXFSZ, which
/// ends a program that does not expect it; here it is an error.
///
/// # Errors
/// Those of the kernel; the limit is named.
pub fn set_size(fd: BorrowedFd<'_>, bytes: usize) -> io::Result<()> {
    // SAFETY: valid sets; the signal is taken only if it was not there before, so it is ours.
    unsafe {
        let mut excess: libc::sigset_t = zeroed();
        let (mut before, mut pending): (libc::sigset_t, libc::sigset_t) = (zeroed(), zeroed());
        libc::sigemptyset(&raw mut excess);
        libc::sigaddset(&raw mut excess, libc::SIGXFSZ);
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const excess, &raw mut before);
        libc::sigpending(&raw mut pending);
        let failed = libc::ftruncate(fd.as_raw_fd(), bytes as libc::off_t) != 0;
        let error = io::Error::last_os_error();
        if failed && libc::sigismember(&raw const pending, libc::SIGXFSZ) == 0 {
            let none: libc::timespec = zeroed();
            libc::sigtimedwait(&raw const excess, std::ptr::null_mut(), &raw const none);
        }
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, std::ptr::null_mut());
        match (failed, error.raw_os_error()) {
            (false, _) => Ok(()),
            (true, Some(libc::EFBIG)) => Err(io::Error::new(
                io::ErrorKind::FileTooLarge,
                format!(
                    "the limit of the file size (ulimit -f) is below the {bytes} bytes of a shared memory"
                ),
            )),
            (true, _) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn what_is_duplicated_lies_above() {
        for first in [3, 200] {
            let fd = duplicate_from(0, first).expect("a descriptor");
            assert!(fd.as_raw_fd() >= first);
        }
        assert_eq!(
            duplicate(-1).map_err(|error| error.raw_os_error()).err(),
            Some(Some(libc::EBADF))
        );
        let beyond = duplicate_from(0, i32::MAX).map_err(|error| error.raw_os_error());
        assert_eq!(beyond.err(), Some(Some(libc::EMFILE)));
    }

    /// In a process of its own, because the limit and the signal are those of the process.
    #[test]
    fn a_file_that_is_too_large_is_an_error_and_no_signal() {
        // SAFETY: the child makes system calls and ends.
        let status = unsafe {
            let child = libc::fork();
            if child == 0 {
                let limit = libc::rlimit {
                    rlim_cur: 4096,
                    rlim_max: 4096,
                };
                libc::setrlimit(libc::RLIMIT_FSIZE, &raw const limit);
                let fd = made(libc::memfd_create(c"test".as_ptr(), libc::MFD_CLOEXEC));
                let Ok(fd) = fd else { libc::_exit(2) };
                let fits = set_size(fd.as_fd(), 4096).is_ok();
                let refused = set_size(fd.as_fd(), 4097)
                    .is_err_and(|error| error.kind() == io::ErrorKind::FileTooLarge);
                libc::_exit(i32::from(!fits || !refused));
            }
            let mut status = -1;
            libc::waitpid(child, &raw mut status, 0);
            status
        };
        assert_eq!(status, 0, "as `wait` gives it");
    }
}
