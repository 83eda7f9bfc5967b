//! Shared segments: anonymous memory that is sealed against resizing, so that no peer can make the other
//! fault by truncating it.

#![forbid(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};

/// Makes a zeroed segment.
pub(crate) fn create(bytes: u32) -> Result<OwnedFd, Errno> {
    let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
    let no_exec = MFdFlags::from_bits_retain(libc::MFD_NOEXEC_SEAL);
    // Some systems permit memory files only without execute permission; kernels before 6.3 do not know the
    // flag.
    let fd = match memfd_create(c"vipl-connection", flags | no_exec) {
        Err(Errno::EINVAL) => memfd_create(c"vipl-connection", flags)?,
        other => other?,
    };
    vipl_sys::fd::set_size(fd.as_fd(), bytes as usize).map_err(|cause| match cause.kind() {
        io::ErrorKind::FileTooLarge => Errno::EFBIG,
        _ => Errno::from_raw(cause.raw_os_error().unwrap_or(libc::EINVAL)),
    })?;
    let seals = SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_SEAL;
    fcntl(&fd, FcntlArg::F_ADD_SEALS(seals))?;
    Ok(fd)
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::unistd::ftruncate;

    #[test]
    fn segment_has_its_size_for_ever() {
        let fd = create(8192).unwrap();
        assert_eq!(nix::sys::stat::fstat(&fd).unwrap().st_size, 8192);
        assert_eq!(ftruncate(&fd, 4096), Err(Errno::EPERM));
        assert_eq!(ftruncate(&fd, 16384), Err(Errno::EPERM));
        let unseal = fcntl(&fd, FcntlArg::F_ADD_SEALS(SealFlag::F_SEAL_WRITE));
        assert_eq!(unseal, Err(Errno::EPERM));
    }
}
