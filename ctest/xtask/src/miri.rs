//! `cargo xtask miri`: what plug-ins in Rust stand on, under an interpreter that finds undefined behaviour.

use std::process::{Command, Stdio};

use crate::Result;
use crate::workspace::{Workspace, root, run};

/// Descriptors and buffers are addresses in the memory of a program, so pointers are made of integers.
const FLAGS: &str = "-Zmiri-permissive-provenance -Zmiri-disable-isolation";
/// What runs there. Signal handlers, shared memory and the kernel's copies do not exist under Miri.
const TESTS: &[&[&str]] = &[
    &["-p", "vipl-plugin-sdk", "--features", "testing"],
    &["-p", "vipl-rules", "--lib"],
];

/// Runs the command; where the nightly toolchain has no Miri, it says so.
pub(crate) fn run_tests() -> Result {
    // Another toolchain is chosen by rustup's cargo, which is in the path.
    let miri = || {
        let mut command = Command::new("cargo");
        command.current_dir(root()).args(["+nightly", "miri"]);
        command
    };
    let is_there = miri()
        .arg("--version")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success());
    if !is_there {
        println!("SKIP miri: rustup component add miri rust-src --toolchain nightly");
        return Ok(());
    }
    let folder = Workspace::load()?.target.join("miri");
    for tests in TESTS {
        run(miri()
            .args(["test", "--locked", "--target-dir"])
            .arg(&folder)
            .args(*tests)
            .env("MIRIFLAGS", FLAGS)
            .env_remove("RUSTFLAGS"))?;
    }
    Ok(())
}
