//! The folder of all runs of this process, and what ends with it however it ends.
//!
//! SIGKILL cannot be handled, and a handler for the other signals would have to know each process. So there is another process,
//! the *keeper*: it waits at a pipe of which this process alone has the other end, then ends what this process has started and
//! removes the folder. A process that is being started holds that end as well, until it executes something and has its variable.

use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::Duration;

use tempfile::TempDir;
use vipl_ctest::Tree;

/// The first argument of a keeper; this process and its folder follow.
const ARGUMENT: &str = "--keep";
/// Between two looks for processes: one that has just executed something shows no environment for a moment.
const MOMENT: Duration = Duration::from_millis(50);

/// The folder; with the value it is removed, and all processes that are left end.
pub(crate) struct Kept {
    keeper: Child,
    folder: TempDir,
}

impl Kept {
    /// A folder for runs of the program of this name.
    pub(crate) fn new(name: &str) -> io::Result<Kept> {
        let prefix = format!("{name}-");
        let folder = tempfile::Builder::new().prefix(&prefix).tempdir()?;
        let keeper = Command::new(std::env::current_exe()?)
            .arg(ARGUMENT)
            .arg(Tree::of_this_process())
            .arg(folder.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // Ctrl-C is for the terminal's group.
            .process_group(0)
            .spawn()?;
        Ok(Kept { keeper, folder })
    }

    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        // It closes the pipe first. The folder is removed after that also if another process has killed the keeper.
        let _ = self.keeper.wait();
    }
}

/// If this process is to be a keeper, it has been one.
pub(crate) fn keep() -> Option<ExitCode> {
    let mut arguments = std::env::args_os().skip(1);
    if arguments.next()? != ARGUMENT {
        return None;
    }
    let (whose, folder) = (arguments.next()?, arguments.next().map(PathBuf::from)?);
    let _ = io::copy(&mut io::stdin(), &mut io::sink());
    let tree = Tree::of(&whose.to_string_lossy());
    tree.end();
    std::thread::sleep(MOMENT);
    tree.end();
    let _ = std::fs::remove_dir_all(folder);
    Some(ExitCode::SUCCESS)
}
