//! `cargo xtask`: runs the demonstration, or hands the command to the crate `xtask`.
//!
//! This program has no dependencies: `cargo xtask demo` in a fresh clone does not wait for the generators and checkers of
//! `xtask`, which take longer to build than the library.

#![forbid(unsafe_code)]

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::ExitCode;

use xtask_entry::{Result, cargo, demo};

fn main() -> ExitCode {
    let arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
    let done = match arguments.split_first() {
        Some((command, options)) if command == "demo" => demo(options),
        _ => forward(&arguments),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Becomes `cargo run --bin xtask`: not `--package`, with which what it depends on would have other features than in builds
/// of the workspace, and be built twice.
fn forward(arguments: &[OsString]) -> Result {
    let mut xtask = cargo();
    xtask.args(["run", "--quiet", "--bin", "xtask", "--"]);
    Err(xtask.args(arguments).exec().into())
}
