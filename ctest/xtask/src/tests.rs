//! `cargo xtask tests`: what `cargo test` runs, several test programs at a time, with a second look at what
//! fails.
//!
//! Most tests wait for processes, deadlines and the other side, so that several programs of tests share the
//! processors well; [`ALONE`] names those that measure or fill the machine. Many let processes meet under
//! deadlines, on machines that other people use too. A test that fails is run once more, alone, after all
//! others. If it passes then it is reported as `unstable`, by name and with what it said the first time, and
//! counts as passed; otherwise it has failed. Nothing else is forgiven: a program that dies without naming a
//! failed test fails the command.

use std::io::{self, Read, pipe};
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use clap::Args;
use serde_json::Value;

use crate::Result;
use crate::tally::count;
use crate::workspace::{build as build_workspace, cargo, root, run as run_program};

/// Programs that take longest, in this order: they begin first.
const FIRST: &[&str] = &[
    "examples",
    "exchange",
    "layers",
    "life",
    "path",
    "agent_loss",
    "variants",
    "plain_user",
    "routed",
    "impairments",
    "copies",
    "rest",
    "two_users",
    "trains",
    "vip_conform",
    "refused",
    "shared",
    "python",
    "ethernet",
];
/// Programs of many tests that each wait for seconds: so many of them run at the same time, on a machine with fewer processors
/// too.
const WAITING: &[(&str, usize)] = &[("exchange", 6)];
/// The module of the tests that only `cargo xtask deep` runs. They are ignored, with the reason [`crate::tally::DEEP`].
const DEEP_TESTS: &str = "deep::";
/// Programs of tests that run with no other beside them, after all others, and why.
const ALONE: &[(&str, &str)] = &[("processors", "it computes on all processors on purpose")];

/// Arguments of `cargo xtask tests`.
#[derive(Args)]
pub(crate) struct Options {
    /// Only the tests of these packages
    #[arg(long, short, value_name = "PACKAGE")]
    package: Vec<String>,
    /// Build all, but run only the tests of the package in this folder
    #[arg(long, value_name = "FOLDER", conflicts_with = "package")]
    only: Vec<String>,
    /// Build all, but do not run the tests of the package in this folder
    #[arg(long, value_name = "FOLDER")]
    without: Vec<String>,
    /// Instead of the others, the tests that take longer
    #[arg(long)]
    deep: bool,
    /// How many test programs run at the same time
    #[arg(long, value_name = "N", default_value_t = 6)]
    jobs: usize,
    /// The library, the plug-ins and the agent are up to date
    #[arg(long)]
    no_build: bool,
}

/// A program of tests.
#[derive(Clone)]
struct Tests {
    program: PathBuf,
    /// Cargo runs tests in the folder of their package.
    folder: PathBuf,
}

/// Runs the command; true if all is well.
pub(crate) fn run(options: &Options) -> Result<bool> {
    if !options.no_build {
        build_workspace()?;
    }
    let (mut alone, mut together): (Vec<Tests>, Vec<Tests>) = build(&options.package)?
        .into_iter()
        .filter(|tests| options.only.is_empty() || tests.is_in(&options.only))
        .filter(|tests| !tests.is_in(&options.without))
        .partition(Tests::runs_alone);
    together.sort_by_key(Tests::place);
    alone.sort_by_key(Tests::place);
    let chosen: &[&str] = if options.deep {
        &[DEEP_TESTS, "--ignored"]
    } else {
        &[]
    };
    let mut failures = in_parallel(&together, chosen, options.jobs)?;
    failures.extend(in_parallel(&alone, chosen, 1)?);
    let mut good = true;
    for (tests, status, text) in failures {
        let names = count(&text).failed;
        if names.is_empty() || names.iter().any(|name| name.contains(' ')) {
            println!("FAILED {}: {status}", tests.program.display());
            good = false;
            continue;
        }
        for name in names {
            println!("\nonce more, alone: {name}");
            let (status, text) = tests.run(&[&name, "--exact", "--include-ignored"])?;
            print!("{text}");
            if status.success() {
                println!("unstable: {name}");
            } else {
                good = false;
            }
        }
    }
    if !options.only.is_empty() || options.deep {
        return Ok(good);
    }
    let mut documents = cargo();
    documents.args(["test", "--quiet", "--doc"]);
    select(&mut documents, &options.package);
    good &= run_program(&mut documents).is_ok();
    Ok(good)
}

