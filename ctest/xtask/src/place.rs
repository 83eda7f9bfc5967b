//! Where an installation goes, and which of its files is where.

use std::path::{Path, PathBuf};

use clap::Args;

use crate::Result;

/// Where things go; `install` and `uninstall` must be given the same.
#[derive(Args)]
pub(crate) struct Place {
    /// Where the installed files will be used from, absolute
    #[arg(long, value_name = "DIR")]
    pub prefix: PathBuf,
    /// Put before the prefix while installing, for packages
    #[arg(long, value_name = "DIR")]
    pub destdir: Option<PathBuf>,
    /// Folder of the libraries below the prefix
    #[arg(long, value_name = "NAME", default_value = "lib")]
    pub libdir: String,
}

impl Place {
    /// Refuses a relative prefix: it is written into vipl.pc.
    pub(crate) fn check(&self) -> Result {
        if self.prefix.is_absolute() {
            return Ok(());
        }
        Err(format!(
            "--prefix {}: must be an absolute path",
            self.prefix.display()
        )
        .into())
    }

    /// Where a file with its final path is written now.
    pub(crate) fn staged(&self, path: &Path) -> PathBuf {
        match &self.destdir {
            Some(destdir) => destdir.join(path.strip_prefix("/").unwrap_or(path)),
            None => path.to_path_buf(),
        }
    }

    /// The folder of the libraries.
    pub(crate) fn libraries(&self) -> PathBuf {
        self.prefix.join(&self.libdir)
    }

    /// The list of installed files.
    pub(crate) fn manifest(&self) -> PathBuf {
        self.libraries().join("vipl/manifest.txt")
    }

    /// The folder of the configuration.
    pub(crate) fn configuration(&self) -> PathBuf {
        if self.prefix == Path::new("/usr") {
            "/etc".into()
        } else {
            self.prefix.join("etc")
        }
    }
}
