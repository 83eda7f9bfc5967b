//! `cargo xtask fuzz`: the fuzz targets of `ctest/fuzz`, with the corpus that lies there.
//!
//! Without `--seconds` each target makes a fixed number of executions from a fixed seed, and stops earlier
//! when its time is up: what is tried then is always the beginning of the same sequence, which was tried
//! to its end before. With `--seconds` or `--within` only the time limits it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use clap::Args;

use crate::Result;
use crate::checker::{Ended, Running, host_triple, runtime};
use crate::workspace::{Workspace, cargo, have, root, run};

/// Targets, and how many executions of each make the fixed sequence.
const TARGETS: [(&str, u64); 11] = [
    ("descriptor", 8_000),
    ("agent_message", 300),
    ("datagram", 8_000),
    ("peer", 800),
    ("queue", 80),
    ("config", 1_000),
    ("vip_hosts", 2_000),
    ("device_name", 8_000),
    ("control", 8_000),
    ("recording", 8_000),
    ("pages", 2_000),
];
/// Seconds of each target when none are given.
const SECONDS: u64 = 15;
/// One input may take that long, on a machine that is busy with other things.
const INPUT_SECONDS_MAX: u64 = 60;
/// Targets that run at the same time.
const ABREAST: usize = 2;
/// What the compiler adds: counters for libFuzzer, and AddressSanitizer.
const FLAGS: [&str; 8] = [
    "--cfg fuzzing",
    "-Cpasses=sancov-module",
    "-Cllvm-args=-sanitizer-coverage-level=4",
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
    "-Cllvm-args=-sanitizer-coverage-pc-table",
    "-Cllvm-args=-sanitizer-coverage-trace-compares",
    "-Zsanitizer=address",
    "-Cunsafe-allow-abi-mismatch=sanitizer",
];

/// Arguments of `cargo xtask fuzz`.
#[derive(Args)]
pub(crate) struct Options {
    /// Only this target
    #[arg(long)]
    target: Option<String>,
    /// Seconds for each target; without it a fixed number of executions, 15 seconds at most
    #[arg(long)]
    seconds: Option<u64>,
    /// Seconds for all targets together, and for building them
    #[arg(long, conflicts_with = "seconds")]
    within: Option<u64>,
    /// Seed of the first execution
    #[arg(long, default_value_t = 1)]
    seed: u32,
    /// Give a saved input to the target, once
    #[arg(long, requires = "target")]
    input: Option<PathBuf>,
}

/// Builds the targets and runs them; a crash fails.
pub(crate) fn run_targets(options: &Options) -> Result {
    let chosen: Vec<_> = TARGETS
        .into_iter()
        .filter(|(name, _)| options.target.as_ref().is_none_or(|only| only == name))
        .collect();
    if chosen.is_empty() {
        let names: Vec<_> = TARGETS.iter().map(|(name, _)| *name).collect();
        return Err(format!("no such target; there are {}", names.join(", ")).into());
    }
    if let Some(obstacle) = obstacle()? {
        println!("SKIP fuzz: {obstacle}");
        return Ok(());
    }
    let begun = Instant::now();
    let folder = build(&chosen)?;
    let share = |whole: u64| {
        let rounds = chosen.len().div_ceil(ABREAST) as u64;
        (whole.saturating_sub(begun.elapsed().as_secs()) / rounds).max(1)
    };
    let seconds = options.seconds.or(options.within.map(share));
    if let Some(input) = &options.input {
        return run(Command::new(folder.join(chosen[0].0)).arg(fs::canonicalize(input)?));
    }
    println!("fuzz: seed {}", options.seed);
    let mut crashes = 0;
    let mut waiting = chosen.into_iter();
    let mut running: Vec<Fuzzer> = Vec::new();
    loop {
        while running.len() < ABREAST
            && let Some((name, executions)) = waiting.next()
        {
            running.push(Fuzzer::start(
                &folder,
                name,
                executions,
                seconds,
                options.seed,
            )?);
        }
        if running.is_empty() {
            break;
        }
        crashes += usize::from(!running.remove(0).end(options)?);
    }
    if crashes > 0 {
        return Err(format!("{crashes} targets crashed").into());
    }
    Ok(())
}

