//! `cargo xtask deep`: what takes longer than a person waits for, within a given time.
//!
//! First the devices that `cargo xtask ci` leaves out, then the checkers, beginning with another one every day; fuzzing and the
//! soak take what is left. A step for which no time is left is skipped, and one that is cut off then, too: the report says so.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

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
    /// The order of this turn, instead of that of the day
    #[arg(long, value_name = "N")]
    turn: Option<u64>,
    /// Print the steps and their commands
    #[arg(long)]
    list: bool,
}

/// Always, and before all others.
const FIRST: &[Step] = &[
    cargo_step("build", &["build", "--workspace"]),
    step("devices", DEVICES).needs("build"),
];
/// Together they take most of an hour, so they come by turns: a run begins with another of these groups every day, and goes on
/// behind the last one with the first. What needs another step stands in its group. Long ones have short ones behind them.
const TURNS: &[&[Step]] = &[
    &[
        step("tests", DEEP_TESTS).needs("build"),
        step("layers", LAYERS).needs("build"),
    ],
    &[step("book", &["book", "--or-skip"])],
    &[
        step("loom", &["loom"]),
        step("valgrind", &["valgrind", "--no-build"]).needs("build"),
    ],
    &[
        step("kill", KILL).needs("build"),
        step("kill-ip", KILL_IP).needs("build"),
    ],
    &[step("address", &["sanitize", "address"])],
    &[
        step("deb", &["deb", "--lintian", "--trial"]),
        step("rpm", &["rpm", "--no-build", "--trial"]).needs("deb"),
    ],
    &[
        cargo_step(
            "msrv",
            &["+1.89.0", "check", "--workspace", "--all-targets"],
        ),
        step("advisories", &["advisories"]),
    ],
    &[step("package", &["package"]), step("demo", &["demo"])],
    &[step("miri", &["miri"])],
    &[step("thread", &["sanitize", "thread"])],
    &[
        step("i386", &["cross", "--or-skip"]),
        step("i386-unit", I386_UNIT).needs("i386"),
        step("i386-pairs", I386_PAIRS).needs("i386"),
        cargo_step("i386-stat", I386_STAT).needs("i386"),
    ],
    &[step("suites", &["suites", "--within", "150"]).needs("build")],
    &[step("bare", &["bare"])],
    &[step("hours", &["hours"]).needs("build")],
    &[
        step("release", &["smoke"]).needs("build"),
        step("release-abi", &["abi", "--check"]).needs("release"),
    ],
    &[step("aarch64", AARCH64)],
];
/// How many groups further a run begins than the one of the day before: about as many as a run has time for. It has no divisor
/// in common with their number, so that each of them comes first in turn.
const STRIDE: u64 = 5;
/// Percent of the time after which none of them is begun; the rest is for those below.
const TURNS_END: u32 = 70;
/// In every run, and as long as there is time.
const LAST: &[Step] = &[
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
const KILL: &[&str] = &["kill", "--no-build", "--times", "30", "--seed", "1"];
/// These compute more than they wait.
const DEEP_TESTS: &[&str] = &["tests", "--no-build", "--deep", "--jobs", "4"];
/// The suite as ever, with every layer between it and the library.
const LAYERS: &[&str] = &[
    "conformance",
    "--no-build",
    "--provider",
    "loopback",
    "--layers",
    "trace,validate,record,fault",
];
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
/// A program of 32 bits beside `vipstat` of 64.
const I386_STAT: &[&str] = &[
    "test",
    "--package",
    "vipl-stat",
    "--test",
    "watched",
    "i386::",
    "--",
    "--ignored",
    "--show-output",
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
    let turn = options.turn.unwrap_or_else(day);
    let begins = first_of(turn);
    if options.only.is_empty() {
        let name = TURNS[begins].first().map_or("", |step| step.name);
        println!(
            "turn {turn}: behind the first steps comes {name}; --turn {turn} repeats this order"
        );
    }
    let plan = Plan {
        name: Some("deep"),
        steps: &in_turn(begins),
        time: Some(Duration::from_secs(60 * options.minutes)),
    };
    plan.run(&options.only, options.list)
}

/// The number of today.
fn day() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs() / 86_400)
}

/// The group with which a turn begins.
fn first_of(turn: u64) -> usize {
    let groups = TURNS.len() as u64;
    (turn % groups * STRIDE % groups) as usize
}

/// All steps, in the order of a turn.
fn in_turn(begins: usize) -> Vec<Step> {
    let (before, behind) = TURNS.split_at(begins);
    let turns = behind.iter().chain(before).copied().flatten();
    let turns = turns.map(|step| step.until(TURNS_END));
    let first = FIRST.iter().copied();
    first.chain(turns).chain(LAST.iter().copied()).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn each_group_comes_first_in_turn() {
        let groups = TURNS.len() as u64;
        for from in [0, day()] {
            let first: BTreeSet<usize> = (from..from + groups).map(first_of).collect();
            assert_eq!(first.len(), TURNS.len());
        }
    }

    #[test]
    fn every_turn_has_all_steps_and_each_behind_what_it_needs() {
        let all = FIRST.len() + TURNS.concat().len() + LAST.len();
        for (begins, group) in TURNS.iter().enumerate() {
            let steps = in_turn(begins);
            assert_eq!(steps[FIRST.len()].name, group[0].name);
            let mut done = BTreeSet::new();
            for step in &steps {
                assert!(
                    step.needed().is_none_or(|name| done.contains(name)),
                    "{}",
                    step.name
                );
                assert!(done.insert(step.name), "{} twice", step.name);
            }
            assert_eq!(steps.len(), all);
        }
    }
}
