//! `cargo xtask docs`: the documentation of every crate, without a warning.

use crate::Result;
use crate::workspace::{cargo, run as run_program};

/// Runs the command.
pub(crate) fn run() -> Result {
    run_program(
        cargo()
            .args(["doc", "--workspace", "--no-deps", "--quiet", "--keep-going"])
            .env("RUSTDOCFLAGS", "-D warnings"),
    )
}
