//! Where the agent of a user listens.
//!
//! With a name that anyone can take, such as an abstract address, anyone could keep a user from its agent. So
//! it is a path in a folder that belongs to the user and is closed to others: `/run/user/UID/vipl` where the
//! system has made its parent, otherwise `/tmp/vipl-UID`, or that with a number if another user owns it. None
//! depends on the environment, so all processes of a user find the same. A process that looks for an agent
//! checks all of them, since the first one comes and goes with the user's logins.
//!
//! The name of the socket contains the inode of the network namespace whose interfaces the agent serves.

use std::fs::{DirBuilder, Metadata, symlink_metadata};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Number of names tried in `/tmp`.
const NAMES_MAX: u32 = 8;

/// Candidate folders, in the order in which the agent tries them.
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

/// Candidate sockets of the agent of a user.
pub fn sockets(uid: u32) -> Vec<PathBuf> {
    let private = |folder: &PathBuf| symlink_metadata(folder).is_ok_and(|f| is_private(&f, uid));
    let name = name();
    folders(uid)
        .filter(private)
        .map(|folder| folder.join(&name))
        .collect()
}

/// The folder for the agent of this user, who must be the caller: the first one that belongs to the user or
/// can be made.
///
/// # Errors
/// No folder can be used: the error of the last one.
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

/// Where the agent of this user is to listen. As [`folder`].
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
