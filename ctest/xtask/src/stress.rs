//! `cargo xtask kill`, `cargo xtask soak` and `cargo xtask ethernet`: many processes under load.
//!
//! All build the library with the profile of the tests and run `vipl-stress` (ctest/stress) with it.

use std::process::Command;

use clap::Args;

use crate::Result;
use crate::workspace::{build, built, run};

/// Arguments of `cargo xtask kill`.
#[derive(Args)]
pub(crate) struct Kill {
    /// How many processes to kill
    #[arg(long, default_value_t = 200)]
    times: u32,
    /// Kill no agents: a device that is a process, as that of clan, ends with its agent
    #[arg(long)]
    spare_agents: bool,
    #[command(flatten)]
    common: Common,
}

/// Arguments of `cargo xtask soak`.
#[derive(Args)]
pub(crate) struct Soak {
    /// How long, in minutes
    #[arg(long, default_value_t = 0)]
    minutes: u32,
    /// How long, in seconds; 30 if neither is given
    #[arg(long, default_value_t = 0)]
    seconds: u32,
    #[command(flatten)]
    common: Common,
}

#[derive(Args)]
struct Common {
    /// The device that all processes open
    #[arg(long, default_value = "via_lo")]
    device: String,
    /// The reliability levels to use: 1 unreliable, 2 delivery, 4 reception
    #[arg(long, default_value = "1,2,4")]
    levels: String,
    /// Decides all that is random; another one each time if none is given
    #[arg(long)]
    seed: Option<u64>,
    /// The build is up to date
    #[arg(long)]
    no_build: bool,
}

/// Runs `cargo xtask kill`.
pub(crate) fn kill(options: &Kill) -> Result {
    let times = options.times.to_string();
    let mut arguments = vec!["kill", "--times", &times];
    if options.spare_agents {
        arguments.push("--spare-agents");
    }
    perform(&arguments, &options.common)
}

/// Runs `cargo xtask soak`.
pub(crate) fn soak(options: &Soak) -> Result {
    let (minutes, seconds) = (options.minutes.to_string(), options.seconds.to_string());
    let arguments = ["soak", "--minutes", &minutes, "--seconds", &seconds];
    perform(&arguments, &options.common)
}

fn perform(arguments: &[&str], common: &Common) -> Result {
    let more = ["--device", &common.device, "--levels", &common.levels];
    stress(&[arguments, &more].concat(), common.seed, common.no_build)
}

/// Runs `vipl-stress`, and builds it first unless told otherwise.
pub(crate) fn stress(arguments: &[&str], seed: Option<u64>, no_build: bool) -> Result {
    if !no_build {
        build()?;
    }
    // The library, the plug-ins and the agent are beside it.
    let program = built()?.join("vipl-stress");
    let mut command = Command::new(program);
    command.args(arguments);
    if let Some(seed) = seed {
        command.args(["--seed", &seed.to_string()]);
    }
    run(&mut command)
}
