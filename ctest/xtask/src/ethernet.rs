//! `cargo xtask ethernet`: three hosts with two processes each, all to all, over bad cables.
//!
//! The hosts are network namespaces, so it takes root. The program is `vipl-stress`, as for the other soaks.

use clap::{Args, ValueEnum};

use crate::Result;
use crate::stress::stress;

/// Arguments of `cargo xtask ethernet`.
#[derive(Args)]
pub(crate) struct Options {
    /// How long, in minutes
    #[arg(long, default_value_t = 0)]
    minutes: u32,
    /// How long, in seconds; 30 if neither is given
    #[arg(long, default_value_t = 0)]
    seconds: u32,
    /// The card that all hosts have
    #[arg(long, value_enum, default_value_t = Card::Gnic2)]
    device: Card,
    /// Decides all that is random; another one each time if none is given
    #[arg(long)]
    seed: Option<u64>,
    /// The build is up to date
    #[arg(long)]
    no_build: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum Card {
    Tulip,
    Gnic2,
    Clan,
    Ip,
}

/// Runs the command.
pub(crate) fn run(options: &Options) -> Result {
    let (minutes, seconds) = (options.minutes.to_string(), options.seconds.to_string());
    let device = match options.device {
        Card::Tulip => "tulip:eth0",
        Card::Gnic2 => "gnic2:eth0",
        Card::Clan => "clan:eth0",
        Card::Ip => "ip:eth0",
    };
    let arguments = ["ethernet", "--minutes", &minutes, "--seconds", &seconds];
    // On Unreliable a lost message is no error, and would be missed for ever.
    let more = ["--device", device, "--levels", "2,4"];
    stress(
        &[&arguments[..], &more].concat(),
        options.seed,
        options.no_build,
    )
}
