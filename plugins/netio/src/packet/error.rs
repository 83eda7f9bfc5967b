//! Errors of system calls, and errors that a socket reports later.

use std::os::fd::RawFd;

use crate::options;

/// The `errno` of the system call that has just failed.
pub(crate) fn last() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

/// Takes the pending error of a socket; 0: none.
pub fn take_socket_error(socket: RawFd) -> i32 {
    // SAFETY: an integer.
    let error = unsafe { options::get(socket, libc::SOL_SOCKET, libc::SO_ERROR) };
    error.unwrap_or(0)
}

/// Empties the error queue of a socket, which only another process with the socket can have enabled.
pub fn drop_notices(socket: RawFd) {
    // SAFETY: no room for data is needed.
    let take = || unsafe {
        let flags = libc::MSG_ERRQUEUE | libc::MSG_DONTWAIT;
        vipl_sys::uncancelled::recvfrom(
            socket,
            std::ptr::null_mut(),
            0,
            flags,
            std::ptr::null_mut(),
            std::ptr::null_mut(),
        ) >= 0
    };
    // Bounded: the other process cannot keep this one busy.
    let _ = (0..1024).take_while(|_| take()).count();
}
