//! Where the files of pages are: in a folder that belongs to the user and is closed to others, on a file system in memory.
//!
//! The candidates of a user are `/run/user/UID/vipl`, where its agent listens too, and `/dev/shm/vipl-UID`, or that with a
//! number if another user owns it. On a disk the kernel would write the pages back again and again, and each time the next
//! store to a page would fault.

use std::ffi::CString;
use std::fs::{DirBuilder, File, Metadata, OpenOptions, read_dir, symlink_metadata};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Number of names tried in `/dev/shm`.
const NAMES_MAX: u32 = 8;
/// Folder of the folders of logged-in users.
const RUN: &str = "/run/user";
/// Memory that programs share.
const SHARED: &str = "/dev/shm";
/// End of a file's name.
const SUFFIX: &str = ".pages";

/// Candidate folders of a user, in the order in which a process tries them.
pub fn candidates(user: u32) -> impl Iterator<Item = PathBuf> {
    let numbered = (1..NAMES_MAX).map(move |n| PathBuf::from(format!("{SHARED}/vipl-{user}.{n}")));
    [
        PathBuf::from(format!("{RUN}/{user}/vipl")),
        PathBuf::from(format!("{SHARED}/vipl-{user}")),
    ]
    .into_iter()
    .chain(numbered)
}

/// A private folder of a user, opened, so that no other takes its place.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
    user: u32,
    folder: File,
}

impl Folder {
    /// Opens the folder of a user.
    ///
    /// # Errors
    /// It is not there, or does not belong to the user alone.
    pub fn open(path: &Path, user: u32) -> io::Result<Folder> {
        let mut options = OpenOptions::new();
        options.read(true);
        options.custom_flags(libc::O_DIRECTORY | libc::O_NOFOLLOW);
        let folder = options.open(path)?;
        if !is_private(&folder.metadata()?, user) {
            return Err(io::Error::from(io::ErrorKind::PermissionDenied));
        }
        let path = path.to_owned();
        Ok(Folder { path, user, folder })
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its user.
    pub fn user(&self) -> u32 {
        self.user
    }

    fn within(&self) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", self.folder.as_raw_fd()))
    }

    /// Names of the files of pages, at most `most`.
    pub fn names(&self, most: usize) -> Vec<String> {
        let entries = read_dir(self.within()).into_iter().flatten().flatten();
        let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
        names
            .filter(|name| process_of(name).is_some())
            .take(most)
            .collect()
    }

    /// Opens a file in it for reading.
    ///
    /// # Errors
    /// It cannot be opened, is a link or no regular file, or is not this user's.
    pub fn file(&self, name: &str) -> io::Result<File> {
        let file = open_plain(&self.within().join(name))?;
        if file.metadata()?.uid() != self.user {
            return Err(io::Error::other("it belongs to another user"));
        }
        Ok(file)
    }
}

/// Opens a regular file for reading, and follows no link.
///
/// # Errors
/// It is something else, or cannot be opened.
pub fn open_plain(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true);
    options.custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK);
    let file = options.open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("it is no regular file"));
    }
    Ok(file)
}

/// The folders of a user that exist and are private.
pub fn of_user(user: u32) -> Vec<Folder> {
    candidates(user)
        .filter_map(|folder| Folder::open(&folder, user).ok())
        .collect()
}

/// The folders of all users.
pub fn of_all() -> Vec<Folder> {
    let number = |text: &str| text.parse::<u32>().ok();
    let names = |folder: &str| -> Vec<String> {
        let entries = read_dir(folder).into_iter().flatten().flatten();
        entries
            .filter_map(|entry| entry.file_name().into_string().ok())
            .collect()
    };
    let logged_in = names(RUN).into_iter().filter_map(|name| number(&name));
    let shared = names(SHARED).into_iter().filter_map(|name| {
        let rest = name.strip_prefix("vipl-")?;
        number(rest.split('.').next()?)
    });
    let mut users: Vec<u32> = logged_in.chain(shared).collect();
    users.sort_unstable();
    users.dedup();
    users.into_iter().flat_map(of_user).collect()
}

/// Whether a folder is for this user only.
fn is_private(folder: &Metadata, user: u32) -> bool {
    folder.is_dir() && folder.uid() == user && folder.mode() & 0o077 == 0
}

/// The folder for the pages of this user, who must be the caller: the first candidate that belongs to the user, or can be made, and
/// is in memory.
///
/// # Errors
/// That of the last candidate.
pub fn for_writing(user: u32) -> io::Result<PathBuf> {
    let mut why = io::Error::from(io::ErrorKind::NotFound);
    for folder in candidates(user) {
        match usable(&folder, user) {
            Ok(()) => return Ok(folder),
            Err(cause) => why = cause,
        }
    }
    Err(why)
}

