//! Where the agent of a user has its socket.
//!
//! A name that anybody can take, such as an abstract address, lets anybody keep a user from his agent. So it
//! is a path in a folder that is the user's and closed to others: `/run/user/UID/vipl` where the system has made
//! the folder above it, and else `/tmp/vipl-UID`, or the same with a number if somebody else has that. Neither
//! depends on the environment, so all processes of a user find the same. Whoever looks for an agent looks at all
//! of them, since the first of them comes and goes as the user logs in and out.
//!
//! The socket's name has the number of the network namespace, whose interfaces the agent serves.

use std::fs::{DirBuilder, Metadata, symlink_metadata};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Most names that are tried in `/tmp`.
const NAMES_MAX: u32 = 8;

/// Folders in which the agent of a user may be, in the order in which it tries them.
fn folders(uid: u32) -> impl Iterator<Item = PathBuf> {
    let with_number = (1..NAMES_MAX).map(move |n| format!("/tmp/vipl-{uid}.{n}"));
    [format!("/run/user/{uid}/vipl"), format!("/tmp/vipl-{uid}")]
        .into_iter()
        .chain(with_number)
        .map(PathBuf::from)
}

fn is_private(folder: &Metadata, uid: u32) -> bool {
    folder.is_dir() && folder.uid() == uid && folder.mode() & 0o077 == 0
}

/// Inode of the network namespace of this thread; 0 where `/proc` is not mounted.
pub fn network_namespace() -> u64 {
    std::fs::metadata("/proc/thread-self/ns/net").map_or(0, |file| file.ino())
}

fn name() -> String {
    format!("agent-{}", network_namespace())
}

/// Sockets at which the agent of a user may be found.
pub fn sockets(uid: u32) -> Vec<PathBuf> {
    let private = |folder: &PathBuf| symlink_metadata(folder).is_ok_and(|f| is_private(&f, uid));
    let name = name();
    folders(uid)
        .filter(private)
        .map(|folder| folder.join(&name))
        .collect()
}

/// A folder for the agent of this user, who has to be the one that calls: the first one that is his, or can be
/// made.
///
/// # Errors
/// There is none: why the last one is not.
pub fn folder(uid: u32) -> io::Result<PathBuf> {
    let mut why = io::Error::from(io::ErrorKind::NotFound);
    for folder in folders(uid) {
        match made(&folder, uid) {
            Ok(()) => return Ok(folder),
            Err(cause) => why = cause,
        }
    }
    Err(why)
}

/// Where the agent of this user listens. As [`folder`].
///
/// # Errors
/// As [`folder`].
pub fn socket(uid: u32) -> io::Result<PathBuf> {
    Ok(folder(uid)?.join(name()))
}

fn made(folder: &Path, uid: u32) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(folder) {
        Err(cause) if cause.kind() != io::ErrorKind::AlreadyExists => return Err(cause),
        _ => {}
    }
    if is_private(&symlink_metadata(folder)?, uid) {
        Ok(())
    } else {
        Err(io::Error::from(io::ErrorKind::PermissionDenied))
    }
}
