//! File descriptors of a library in an application's process: the application may have closed 0 to 2, may
//! close descriptors that it has not opened, and may have its own limits and signal handlers.

use std::io;
use std::mem::{ManuallyDrop, zeroed};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

/// The first descriptor that is not standard input, output or error.
const FIRST: RawFd = 3;

/// Moves a new descriptor out of the numbers 0 to 2. A program that was started without these prints into any
/// file with their numbers.
///
/// # Errors
/// The process has no more descriptors.
pub fn above_standard(fd: OwnedFd) -> io::Result<OwnedFd> {
    if fd.as_raw_fd() >= FIRST {
        return Ok(fd);
    }
    duplicate_from(fd.as_raw_fd(), FIRST)
}

/// The same for the result of a system call that makes a descriptor, or returns -1 and sets `errno`.
///
/// # Errors
/// Those of the call, or as above.
///
/// # Safety
/// If it is not -1, the descriptor is new and has no other owner.
pub unsafe fn made(raw: RawFd) -> io::Result<OwnedFd> {
    if raw < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: guaranteed by the caller.
    above_standard(unsafe { OwnedFd::from_raw_fd(raw) })
}

/// Duplicates a descriptor.
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
        // The kernel's error if `first` exceeds the limit.
        if error.raw_os_error() == Some(libc::EINVAL) {
            return Err(io::Error::from_raw_os_error(libc::EMFILE));
        }
        Err(error)
    }
}

/// The file of a descriptor. Sockets, pipes, memfds and files have their own numbers; eventfds and similar
/// ones (`anon_inode`) share one, so they cannot be distinguished.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    device: u64,
    inode: u64,
}

impl Identity {
    /// Its inode number, which `/proc/self/maps` lists.
    pub fn inode(self) -> u64 {
        self.inode
    }

    /// The current file of a descriptor; `None` if it is closed.
    pub fn of(fd: RawFd) -> Option<Identity> {
        Identity::look(fd).ok()
    }

    /// Whether the descriptor still refers to the same file as `before`. If the system cannot tell, now or
    /// then, true unless the descriptor is closed.
    pub fn still(fd: RawFd, before: Option<Identity>) -> bool {
        match (Identity::look(fd), before) {
            (Ok(now), Some(before)) => now == before,
            (Ok(_), None) => true,
            (Err(error), _) => error.raw_os_error() != Some(libc::EBADF),
        }
    }

    fn look(fd: RawFd) -> io::Result<Identity> {
        // SAFETY: the result is valid memory; all zero is a valid value.
        unsafe {
            let mut answer: libc::stat64 = zeroed();
            if libc::fstat64(fd, &raw mut answer) != 0 {
                return Err(io::Error::last_os_error());
            }
            Ok(Identity {
                device: answer.st_dev,
                inode: answer.st_ino,
            })
        }
    }
}

/// A long-lived descriptor. An application may close all numbers from 3 on, as daemons do, and reuse ours for
/// its own files: these are neither used nor closed.
#[derive(Debug)]
pub struct Kept {
    fd: ManuallyDrop<OwnedFd>,
    identity: Option<Identity>,
}

impl Kept {
    /// Keeps a new descriptor.
    pub fn new(fd: OwnedFd) -> Kept {
        let identity = Identity::of(fd.as_raw_fd());
        Kept {
            fd: ManuallyDrop::new(fd),
            identity,
        }
    }

    /// Whether the number still refers to the kept file. Costs a system call.
    pub fn is_ours(&self) -> bool {
        Identity::still(self.number(), self.identity)
    }

    /// The descriptor, for use now.
    ///
    /// # Errors
    /// An error if the application has closed it.
    pub fn fd(&self) -> io::Result<RawFd> {
        if self.is_ours() {
            return Ok(self.number());
        }
        Err(io::Error::other(format!(
            "the program has closed file descriptor {}, which was the library's",
            self.number()
        )))
    }

    /// Its number, whatever it refers to by now.
    pub fn number(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
}

impl AsFd for Kept {
    /// For a use right after it was made.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        if self.is_ours() {
            // SAFETY: dropped once, here.
            unsafe { ManuallyDrop::drop(&mut self.fd) };
        }
    }
}

/// Closes every descriptor from `first` on. Allocates nothing, so that a fresh child of a process with threads
/// may call it.
///
/// # Safety
/// Nothing in this process owns or uses any of them.
pub unsafe fn close_from(first: RawFd) {
    // SAFETY: guaranteed by the caller.
    if unsafe { libc::syscall(libc::SYS_close_range, first, u32::MAX, 0) } != 0 {
        // SAFETY: as above.
        unsafe { close_one_by_one(first) };
    }
}

/// The same without `close_range`: Linux before 5.9, and older seccomp filters.
///
/// # Safety
/// As above.
unsafe fn close_one_by_one(first: RawFd) {
    // SAFETY: a valid structure; the rest is guaranteed by the caller.
    unsafe {
        let mut limit: libc::rlimit = zeroed();
        libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit);
        for fd in first..limit.rlim_cur.min(RawFd::MAX as libc::rlim_t) as RawFd {
            libc::close(fd);
        }
    }
}

/// Sets the size of a new memfd. If the file size limit forbids it, the kernel sends SIGXFSZ, which ends an
/// unprepared program; here it is an error.
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
        let failed = libc::ftruncate64(fd.as_raw_fd(), bytes as libc::off64_t) != 0;
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
                    "the file size limit (ulimit -f) is below the {bytes} bytes of shared memory that are needed"
                ),
            )),
            (true, _) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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

    #[test]
    fn what_took_the_number_is_left_alone() {
        let pair = || {
            let mut ends = [-1; 2];
            // SAFETY: room for two; they are new.
            unsafe {
                libc::socketpair(libc::AF_UNIX, libc::SOCK_STREAM, 0, ends.as_mut_ptr());
                ends.map(|end| OwnedFd::from_raw_fd(end))
            }
        };
        let [ours, _other] = pair();
        let kept = Kept::new(ours);
        assert_eq!(kept.fd().ok(), Some(kept.number()));
        let [foreign, _peer] = pair();
        // The application closes our number and gets it for its own socket. SAFETY: as a program would; the
        // number is not closed twice.
        unsafe { libc::dup2(foreign.as_raw_fd(), kept.number()) };
        let (number, identity) = (kept.number(), Identity::of(kept.number()));
        assert!(kept.fd().is_err() && !kept.is_ours());
        drop(kept);
        assert_eq!(Identity::of(number), identity, "not closed");
        // SAFETY: made by `dup2`.
        drop(unsafe { OwnedFd::from_raw_fd(number) });
    }

    /// In a child, which owns all of its descriptors.
    #[test]
    fn every_descriptor_from_a_number_on_is_closed() {
        let ways: [unsafe fn(RawFd); 2] = [close_from, close_one_by_one];
        for close in ways {
            // SAFETY: the child makes system calls and ends.
            let status = unsafe {
                let child = libc::fork();
                if child == 0 {
                    libc::dup2(0, 100);
                    libc::dup2(0, 99);
                    close(100);
                    let open = |fd| libc::fcntl(fd, libc::F_GETFD) >= 0;
                    libc::_exit(i32::from(!open(99) || open(100)));
                }
                let mut status = -1;
                libc::waitpid(child, &raw mut status, 0);
                status
            };
            assert_eq!(status, 0, "as `wait` gives it");
        }
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
