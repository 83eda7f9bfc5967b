//! Options of sockets.

use std::io;
use std::os::fd::RawFd;

/// Sets an option.
pub(crate) fn set<T>(socket: RawFd, level: i32, name: i32, value: &T) -> io::Result<()> {
    let length = size_of::<T>() as libc::socklen_t;
    // SAFETY: the value is valid for its size.
    let status = unsafe {
        libc::setsockopt(
            socket,
            level,
            name,
            std::ptr::from_ref(value).cast(),
            length,
        )
    };
    if status == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// The value of an option.
///
/// # Safety
/// Zeroes are a valid `T`, and so is whatever the kernel writes.
pub(crate) unsafe fn get<T>(socket: RawFd, level: i32, name: i32) -> io::Result<T> {
    // SAFETY: as asked of the caller.
    let mut value: T = unsafe { std::mem::zeroed() };
    let mut length = size_of::<T>() as libc::socklen_t;
    // SAFETY: room for what is stated.
    let status = unsafe {
        libc::getsockopt(
            socket,
            level,
            name,
            (&raw mut value).cast(),
            &raw mut length,
        )
    };
    if status == 0 {
        Ok(value)
    } else {
        Err(io::Error::last_os_error())
    }
}