/// Why there can be no fuzzing here.
fn obstacle() -> Result<Option<&'static str>> {
    Ok(if !cfg!(all(target_arch = "x86_64", target_os = "linux")) {
        Some("only on x86-64 Linux")
    } else if !have("g++") {
        Some("there is no g++ to compile libFuzzer with")
    } else if runtime("asan")?.is_none() {
        Some("this Rust toolchain has no runtime of AddressSanitizer")
    } else {
        None
    })
}

fn build(chosen: &[(&str, u64)]) -> Result<PathBuf> {
    let (triple, target) = (host_triple()?, Workspace::load()?.target.join("fuzz"));
    let mut command = cargo();
    command
        .args(["build", "--locked", "--quiet", "--manifest-path"])
        .arg(root().join("ctest/fuzz/Cargo.toml"))
        .args(["--target", &triple])
        .arg("--target-dir")
        .arg(&target)
        // The stable compiler knows the options of the nightly compiler under this name.
        .env("RUSTC_BOOTSTRAP", "1")
        .env("RUSTFLAGS", FLAGS.join(" "))
        .env_remove("CARGO_ENCODED_RUSTFLAGS");
    for (name, _) in chosen {
        command.args(["--bin", name]);
    }
    run(&mut command)?;
    Ok(target.join(triple).join("debug"))
}

struct Fuzzer {
    name: &'static str,
    running: Running,
    limit: Duration,
    /// What it finds goes here.
    crashes: PathBuf,
}

impl Fuzzer {
    fn start(
        folder: &Path,
        name: &'static str,
        executions: u64,
        time: Option<u64>,
        seed: u32,
    ) -> Result<Self> {
        let seconds = time.unwrap_or(SECONDS);
        let target = Workspace::load()?.target;
        let crashes = target.join("fuzz/crashes");
        // New inputs are for this run alone: what is committed stays as it is.
        let grown = target.join("fuzz/corpus").join(name);
        if time.is_none() && grown.exists() {
            fs::remove_dir_all(&grown)?;
        }
        fs::create_dir_all(&crashes)?;
        fs::create_dir_all(&grown)?;
        let mut command = Command::new(folder.join(name));
        command
            .arg(grown)
            .arg(format!("-seed={seed}"))
            .arg(format!("-max_total_time={seconds}"))
            .arg(format!("-timeout={INPUT_SECONDS_MAX}"))
            .arg(format!("-artifact_prefix={}/{name}-", crashes.display()))
            .args([
                "-max_len=2048",
                "-len_control=0",
                "-rss_limit_mb=0",
                "-print_final_stats=1",
            ]);
        let known = root().join("ctest/fuzz/corpus").join(name);
        if known.is_dir() {
            command.arg(known);
        }
        if time.is_none() {
            command.arg(format!("-runs={executions}"));
        }
        Ok(Fuzzer {
            name,
            running: Running::start(&mut command)?,
            // libFuzzer looks at its time after each input.
            limit: Duration::from_secs(seconds + 4 * INPUT_SECONDS_MAX),
            crashes,
        })
    }

    /// Waits for its end and tells of it; true if all is well.
    fn end(self, options: &Options) -> Result<bool> {
        let Fuzzer {
            name,
            running,
            limit,
            crashes,
        } = self;
        let ended = running.end(limit)?;
        let statistic = |name: &str| {
            let line = ended.said.lines().find(|line| line.contains(name));
            line.and_then(|line| line.split_whitespace().last())
                .unwrap_or("?")
                .to_owned()
        };
        let executions = statistic("stat::number_of_executed_units");
        let good = ended.is_good();
        println!(
            "fuzz: {name}: {executions} executions, {} crashes, {:.0} s",
            usize::from(!good),
            ended.time.as_secs_f64()
        );
        if !good {
            report(name, &crashes, &ended, options);
        }
        Ok(good)
    }
}

fn report(name: &str, crashes: &Path, ended: &Ended, options: &Options) {
    println!("fuzz: {} {}", name, ended.ending());
    let lines: Vec<&str> = ended.said.lines().collect();
    for line in &lines[lines.len().saturating_sub(60)..] {
        println!("    {line}");
    }
    let written = ended.said.lines().find_map(|line| {
        line.split_once("Test unit written to ")
            .map(|(_, path)| path)
    });
    match written {
        Some(path) => println!(
            "fuzz: the input is {path}\nfuzz: again: cargo xtask fuzz --target {} --input {path}",
            name
        ),
        None => println!(
            "fuzz: no input was saved in {}; again: cargo xtask fuzz --target {} --seed {}",
            crashes.display(),
            name,
            options.seed
        ),
    }
}
