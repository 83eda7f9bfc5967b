//! `cargo xtask cross`: builds for another processor, or runs another command of cargo for it.
//!
//! The standard library for it comes from whatever is here first: the toolchain in use, Debian's rustc (packages
//! `rustc-web` and `libstd-rust-web-dev:ARCH`), or the source of one of the two (`rust-src`, Debian's `rust-web-src`),
//! of which it is then built. The command says which.

use std::path::{Path, PathBuf};
use std::process::Command;

use clap::Args;

use crate::Result;
use crate::workspace::{cargo, have, output, run as run_program};

/// Where Debian's compiler is; rustup's stands before it in the path.
const SYSTEM_RUSTC: &str = "/usr/bin/rustc";

/// A processor that the project is built for by a compiler of another one.
struct Target {
    name: &'static str,
    /// Compiles C, and links.
    compiler: &'static str,
    /// Runs its programs, where this machine does not.
    runner: &'static [&'static str],
}

const TARGETS: [Target; 2] = [
    Target {
        name: "i686-unknown-linux-gnu",
        compiler: "i686-linux-gnu-gcc",
        runner: &[],
    },
    Target {
        name: "aarch64-unknown-linux-gnu",
        compiler: "aarch64-linux-gnu-gcc",
        runner: &["qemu-aarch64-static", "-L", "/usr/aarch64-linux-gnu"],
    },
];

/// Arguments of `cargo xtask cross`.
#[derive(Args)]
pub(crate) struct Options {
    /// Which one, as rustc names it
    #[arg(long, value_name = "TRIPLE", default_value = "i686-unknown-linux-gnu")]
    target: String,
    /// Do nothing where the compilers for it are missing
    #[arg(long)]
    or_skip: bool,
    /// The command of cargo [default: build --workspace --exclude xtask]
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<String>,
}

/// A compiler, and whether it has the standard library built or in source.
struct Toolchain {
    rustc: PathBuf,
    is_built: bool,
}

/// Runs the command.
pub(crate) fn run(options: &Options) -> Result {
    let build = ["build", "--workspace", "--exclude", "xtask"].map(str::to_owned);
    let arguments = match options.arguments.as_slice() {
        [] => build.as_slice(),
        arguments => arguments,
    };
    match command(&options.target, arguments) {
        Err(why) if options.or_skip => {
            println!("SKIP {why}");
            Ok(())
        }
        command => run_program(&mut command?),
    }
}

/// The command of cargo with all that the target needs.
pub(crate) fn command(target: &str, arguments: &[String]) -> Result<Command> {
    let names = TARGETS.map(|target| target.name).join(", ");
    let target = TARGETS.iter().find(|known| known.name == target);
    let target = target.ok_or_else(|| format!("--target: one of {names}"))?;
    if !have(target.compiler) {
        return Err(format!("{} is not installed", target.compiler).into());
    }
    let toolchain = toolchain(target)?;
    let (rustc, name) = (toolchain.rustc.display(), target.name);
    let origin = match toolchain.is_built {
        true => "that comes with it",
        false => "built of its source",
    };
    println!("cross: {name} by {rustc}, with the standard library {origin}");
    let mut command = cargo();
    if !toolchain.is_built {
        command.arg("-Zbuild-std=std,panic_unwind,test");
        // Lets a stable cargo build it.
        command.env("RUSTC_BOOTSTRAP", "1");
    }
    command.args(arguments.first());
    command.args(["--target", name]);
    command.args(arguments.get(1..).unwrap_or_default());
    let (lower, upper) = (
        name.replace('-', "_"),
        name.replace('-', "_").to_uppercase(),
    );
    command
        .env("RUSTC", &toolchain.rustc)
        .env(format!("CC_{lower}"), target.compiler)
        .env(format!("CARGO_TARGET_{upper}_LINKER"), target.compiler);
    if !target.runner.is_empty() {
        command.env(
            format!("CARGO_TARGET_{upper}_RUNNER"),
            target.runner.join(" "),
        );
    }
    Ok(command)
}

/// The compiler to use: one that has the library before one that has only its source.
fn toolchain(target: &Target) -> Result<Toolchain> {
    let own = std::env::var_os("RUSTC").map_or_else(|| PathBuf::from("rustc"), PathBuf::from);
    let mut in_source = None;
    let mut too_old = None;
    for rustc in [own, PathBuf::from(SYSTEM_RUSTC)] {
        let ask = |what: &[&str]| output(Command::new(&rustc).args(what)).ok();
        let version = ask(&["--version"]).unwrap_or_default();
        if !is_new_enough(&version) {
            too_old = (!version.is_empty()).then(|| version.trim().to_owned());
            continue;
        }
        let libraries = ask(&["--print", "target-libdir", "--target", target.name]);
        if libraries.is_some_and(|folder| has_std(Path::new(folder.trim()))) {
            let is_built = true;
            return Ok(Toolchain { rustc, is_built });
        }
        let source = |sysroot: String| {
            Path::new(sysroot.trim()).join("lib/rustlib/src/rust/library/std/Cargo.toml")
        };
        if ask(&["--print", "sysroot"]).is_some_and(|sysroot| source(sysroot).exists()) {
            let is_built = false;
            in_source.get_or_insert(Toolchain { rustc, is_built });
        }
    }
    in_source.ok_or_else(|| {
        let name = target.name;
        let also = too_old.map_or(String::new(), |version| {
            format!("; {SYSTEM_RUSTC} is too old, {version}")
        });
        format!(
            "no standard library for {name}: `rustup target add {name}`, or Debian's packages rustc-web and rust-web-src{also}"
        )
        .into()
    })
}

/// Whether a compiler that says so of itself builds this workspace.
fn is_new_enough(version: &str) -> bool {
    let numbers = |text: &str| -> Option<(u32, u32)> {
        let mut parts = text.split('.');
        Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
    };
    let found = version.split(' ').nth(1).and_then(numbers);
    found.is_some() && found >= numbers(env!("CARGO_PKG_RUST_VERSION"))
}

fn has_std(folder: &Path) -> bool {
    let files = folder.read_dir().into_iter().flatten().flatten();
    files
        .map(|file| file.file_name())
        .any(|name| name.to_string_lossy().starts_with("libstd-"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_compilers_are_passed_over() {
        assert!(is_new_enough("rustc 1.96.0 (ac68faa20 2026-05-25)"));
        assert!(is_new_enough(concat!(
            "rustc ",
            env!("CARGO_PKG_RUST_VERSION"),
            ".0"
        )));
        assert!(!is_new_enough("rustc 1.85.0 (4d91de4e4 2025-02-17)"));
        assert!(!is_new_enough("") && !is_new_enough("rustc new"));
    }
}
