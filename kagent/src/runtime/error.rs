//! Why the runtime cannot go on.

#![forbid(unsafe_code)]

use std::path::PathBuf;

use nix::errno::Errno;
use thiserror::Error;

/// A reason to end, or not to begin.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Error {
    /// Somebody else has the address: nothing for us to do.
    #[error("another agent serves {0}")]
    Taken(String),
    /// The socket that the service manager handed over cannot be used.
    #[error("LISTEN_FDS: descriptor 3 is not a listening SOCK_SEQPACKET socket")]
    Activation,
    /// It was started by a program that runs with raised rights.
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
    /// A file stands where the socket should be.
    #[error("{0} exists and is no socket")]
    NotASocket(PathBuf),
    /// The system refuses something.
    #[error("{what}: {cause}")]
    System {
        /// What was tried.
        what: String,
        /// What the system said.
        cause: Errno,
    },
}

/// For `map_err`: names what was tried.
pub(crate) fn trying(what: impl Into<String>) -> impl FnOnce(Errno) -> Error {
    let what = what.into();
    move |cause| Error::System { what, cause }
}
