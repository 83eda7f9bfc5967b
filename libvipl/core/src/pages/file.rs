//! The file of pages of this process, and those that dead processes have left.

use std::fs::{File, OpenOptions, remove_file};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use vipl_pages::folder::{self, Folder};
use vipl_pages::{life, read};
use vipl_sys::clock::{now_ns, since_1970};
use vipl_sys::fd::{self, Kept};
use vipl_sys::random::mix;

use super::memory::Memory;
use crate::settings::Settings;

/// Files of dead processes that are kept in a folder, for `vipstat --last`.
const DEAD_MAX: usize = 8;
/// Bytes of memory that they may take together.
const DEAD_BYTES_MAX: u64 = 32 << 20;
/// Files looked at; a folder with more is left to other processes.
const FILES_MAX: usize = 4096;
/// A file without content is new for so long: its process has still to write it.
const NEW: Duration = Duration::from_secs(60);

/// The file of this process, which it has locked.
pub(super) struct Published {
    path: PathBuf,
    process: u32,
    /// Open for the lock.
    _file: Kept,
}

/// The effective user.
pub(super) fn user() -> u32 {
    // SAFETY: no arguments.
    unsafe { libc::geteuid() }
}

impl Published {
    /// Makes the file, and maps it.
    pub(super) fn new(settings: &Settings, bytes: usize) -> io::Result<(Memory, Published)> {
        if settings.secure {
            return Err(io::Error::other("it runs with raised privileges"));
        }
        let folder = match settings.text("publish") {
            "off" => return Err(io::Error::other("the setting publish is off")),
            "on" => folder::for_writing(user())?,
            path => {
                let path = PathBuf::from(path);
                folder::usable(&path, user())?;
                path
            }
        };
        sweep(&folder);
        let (file, path) = create(&folder)?;
        let published = |file: File| -> io::Result<(Memory, OwnedFd)> {
            // Before the lock, which would end when a number from 0 to 2 is left.
            let file = File::from(fd::above_standard(OwnedFd::from(file))?);
            life::take(&file)?;
            fd::set_size(file.as_fd(), bytes)?;
            // Without its first page, on a full file system, the file would tell nothing; later ones may be missing.
            file.write_all_at(&[0; 8], 0)?;
            let memory = Memory::of_file(file.as_raw_fd(), bytes)?;
            Ok((memory, OwnedFd::from(file)))
        };
        let (memory, file) = published(file).inspect_err(|_| drop(remove_file(&path)))?;
        let published = Published {
            path,
            process: std::process::id(),
            _file: Kept::new(file),
        };
        Ok((memory, published))
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Removes the file.
    pub(super) fn remove(&self) {
        if std::process::id() == self.process {
            let _ = remove_file(&self.path);
        }
    }
}

/// A new file.
fn create(folder: &Path) -> io::Result<(File, PathBuf)> {
    let own = std::process::id();
    let number = mix(now_ns() ^ u64::from(own) << 32);
    let path = folder.join(folder::file_name(own, number));
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(true)
        .mode(0o600)
        .custom_flags(libc::O_NOFOLLOW)
        .open(&path)?;
    Ok((file, path))
}

/// A file that a dead process has left.
struct Left {
    path: PathBuf,
    last: u64,
    bytes: u64,
}

/// Removes the files of dead processes, but for the latest.
fn sweep(folder: &Path) {
    let Ok(folder) = Folder::open(folder, user()) else {
        return;
    };
    let names = folder.names(FILES_MAX).into_iter();
    let mut left: Vec<Left> = names.filter_map(|name| left(&folder, &name)).collect();
    left.sort_by_key(|left| std::cmp::Reverse(left.last));
    let mut bytes = 0;
    for (number, left) in left.iter().enumerate() {
        bytes += left.bytes;
        if number >= DEAD_MAX || bytes > DEAD_BYTES_MAX {
            let _ = remove_file(&left.path);
        }
    }
}

/// A file as one that is left; `None` if its process runs, or is just beginning.
fn left(folder: &Folder, name: &str) -> Option<Left> {
    let file = folder.file(name).ok()?;
    let about = file.metadata().ok()?;
    let last = match read::head(&file) {
        Ok(process) => {
            let ids = (process.pid, process.pid_namespace, process.start_ticks);
            if life::runs(&file, ids.0, ids.1, ids.2) {
                return None;
            }
            process.clock
        }
        Err(_) => {
            let made = Duration::from_secs(u64::try_from(about.ctime()).unwrap_or(0));
            if life::holder(&file).is_some() || since_1970().saturating_sub(made) < NEW {
                return None;
            }
            0
        }
    };
    let bytes = about.blocks() * 512;
    let path = folder.path().join(name);
    Some(Left { path, last, bytes })
}
