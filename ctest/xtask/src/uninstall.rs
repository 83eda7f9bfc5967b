//! `cargo xtask uninstall`: removes what the manifest lists, and our folders that become empty.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use clap::Args;

use crate::Result;
use crate::place::Place;

/// Arguments of `cargo xtask uninstall`.
#[derive(Args)]
pub(crate) struct Options {
    #[command(flatten)]
    pub place: Place,
}

/// Runs the command.
pub(crate) fn run(options: &Options) -> Result {
    let place = &options.place;
    place.check()?;
    let paths = read(place)?;
    remove(place, paths.iter())?;
    let manifest = place.manifest();
    remove(place, [&manifest].into_iter())?;
    println!("{} files removed", paths.len());
    Ok(())
}

/// The final paths of the installed files.
pub(crate) fn read(place: &Place) -> Result<Vec<PathBuf>> {
    let file = place.staged(&place.manifest());
    let text = fs::read_to_string(&file)
        .map_err(|e| format!("nothing is installed there: {}: {e}", file.display()))?;
    Ok(text.lines().map(PathBuf::from).collect())
}

/// Removes files; those that do not exist are no error.
pub(crate) fn remove<'a>(place: &Place, paths: impl Iterator<Item = &'a PathBuf>) -> Result {
    let mut folders = BTreeSet::new();
    for path in paths {
        match fs::remove_file(place.staged(path)) {
            Ok(()) => println!("removed {}", path.display()),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(format!("{}: {error}", path.display()).into()),
        }
        let ours = |folder: &&Path| {
            folder.components().any(|c| c.as_os_str() == "vipl") || folder.ends_with("libfabric")
        };
        let beneath =
            |folder: &&Path| folder.starts_with(&place.prefix) || folder.starts_with("/etc");
        folders.extend(
            path.ancestors()
                .skip(1)
                .filter(ours)
                .filter(beneath)
                .map(Path::to_path_buf),
        );
    }
    // Deepest first; a folder with other files in it stays.
    for folder in folders.iter().rev() {
        drop(fs::remove_dir(place.staged(folder)));
    }
    Ok(())
}
