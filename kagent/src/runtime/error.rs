//! Errors that end the agent.

#![forbid(unsafe_code)]

use std::path::PathBuf;

use nix::errno::Errno;
use thiserror::Error;

/// Why the agent exits or fails to start.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Error {
    /// Another agent serves the address.
    #[error("another agent serves {0}")]
    Taken(String),
    /// The socket from the service manager cannot be used.
    #[error("LISTEN_FDS: descriptor 3 is not a listening SOCK_SEQPACKET socket")]
    Activation,
    /// The program that started it runs with raised privileges.
    #[error(
        "the real user {real} is not the effective one {effective} (or the groups differ): the agent does not \
         run from set-user-ID programs; let root start vipkad --system"
    )]
    MixedRights {
        /// Real user id.
        real: u32,
        /// Effective user id.
        effective: u32,
    },
    /// The path of the socket is a file of another kind.
    #[error("{0} exists and is no socket")]
    NotASocket(PathBuf),
    /// A system call failed.
    #[error("{what}: {cause}")]
    System {
        /// The operation.
        what: String,
        /// The error number.
        cause: Errno,
    },
}

/// For `map_err`: names the operation.
pub(crate) fn trying(what: impl Into<String>) -> impl FnOnce(Errno) -> Error {
    let what = what.into();
    move |cause| Error::System { what, cause }
}

/// The error number of a failed system call.
pub(crate) fn errno(cause: &std::io::Error) -> Errno {
    Errno::from_raw(cause.raw_os_error().unwrap_or(Errno::EIO as i32))
}
