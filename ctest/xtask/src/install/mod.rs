//! `cargo xtask install`: puts everything under a prefix, and writes a manifest for `uninstall`.
//!
//! ```text
//!   PREFIX/bin/               vipinfo vip_conform vip_pingpong vip_perf vipstat vipl-mpirun
//!   PREFIX/include/           vipl.h vipl_ext.h vipl_plugin.h
//!   PREFIX/LIBDIR/            libvipl.so -> libvipl.so.1, libvipl.so.1, libvipl.a
//!   PREFIX/LIBDIR/cmake/vipl/ viplConfig.cmake and its version
//!   PREFIX/LIBDIR/libfabric/  libvipl-fi.so, the provider for MPI
//!   PREFIX/LIBDIR/pkgconfig/  vipl.pc vipl-static.pc
//!   PREFIX/LIBDIR/vipl/       manifest.txt
//!   PREFIX/LIBDIR/vipl/abi1/  libvipl_NAME.so, the plug-ins
//!   PREFIX/lib/systemd/       the socket and the service of the agent; lib/sysusers.d: the group
//!   PREFIX/libexec/vipl/      vipkad, and vipl-NAME, the device processes that it starts
//!   PREFIX/libexec/vipl/conform/  the programs that vip_conform runs
//!   PREFIX/share/man/         manual pages; completions beside it, for bash, fish and zsh
//!   PREFIX/share/doc/vipl/    the documents, the licences, and the list of what it was built from; book/ if asked for
//!   PREFIX/share/gdb/         what gdb loads with libvipl.so.1
//!   PREFIX/share/vipl/        vipl.supp, for valgrind
//!   PREFIX/etc/vipl/          vipl.conf.sample (/etc/vipl for the prefix /usr)
//! ```
//!
//! Files are put in place by renaming, so that running programs keep the old ones.

mod entries;
pub(crate) mod pages;

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use clap::Args;

use crate::Result;
use crate::book;
use crate::cross;
use crate::place::Place;
use crate::uninstall;
use crate::workspace::{Workspace, cargo, root, run as run_program};

use entries::{Source, entries};

/// Arguments of `cargo xtask install`.
#[derive(Args)]
pub(crate) struct Options {
    #[command(flatten)]
    pub place: Place,
    /// Install what was built before
    #[arg(long)]
    pub no_build: bool,
    /// With the documents as a book, in share/doc/vipl/book; built if `cargo xtask book` has not
    #[arg(long)]
    pub book: bool,
    /// Folder of the built files [default: target/release]
    #[arg(long, value_name = "DIR")]
    pub built: Option<PathBuf>,
}

/// Runs the command.
pub(crate) fn run(options: &Options) -> Result {
    let place = &options.place;
    place.check()?;
    let workspace = Workspace::load()?;
    if !options.no_build {
        build(&workspace, None)?;
    }
    let built = options
        .built
        .clone()
        .unwrap_or_else(|| workspace.target.join("release"));
    let mut entries = entries(place, &workspace, &built)?;
    pages::settle(&root(), &mut entries)?;
    if options.book {
        entries.extend(entries::book(place, &book::html(&workspace)?)?);
    }
    let missing = entries.iter().find_map(|entry| match &entry.source {
        Source::File(file) if !file.exists() => Some(file),
        _ => None,
    });
    if let Some(file) = missing {
        return Err(format!("{} is missing; nothing was installed", file.display()).into());
    }
    let before = uninstall::read(place).unwrap_or_default();
    let paths: Vec<PathBuf> = entries.iter().map(|entry| entry.path.clone()).collect();
    for entry in &entries {
        put(&entry.source, &place.staged(&entry.path), entry.mode)?;
        println!("installed {}", entry.path.display());
    }
    // What an older version had and this one has not.
    uninstall::remove(place, before.iter().filter(|old| !paths.contains(old)))?;
    let list: String = paths
        .iter()
        .map(|path| format!("{}\n", path.display()))
        .collect();
    put(&Source::Text(list), &place.staged(&place.manifest()), 0o644)?;
    println!(
        "{} files; `cargo xtask uninstall` reads {}",
        paths.len(),
        place.manifest().display()
    );
    Ok(())
}

/// Builds all that gets installed, for this processor or another one.
pub(crate) fn build(workspace: &Workspace, target: Option<&str>) -> Result {
    let mut arguments = vec!["build".to_owned(), "--release".to_owned()];
    for package in workspace.products() {
        arguments.extend(["--package".to_owned(), package]);
    }
    let mut command = match target {
        None => {
            let mut command = cargo();
            command.args(arguments);
            command
        }
        Some(target) => cross::command(target, &arguments)?,
    };
    run_program(&mut command)
}

/// Writes beside the destination, then renames.
fn put(source: &Source, path: &Path, mode: u32) -> Result {
    let folder = path.parent().ok_or("a path without a folder")?;
    let name = path
        .file_name()
        .ok_or("a path without a name")?
        .to_string_lossy();
    fs::create_dir_all(folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    let fresh = folder.join(format!(".{name}.new"));
    match fs::remove_file(&fresh) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error.into()),
        _ => {}
    }
    match source {
        Source::File(file) => drop(fs::copy(file, &fresh)?),
        Source::Text(text) => fs::write(&fresh, text)?,
        Source::Link(target) => symlink(target, &fresh)?,
    }
    if !matches!(source, Source::Link(_)) {
        fs::set_permissions(&fresh, Permissions::from_mode(mode))?;
    }
    Ok(fs::rename(&fresh, path)?)
}
