//! File descriptors of a library that lives in somebody else's process: the program may have closed 0 to 2,
//! may close what it has not opened, and may have limits and signal handlers of its own.

use std::io;
use std::mem::{ManuallyDrop, zeroed};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

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

/// Which file a descriptor is for. Sockets, pipes, memfds and files have a number of their own; eventfds and
/// their like (`anon_inode`) have one together, so that one of them passes for another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    device: u64,
    inode: u64,
}

impl Identity {
    /// Its number in its file system, which `/proc/self/maps` lists.
    pub fn inode(self) -> u64 {
        self.inode
    }

    /// That of what lies under this number now; `None`: nothing does.
    pub fn of(fd: RawFd) -> Option<Identity> {
        Identity::look(fd).ok()
    }

    /// Whether the number stands for what it stood for when this was found. Where the system does not tell, now or
    /// then, the answer is yes unless nothing lies under the number any more.
    pub fn still(fd: RawFd, before: Option<Identity>) -> bool {
        match (Identity::look(fd), before) {
            (Ok(now), Some(before)) => now == before,
            (Ok(_), None) => true,
            (Err(error), _) => error.raw_os_error() != Some(libc::EBADF),
        }
    }

    fn look(fd: RawFd) -> io::Result<Identity> {
        // SAFETY: room for the answer; all zero is a valid one.
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

/// A descriptor that is kept for long. A program may close all numbers from 3 on, as daemons do, and get ours
/// for files of its own: these are neither used nor closed.
#[derive(Debug)]
pub struct Kept {
    fd: ManuallyDrop<OwnedFd>,
    identity: Option<Identity>,
}

impl Kept {
    /// Keeps a descriptor that has just been made.
    pub fn new(fd: OwnedFd) -> Kept {
        let identity = Identity::of(fd.as_raw_fd());
        Kept {
            fd: ManuallyDrop::new(fd),
            identity,
        }
    }

    /// Whether the number still stands for what was kept. Costs a system call.
    pub fn is_ours(&self) -> bool {
        Identity::still(self.number(), self.identity)
    }

    /// The descriptor, for use now.
    ///
    /// # Errors
    /// The program has closed it.
    pub fn fd(&self) -> io::Result<RawFd> {
        if self.is_ours() {
            return Ok(self.number());
        }
        Err(io::Error::other(format!(
            "the program has closed file descriptor {}, which was the library's",
            self.number()
        )))
    }

    /// Its number, whatever that stands for by now.
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
/// Nothing in this process owns one of them, or uses it any more.
pub unsafe fn close_from(first: RawFd) {
    // SAFETY: by contract.
    if unsafe { libc::syscall(libc::SYS_close_range, first, u32::MAX, 0) } != 0 {
        // SAFETY: as above.
        unsafe { close_one_by_one(first) };
    }
}

/// The same where there is no `close_range`: Linux before 5.9, and seccomp filters that are older than it.
///
/// # Safety
/// As above.
unsafe fn close_one_by_one(first: RawFd) {
    // SAFETY: a valid structure; the rest by contract.
    unsafe {
        let mut limit: libc::rlimit = zeroed();
        libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit);
        for fd in first..limit.rlim_cur.min(RawFd::MAX as libc::rlim_t) as RawFd {
            libc::close(fd);
        }
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
        let [foreign, _partner] = pair();
        // The program closes our number and gets it for its own socket.
        // SAFETY: as a program would; the number is not closed twice.
        unsafe { libc::dup2(foreign.as_raw_fd(), kept.number()) };
        let (number, identity) = (kept.number(), Identity::of(kept.number()));
        assert!(kept.fd().is_err() && !kept.is_ours());
        drop(kept);
        assert_eq!(Identity::of(number), identity, "not closed");
        // SAFETY: made by `dup2`.
        drop(unsafe { OwnedFd::from_raw_fd(number) });
    }

    /// In a child, whose descriptors are nobody else's.
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
