//! Files that are written whole or not at all: beside their place, and then renamed.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use vipl_sys::stderr::without_signal;
use vipl_tools::{Error, Result};

/// Names that are tried for the file beside: one of an earlier process of the same number may be left.
const NAMES: u32 = 16;

/// The place of a file that will be written.
#[derive(Debug)]
pub(crate) struct Place {
    given: PathBuf,
    /// Without links.
    path: PathBuf,
}

impl Place {
    /// Before anything is measured.
    ///
    /// # Errors
    /// It exists and is no regular file, is one of `others`, or no file can be made in its folder.
    pub(crate) fn new(given: &Path, others: &[&Path]) -> Result<Place> {
        let refused = |why: &str| Error::Usage(format!("{} {why}", given.display()));
        let failed = |error| Error::io(given.display().to_string(), error);
        let path = match fs::metadata(given) {
            // To open a FIFO would wait for its reader.
            Ok(about) if !about.is_file() => {
                return Err(refused("exists and is no regular file"));
            }
            Ok(_) => fs::canonicalize(given),
            Err(_) => missing(given),
        };
        let path = path.map_err(failed)?;
        if others.iter().any(|other| *other == path) {
            return Err(refused("is another file of this command"));
        }
        let place = Place {
            given: given.to_owned(),
            path,
        };
        let (_, beside) = place.beside().map_err(failed)?;
        fs::remove_file(beside).map_err(failed)?;
        Ok(place)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Writes the file. If that fails, what was there before is there still.
    ///
    /// # Errors
    /// Those of the kernel.
    pub(crate) fn write(&self, text: &str) -> Result<()> {
        let write = || {
            let (new, beside) = self.beside()?;
            let written = self.fill(new, &beside, text);
            if written.is_err() {
                let _ = fs::remove_file(&beside);
            }
            written
        };
        write().map_err(|error| Error::io(self.given.display().to_string(), error))
    }

    fn fill(&self, new: File, beside: &Path, text: &str) -> io::Result<()> {
        if let Ok(about) = fs::metadata(&self.path) {
            new.set_permissions(about.permissions())?;
        }
        // Without SIGXFSZ, where files may not become so large.
        without_signal(libc::SIGXFSZ, libc::EFBIG, || {
            let written = (&new).write_all(text.as_bytes());
            written.map_err(|error| error.raw_os_error().unwrap_or(0))
        })
        .map_err(io::Error::from_raw_os_error)?;
        fs::rename(beside, &self.path)
    }

    /// Makes a file beside.
    fn beside(&self) -> io::Result<(File, PathBuf)> {
        let process = std::process::id();
        let make = |number: u32| {
            let name = format!(".vip_perf-{process}-{number}");
            let path = self.path.with_file_name(name);
            let file = OpenOptions::new().write(true).create_new(true).open(&path);
            file.map(|file| (file, path))
        };
        let is_there = |made: &io::Result<_>| matches!(made, Err(error) if error.kind() == io::ErrorKind::AlreadyExists);
        let mut made = make(0);
        for number in 1..NAMES {
            if is_there(&made) {
                made = make(number);
            }
        }
        made
    }
}

/// The path of a file that does not exist, without links.
fn missing(given: &Path) -> io::Result<PathBuf> {
    let name = given.file_name().ok_or(io::ErrorKind::InvalidInput)?;
    let folder = given.parent().filter(|folder| *folder != Path::new(""));
    Ok(fs::canonicalize(folder.unwrap_or(Path::new(".")))?.join(name))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    fn names(folder: &Path) -> Vec<String> {
        let entries = fs::read_dir(folder).unwrap().flatten();
        let mut names: Vec<String> = entries
            .map(|entry| entry.file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    /// None of them is waited for.
    #[test]
    fn only_regular_files_are_written() {
        let folder = tempfile::tempdir().unwrap();
        let fifo = folder.path().join("fifo");
        nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
        for file in [fifo.as_path(), Path::new("/dev/zero"), folder.path()] {
            let error = Place::new(file, &[]).unwrap_err().to_string();
            assert!(error.contains("is no regular file"), "{error}");
        }
        let nowhere = folder.path().join("nowhere/a.svg");
        let error = Place::new(&nowhere, &[]).unwrap_err().to_string();
        assert!(error.contains("nowhere/a.svg"), "{error}");
    }

    #[test]
    fn a_file_is_written_whole_and_keeps_its_mode() {
        let folder = tempfile::tempdir().unwrap();
        let (new, link) = (folder.path().join("new"), folder.path().join("link"));
        let place = Place::new(&new, &[]).unwrap();
        assert!(!new.exists(), "it was only looked at");
        place.write("one").unwrap();
        fs::set_permissions(&new, fs::Permissions::from_mode(0o600)).unwrap();
        symlink("new", &link).unwrap();
        Place::new(&link, &[]).unwrap().write("two").unwrap();
        assert_eq!(fs::read_to_string(&new).unwrap(), "two");
        let mode = fs::metadata(&new).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert_eq!(names(folder.path()), ["link", "new"]);
    }

    /// What is read, and another picture, are no place, whatever they are called.
    #[test]
    fn no_other_file_of_the_command_is_overwritten() {
        let folder = tempfile::tempdir().unwrap();
        let run = folder.path().join("run.json");
        fs::write(&run, "{}").unwrap();
        let link = folder.path().join("link");
        symlink("run.json", &link).unwrap();
        let real = fs::canonicalize(&run).unwrap();
        for name in [&run, &link, &folder.path().join("./run.json")] {
            let error = Place::new(name, &[&real]).unwrap_err().to_string();
            assert!(error.contains("is another file"), "{error}");
        }
        let first = Place::new(&folder.path().join("same"), &[&real]).unwrap();
        let second = Place::new(&folder.path().join("same"), &[&real, first.path()]);
        assert!(second.is_err());
        assert_eq!(fs::read_to_string(&run).unwrap(), "{}");
    }
}
