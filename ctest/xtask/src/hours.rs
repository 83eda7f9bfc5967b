//! `cargo xtask hours`: everything that may last is left alone for hours, and the conformance suite runs once where time
//! passes faster and counters are about to wrap (`vipl_sys::clock`, `vipl_sys::wrap`).
//!
//! How much faster is decided by what has to answer in time. On one host only programs wait for programs, with limits of
//! seconds that depend on no other process. A connection over a network bears nine seconds of silence while its process
//! looks, and the first retransmission follows after some milliseconds: with a factor of 20 a process that does not run for
//! 450 ms loses its connections, which six programs at a time on two processors do not reach. Programs that only idle get 40:
//! 225 ms.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use clap::Args;

use crate::Result;
use crate::workspace::{built, cargo, run as run_program};

/// Arguments of `cargo xtask hours`.
#[derive(Args)]
pub(crate) struct Options {
    /// Seconds that everything idles, each of them 40 of for the library
    #[arg(long, default_value_t = 95)]
    seconds: u64,
    /// Leave out the conformance suite
    #[arg(long)]
    idle_only: bool,
}

/// Factor of the programs that idle: an hour in a minute and a half.
const IDLE: u32 = 40;
/// Plug-ins of the suite, with their factors.
const SUITE: [(&str, u32); 2] = [("loopback,clan", 60), ("sim,tulip,gnic2,clan-net,ip", 20)];

/// Runs the command; the build is up to date.
pub(crate) fn run(options: &Options) -> Result {
    run_program(
        cargo()
            .args(["test", "--package", "vipl-netns", "--test", "hours"])
            .args(["--", "--exact", "--nocapture", "hours_pass"])
            .env("CTEST_NO_BUILD", "1")
            .env("CTEST_IDLE_SECONDS", options.seconds.to_string())
            .env("VIPL_TEST_TIME", IDLE.to_string())
            .env("VIPL_TEST_WRAP", "1"),
    )?;
    if options.idle_only {
        return Ok(());
    }
    for (providers, factor) in SUITE {
        suite(providers, factor)?;
    }
    Ok(())
}

/// Runs the suite. What passes when it is repeated is named, and not counted as unstable: the programs' own limits pass as
/// fast, with pauses of the machine in them.
fn suite(providers: &str, factor: u32) -> Result {
    let mut child = Command::new(built()?.join("vipl-conformance"))
        .args(["--provider", providers])
        .env("CTEST_NO_BUILD", "1")
        .env("VIPL_TEST_TIME", factor.to_string())
        .env("VIPL_TEST_WRAP", "1")
        .stdout(Stdio::piped())
        .spawn()?;
    let output = child.stdout.take().ok_or("no pipe")?;
    for line in BufReader::new(output).lines() {
        println!("{}", line?.replace("unstable: ", "at the second try: "));
    }
    let status = child.wait()?;
    status
        .success()
        .then_some(())
        .ok_or_else(|| format!("the suite with factor {factor}: {status}").into())
}
