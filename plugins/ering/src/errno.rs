//! Errors of system calls.

use std::os::fd::RawFd;

/// The error of the system call that has just failed.
pub(crate) fn last() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

/// What went wrong on a socket since this was last asked; 0: nothing.
pub fn take_socket_error(socket: RawFd) -> i32 {
    let mut error = 0i32;
    let mut length = size_of::<i32>() as libc::socklen_t;
    // SAFETY: room for one number.
    unsafe {
        libc::getsockopt(
            socket,
            libc::SOL_SOCKET,
            libc::SO_ERROR,
            (&raw mut error).cast(),
            &raw mut length,
        );
    }
    error
}
