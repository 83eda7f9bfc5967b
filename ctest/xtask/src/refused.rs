//! `cargo xtask refused`: system calls of the library, the agent and its devices are refused, each one with each error.

use clap::Args;

use crate::Result;
use crate::workspace::{cargo, run as run_program};

/// Arguments of `cargo xtask refused`.
#[derive(Args)]
pub(crate) struct Options {
    /// Seconds; as many calls as there is time for, in an order of the day. Without it all, which takes half an hour
    #[arg(long)]
    within: Option<u64>,
}

/// Runs the command.
pub(crate) fn run(options: &Options) -> Result {
    let mut tests = cargo();
    tests.args(["test", "--package", "vipl-ctest", "--test", "refused"]);
    tests.args(["--", "--ignored", "--show-output"]);
    if let Some(seconds) = options.within {
        tests.env("CTEST_SECONDS", seconds.to_string());
    }
    run_program(&mut tests)
}
