//! An installation whose programs are run, in place of a build of this project.

use std::path::PathBuf;
use std::sync::OnceLock;

/// Where its parts are.
#[derive(Clone, Debug)]
pub struct Installed {
    /// The folder of `libvipl.so.1`.
    pub library: PathBuf,
    /// The Kernel Agent.
    pub agent: PathBuf,
    /// The folder of the programs, compiled.
    pub programs: PathBuf,
}

static INSTALLED: OnceLock<Installed> = OnceLock::new();

impl Installed {
    /// All runs of this process use it from now on, and nothing is built. Before anything else of this crate is called;
    /// a second call changes nothing.
    pub fn use_it(self) {
        let _ = INSTALLED.set(self);
    }

    pub(crate) fn get() -> Option<&'static Installed> {
        INSTALLED.get()
    }
}
