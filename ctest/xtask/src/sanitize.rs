//! `cargo xtask sanitize address|thread`: library, agent, plug-ins, clan's device and C programs built for a sanitizer,
//! and the programs run.
//!
//! The sanitizer's runtime is the one that comes with the Rust toolchain; gcc only compiles for it. The
//! standard library is not instrumented (its source would have to be there): what that costs is in
//! docs/TESTING.md.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use clap::{Args, ValueEnum};

use crate::Result;
use crate::checker::{Ended, Running, host_triple, runtime};
use crate::workspace::{Workspace, cargo, have, root, run};

/// Programs and arguments for AddressSanitizer.
const ADDRESS: &[&str] = &[
    "tour",
    "tour -1",
    "nulls",
    "memory",
    "vi",
    "queue",
    "cq",
    "xfer",
    "errors",
    "rdma",
    "conn",
    "peer",
    "disc",
    "waits",
    "notify",
    "threads -1",
    "forked",
    "ns",
    "never_close",
    "exit_in_handler",
    "simple",
    "rdma -d sim:",
    "rdma -d clan:",
];
/// Programs and arguments for ThreadSanitizer.
const THREAD: &[&str] = &[
    "threads -1",
    "threads",
    "cq",
    "waits",
    "notify",
    "conn",
    "disc",
    "xfer",
    "rdma",
    "forked",
    "tour -1",
    "peer",
    "errors",
    "queue",
    "simple -1",
    "tour -d sim:",
    "rdma -d sim:",
    "threads -1 -d sim:",
    "tour -d clan:",
    "rdma -d clan:",
    "threads -1 -d clan:",
];
/// One program may take that long: a sanitizer costs up to twenty times, a busy machine as much again.
const PROGRAM_SECONDS_MAX: u64 = 300;
/// Programs that run at the same time.
const ABREAST: usize = 2;
/// Exit code of a program whose runtime has reported something.
const REPORTED: i32 = 66;

/// Which sanitizer.
#[derive(Clone, Copy, PartialEq, ValueEnum)]
pub(crate) enum Kind {
    /// Accesses outside of objects, and after their end
    Address,
    /// Data races
    Thread,
}

/// Arguments of `cargo xtask sanitize`.
#[derive(Args)]
pub(crate) struct Options {
    /// Which sanitizer
    kind: Kind,
    /// Only these programs
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// How often
    #[arg(long, default_value_t = 1)]
    times: u32,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Kind::Address => "address",
            Kind::Thread => "thread",
        }
    }

    fn runs(self) -> &'static [&'static str] {
        match self {
            Kind::Address => ADDRESS,
            Kind::Thread => THREAD,
        }
    }

    /// What to tell the runtime.
    fn environment(self) -> (&'static str, String) {
        match self {
            // Leaks are not looked for: what lives as long as the process is never freed, on purpose, and a
            // program that ends by a signal has freed nothing.
            Kind::Address => (
                "ASAN_OPTIONS",
                format!(
                    "exitcode={REPORTED}:detect_leaks=0:abort_on_error=0:handle_segv=1:allow_user_segv_handler=1"
                ),
            ),
            Kind::Thread => {
                let suppressions = root().join("ctest/sanitize/thread.supp");
                (
                    "TSAN_OPTIONS",
                    format!(
                        "exitcode={REPORTED}:die_after_fork=0:suppressions={}",
                        suppressions.display()
                    ),
                )
            }
        }
    }
}

/// Builds all and runs the programs; a report of the sanitizer or a failed program fails.
pub(crate) fn run_programs(options: &Options) -> Result {
    let kind = options.kind;
    let Some(runtime) = usable(kind)? else {
        return Ok(());
    };
    let folder = Workspace::load()?.target.join("sanitize").join(kind.name());
    fs::create_dir_all(&folder)?;
    library(kind, &folder)?;
    let chosen: Vec<&str> = kind
        .runs()
        .iter()
        .copied()
        .filter(|line| {
            let name = line.split(' ').next().unwrap_or_default();
            options.only.is_empty() || options.only.iter().any(|only| only == name)
        })
        .collect();
    let mut names: Vec<&str> = chosen
        .iter()
        .filter_map(|line| line.split(' ').next())
        .collect();
    names.dedup();
    names.sort_unstable();
    names.dedup();
    for name in names {
        let source = root().join("ctest/programs").join(format!("{name}.c"));
        compile(kind, &runtime, &folder, &source, name)?;
    }
    let mut bad = 0;
    for _ in 0..options.times {
        bad += run_all(kind, &folder, &chosen)?;
    }
    if bad > 0 {
        return Err(format!("{bad} runs failed").into());
    }
    println!(
        "sanitize {}: {} runs without a report",
        kind.name(),
        chosen.len() * options.times as usize
    );
    Ok(())
}

