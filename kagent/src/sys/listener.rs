//! The address of the agent, and the processes that knock there.
//!
//! An abstract address goes away with its socket. A path does not, so a lock file beside it says
//! whether its agent lives: whoever holds the lock may remove the path and take its place. The lock
//! file itself stays, since removing it would let two agents hold two locks of one name.

#![forbid(unsafe_code)]

use std::fs::{DirBuilder, File, OpenOptions};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use kagent_proto::SOCKET_PREFIX;
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use nix::sys::socket::{
    AddressFamily, Backlog, Shutdown, SockFlag, SockType, UnixAddr, bind, getsockopt, listen,
    shutdown, socket, sockopt,
};
use nix::sys::stat::{Mode, umask};

use super::error::{Error, trying};
use super::options::Options;
use super::packet::allow_descriptors;
use super::process::inherited_listener;

/// A listening socket.
#[derive(Debug)]
pub(crate) struct Listener {
    fd: OwnedFd,
    origin: Origin,
}

#[derive(Debug)]
enum Origin {
    /// The abstract address of a user.
    Abstract(String),
    /// A path, for one user or for all, with the lock on it.
    Path {
        path: PathBuf,
        mode: u32,
        _lock: Flock<File>,
    },
    /// The service manager's, who goes on listening when we leave.
    Inherited,
}

impl Listener {
    /// Listens where the options and the environment say. `socket` in the options is absolute.
    pub(crate) fn open(options: &Options, uid: u32) -> Result<Self, Error> {
        if activated() {
            return Self::inherit();
        }
        let origin = match &options.socket {
            None => Origin::Abstract(format!("{SOCKET_PREFIX}{uid}")),
            Some(path) => {
                let mode = if options.system { 0o666 } else { 0o600 };
                if options.system
                    && let Some(folder) = path.parent()
                {
                    make_public_folder(folder);
                }
                Origin::Path {
                    path: path.clone(),
                    mode,
                    _lock: lock(path)?,
                }
            }
        };
        Ok(Self {
            fd: bound(&origin)?,
            origin,
        })
    }

    fn inherit() -> Result<Self, Error> {
        let fd = inherited_listener();
        let kind = getsockopt(&fd, sockopt::SockType);
        let listening = getsockopt(&fd, sockopt::AcceptConn);
        if kind != Ok(SockType::SeqPacket) || listening != Ok(true) {
            return Err(Error::Activation);
        }
        let nonblocking = nix::fcntl::FcntlArg::F_SETFL(nix::fcntl::OFlag::O_NONBLOCK);
        nix::fcntl::fcntl(&fd, nonblocking).map_err(trying("O_NONBLOCK"))?;
        allow_descriptors(fd.as_fd(), false);
        Ok(Self {
            fd,
            origin: Origin::Inherited,
        })
    }

    /// What people call the address.
    pub(crate) fn name(&self) -> String {
        match &self.origin {
            Origin::Abstract(name) => format!("@{name}"),
            Origin::Path { path, .. } => path.display().to_string(),
            Origin::Inherited => "the service manager's socket".to_owned(),
        }
    }

    /// Shuts the door: nobody can knock any more, but who has knocked already can still be let in.
    /// Gives false when the door is not ours to shut; then nobody is lost by our leaving either.
    pub(crate) fn shut(&self) -> bool {
        match self.origin {
            Origin::Inherited => false,
            Origin::Abstract(_) | Origin::Path { .. } => {
                shutdown(self.fd.as_raw_fd(), Shutdown::Read).is_ok()
            }
        }
    }

    /// Opens the door again after [`shut`](Self::shut), under the same name.
    pub(crate) fn reopen(self) -> Result<Self, Error> {
        let Self { fd, origin } = self;
        // An abstract name is free only after the old socket is closed.
        drop(fd);
        Ok(Self {
            fd: bound(&origin)?,
            origin,
        })
    }

    /// Leaves nothing behind but the lock file. The socket is closed by the end of the process: whoever still
    /// waits in it may have sent what takes long to close.
    pub(crate) fn remove(self) {
        if let Origin::Path { path, .. } = &self.origin {
            let _ = std::fs::remove_file(path);
        }
        std::mem::forget(self.fd);
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Whether a service manager started us with a listening socket (see sd_listen_fds(3)).
pub(super) fn activated() -> bool {
    let number = |name| {
        std::env::var(name)
            .ok()
            .and_then(|value| value.parse::<u32>().ok())
    };
    number("LISTEN_PID") == Some(std::process::id())
        && number("LISTEN_FDS").is_some_and(|count| count >= 1)
}

/// A failure shows again, and better, when the lock is made in there.
fn make_public_folder(folder: &Path) {
    let usual = umask(Mode::from_bits_truncate(0o022));
    let _ = DirBuilder::new().recursive(true).mode(0o755).create(folder);
    umask(usual);
}

fn lock(path: &Path) -> Result<Flock<File>, Error> {
    let mut name = path.as_os_str().to_owned();
    name.push(".lock");
    let what = PathBuf::from(&name).display().to_string();
    let file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .custom_flags(libc::O_NOFOLLOW)
        .open(&name)
        .map_err(|cause| Error::System {
            what: what.clone(),
            cause: Errno::from_raw(cause.raw_os_error().unwrap_or(libc::EIO)),
        })?;
    Flock::lock(file, FlockArg::LockExclusiveNonblock).map_err(|(_, cause)| match cause {
        Errno::EWOULDBLOCK => Error::Taken(path.display().to_string()),
        _ => Error::System { what, cause },
    })
}

fn bound(origin: &Origin) -> Result<OwnedFd, Error> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let fd = socket(AddressFamily::Unix, SockType::SeqPacket, flags, None)
        .map_err(trying("making a socket"))?;
    match origin {
        Origin::Abstract(name) => {
            let address = UnixAddr::new_abstract(name.as_bytes())
                .map_err(trying(format!("address @{name}")))?;
            bind(fd.as_raw_fd(), &address).map_err(|cause| match cause {
                Errno::EADDRINUSE => Error::Taken(format!("@{name}")),
                _ => trying(format!("address @{name}"))(cause),
            })?;
        }
        Origin::Path { path, mode, .. } => bind_path(&fd, path, *mode)?,
        Origin::Inherited => return Err(Error::Activation),
    }
    // A process may send descriptors once it has been let in.
    allow_descriptors(fd.as_fd(), false);
    listen(&fd, Backlog::MAXCONN).map_err(trying("listen"))?;
    Ok(fd)
}

/// Binds a path on which we hold the lock: a socket that is still there belongs to a dead agent.
fn bind_path(fd: &OwnedFd, path: &Path, mode: u32) -> Result<(), Error> {
    let what = path.display().to_string();
    match std::fs::symlink_metadata(path) {
        Ok(old) if old.file_type().is_socket() => {
            let _ = std::fs::remove_file(path);
        }
        Ok(_) => return Err(Error::NotASocket(path.to_owned())),
        Err(_) => {}
    }
    let address = UnixAddr::new(path).map_err(trying(what.clone()))?;
    // The mode has to be right from the first instant; there is one thread, so nobody else sees the
    // changed mask.
    let usual = umask(Mode::from_bits_truncate(0o777 & !mode));
    let result = bind(fd.as_raw_fd(), &address);
    umask(usual);
    result.map_err(trying(what))
}
