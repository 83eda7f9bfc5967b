//! `cargo xtask install`: puts everything under a prefix, and writes a manifest for `uninstall`.
//!
//! ```text
//!   PREFIX/bin/               vipinfo vip_pingpong vip_perf vipl-mpirun
//!   PREFIX/include/           vipl.h vipl_ext.h vipl_plugin.h
//!   PREFIX/LIBDIR/            libvipl.so -> libvipl.so.1, libvipl.so.1, libvipl.a
//!   PREFIX/LIBDIR/libfabric/  libvipl-fi.so, the provider for MPI
//!   PREFIX/LIBDIR/pkgconfig/  vipl.pc
//!   PREFIX/LIBDIR/vipl/       manifest.txt
//!   PREFIX/LIBDIR/vipl/abi1/  libvipl_NAME.so, the plug-ins
//!   PREFIX/libexec/vipl/      vipkad, and vipl-NAME, the device processes that it starts
//!   PREFIX/share/man/         manual pages; completions beside it, for bash, fish and zsh
//!   PREFIX/share/doc/vipl/    the documents and the licences
//!   PREFIX/etc/vipl/          vipl.conf.sample (/etc/vipl for the prefix /usr)
//! ```
//!
//! Files are put in place by renaming, so that running programs keep the old ones.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use clap::Args;

use crate::Result;
use crate::man;
use crate::place::Place;
use crate::uninstall;
use crate::workspace::{Workspace, cargo, root, run as run_program};

/// The headers that users get.
const HEADERS: [&str; 3] = ["vipl.h", "vipl_ext.h", "vipl_plugin.h"];

/// The agent, and the device processes that it looks for beside itself.
const AGENT_PROGRAMS: [&str; 2] = ["vipkad", "vipl-clan"];

/// What users read, beside `docs/*.md`.
const DOCUMENTS: [&str; 5] = [
    "README.md",
    "CHANGELOG.md",
    "LICENSE-APACHE",
    "LICENSE-MIT",
    "plugins/PLUGINS.md",
];

/// Arguments of `cargo xtask install`.
#[derive(Args)]
pub(crate) struct Options {
    #[command(flatten)]
    pub place: Place,
    /// Install what was built before
    #[arg(long)]
    pub no_build: bool,
    /// Folder of the built files [default: target/release]
    #[arg(long, value_name = "DIR")]
    pub built: Option<PathBuf>,
}

/// What becomes an installed file.
enum Source {
    File(PathBuf),
    Text(String),
    Link(&'static str),
}

/// One file: from where, its final path, its permissions.
struct Entry {
    source: Source,
    path: PathBuf,
    mode: u32,
}

/// Runs the command.
pub(crate) fn run(options: &Options) -> Result {
    let place = &options.place;
    place.check()?;
    let workspace = Workspace::load()?;
    if !options.no_build {
        build(&workspace)?;
    }
    let built = options
        .built
        .clone()
        .unwrap_or_else(|| workspace.target.join("release"));
    let entries = entries(place, &workspace, &built)?;
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

/// Builds all that gets installed.
fn build(workspace: &Workspace) -> Result {
    let mut command = cargo();
    command.args(["build", "--release"]);
    for package in workspace.products() {
        command.args(["--package", &package]);
    }
    run_program(&mut command)
}

fn entries(place: &Place, workspace: &Workspace, built: &Path) -> Result<Vec<Entry>> {
    let (root, libraries) = (root(), place.libraries());
    let mut entries = Vec::new();
    let mut add =
        |source: Source, path: PathBuf, mode: u32| entries.push(Entry { source, path, mode });
    for name in workspace.programs("vipl-tools") {
        add(
            Source::File(built.join(&name)),
            place.prefix.join("bin").join(&name),
            0o755,
        );
    }
    add(
        Source::File(root.join("mpi/vipl-mpirun")),
        place.prefix.join("bin/vipl-mpirun"),
        0o755,
    );
    for name in HEADERS {
        add(
            Source::File(root.join("headers").join(name)),
            place.prefix.join("include").join(name),
            0o644,
        );
    }
    add(
        Source::File(built.join("libvipl.so")),
        libraries.join("libvipl.so.1"),
        0o755,
    );
    add(
        Source::Link("libvipl.so.1"),
        libraries.join("libvipl.so"),
        0o777,
    );
    add(
        Source::File(built.join("libvipl.a")),
        libraries.join("libvipl.a"),
        0o644,
    );
    for name in workspace.plugins() {
        let file = format!("lib{name}.so");
        let path = libraries.join("vipl/abi1").join(&file);
        add(Source::File(built.join(&file)), path, 0o755);
    }
    // The name by which libfabric recognizes a provider; cargo names a library after its crate.
    add(
        Source::File(built.join("libfi_vipl.so")),
        libraries.join("libfabric/libvipl-fi.so"),
        0o755,
    );
    add(
        Source::Text(pkg_config(place, workspace)?),
        libraries.join("pkgconfig/vipl.pc"),
        0o644,
    );
    for name in AGENT_PROGRAMS {
        add(
            Source::File(built.join(name)),
            place.prefix.join("libexec/vipl").join(name),
            0o755,
        );
    }
    let sample = place.configuration().join("vipl/vipl.conf.sample");
    add(
        Source::File(root.join("pkgconfig/vipl.conf")),
        sample,
        0o644,
    );
    let share = place.prefix.join("share");
    for (path, text) in shared_texts(workspace, built)? {
        add(Source::Text(text), share.join(path), 0o644);
    }
    let mut documents: Vec<PathBuf> = DOCUMENTS.iter().map(|name| root.join(name)).collect();
    for found in fs::read_dir(root.join("docs"))? {
        documents.push(found?.path());
    }
    for document in documents.into_iter().filter(|path| path.is_file()) {
        let name = document.file_name().ok_or("a document without a name")?;
        let path = share.join("doc/vipl").join(name);
        add(Source::File(document), path, 0o644);
    }
    Ok(entries)
}

/// Manual pages and completions, with their paths below `share`.
fn shared_texts(workspace: &Workspace, built: &Path) -> Result<Vec<(PathBuf, String)>> {
    let pages = man::pages(&workspace.version)?.into_iter();
    let pages = pages.chain(man::programs(workspace, built)?);
    let mut texts: Vec<(PathBuf, String)> = pages
        .map(|page| (Path::new("man").join(page.path()), page.text))
        .collect();
    for tool in workspace.programs("vipl-tools") {
        for (shell, path) in [
            ("bash", format!("bash-completion/completions/{tool}")),
            ("fish", format!("fish/vendor_completions.d/{tool}.fish")),
            ("zsh", format!("zsh/site-functions/_{tool}")),
        ] {
            texts.push((path.into(), man::generate(built, &tool, shell)?));
        }
    }
    Ok(texts)
}

fn pkg_config(place: &Place, workspace: &Workspace) -> Result<String> {
    let template = fs::read_to_string(root().join("pkgconfig/vipl.pc.in"))?;
    Ok(template
        .replace("@prefix@", &place.prefix.to_string_lossy())
        .replace("@libdir@", &place.libdir)
        .replace("@version@", &workspace.version))
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