/// Makes a folder if necessary, and checks that it is the user's and in memory.
///
/// # Errors
/// It is not, or cannot be made.
pub fn usable(folder: &Path, user: u32) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(folder) {
        Err(cause) if cause.kind() != io::ErrorKind::AlreadyExists => return Err(cause),
        _ => {}
    }
    if !is_private(&symlink_metadata(folder)?, user) {
        let why = "it does not belong to this user alone";
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
    }
    if !is_in_memory(folder)? {
        return Err(io::Error::other(
            "it is not on a file system in memory (tmpfs)",
        ));
    }
    Ok(())
}

fn is_in_memory(folder: &Path) -> io::Result<bool> {
    let path = CString::new(folder.as_os_str().as_bytes()).map_err(io::Error::other)?;
    // SAFETY: a NUL-terminated path, and room for the answer, of which all zero is a valid value.
    unsafe {
        let mut answer: libc::statfs64 = std::mem::zeroed();
        if libc::statfs64(path.as_ptr(), &raw mut answer) != 0 {
            return Err(io::Error::last_os_error());
        }
        let kind = answer.f_type as u32;
        Ok(kind == libc::TMPFS_MAGIC as u32 || kind == RAMFS_MAGIC)
    }
}

/// Kind of file systems in memory that cannot be swapped.
const RAMFS_MAGIC: u32 = 0x8584_58F6;

/// Name of a process's file. `number` differs between two that have the same process id.
pub fn file_name(process: u32, number: u64) -> String {
    format!("{process}-{number:016x}{SUFFIX}")
}

/// The process id in the name of a file of pages; `None`: it is something else.
pub fn process_of(name: &str) -> Option<u32> {
    let (process, number) = name.strip_suffix(SUFFIX)?.split_once('-')?;
    let hexadecimal = number.len() == 16 && number.bytes().all(|b| b.is_ascii_hexdigit());
    hexadecimal.then(|| process.parse().ok())?
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    #[test]
    fn a_name_has_a_process_and_a_number() {
        let name = file_name(4711, 0xAB);
        assert_eq!(name, "4711-00000000000000ab.pages");
        assert_eq!(process_of(&name), Some(4711));
        for other in [
            "agent-4026531992",
            "4711-ab.pages",
            "x-00000000000000ab.pages",
            ".pages",
        ] {
            assert_eq!(process_of(other), None, "{other}");
        }
    }

    #[test]
    fn a_folder_of_others_or_on_a_disk_is_not_used() {
        // SAFETY: no arguments.
        let user = unsafe { libc::geteuid() };
        let Ok(place) = tempfile::tempdir_in("/dev/shm") else {
            return;
        };
        let folder = place.path().join("vipl");
        usable(&folder, user).unwrap();
        usable(&folder, user).unwrap();
        assert!(usable(&folder, user + 1).is_err(), "another user's");
        let open = std::fs::Permissions::from_mode(0o750);
        std::fs::set_permissions(&folder, open).unwrap();
        assert!(usable(&folder, user).is_err(), "open to others");
        let planted = place.path().join("planted");
        let elsewhere = place.path().join("elsewhere");
        usable(&elsewhere, user).unwrap();
        symlink(&elsewhere, &planted).unwrap();
        assert!(usable(&planted, user).is_err(), "a link to a folder");
        assert!(Folder::open(&planted, user).is_err() && Folder::open(&folder, user).is_err());
        assert!(Folder::open(&elsewhere, user + 1).is_err());
        assert!(!is_in_memory(Path::new("/proc")).unwrap());
    }

    #[test]
    fn a_file_is_regular_and_the_users() {
        // SAFETY: no arguments.
        let user = unsafe { libc::geteuid() };
        let Ok(place) = tempfile::tempdir_in("/dev/shm") else {
            return;
        };
        let closed = std::fs::Permissions::from_mode(0o700);
        std::fs::set_permissions(place.path(), closed).unwrap();
        let path = |number| place.path().join(file_name(1, number));
        std::fs::write(path(0), "x").unwrap();
        symlink(path(0), path(1)).unwrap();
        let fifo = CString::new(path(2).as_os_str().as_bytes()).unwrap();
        // SAFETY: a NUL-terminated path.
        assert_eq!(unsafe { libc::mkfifo(fifo.as_ptr(), 0o600) }, 0);
        std::fs::create_dir(path(3)).unwrap();
        std::fs::write(place.path().join("other"), "x").unwrap();
        let folder = Folder::open(place.path(), user).unwrap();
        assert_eq!((folder.names(10).len(), folder.names(2).len()), (4, 2));
        let opened = [0, 1, 2, 3].map(|number| folder.file(&file_name(1, number)).is_ok());
        assert_eq!(opened, [true, false, false, false]);
        if user == 0 {
            std::os::unix::fs::chown(path(0), Some(12345), None).unwrap();
            assert!(folder.file(&file_name(1, 0)).is_err(), "of another user");
        }
    }
}
