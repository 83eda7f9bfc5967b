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

/// Drops what lies in the error queue of a socket, for which only somebody else who has it can have asked.
pub fn drop_notices(socket: RawFd) {
    // SAFETY: no room for data is needed.
    let take = || unsafe {
        let flags = libc::MSG_ERRQUEUE | libc::MSG_DONTWAIT;
        libc::recv(socket, std::ptr::null_mut(), 0, flags) >= 0
    };
    // As many as frames may be under way, and then some: others wait.
    let _ = (0..1024).take_while(|_| take()).count();
}
