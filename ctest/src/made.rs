//! What a compiled file was made of. Test programs that run at the same time or one after the other share what they compile:
//! beside each file lies the command that made it, and the state of each file that went into it.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use crate::library::FileLock;

/// A compiled file, which no other test program makes while this value lives.
pub(crate) struct Made {
    file: PathBuf,
    note: PathBuf,
    _lock: FileLock,
}

impl Made {
    /// Waits for another test program that makes it.
    pub(crate) fn of(file: &Path) -> Made {
        Made {
            file: file.to_owned(),
            note: file.with_extension("made"),
            _lock: FileLock::take(&file.with_extension("lock")),
        }
    }

    /// Whether this command would make the same again.
    pub(crate) fn is_current(&self, command: &str) -> bool {
        let Ok(text) = fs::read_to_string(&self.note) else {
            return false;
        };
        let mut lines = text.lines();
        let is_as_noted = |line: &str| {
            let (noted, path) = line.split_once(' ').unwrap_or_default();
            state(Path::new(path)).is_some_and(|(state, _)| state == noted)
        };
        lines.next() == Some(command) && lines.all(is_as_noted) && self.file.exists()
    }

    /// It is about to be made, at the time that is returned.
    pub(crate) fn forget(&self) -> SystemTime {
        // Where there is none, there is nothing to forget.
        let _ = fs::remove_file(&self.note);
        // The clock of the file system.
        let now = fs::write(&self.note, "").and_then(|()| fs::metadata(&self.note)?.modified());
        now.expect("a note")
    }

    /// It has been made, from what these files held at that time.
    pub(crate) fn write(
        &self,
        command: &str,
        begun: SystemTime,
        sources: impl Iterator<Item = PathBuf>,
    ) {
        let mut text = format!("{command}\n");
        for path in sources {
            // One that has changed since, or is not known, counts as another one next time.
            let noted = state(&path).filter(|(_, changed)| *changed < begun);
            let (noted, _) = noted.unwrap_or(("-".to_owned(), begun));
            text.push_str(&format!("{noted} {}\n", path.display()));
        }
        let new = self.note.with_extension("note");
        fs::write(&new, text).expect("a note");
        fs::rename(new, &self.note).expect("a note");
    }
}

/// Its size and the time of its last change, as text without a space; and that time.
fn state(path: &Path) -> Option<(String, SystemTime)> {
    let about = fs::metadata(path).ok()?;
    let changed = about.modified().ok()?;
    let time = changed.duration_since(SystemTime::UNIX_EPOCH).ok()?;
    Some((format!("{}:{}", about.len(), time.as_nanos()), changed))
}

/// The files in the list of a compiler: `output: source header \\`, with `\\ ` for a space in a name.
pub(crate) fn sources_in(list: &str) -> impl Iterator<Item = PathBuf> {
    let joined = list.replace("\\\n", " ").replace("\\ ", "\0");
    let (_, names) = joined.split_once(": ").unwrap_or_default();
    let names: Vec<PathBuf> = names
        .split_whitespace()
        .map(|name| PathBuf::from(name.replace('\0', " ")))
        .collect();
    names.into_iter()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn lists_of_compilers_are_read() {
        let list = "bin/tour.new: /a/tour.c \\\n /a/my\\ folder/common.h /b/vipl.h\n";
        let expected = ["/a/tour.c", "/a/my folder/common.h", "/b/vipl.h"];
        assert!(sources_in(list).eq(expected.map(PathBuf::from)));
        assert_eq!(sources_in("").count(), 0);
    }

    #[test]
    fn a_file_is_made_again_when_anything_has_changed() {
        let folder = tempfile::tempdir().expect("a folder");
        let (file, source) = (folder.path().join("file"), folder.path().join("source"));
        let made = Made::of(&file);
        let write = |command: &str, begun| made.write(command, begun, [source.clone()].into_iter());
        let later = || SystemTime::now() + Duration::from_secs(60);
        fs::write(&source, "1").expect("a source");
        fs::write(&file, "").expect("a file");
        assert!(!made.is_current("cc"), "nothing is known of it");
        write("cc", later());
        assert!(made.is_current("cc"));
        assert!(!made.is_current("cc -O2"), "another command");
        fs::write(&source, "22").expect("a source");
        assert!(!made.is_current("cc"), "another source");
        write("cc", later());
        assert!(made.is_current("cc"));
        fs::remove_file(&file).expect("the file");
        assert!(!made.is_current("cc"), "the file is gone");
        fs::write(&file, "").expect("a file");
        let begun = made.forget();
        assert!(!made.is_current("cc"), "it was about to be made");
        // Changed behind the begin: whether the compiler has seen it is not known.
        write("cc", begun - Duration::from_secs(60));
        assert!(!made.is_current("cc"), "changed meanwhile");
        fs::remove_file(&source).expect("the source");
        write("cc", later());
        assert!(!made.is_current("cc"), "a source that is not there");
    }
}
