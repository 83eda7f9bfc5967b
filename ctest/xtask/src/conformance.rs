//! `cargo xtask conformance`: runs the conformance suite, the crate `ctest/conformance`.

use std::process::Command;

use clap::Args;

use crate::Result;
use crate::workspace::{build, built, run as run_program};

/// Arguments of `cargo xtask conformance`.
#[derive(Args)]
#[command(disable_help_flag = true)]
pub(crate) struct Options {
    /// The build is up to date
    #[arg(long)]
    no_build: bool,
    /// Options of the suite, see --help
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<String>,
}

/// Runs the command.
pub(crate) fn run(options: &Options) -> Result {
    if !options.no_build {
        build()?;
    }
    run_program(
        Command::new(built()?.join("vipl-conformance"))
            .args(&options.arguments)
            .env("CTEST_NO_BUILD", "1"),
    )
}
