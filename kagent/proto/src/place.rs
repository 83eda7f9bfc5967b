//! The address of a user's agent.
//!
//! With an address that anyone can bind, such as an abstract one, anyone could deny a user its agent.
//! Therefore it is a path in a folder that belongs to the user and is closed to others: `/run/user/UID/vipl`
//! if the system has made its parent, otherwise `vipl` in `$XDG_RUNTIME_DIR`, if that belongs to this user,
//! `/tmp/vipl-UID`, or that with a number if another user owns it. If other users own all of these, it is a
//! folder in `$HOME`, which may be on a file server and is named after this machine. A process that searches
//! an agent checks all of them, since the first one exists only while the user is logged in, and two
//! processes may have different environments.
//!
//! The name of the socket contains the inode of the network namespace whose interfaces the agent serves.

use std::fs::{DirBuilder, Metadata, symlink_metadata};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Number of names tried in `/tmp`.
const NAMES_MAX: u32 = 8;
/// Longest path of a socket.
const PATH_MAX: usize = 107;

/// Candidate folders, in the order in which the agent tries them.
fn folders(uid: u32) -> impl Iterator<Item = PathBuf> {
    let variable = |name: &str| std::env::var_os(name).map(PathBuf::from);
    candidates(uid, variable("XDG_RUNTIME_DIR"), variable("HOME"))
}

fn candidates(
    uid: u32,
    runtime: Option<PathBuf>,
    home: Option<PathBuf>,
) -> impl Iterator<Item = PathBuf> {
    // After `su` or `sudo` a variable may name a folder of another user.
    let own = |folder: &PathBuf, closed: u32| {
        let about = std::fs::metadata(folder);
        let fits = |f: Metadata| f.is_dir() && f.uid() == uid && f.mode() & closed == 0;
        folder.is_absolute() && about.is_ok_and(fits)
    };
    let runtime = runtime.filter(|folder| own(folder, 0o077));
    let home = home.filter(|folder| own(folder, 0o022));
    let in_home = home.and_then(|home| Some(home.join(format!(".vipl-{}", machine()?))));
    let with_number = (1..NAMES_MAX).map(move |n| PathBuf::from(format!("/tmp/vipl-{uid}.{n}")));
    let longest = name().len() + 1;
    std::iter::once(PathBuf::from(format!("/run/user/{uid}/vipl")))
        .chain(runtime.map(|folder| folder.join("vipl")))
        .chain([PathBuf::from(format!("/tmp/vipl-{uid}"))])
        .chain(with_number)
        .chain(in_home)
        .filter(move |folder| folder.as_os_str().as_bytes().len() + longest <= PATH_MAX)
}

/// Some digits that distinguish this machine from others.
fn machine() -> Option<String> {
    let files = ["/etc/machine-id", "/proc/sys/kernel/random/boot_id"];
    let digits = |path| {
        std::fs::read_to_string(path)
            .ok()?
            .get(..8)
            .map(str::to_owned)
    };
    files.into_iter().find_map(digits)
}

fn is_private(folder: &Metadata, uid: u32) -> bool {
    folder.is_dir() && folder.uid() == uid && folder.mode() & 0o077 == 0
}

/// Inode of the network namespace of this thread; 0 if `/proc` is not mounted.
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

/// The folder for the agent of this user, who must be the caller: the first candidate that belongs to the
/// user or can be made.
///
/// # Errors
/// If no folder can be used, the error of the last candidate.
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

/// The path at which the agent of this user listens, in its [`folder`].
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

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn variables_count_where_they_name_what_is_the_users() {
        let folder = tempfile::tempdir().unwrap();
        let uid = symlink_metadata(folder.path()).unwrap().uid();
        let mode = |mode| {
            let mode = PermissionsExt::from_mode(mode);
            std::fs::set_permissions(folder.path(), mode).unwrap();
        };
        mode(0o700);
        let own = Some(folder.path().to_owned());
        let all = |uid, runtime: &Option<PathBuf>, home: &Option<PathBuf>| -> Vec<PathBuf> {
            candidates(uid, runtime.clone(), home.clone()).collect()
        };
        let fixed = all(uid, &None, &None);
        assert_eq!(fixed.len(), 9);
        assert_eq!(fixed[1], PathBuf::from(format!("/tmp/vipl-{uid}")));
        let with = all(uid, &own, &own);
        assert_eq!(with.len(), 11);
        assert_eq!(with[1], folder.path().join("vipl"));
        assert_eq!(with[10].parent(), Some(folder.path()));
        // A folder of another user, one writable by others, a missing one, and a relative path.
        assert_eq!(all(uid + 1, &own, &own).len(), 9);
        mode(0o770);
        assert_eq!(all(uid, &own, &own).len(), 9);
        mode(0o755);
        assert_eq!(
            all(uid, &own, &own).len(),
            10,
            "a home may be read by others"
        );
        for wrong in ["/nowhere", "."] {
            let wrong = Some(PathBuf::from(wrong));
            assert_eq!(all(uid, &wrong, &wrong).len(), 9);
        }
        // The path of a socket there would be too long.
        let long = folder.path().join("x".repeat(90));
        DirBuilder::new().mode(0o700).create(&long).unwrap();
        assert_eq!(all(uid, &Some(long.clone()), &Some(long)).len(), 9);
    }
}