/// The runtime, if everything that is needed is here; says what is not.
fn usable(kind: Kind) -> Result<Option<PathBuf>> {
    let skip = |reason: &str| {
        println!("SKIP sanitize {}: {reason}", kind.name());
        Ok(None)
    };
    if !cfg!(all(target_arch = "x86_64", target_os = "linux")) {
        return skip("only on x86-64 Linux");
    }
    if !have("gcc") {
        return skip("there is no gcc");
    }
    let file = match kind {
        Kind::Address => "asan",
        Kind::Thread => "tsan",
    };
    let Some(runtime) = runtime(file)? else {
        return skip("this Rust toolchain has no runtime for it");
    };
    // The runtime wants its memory at fixed places, which some systems do not give it.
    let folder = Workspace::load()?.target.join("sanitize").join(kind.name());
    fs::create_dir_all(&folder)?;
    let source = folder.join("probe.c");
    fs::write(&source, "int main(void) { return 0; }\n")?;
    let object = object(kind, &folder, &source, "probe")?;
    let program = folder.join("probe");
    run(&mut link(&runtime, &object, &program))?;
    let ended =
        Running::start(Command::new(&program).env(kind.environment().0, kind.environment().1))?
            .end(Duration::from_secs(60))?;
    if !ended.is_good() {
        let line = ended.said.lines().next().unwrap_or_default();
        return skip(&format!("its runtime does not work here: {line}"));
    }
    Ok(Some(runtime))
}

/// Builds the library, plug-ins, clan's device and the agent for the sanitizer, and puts them together as if installed.
fn library(kind: Kind, folder: &Path) -> Result {
    let (triple, target) = (host_triple()?, Workspace::load()?.target);
    let mut flags = format!(
        "-Zsanitizer={} -Cunsafe-allow-abi-mismatch=sanitizer",
        kind.name()
    );
    if kind == Kind::Thread {
        // The library then tells it of the locks that the standard library takes.
        flags.push_str(" --cfg tsan");
    }
    run(cargo()
        .args(["build", "--locked", "--quiet", "--target", &triple])
        .args(["-p", "vipl", "-p", "vipl-loopback", "-p", "vipl-sim"])
        .args(["-p", "vipl-clan", "-p", "vipl-clan-device", "-p", "kagent"])
        .env("RUSTC_BOOTSTRAP", "1")
        .env("RUSTFLAGS", flags)
        .env_remove("CARGO_ENCODED_RUSTFLAGS"))?;
    let built = target.join(triple).join("debug");
    for (from, to) in [
        ("libvipl.so", "libvipl.so.1"),
        ("libvipl.so", "libvipl.so"),
        ("libvipl_loopback.so", "libvipl_loopback.so"),
        ("libvipl_sim.so", "libvipl_sim.so"),
        ("libvipl_clan.so", "libvipl_clan.so"),
        ("vipkad", "vipkad"),
        ("vipl-clan", "vipl-clan"),
    ] {
        let to = folder.join(to);
        // An agent of an earlier run may still be at work.
        if to.exists() {
            fs::remove_file(&to)?;
        }
        fs::copy(built.join(from), to)?;
    }
    Ok(())
}

/// Compiles one C file for the sanitizer.
fn object(kind: Kind, folder: &Path, source: &Path, name: &str) -> Result<PathBuf> {
    let object = folder.join(format!("{name}.o"));
    run(Command::new("gcc")
        .args([
            "-std=c99", "-Wall", "-Wextra", "-O1", "-g", "-pthread", "-c", "-I",
        ])
        .arg(root().join("headers"))
        .arg(format!("-fsanitize={}", kind.name()))
        .arg(source)
        .arg("-o")
        .arg(&object))?;
    Ok(object)
}

/// Links with the runtime, all of which the library will look for in the program.
fn link(runtime: &Path, object: &Path, program: &Path) -> Command {
    let mut command = Command::new("gcc");
    command
        .arg(object)
        .args(["-pthread", "-rdynamic", "-Wl,--whole-archive"])
        .arg(runtime)
        .arg("-Wl,--no-whole-archive")
        .arg("-o")
        .arg(program)
        .args(["-lm", "-lrt", "-ldl"]);
    command
}

fn compile(kind: Kind, runtime: &Path, folder: &Path, source: &Path, name: &str) -> Result {
    let object = object(kind, folder, source, name)?;
    let mut rpath = OsString::from("-Wl,-rpath,");
    rpath.push(folder);
    run(link(runtime, &object, &folder.join(name))
        .arg("-L")
        .arg(folder)
        .arg("-lvipl")
        .arg(rpath))
}

/// Runs the programs; gives how many did not end as they should.
fn run_all(kind: Kind, folder: &Path, chosen: &[&str]) -> Result<u32> {
    let mut bad = 0;
    let mut waiting = chosen.iter();
    let mut running: Vec<(&str, Running)> = Vec::new();
    loop {
        while running.len() < ABREAST
            && let Some(line) = waiting.next()
        {
            running.push((line, start(kind, folder, line)?));
        }
        if running.is_empty() {
            return Ok(bad);
        }
        let (line, program) = running.remove(0);
        let ended = program.end(Duration::from_secs(PROGRAM_SECONDS_MAX))?;
        let good = ended.is_good() && !ended.said.contains("Sanitizer");
        println!(
            "sanitize {}: {line}: {}, {:.1} s",
            kind.name(),
            if good { "ok" } else { "FAILED" },
            ended.time.as_secs_f64()
        );
        if !good {
            report(&ended);
            bad += 1;
        }
    }
}

fn start(kind: Kind, folder: &Path, line: &str) -> Result<Running> {
    let mut words = line.split(' ');
    let mut command = Command::new(folder.join(words.next().unwrap_or_default()));
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("VIPL_") {
            command.env_remove(name);
        }
    }
    let (name, value) = kind.environment();
    command
        .args(words)
        .env(name, value)
        .env("VIPL_STRICT", "1")
        .env("VIPL_CONFIG", "/dev/null");
    Running::start(&mut command)
}

fn report(ended: &Ended) {
    println!("  {}", ended.ending());
    for line in ended.said.lines().take(200) {
        println!("  {line}");
    }
}
