//! `cargo xtask deep`: what takes longer than a person waits for, within a given time.
//!
//! First the devices that `cargo xtask ci` leaves out, then the checkers; fuzzing and the soak take what is
//! left. A step for which no time is left is skipped, and one that is cut off then, too: the report says so.

use std::time::Duration;

use clap::Args;

use crate::Result;
use crate::steps::{Plan, SECONDS, Step, cargo_step, step};

/// Arguments of `cargo xtask deep`.
#[derive(Args)]
pub(crate) struct Options {
    /// Time for all steps together, in minutes
    #[arg(long, default_value_t = 15)]
    minutes: u64,
    /// Run only these steps
    #[arg(long, value_name = "STEP", value_delimiter = ',')]
    only: Vec<String>,
    /// Print the steps and their commands
    #[arg(long)]
    list: bool,
}

const STEPS: &[Step] = &[
    cargo_step("build", &["build", "--workspace", "--exclude", "xtask"]),
    step("devices", DEVICES).needs("build"),
    step("tests", DEEP_TESTS).needs("build"),
    step("book", &["book", "--or-skip"]),
    step("address", &["sanitize", "address"]),
    step("thread", &["sanitize", "thread"]),
    step("loom", &["loom"]),
    step("valgrind", &["valgrind", "--no-build"]).needs("build"),
    step(
        "kill",
        &["kill", "--no-build", "--times", "30", "--seed", "1"],
    )
    .needs("build"),
    step("kill-ip", KILL_IP).needs("build"),
    step("i386", &["cross", "--or-skip"]),
    step("i386-unit", I386_UNIT).needs("i386"),
    step("i386-pairs", I386_PAIRS).needs("i386"),
    step("hours", &["hours"]).needs("build"),
    step("package", &["package"]),
    step("demo", &["demo"]),
    step("deb", &["deb", "--lintian", "--trial"]),
    step("rpm", &["rpm", "--no-build", "--trial"]).needs("deb"),
    step("release", &["smoke"]).needs("build"),
    step("release-abi", &["abi", "--check"]).needs("release"),
    step("miri", &["miri"]),
    step("suites", &["suites", "--within", "150"]).needs("build"),
    step("aarch64", AARCH64),
    cargo_step(
        "msrv",
        &["+1.89.0", "check", "--workspace", "--all-targets"],
    ),
    step("advisories", &["advisories"]),
    step("bare", &["bare"]),
    step("two", TWO).needs("build").share(25, 120),
    step("verbs", VERBS).needs("build").share(30, 120),
    step("fuzz", &["fuzz", "--within", SECONDS]).share(50, 60),
    step(
        "soak",
        &["soak", "--no-build", "--seed", "1", "--seconds", SECONDS],
    )
    .needs("build")
    .share(30, 10),
    // What is left is for it; it is cut off where that is not enough for all devices.
    cargo_step("life", LIFE).needs("build"),
];
/// These compute more than they wait.
const DEEP_TESTS: &[&str] = &["tests", "--no-build", "--deep", "--jobs", "4"];
/// Ends of threads and processes in every state, on every device.
const LIFE: &[&str] = &[
    "run",
    "--quiet",
    "--package",
    "vipl-netns",
    "--example",
    "life",
];
/// The next agent does not know the data sockets of the one before, so none is killed.
const KILL_IP: &[&str] = &[
    "kill",
    "--no-build",
    "--times",
    "8",
    "--seed",
    "1",
    "--device",
    "ip:127.0.0.1",
    "--spare-agents",
];
const DEVICES: &[&str] = &[
    "conformance",
    "--no-build",
    "--check",
    "--provider",
    "tulip,gnic2,clan,clan-net,ip,example-rs",
];
/// Between two guests with RDMA devices.
const TWO: &[&str] = &["guest", "--no-build", "--two", "--within", SECONDS];
/// In a guest with an RDMA device: all that there is time for.
const VERBS: &[&str] = &[
    "conformance",
    "--no-build",
    "--within",
    SECONDS,
    "--provider",
    "verbs",
    "--jobs",
    "3",
    "--check",
];
/// What is different in a build of 32 bits: assembly, shared memory, system calls.
const I386_UNIT: &[&str] = &[
    "cross",
    "--or-skip",
    "test",
    "--tests",
    "-p",
    "vipl-guard",
    "-p",
    "vipl-sys",
    "-p",
    "vipl-loopback",
    "-p",
    "vipl-wire",
];
/// Programs of 32 bits with each other and with those of 64, on every device; all of the suite is `--class 32` without a
/// filter.
const I386_PAIRS: &[&str] = &[
    "conformance",
    "--no-build",
    "--class",
    "32,64-32,32-64",
    "--provider",
    "loopback,clan,sim,tulip,gnic2,ip",
    "--filter",
    "rdma_strict_two,rdma_strict_apart,tour_default,xfer_strict_two_RD",
];
/// What runs without the calls that qemu's emulation of Linux lacks.
const AARCH64: &[&str] = &[
    "cross",
    "--target",
    "aarch64-unknown-linux-gnu",
    "--or-skip",
    "test",
    "--tests",
    "-p",
    "vipl-guard",
    "-p",
    "vipl-rules",
    "-p",
    "vipl-wire",
];

/// Runs the command; true if all is well.
pub(crate) fn run(options: &Options) -> Result<bool> {
    let plan = Plan {
        name: Some("deep"),
        steps: STEPS,
        time: Some(Duration::from_secs(60 * options.minutes)),
    };
    plan.run(&options.only, options.list)
}
