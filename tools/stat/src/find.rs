//! Finds the pages of processes and reads them.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use vipl_pages::folder::{self, Folder};
use vipl_pages::read::{self, Unreadable, Vi};
use vipl_pages::{Snapshot, life};

/// Files read in one folder; a user with more processes than these sees some of them.
const FILES_MAX: usize = 4096;

/// Bytes of pages of one user that are read: those of another user must not take all memory of root.
const BYTES_MAX: u64 = 64 << 20;

/// The pages of one process.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    /// The file.
    pub(crate) path: PathBuf,
    /// Owner of the folder.
    pub(crate) user: u32,
    /// Whether the process still runs.
    pub(crate) runs: bool,
    /// Its number here, if it has one; otherwise its number in its own namespace.
    pub(crate) pid: u64,
    /// What it publishes.
    pub(crate) pages: Snapshot,
}

impl Seen {
    /// Opens its file once more, for what a look leaves out.
    pub(crate) fn recorders(&self) -> Recorders {
        let open = || {
            let folder = Folder::open(self.path.parent()?, self.user).ok()?;
            let file = folder.file(self.path.file_name()?.to_str()?).ok()?;
            read::head(&file).is_ok().then_some(file)
        };
        Recorders(open())
    }
}

/// The file of a process, for the events and descriptors of its VIs. Together they take ten times the memory of all the rest, so
/// those of one VI at a time are read, where they are shown.
pub(crate) struct Recorders(Option<File>);

impl Recorders {
    /// The VI as it is now, with its events and descriptors; as it was seen, if it is no longer there.
    pub(crate) fn of<'a>(&self, seen: &'a Vi) -> Cow<'a, Vi> {
        let now = self
            .0
            .as_ref()
            .and_then(|file| Vi::read(file, seen.slot).ok()?);
        let now = now.filter(|now| now.handle == seen.handle);
        now.map_or(Cow::Borrowed(seen), Cow::Owned)
    }
}

/// All that was found.
#[derive(Clone, Debug, Default)]
pub(crate) struct Found {
    pub(crate) processes: Vec<Seen>,
    /// Files that could not be read, and why.
    pub(crate) unreadable: Vec<(PathBuf, String)>,
}

/// Where to look.
#[derive(Clone, Debug)]
pub(crate) enum Places {
    /// The folders of this user, or for root of all users.
    Usual,
    /// This folder.
    Folder(PathBuf),
}

fn user() -> u32 {
    // SAFETY: no arguments.
    unsafe { libc::geteuid() }
}

impl Places {
    fn folders(&self) -> io::Result<Vec<Folder>> {
        match self {
            Places::Usual if user() == 0 => Ok(folder::of_all()),
            Places::Usual => Ok(folder::of_user(user())),
            Places::Folder(path) => {
                let owner = std::fs::metadata(path)?.uid();
                Ok(vec![Folder::open(path, owner)?])
            }
        }
    }

    /// Reads all files, without events and descriptors: [`Seen::recorders`].
    ///
    /// # Errors
    /// The named folder cannot be used.
    pub(crate) fn look(&self) -> io::Result<Found> {
        let mut found = Found::default();
        let mut left = HashMap::new();
        for folder in self.folders()? {
            let mut names = folder.names(FILES_MAX);
            names.sort();
            let mut files = HashSet::new();
            let left = left.entry(folder.user()).or_insert(BYTES_MAX);
            for name in names {
                let path = folder.path().join(&name);
                match read(&folder, &name, &path, &mut files, left) {
                    Ok(Some(seen)) => found.processes.push(seen),
                    // Its process has just begun, or has ended.
                    Ok(None) => {}
                    Err(why) => found.unreadable.push((path, why)),
                }
            }
        }
        found
            .processes
            .sort_by_key(|seen| (seen.pid, seen.path.clone()));
        Ok(found)
    }
}

/// Reads one file, if it is none of `files` and has no more than `left` bytes. None if it is no longer there, or has no content yet.
fn read(
    folder: &Folder,
    name: &str,
    path: &Path,
    files: &mut HashSet<(u64, u64)>,
    left: &mut u64,
) -> Result<Option<Seen>, String> {
    let file = match folder.file(name) {
        Err(why) if why.kind() == io::ErrorKind::NotFound => return Ok(None),
        file => file.map_err(|why| why.to_string())?,
    };
    let about = file.metadata().map_err(|why| why.to_string())?;
    if !files.insert((about.dev(), about.ino())) {
        return Err("it is another name of a file that is shown".to_owned());
    }
    *left = left.checked_sub(about.blocks() * 512).ok_or_else(|| {
        let most = BYTES_MAX >> 20;
        format!("the user has more than {most} MiB of pages, which are not all read")
    })?;
    let pages = match Snapshot::read(&file) {
        // The size is set before the file has content, and its process locks it first.
        Err(_) if about.len() == 0 => return Ok(None),
        Err(Unreadable::NotPages) if life::holder(&file).is_some() => return Ok(None),
        pages => pages.map_err(|why| why.to_string())?,
    };
    let (pid, runs) = process(&file, &pages);
    Ok(Some(Seen {
        path: path.to_owned(),
        user: folder.user(),
        runs,
        pid,
        pages,
    }))
}

/// The number of the process that has locked the file, as seen here, and whether it runs.
fn process(file: &File, pages: &Snapshot) -> (u64, bool) {
    let own = &pages.process;
    match life::holder(file) {
        Some(pid @ 1..) => (pid.into(), true),
        Some(0) => (own.pid, true),
        None => {
            let runs = life::runs(file, own.pid, own.pid_namespace, own.start_ticks);
            (own.pid, runs)
        }
    }
}