/// Runs programs, `jobs` at a time; the output of each is shown when it ends. Gives those that failed, with what
/// they said.
fn in_parallel<'a>(
    all: &'a [Tests],
    chosen: &[&str],
    jobs: usize,
) -> Result<Vec<(&'a Tests, ExitStatus, String)>> {
    let next = AtomicUsize::new(0);
    let failed = Mutex::new(Vec::new());
    let work = || -> io::Result<()> {
        while let Some(tests) = all.get(next.fetch_add(1, Ordering::Relaxed)) {
            let begun = Instant::now();
            let (status, text) = tests.run(chosen)?;
            // Held while this is printed, so that outputs do not mix.
            let mut failed = failed.lock().unwrap_or_else(PoisonError::into_inner);
            let shown = tests.program.strip_prefix(root()).unwrap_or(&tests.program);
            let seconds = begun.elapsed().as_secs_f64();
            println!(
                "\n     Running {} ({seconds:.1} s)\n{text}",
                shown.display()
            );
            if !status.success() {
                failed.push((tests, status, text));
            }
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..jobs.max(1)).map(|_| scope.spawn(work)).collect();
        workers
            .into_iter()
            .try_for_each(|worker| worker.join().unwrap_or_else(|panic| resume_unwind(panic)))
    })?;
    Ok(failed.into_inner().unwrap_or_else(PoisonError::into_inner))
}

fn select(command: &mut Command, packages: &[String]) {
    if packages.is_empty() {
        command.arg("--workspace");
    }
    for package in packages {
        command.args(["--package", package]);
    }
}

/// Builds the tests and lists their programs in cargo's order.
fn build(packages: &[String]) -> Result<Vec<Tests>> {
    let mut command = cargo();
    command.args(["test", "--no-run"]);
    command.arg("--message-format=json-render-diagnostics");
    select(&mut command, packages);
    let output = command.stderr(Stdio::inherit()).output()?;
    if !output.status.success() {
        return Err("the tests could not be built".into());
    }
    let mut all = Vec::new();
    for line in String::from_utf8(output.stdout)?.lines() {
        let message: Value = serde_json::from_str(line)?;
        let manifest = message["manifest_path"].as_str().map(Path::new);
        if message["profile"]["test"] == true
            && let Some(program) = message["executable"].as_str()
            && let Some(folder) = manifest.and_then(Path::parent)
        {
            all.push(Tests {
                program: program.into(),
                folder: folder.into(),
            });
        }
    }
    all.sort_by(|a, b| a.folder.cmp(&b.folder).then(a.program.cmp(&b.program)));
    Ok(all)
}

impl Tests {
    /// `exchange` of `target/debug/deps/exchange-3c9a`.
    fn name(&self) -> &str {
        let name = self.program.file_name().and_then(|name| name.to_str());
        let name = name.unwrap_or_default();
        name.rsplit_once('-').map_or(name, |(name, _)| name)
    }

    /// Whether its package is in one of these folders.
    fn is_in(&self, folders: &[String]) -> bool {
        folders
            .iter()
            .any(|folder| self.folder == root().join(folder))
    }

    fn runs_alone(&self) -> bool {
        ALONE.iter().any(|(name, _)| *name == self.name())
    }

    /// Where it stands in the order: the long ones first.
    fn place(&self) -> usize {
        let place = FIRST.iter().position(|name| *name == self.name());
        place.unwrap_or(FIRST.len())
    }

    /// How many of its tests run at the same time, if not as many as there are processors.
    fn threads(&self) -> Option<usize> {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let waiting = WAITING.iter().find(|(name, _)| *name == self.name());
        waiting
            .map(|(_, threads)| *threads)
            .filter(|threads| *threads > processors)
    }

    /// Runs it and returns what it says.
    fn run(&self, arguments: &[&str]) -> io::Result<(ExitStatus, String)> {
        let (mut reader, writer) = pipe()?;
        let mut command = Command::new(&self.program);
        command
            .arg("--show-output")
            .args(arguments)
            .args(
                self.threads()
                    .map(|threads| format!("--test-threads={threads}")),
            )
            .current_dir(&self.folder)
            .env("CARGO_MANIFEST_DIR", &self.folder)
            .env("CTEST_NO_BUILD", "1")
            .stdin(Stdio::null())
            .stdout(writer.try_clone()?)
            .stderr(writer);
        let mut child = command.spawn()?;
        // Our ends of the pipe for writing are in it: the output would never end.
        drop(command);
        let mut text = Vec::new();
        reader.read_to_end(&mut text)?;
        Ok((child.wait()?, String::from_utf8_lossy(&text).into_owned()))
    }
}
