//! `cargo xtask package`: the crates that authors of plug-ins use can be published.
//!
//! All others say `publish = false`. cargo builds each package from what is in it, with those it needs from the
//! packages made before; nothing is uploaded.

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
    let crates = Workspace::load()?.published();
    // The build has fetched all that they need, so the registry's list, which may be out of reach, is asked last.
    if !package(&crates, &["--offline"])? && !package(&crates, &[])? {
        return Err("cargo package has failed".into());
    }
    println!("{} crates: {}", crates.len(), crates.join(", "));
    Ok(())
}

/// Packages and builds the crates; true if cargo did.
fn package(crates: &[String], options: &[&str]) -> Result<bool> {
    let mut command = cargo();
    // What is not committed yet is tried, too.
    command.args(["package", "--allow-dirty"]).args(options);
    for name in crates {
        command.args(["--package", name]);
    }
    Ok(command.status()?.success())
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
