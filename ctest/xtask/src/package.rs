//! `cargo xtask package`: the crates that authors of plug-ins use can be published.
//!
//! All others say `publish = false`. cargo builds each package from what is in it, with those it needs from the
//! packages made before; nothing is uploaded.

use std::fs::{self, DirEntry};
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use crate::Result;
use crate::workspace::{Workspace, cargo, output};

/// The first cargo that packages crates which need each other.
const CARGO_MIN: (u32, u32) = (1, 90);

/// Runs the command.
pub(crate) fn run() -> Result {
    let version = output(cargo().arg("--version"))?;
    if minor(&version).is_none_or(|version| version < CARGO_MIN) {
        let (major, minor) = CARGO_MIN;
        println!("SKIP cargo {major}.{minor} or newer is needed");
        return Ok(());
    }
    let workspace = Workspace::load()?;
    let crates = workspace.published();
    let home = home_without_sources(&workspace.target.join("package-home"))?;
    // The build has fetched all that they need, so the registry's list, which may be out of reach, is asked last.
    if !package(&crates, &home, &["--offline"])? && !package(&crates, &home, &[])? {
        return Err("cargo package has failed".into());
    }
    println!("{} crates: {}", crates.len(), crates.join(", "));
    Ok(())
}

/// Packages and builds the crates; true if cargo did.
fn package(crates: &[String], home: &Path, options: &[&str]) -> Result<bool> {
    let mut command = cargo();
    command.env("CARGO_HOME", home);
    // What is not committed yet is tried, too.
    command.args(["package", "--allow-dirty"]).args(options);
    for name in crates {
        command.args(["--package", name]);
    }
    Ok(command.status()?.success())
}

/// A home of cargo at this path that has all that the user's one has, except the sources that were unpacked there.
///
/// cargo never unpacks a package twice whose name and version it has unpacked before from the same path: of our
/// packages it would build those of an earlier run.
fn home_without_sources(home: &Path) -> io::Result<PathBuf> {
    match fs::remove_dir_all(home) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => fs::create_dir_all(home.join("registry"))?,
    }
    let users = std::env::var_os("CARGO_HOME")
        .map(PathBuf::from)
        .or_else(|| std::env::home_dir().map(|home| home.join(".cargo")));
    if let Some(users) = users {
        link_all_but("registry", &users, home)?;
        link_all_but("src", &users.join("registry"), &home.join("registry"))?;
    }
    Ok(home.to_owned())
}

/// Links what is in a folder into another one.
fn link_all_but(name: &str, from: &Path, to: &Path) -> io::Result<()> {
    let entries = match fs::read_dir(from) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries?.collect::<io::Result<Vec<DirEntry>>>()?,
    };
    let mut linked = entries.iter().filter(|entry| entry.file_name() != name);
    linked.try_for_each(|entry| symlink(entry.path(), to.join(entry.file_name())))
}

/// The version that `cargo --version` names.
fn minor(text: &str) -> Option<(u32, u32)> {
    let mut parts = text.split_whitespace().nth(1)?.split('.');
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_of_cargo_is_understood() {
        assert_eq!(minor("cargo 1.95.0 (f2d3ce0bd 2026-03-21)"), Some((1, 95)));
        assert!(minor("cargo 1.89.0-nightly").is_some_and(|version| version < CARGO_MIN));
        assert_eq!(minor("cargo"), None);
    }
}
