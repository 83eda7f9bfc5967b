//! Options of sockets.

use std::io;
use std::os::fd::RawFd;

/// Sets an option.
pub(crate) fn set<T>(socket: RawFd, level: i32, name: i32, value: &T) -> io::Result<()> {
    let (value, length) = (std::ptr::from_ref(value).cast(), size_of::<T>());
    // SAFETY: the value is valid for its size.
    checked(unsafe { libc::setsockopt(socket, level, name, value, length as libc::socklen_t) })
}

/// The value of an option.
///
/// # Safety
/// Zeroes are a valid `T`, and so is whatever the kernel writes.
pub(crate) unsafe fn get<T>(socket: RawFd, level: i32, name: i32) -> io::Result<T> {
    // SAFETY: as asked of the caller.
    let mut value: T = unsafe { std::mem::zeroed() };
    let mut length = size_of::<T>() as libc::socklen_t;
    let into = (&raw mut value).cast();
    // SAFETY: room for what is stated.
    checked(unsafe { libc::getsockopt(socket, level, name, into, &raw mut length) })?;
    Ok(value)
}

fn checked(status: i32) -> io::Result<()> {
    if status == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}
