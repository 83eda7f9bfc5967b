//! `cargo xtask deb`: Debian packages of what `cargo xtask install` installs.
//!
//! `packaging/debian` is an ordinary folder for debhelper; its `rules` call `install`. It is copied to `target/deb/ARCH/build`, so
//! that nothing is written to the tree, and the packages are beside that folder.

mod chroot;
mod trial;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::Args;

use crate::Result;
use crate::install;
use crate::workspace::{Workspace, have, in_path, output, root, run as run_program};

/// The tags of lintian that are allowed to appear.
const LINTIAN_FAILS_ON: &str = "error,warning";

/// Arguments of `cargo xtask deb`.
#[derive(Args)]
pub(crate) struct Options {
    /// Rust's name of another processor, as i686-unknown-linux-gnu
    #[arg(long, value_name = "TRIPLE")]
    target: Option<String>,
    /// Folder of the built files [default: target/release, or target/TRIPLE/release]
    #[arg(long, value_name = "DIR")]
    built: Option<PathBuf>,
    /// Package what was built before
    #[arg(long)]
    no_build: bool,
    /// Check the packages with lintian
    #[arg(long)]
    lintian: bool,
    /// Install, use, upgrade, remove and purge the packages in a fresh Debian below target/deb; takes root
    #[arg(long)]
    trial: bool,
    /// With --trial: install i386 packages beside these, made by --target i686-unknown-linux-gnu before
    #[arg(long)]
    beside_i386: bool,
}

/// Runs the command.
pub(crate) fn run(options: &Options) -> Result {
    for tool in ["dpkg-buildpackage", "dh"] {
        if !in_path(tool) {
            return Err(format!("there is no {tool}: `apt install dpkg-dev debhelper`").into());
        }
    }
    let workspace = Workspace::load()?;
    check_version(&workspace)?;
    let build = Build::prepare(&workspace, options)?;
    let packages = build.packages(None)?;
    for package in &packages {
        let kib = fs::metadata(package)?.len() / 1024;
        println!("{:6} KiB  {}", kib, package.display());
    }
    if options.lintian {
        lintian(&build.folder)?;
    }
    if options.trial {
        let beside = options
            .beside_i386
            .then(|| workspace.target.join("deb/i386"));
        trial::run(&build, &packages, beside.as_deref())?;
    }
    Ok(())
}

/// Where packages are made, and of what.
struct Build {
    /// `target/deb/ARCH`
    folder: PathBuf,
    built: PathBuf,
    architecture: String,
    is_native: bool,
}

impl Build {
    fn prepare(workspace: &Workspace, options: &Options) -> Result<Self> {
        let native = output(Command::new("dpkg").arg("--print-architecture"))?;
        let native = native.trim();
        let architecture = match options.target.as_deref() {
            None => native.to_owned(),
            Some(triple) => architecture(triple)?.to_owned(),
        };
        if !options.no_build && options.built.is_none() {
            install::build(workspace, options.target.as_deref())?;
        }
        let usual = || match &options.target {
            None => workspace.target.join("release"),
            Some(triple) => workspace.target.join(triple).join("release"),
        };
        let built = options
            .built
            .clone()
            .map_or_else(|| Ok(usual()), std::path::absolute)?;
        let folder = workspace.target.join("deb").join(&architecture);
        fs::create_dir_all(&folder)?;
        Ok(Self {
            is_native: architecture == native,
            folder,
            built,
            architecture,
        })
    }

    /// Makes the packages; with a suffix for the version, in a folder of that name.
    fn packages(&self, suffix: Option<&str>) -> Result<Vec<PathBuf>> {
        let folder = suffix.map_or(self.folder.clone(), |suffix| self.folder.join(suffix));
        let build = folder.join("build");
        if build.exists() {
            fs::remove_dir_all(&build)?;
        }
        fs::create_dir_all(&build)?;
        for old in files_named(&folder, |name| name.contains("vip"))? {
            fs::remove_file(old)?;
        }
        run_program(
            Command::new("cp")
                .arg("-r")
                .arg(root().join("packaging/debian"))
                .arg(&build),
        )?;
        if let Some(suffix) = suffix {
            let changelog = build.join("debian/changelog");
            let text = fs::read_to_string(&changelog)?;
            let (first, rest) = text
                .split_once(") ")
                .ok_or("a changelog without a version")?;
            fs::write(changelog, format!("{first}{suffix}) {rest}"))?;
        }
        let mut command = Command::new("dpkg-buildpackage");
        if suffix.is_some() {
            // No user needs the debug symbols of a version that is made for a test.
            command.env("DEB_BUILD_OPTIONS", "noautodbgsym");
        }
        // The compiler may be another one than Debian's, so what `Build-Depends` names is not asked for.
        command.args(["--no-check-builddeps", "--no-sign"]);
        if self.is_native {
            command.arg("--build=binary");
        } else {
            // What is for all processors comes with the native packages.
            command.arg("--build=any");
            command.args(["--host-arch", &self.architecture]);
        }
        command
            .current_dir(&build)
            .env("SOURCE", root())
            .env("BUILT", &self.built)
            .env("XTASK", std::env::current_exe()?);
        let log = output(&mut command)?;
        fs::write(folder.join("build.log"), log)?;
        files_named(&folder, |name| name.ends_with(".deb"))
    }
}

/// Debian's name of a processor.
fn architecture(triple: &str) -> Result<&'static str> {
    match triple.split('-').next().unwrap_or_default() {
        "x86_64" => Ok("amd64"),
        "i586" | "i686" => Ok("i386"),
        "aarch64" => Ok("arm64"),
        other => Err(format!("Debian's name of {other} is not known here").into()),
    }
}

/// The version of the packages is that of the crates.
fn check_version(workspace: &Workspace) -> Result {
    let path = "packaging/debian/changelog";
    let text = fs::read_to_string(root().join(path))?;
    if text.starts_with(&format!("vipl ({}) ", workspace.version)) {
        return Ok(());
    }
    Err(format!("{path} does not begin with version {}", workspace.version).into())
}

fn lintian(folder: &Path) -> Result {
    if !have("lintian") {
        println!("SKIP lintian: it is not installed");
        return Ok(());
    }
    let changes = files_named(folder, |name| name.ends_with(".changes"))?;
    let mut command = Command::new("lintian");
    command.args(["--tag-display-limit", "0", "--allow-root"]);
    command.args(["--fail-on", LINTIAN_FAILS_ON]).args(changes);
    // What it finds is on its standard output.
    run_program(&mut command)?;
    println!("lintian: no error, no warning");
    Ok(())
}

/// The files of a folder whose names fit, sorted.
fn files_named(folder: &Path, fits: impl Fn(&str) -> bool) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_type()?.is_file() && fits(&entry.file_name().to_string_lossy()) {
            found.push(entry.path());
        }
    }
    found.sort();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_packages_have_the_version_of_the_crates() {
        check_version(&Workspace::load().unwrap()).unwrap();
    }

    #[test]
    fn every_exported_name_is_in_the_symbols_file() {
        let read = |path: &str| fs::read_to_string(root().join(path)).unwrap();
        let symbols = read("packaging/debian/libvipl1.symbols");
        let entered: Vec<&str> = symbols
            .lines()
            .filter_map(|line| line.strip_prefix(' ')?.split('@').next())
            .collect();
        let exported = read("headers/abi/symbols.txt");
        assert_eq!(entered, exported.lines().collect::<Vec<_>>());
    }
}
