//! `cargo xtask valgrind`: C programs under memcheck, with the library as the tests use it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use clap::Args;

use crate::Result;
use crate::checker::Running;
use crate::workspace::{Workspace, build, built, have, root, run};

/// Programs and arguments.
const RUNS: &[&str] = &["cq", "vi", "ns", "rdma -1", "conn", "peer", "simple -1"];
/// Programs that take memory away while it is posted: the guarded copies fault on purpose.
/// They run with the suppressions that users get, which is the test of those.
const SUPPRESSED: &[&str] = &["errors", "memory"];
/// The suppressions.
const SUPPRESSIONS: &str = "packaging/vipl.supp";
/// What is left out, and why.
const LEFT_OUT: &[(&str, &str)] = &[
    (
        "queue",
        "it asks the system itself whether a descriptor can be read; AddressSanitizer runs it",
    ),
    (
        "registration",
        "it registers as many bytes as the machine has, and memcheck looks at each; it also asks on purpose for ranges that are not mapped",
    ),
    ("nulls, tour", "part of the step test"),
];
/// One program may take that long, on a machine that is busy with other things.
const PROGRAM_SECONDS_MAX: u64 = 600;
/// Programs that run at the same time.
const ABREAST: usize = 2;
/// Exit code of a program in which memcheck has found something.
const FOUND: &str = "9";

/// Arguments of `cargo xtask valgrind`.
#[derive(Args)]
pub(crate) struct Options {
    /// Only these programs
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// How often
    #[arg(long, default_value_t = 1)]
    times: u32,
    /// The build is up to date
    #[arg(long)]
    no_build: bool,
}

/// Builds and runs; what memcheck finds fails.
pub(crate) fn run_programs(options: &Options) -> Result {
    for tool in ["valgrind", "gcc"] {
        if !have(tool) {
            println!("SKIP valgrind: there is no {tool}");
            return Ok(());
        }
    }
    for (name, why) in LEFT_OUT {
        println!("valgrind: without {name}: {why}");
    }
    if !options.no_build {
        build()?;
    }
    let folder = Workspace::load()?.target.join("valgrind");
    fs::create_dir_all(&folder)?;
    let built = built()?;
    for (from, to) in [
        ("libvipl.so", "libvipl.so.1"),
        ("libvipl.so", "libvipl.so"),
        ("libvipl_loopback.so", "libvipl_loopback.so"),
        ("vipkad", "vipkad"),
    ] {
        let to = folder.join(to);
        if to.exists() {
            fs::remove_file(&to)?;
        }
        fs::copy(built.join(from), to)?;
    }
    let (mut bad, mut count) = (0, 0);
    for _ in 0..options.times {
        let chosen = RUNS.iter().chain(SUPPRESSED).filter(|line| {
            let name = line.split(' ').next().unwrap_or_default();
            options.only.is_empty() || options.only.iter().any(|only| only == name)
        });
        let mut waiting = chosen.copied();
        let mut running: Vec<(&str, Running)> = Vec::new();
        loop {
            while running.len() < ABREAST
                && let Some(line) = waiting.next()
            {
                running.push((line, start(&folder, line)?));
            }
            if running.is_empty() {
                break;
            }
            let (line, program) = running.remove(0);
            let ended = program.end(Duration::from_secs(PROGRAM_SECONDS_MAX))?;
            let good = ended.is_good() && !ended.said.lines().any(|l| l.starts_with("=="));
            let verdict = if good { "ok" } else { "FAILED" };
            println!(
                "valgrind: {line}: {verdict}, {:.1} s",
                ended.time.as_secs_f64()
            );
            if !good {
                println!("  {}", ended.ending());
                ended
                    .said
                    .lines()
                    .take(100)
                    .for_each(|line| println!("  {line}"));
                bad += 1;
            }
            count += 1;
        }
    }
    if bad > 0 {
        return Err(format!("{bad} of {count} runs failed").into());
    }
    println!("valgrind: {count} runs without a finding");
    Ok(())
}

fn compile(folder: &Path, name: &str) -> Result<PathBuf> {
    let program = folder.join(name);
    if let (Ok(made), Ok(library)) = (
        fs::metadata(&program),
        fs::metadata(folder.join("libvipl.so.1")),
    ) && made.modified()? > library.modified()?
    {
        return Ok(program);
    }
    run(Command::new("gcc")
        .args([
            "-std=c99", "-Wall", "-Wextra", "-O1", "-g", "-pthread", "-I",
        ])
        .arg(root().join("headers"))
        .arg(root().join("ctest/programs").join(format!("{name}.c")))
        .arg("-o")
        .arg(&program)
        .arg("-L")
        .arg(folder)
        .args(["-lvipl", "-ldl"])
        .arg(format!("-Wl,-rpath,{}", folder.display())))?;
    Ok(program)
}

fn start(folder: &Path, line: &str) -> Result<Running> {
    let mut words = line.split(' ');
    let program = compile(folder, words.next().unwrap_or_default())?;
    let mut command = Command::new("valgrind");
    if SUPPRESSED.contains(&line) {
        let suppressions = root().join(SUPPRESSIONS);
        command.arg(format!("--suppressions={}", suppressions.display()));
    }
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("VIPL_") {
            command.env_remove(name);
        }
    }
    command
        .arg("--quiet")
        .arg(format!("--error-exitcode={FOUND}"))
        .args(["--trace-children=yes", "--trace-children-skip=*/vipkad"])
        .arg(program)
        .args(words)
        .env("VIPL_STRICT", "1")
        .env("VIPL_CONFIG", "/dev/null");
    Running::start(&mut command)
}
