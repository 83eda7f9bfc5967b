//! `vipl-stress`: many processes under load, some of which are killed. `cargo xtask kill`,
//! `cargo xtask soak` and `cargo xtask ethernet` build the library and run it.
//!
//! ```text
//!   supervisor (this program) ── starts, orders, kills ──▶ parties (this program) ── VIPL ── parties
//!        │                   ◀── lines: up, lost, beat ──                │
//!        └── starts, kills ──▶ vipkad ◀──────────────────────────────────┘
//! ```
//!
//! The supervisor never calls VIPL. All come and go by a folder of their own, so that several runs, and
//! other programs of the user, do not meet. A party that finds anything wrong says so and ends; the
//! supervisor then ends the run with the reason and the seed.

mod dice;
mod ethernet;
mod kill;
mod link;
mod node;
mod party;
mod report;
mod soak;
mod stop;
mod supervisor;
mod talk;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use supervisor::Setting;
use talk::Spice;

#[derive(Parser)]
#[command(about = "Processes under load, some of which are killed")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Kill servers, clients and agents at random moments
    Kill {
        #[command(flatten)]
        common: Common,
        /// How many kills
        #[arg(long, default_value_t = 200)]
        times: usize,
        /// Kill no agents: a device that is a process, as that of clan, ends with its agent
        #[arg(long)]
        spare_agents: bool,
    },
    /// Transfer, disconnect, reconnect and kill for a while
    Soak {
        #[command(flatten)]
        common: Common,
        #[command(flatten)]
        time: Time,
    },
    /// Transfer, disconnect and reconnect between hosts in network namespaces, over bad cables
    Ethernet {
        #[command(flatten)]
        common: Common,
        #[command(flatten)]
        time: Time,
    },
    #[command(hide = true)]
    Party(party::Options),
}

#[derive(Args)]
struct Common {
    /// The library; libvipl.so beside this program if none is given
    #[arg(long)]
    library: Option<PathBuf>,
    /// The Kernel Agent; vipkad beside the library if none is given
    #[arg(long)]
    vipkad: Option<PathBuf>,
    /// The device that all processes open
    #[arg(long, default_value = "via_lo")]
    device: String,
    /// Decides all that is random here; another one each time if none is given
    #[arg(long)]
    seed: Option<u64>,
    /// The reliability levels to use: 1 unreliable, 2 delivery, 4 reception
    #[arg(long, value_delimiter = ',', default_value = "1,2,4")]
    levels: Vec<u16>,
}

#[derive(Args)]
struct Time {
    /// How long, in minutes
    #[arg(long, default_value_t = 0)]
    minutes: u64,
    /// How long, in seconds; 30 if neither is given
    #[arg(long, default_value_t = 0)]
    seconds: u64,
}

impl Time {
    fn get(&self) -> Duration {
        match self.minutes * 60 + self.seconds {
            0 => Duration::from_secs(30),
            seconds => Duration::from_secs(seconds),
        }
    }
}

/// What the soaks want of all parties.
const SOAK: Spice = Spice {
    rdma: true,
    parting: 500,
};

impl Common {
    fn setting(self, spice: Spice) -> Result<Setting, String> {
        let program = std::env::current_exe().map_err(|error| error.to_string())?;
        let library = self
            .library
            .unwrap_or_else(|| program.with_file_name("libvipl.so"));
        let library = library
            .canonicalize()
            .map_err(|error| format!("{}: {error}", library.display()))?;
        let seed = self
            .seed
            .unwrap_or_else(|| vipl_sys::clock::now_ns() % 1_000_000_007);
        println!("seed {seed}");
        Ok(Setting {
            vipkad: self
                .vipkad
                .unwrap_or_else(|| library.with_file_name("vipkad")),
            library,
            device: self.device,
            seed,
            spice,
            levels: self.levels,
            hosts: Vec::new(),
        })
    }
}

fn perform(command: Command) -> Result<(), String> {
    let line = match command {
        Command::Party(options) => return party::run(&options),
        Command::Kill {
            common,
            times,
            spare_agents,
        } => {
            let spice = Spice {
                rdma: true,
                parting: 0,
            };
            kill::run(common.setting(spice)?, times, spare_agents)
        }
        Command::Soak { common, time } => soak::run(common.setting(SOAK)?, time.get()),
        Command::Ethernet { common, time } => ethernet::run(common.setting(SOAK)?, time.get()),
    }?;
    println!("ok: {line}");
    Ok(())
}

fn main() -> ExitCode {
    let command = Arguments::parse().command;
    let party = matches!(command, Command::Party(_));
    match perform(command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if party => {
            report::fault(&error);
        }
        Err(error) => {
            println!("FAIL {error}");
            ExitCode::FAILURE
        }
    }
}
