//! Shared segments: anonymous memory that is sealed against resizing, so that a peer cannot make the other
//! fault by truncating it.

#![forbid(unsafe_code)]

use std::io;
use std::os::fd::OwnedFd;

use nix::errno::Errno;

/// Makes a zeroed segment.
pub(crate) fn create(bytes: u32) -> Result<OwnedFd, Errno> {
    vipl_sys::shm::create(c"vipl-connection", bytes as usize).map_err(|cause| match cause.kind() {
        io::ErrorKind::FileTooLarge => Errno::EFBIG,
        _ => Errno::from_raw(cause.raw_os_error().unwrap_or(libc::EINVAL)),
    })
}
