//! `cargo xtask ci`: everything that finds a mistake of today's change, fast steps first.
//!
//! All steps share the build of the step `build`. What takes longer, and the release build, is `cargo xtask deep`.

use clap::Args;

use crate::Result;
use crate::steps::{Plan, Step, cargo_step, step};

/// Arguments of `cargo xtask ci`.
#[derive(Args)]
pub(crate) struct Options {
    /// Run only these steps
    #[arg(long, value_name = "STEP", value_delimiter = ',')]
    only: Vec<String>,
    /// Print the steps and their commands
    #[arg(long)]
    list: bool,
    /// Leave the count of the last run as it is
    #[arg(long, hide = true)]
    uncounted: bool,
}

const STEPS: &[Step] = &[
    cargo_step("fmt", &["fmt", "--all", "--check"]),
    cargo_step("clippy", CLIPPY),
    step("references", &["references"]),
    step("modules", &["modules", "--check"]),
    step("headers", &["headers", "--check"]),
    cargo_step(
        "deny",
        &["deny", "--offline", "check", "licenses", "bans", "sources"],
    ),
    cargo_step("xtask", &["test", "--bin", "xtask", "--", "--show-output"]),
    step("docs", &["docs"]),
    cargo_step("build", &["build", "--workspace"]),
    step("test", TESTS).needs("build"),
    // Jobs of several ranks that poll, on machines with two processors: nothing runs beside them.
    step(
        "mpi",
        &["tests", "--no-build", "--only", "mpi", "--jobs", "1"],
    )
    .needs("build"),
    step("conformance", CONFORMANCE).needs("build"),
    step("verbs", VERBS).needs("build"),
    step("man", &["man", "--check", "--no-build"]).needs("build"),
    step("install", &["smoke", "--dev"]).needs("build"),
    step("abi", &["abi", "--check", "--dev"]).needs("build"),
];
/// All that no other step runs.
const TESTS: &[&str] = &[
    "tests",
    "--no-build",
    "--without",
    "ctest/xtask",
    "--without",
    "mpi",
];
const CLIPPY: &[&str] = &[
    "clippy",
    "--workspace",
    "--all-targets",
    "--",
    "-D",
    "warnings",
];
const CONFORMANCE: &[&str] = &[
    "conformance",
    "--no-build",
    "--check",
    "--provider",
    "loopback,example-c,sim",
];

/// In a guest with an RDMA device.
const VERBS: &[&str] = &[
    "conformance",
    "--no-build",
    "--provider",
    "verbs",
    "--jobs",
    "2",
    "--filter",
    "simple_strict_two,errors_strict_one,memory_strict_two,notify_strict_two,rdma_strict_one_RR",
];

/// Runs the command; true if all is well.
pub(crate) fn run(options: &Options) -> Result<bool> {
    let plan = Plan {
        name: (!options.uncounted).then_some("ci"),
        steps: STEPS,
        time: None,
    };
    plan.run(&options.only, options.list)
}
