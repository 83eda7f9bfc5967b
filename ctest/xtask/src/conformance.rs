//! `cargo xtask conformance`: runs the conformance suite, the crate `plugins/conformance`.

use clap::Args;

use crate::Result;
use crate::workspace;

#[derive(Args)]
#[command(disable_help_flag = true)]
pub(crate) struct Options {
    /// Options of the suite, see --help
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<String>,
}

pub(crate) fn run(options: &Options) -> Result {
    let mut suite = workspace::cargo();
    suite.args([
        "run",
        "--quiet",
        "--release",
        "--package",
        "vipl-conformance",
        "--",
    ]);
    workspace::run(suite.args(&options.arguments))
}
