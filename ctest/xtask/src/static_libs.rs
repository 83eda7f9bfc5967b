//! The system libraries that `libvipl.a` needs, pinned in `pkgconfig/vipl.pc.in` as `Libs.private`.
//!
//! Here the list is compared with what rustc names for the standard library. Whether the other
//! crates need more shows when the smoke test links a program with the archive.

use std::process::Command;

use crate::Result;
use crate::workspace::{output, root};

/// Fails when rustc names a library that is not in the list.
pub(crate) fn check() -> Result {
    let pinned = pinned()?;
    let folder = tempfile::tempdir()?;
    let source = folder.path().join("empty.rs");
    std::fs::write(&source, "")?;
    let list = folder.path().join("list");
    let mut rustc = Command::new(std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()));
    rustc
        .args(["--crate-type", "staticlib", "--out-dir"])
        .arg(folder.path());
    rustc
        .arg(format!("--print=native-static-libs={}", list.display()))
        .arg(&source);
    output(&mut rustc)?;
    let named = std::fs::read_to_string(&list)?;
    let missing: Vec<&str> = named
        .split_whitespace()
        .filter(|name| !pinned.iter().any(|pin| pin == name))
        .collect();
    if missing.is_empty() {
        println!("pkgconfig/vipl.pc.in: Libs.private has all that rustc names");
        return Ok(());
    }
    Err(format!(
        "pkgconfig/vipl.pc.in: Libs.private lacks {}",
        missing.join(" ")
    )
    .into())
}

/// The list in the template.
pub(crate) fn pinned() -> Result<Vec<String>> {
    let template = std::fs::read_to_string(root().join("pkgconfig/vipl.pc.in"))?;
    let line = template
        .lines()
        .find_map(|line| line.strip_prefix("Libs.private:"));
    let line = line.ok_or("pkgconfig/vipl.pc.in has no Libs.private")?;
    Ok(line.split_whitespace().map(str::to_owned).collect())
}
