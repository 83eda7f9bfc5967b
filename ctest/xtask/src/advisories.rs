//! `cargo xtask advisories`: known vulnerabilities of what we depend on (`deny.toml`). It says why where it cannot tell:
//! without cargo-deny, or without its database, which comes from the network.

use std::process::{Command, Stdio};

use crate::Result;
use crate::workspace::{cargo, root, run};

fn deny(arguments: &[&str]) -> Command {
    let mut command = cargo();
    command.arg("deny").args(arguments).current_dir(root());
    command
}

/// Fetches the database and compares.
pub(crate) fn check() -> Result {
    let probe = deny(&["--version"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    if !probe.is_ok_and(|status| status.success()) {
        println!("SKIP cargo deny is not installed");
        return Ok(());
    }
    let fetched = deny(&["fetch", "db"]).output()?;
    if !fetched.status.success() {
        let said = String::from_utf8_lossy(&fetched.stderr);
        let last = said.trim().lines().last().unwrap_or_default();
        println!("SKIP the database of advisories is not to be had: {last}");
        return Ok(());
    }
    run(&mut deny(&["--offline", "check", "advisories"]))
}
