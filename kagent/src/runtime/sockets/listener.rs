//! The listening socket of the agent.
//!
//! Its address is a path, which no other user can take if the folder is closed to others (see [`place`]). A
//! path outlives its socket, so a lock file beside it shows whether its agent is alive: the holder of the
//! lock may remove the path and bind it again. The lock file itself remains, since removing it would let two
//! agents hold two locks of one name.

#![forbid(unsafe_code)]

use std::fs::{DirBuilder, File, OpenOptions};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use kagent_proto::place;
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use nix::sys::socket::{
    AddressFamily, Backlog, Shutdown, SockFlag, SockType, UnixAddr, bind, getsockopt, listen,
    shutdown, socket, sockopt,
};
use nix::sys::stat::{Mode, umask};

use crate::runtime::error::{Error, errno, trying};
use crate::runtime::options::Options;
use crate::runtime::sockets::activation::{activated, inherited_listener};
use crate::runtime::sockets::packet::allow_descriptors;

/// A listening socket.
#[derive(Debug)]
pub(crate) struct Listener {
    fd: OwnedFd,
    origin: Origin,
}

#[derive(Debug)]
enum Origin {
    /// A path, for one user or for all, with the lock on it.
    Path {
        path: PathBuf,
        mode: u32,
        /// The path is in the user's own folder, which the system may remove at logout.
        in_user_folder: bool,
        /// `None`: the path was removed.
        lock: Option<Flock<File>>,
    },
    /// From the service manager, which continues to listen when the agent exits.
    Inherited,
}

impl Listener {
    /// Listens where the options and the environment say.
    pub(crate) fn open(options: &Options, uid: u32) -> Result<Self, Error> {
        if activated() {
            return Self::inherit();
        }
        let origin = match options.socket() {
            None => {
                let path = place::socket(uid).map_err(|cause| Error::System {
                    what: format!(
                        "no folder for the agent: none of /run/user/{uid}/vipl, $XDG_RUNTIME_DIR/vipl, /tmp/vipl-{uid}, with or without a number, and a folder in $HOME is or can be made this user's alone"
                    ),
                    cause: errno(&cause),
                })?;
                Origin::Path {
                    lock: Some(lock(&path)?),
                    path,
                    mode: 0o600,
                    in_user_folder: true,
                }
            }
            Some(path) => {
                let mode = if options.system { 0o666 } else { 0o600 };
                if options.system
                    && let Some(folder) = path.parent()
                {
                    make_public_folder(folder);
                }
                Origin::Path {
                    path: path.to_owned(),
                    mode,
                    in_user_folder: false,
                    lock: Some(lock(path)?),
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

    /// The address, for messages.
    pub(crate) fn name(&self) -> String {
        match &self.origin {
            Origin::Path { path, .. } => path.display().to_string(),
            Origin::Inherited => "the service manager's socket".to_owned(),
        }
    }

    /// Whether the user's folder was removed, as at logout, so that no process can find the agent.
    pub(crate) fn is_lost(&self) -> bool {
        match &self.origin {
            Origin::Path {
                path,
                in_user_folder,
                ..
            } => *in_user_folder && !path.exists(),
            Origin::Inherited => false,
        }
    }

    /// Whether [`is_lost`](Self::is_lost) may become true.
    pub(crate) fn may_be_lost(&self) -> bool {
        matches!(
            self.origin,
            Origin::Path {
                in_user_folder: true,
                ..
            }
        )
    }

    /// Stops accepting new connections; pending ones can still be accepted. Returns false if the listener
    /// belongs to the service manager: then no connection is lost when the agent exits.
    pub(crate) fn shut(&self) -> bool {
        match self.origin {
            Origin::Inherited => false,
            Origin::Path { .. } => shutdown(self.fd.as_raw_fd(), Shutdown::Read).is_ok(),
        }
    }

    /// Listens again after [`shut`](Self::shut), at the same address.
    pub(crate) fn reopen(&mut self) -> Result<(), Error> {
        self.fd = bound(&self.origin)?;
        Ok(())
    }

    /// Removes the path, and releases the lock; its file remains. The socket is closed by the end of the
    /// process: pending connections may carry descriptors that are slow to close.
    pub(crate) fn remove(&mut self) {
        if let Origin::Path { path, lock, .. } = &mut self.origin {
            let _ = std::fs::remove_file(path);
            *lock = None;
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Errors are ignored here: making the lock file will report them.
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
        .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
        .open(&name)
        .map_err(|cause| Error::System {
            what: what.clone(),
            cause: errno(&cause),
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
        Origin::Path { path, mode, .. } => bind_path(&fd, path, *mode)?,
        Origin::Inherited => return Err(Error::Activation),
    }
    // A process may send descriptors once it has been accepted.
    allow_descriptors(fd.as_fd(), false);
    listen(&fd, Backlog::MAXCONN).map_err(trying("listen"))?;
    Ok(fd)
}

/// Binds a path whose lock this agent holds: an existing socket belongs to a dead agent.
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
    // The mode must be correct from the start. The process has one thread, so the temporary umask affects
    // nothing else.
    let usual = umask(Mode::from_bits_truncate(0o777 & !mode));
    let result = bind(fd.as_raw_fd(), &address);
    umask(usual);
    result.map_err(trying(what))
}
