//! `cargo xtask loom`: the lock-free parts in every order of their threads (`ctest/loom`).

use clap::Args;

use crate::Result;
use crate::workspace::{Workspace, cargo, root, run};

/// Arguments of `cargo xtask loom`.
#[derive(Args)]
pub(crate) struct Options {
    /// Only this model
    model: Option<String>,
}

/// Builds the models and runs them.
pub(crate) fn run_models(options: &Options) -> Result {
    let mut command = cargo();
    command
        .args(["run", "--locked", "--manifest-path"])
        .arg(root().join("ctest/loom/Cargo.toml"))
        .arg("--target-dir")
        .arg(Workspace::load()?.target.join("loom"))
        .env("RUSTFLAGS", "--cfg loom")
        .env_remove("CARGO_ENCODED_RUSTFLAGS");
    if let Some(model) = &options.model {
        command.args(["--", model]);
    }
    run(&mut command)
}
