//! `cargo xtask demo`: the main job in one command. A C program, compiled against the committed header
//! and linked with the library, moves data between two processes.

use std::process::Command;

use clap::Args;

use crate::Result;
use crate::workspace::{self, Workspace};

/// The device that needs nothing but the machine.
const LOOPBACK: &str = "/dev/via_lo";

#[derive(Args)]
pub(crate) struct Options {
    /// Device to open, such as /dev/clanvi0 or sim:
    #[arg(long, default_value = LOOPBACK)]
    device: String,
}

pub(crate) fn run(options: &Options) -> Result {
    let built = Workspace::load()?.target.join("release");
    step("building the library, its plug-ins, the agent and the tools");
    let mut build = workspace::cargo();
    build.args(["build", "--release"]);
    if options.device == LOOPBACK {
        for package in ["vipl", "vipl-loopback", "kagent", "vipl-tools"] {
            build.args(["--package", package]);
        }
    } else {
        for package in Workspace::load()?.products() {
            build.args(["--package", &package]);
        }
    }
    workspace::run(&mut build)?;
    link_soname(&built)?;

    let program = built.join("tour");
    let source = workspace::root().join("ctest/programs/tour.c");
    step("compiling ctest/programs/tour.c against headers/vipl.h");
    let mut compile = Command::new(std::env::var_os("CC").unwrap_or_else(|| "cc".into()));
    compile
        .args(["-std=c99", "-O2", "-I"])
        .arg(workspace::root().join("headers"))
        .arg(source)
        .arg("-o")
        .arg(&program)
        .arg("-L")
        .arg(&built)
        .args(["-lvipl", "-lpthread"])
        .arg(format!("-Wl,-rpath,{}", built.display()));
    workspace::run(&mut compile)?;

    step(&format!(
        "running it: two processes over {}",
        options.device
    ));
    workspace::run(Command::new(&program).env("VIPL_DEVICE", &options.device))?;
    step("and how fast: vip_pingpong --self");
    workspace::run(Command::new(built.join("vip_pingpong")).args([
        "--self",
        "-d",
        &options.device,
        "-s",
        "8,4k,32k",
    ]))
}

fn step(text: &str) {
    println!("== {text}");
}

/// Programs ask for the library by its soname, which cargo does not make.
fn link_soname(built: &std::path::Path) -> Result {
    let link = built.join("libvipl.so.1");
    match std::os::unix::fs::symlink("libvipl.so", &link) {
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => Err(error.into()),
        _ => Ok(()),
    }
}
