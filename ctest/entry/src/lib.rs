//! `cargo xtask demo`: the main job in one command. C programs, compiled against the committed header and linked with the
//! library, move data between two processes.
//!
//! It builds the library, one plug-in and the agent, and nothing else.

#![forbid(unsafe_code)]

use std::ffi::OsString;
use std::io::ErrorKind;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The message is for a person.
pub type Result<T = ()> = std::result::Result<T, Box<dyn std::error::Error>>;

/// The device that needs nothing but the machine.
const LOOPBACK: &str = "/dev/via_lo";
/// What it needs.
const FOR_LOOPBACK: [&str; 3] = ["vipl", "vipl-loopback", "kagent"];
/// The profile of `Cargo.toml` with which it builds, and the folder of what is built.
const PROFILE: &str = "demo";
/// Commands to type next.
const NEXT: &str = "\
next:
  cargo xtask install --prefix $HOME/vipl       everything, optimised, in one place
  $HOME/vipl/bin/vip_pingpong HOST -d ip:       between two hosts: without HOST on the other one first
  less docs/learn/README.md                     the course: VIA for those who know C and sockets
";
const HELP: &str = "\
Builds the library and lets C programs move data between two processes

Usage: cargo xtask demo [--device DEVICE]

Options:
      --device DEVICE  Device to open, such as /dev/clanvi0 or sim: [default: /dev/via_lo]
  -h, --help           Print help
";

/// The top of the repository.
fn root() -> PathBuf {
    let here = std::env::var_os("CARGO_MANIFEST_DIR")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
    here.ancestors()
        .nth(2)
        .map_or_else(|| here.clone(), Path::to_path_buf)
}

/// The cargo that runs us, at the top of the repository.
#[must_use]
pub fn cargo() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root());
    command
}

/// Runs the demonstration, or prints its help.
///
/// # Errors
/// The arguments are wrong, or a program failed.
pub fn demo(arguments: &[OsString]) -> Result {
    match asked(arguments).ok_or("demo takes --device DEVICE; see --help")? {
        Asked::Device(device) => on(device),
        Asked::Help => {
            print!("{HELP}");
            Ok(())
        }
    }
}

/// What the command line asks for.
#[derive(Debug, PartialEq)]
enum Asked<'a> {
    Device(&'a str),
    Help,
}

fn asked(arguments: &[OsString]) -> Option<Asked<'_>> {
    let words: Option<Vec<&str>> = arguments.iter().map(|word| word.to_str()).collect();
    match words?[..] {
        [] => Some(Asked::Device(LOOPBACK)),
        ["--device", device] => Some(Asked::Device(device)),
        ["-h" | "--help"] => Some(Asked::Help),
        [word] => word.strip_prefix("--device=").map(Asked::Device),
        _ => None,
    }
}

/// Builds, and runs the programs on a device.
fn on(device: &str) -> Result {
    step("building the library, a plug-in and the agent");
    let mut build = cargo();
    build.args(["build", "--profile", PROFILE]);
    if device == LOOPBACK {
        for package in FOR_LOOPBACK {
            build.args(["--package", package]);
        }
    } else {
        // Which plug-in serves it is known when all are there.
        build.args(["--workspace", "--exclude", "xtask"]);
    }
    run(&mut build)?;
    let built = built()?;
    link_soname(&built)?;
    step(&format!("a tour: two processes over {device}"));
    let tour = compile(&built, "ctest/programs/tour.c")?;
    run(Command::new(tour).env("VIPL_DEVICE", device))?;
    step("and how fast, hardly optimised: an installation is faster");
    let pingpong = compile(&built, "examples/pingpong.c")?;
    run(Command::new(pingpong).arg(device))?;
    print!("\n{NEXT}");
    Ok(())
}

/// The folder of what was built, beside that of this program.
fn built() -> Result<PathBuf> {
    let program = std::env::current_exe()?;
    let folder = program.ancestors().nth(2).ok_or("not run by cargo")?;
    Ok(folder.join(PROFILE))
}

/// Compiles a program of one file as a user would.
fn compile(built: &Path, source: &str) -> Result<PathBuf> {
    let source = root().join(source);
    let program = built.join(source.file_stem().ok_or("a source without a name")?);
    println!("{}", source.display());
    let mut compile = Command::new(std::env::var_os("CC").unwrap_or_else(|| "cc".into()));
    compile.args(["-std=c99", "-O2", "-I"]);
    compile.arg(root().join("headers")).arg(source);
    compile.arg("-o").arg(&program).arg("-L").arg(built);
    compile.args(["-lvipl", "-lpthread"]);
    compile.arg(format!("-Wl,-rpath,{}", built.display()));
    run(&mut compile)?;
    Ok(program)
}

/// Programs ask for the library by its soname, which cargo does not make.
fn link_soname(built: &Path) -> Result {
    match symlink("libvipl.so", built.join("libvipl.so.1")) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => Err(error.into()),
        _ => Ok(()),
    }
}

fn run(command: &mut Command) -> Result {
    let status = command
        .status()
        .map_err(|error| format!("{}: {error}", command.get_program().display()))?;
    if status.success() {
        return Ok(());
    }
    Err(format!("{}: {status}", command.get_program().display()).into())
}

fn step(text: &str) {
    println!("== {text}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_names_a_device_or_asks_for_help() {
        let read = |line: &str| {
            let words: Vec<OsString> = line.split_whitespace().map(OsString::from).collect();
            asked(&words).map(|asked| match asked {
                Asked::Device(device) => device.to_owned(),
                Asked::Help => "help".to_owned(),
            })
        };
        assert_eq!(read("").as_deref(), Some(LOOPBACK));
        assert_eq!(read("--device sim:").as_deref(), Some("sim:"));
        assert_eq!(read("--device=sim:").as_deref(), Some("sim:"));
        assert_eq!(read("-h").as_deref(), Some("help"));
        assert_eq!(read("--device"), None);
        assert_eq!(read("--speed"), None);
        assert_eq!(read("--device sim: more"), None);
    }

    #[test]
    fn what_it_compiles_and_names_is_there() {
        for file in [
            "ctest/programs/tour.c",
            "examples/pingpong.c",
            "headers/vipl.h",
        ] {
            assert!(root().join(file).is_file(), "{file}");
        }
        let manifest = std::fs::read_to_string(root().join("Cargo.toml")).unwrap();
        assert!(manifest.contains(&format!("[profile.{PROFILE}]")));
    }
}
