//! `cargo xtask tests`: what `cargo test` runs, with a second look at what fails.
//!
//! Many tests let processes meet under deadlines, on machines that other people use too. A test that
//! fails is run once more, alone, after all others. If it passes then it is reported as `unstable`, by
//! name and with what it said the first time, and counts as passed; otherwise it has failed. Nothing else
//! is forgiven: a program that dies without naming a failed test fails the command.

use std::io::{BufReader, pipe};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};

use clap::Args;
use serde_json::Value;

use crate::Result;
use crate::tally::count;
use crate::workspace::{cargo, root, run as run_program};

/// A release, without what makes a release slow to build.
const PROFILE: &str = "tested";

/// Arguments of `cargo xtask tests`.
#[derive(Args)]
pub(crate) struct Options {
    /// Only the tests of these packages
    #[arg(long, short, value_name = "PACKAGE")]
    package: Vec<String>,
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
    let mut again = Vec::new();
    let mut good = true;
    for tests in build(&options.package)? {
        let (status, text) = tests.run(&["--show-output"])?;
        if status.success() {
            continue;
        }
        let failed = count(&text).failed;
        if failed.is_empty() || failed.iter().any(|name| name.contains(' ')) {
            println!("FAILED {}: {status}", tests.program.display());
            good = false;
        } else {
            again.extend(failed.into_iter().map(|name| (tests.clone(), name)));
        }
    }
    for (tests, name) in again {
        println!("\nonce more, alone: {name}");
        let (status, _) = tests.run(&[&name, "--exact", "--show-output"])?;
        if status.success() {
            println!("unstable: {name}");
        } else {
            good = false;
        }
    }
    let mut documents = cargo();
    documents.args(["test", "--quiet", "--doc", "--profile", PROFILE]);
    select(&mut documents, &options.package);
    good &= run_program(&mut documents).is_ok();
    Ok(good)
}

fn select(command: &mut Command, packages: &[String]) {
    if packages.is_empty() {
        command.args(["--workspace", "--exclude", "xtask"]);
    }
    for package in packages {
        command.args(["--package", package]);
    }
}

/// Builds the tests and lists their programs in cargo's order.
fn build(packages: &[String]) -> Result<Vec<Tests>> {
    let mut command = cargo();
    command.args(["test", "--no-run", "--profile", PROFILE]);
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
    /// Runs it, shows what it says and returns that.
    fn run(&self, arguments: &[&str]) -> Result<(ExitStatus, String)> {
        let shown = self.program.strip_prefix(root()).unwrap_or(&self.program);
        println!("\n     Running {}", shown.display());
        let (reader, writer) = pipe()?;
        let mut command = Command::new(&self.program);
        command
            .args(arguments)
            .current_dir(&self.folder)
            .env("CARGO_MANIFEST_DIR", &self.folder)
            .stdin(Stdio::null())
            .stdout(writer.try_clone()?)
            .stderr(writer);
        let mut child = command.spawn()?;
        // Our ends of the pipe for writing are in it: the output would never end.
        drop(command);
        let text = crate::ci::copy(BufReader::new(reader), std::io::sink())?;
        Ok((child.wait()?, text))
    }
}
