//! `cargo xtask ci`: every check of the project, fast ones first.
//!
//! All steps run, whatever fails before them, except those that need a build that failed. Each
//! step's output is shown and kept in `target/ci/`. At the end stand a table and, alone on the last
//! line, the count of tests: a failed step that has no failed test counts as one failed, a step
//! that could not run as one skipped; a step that went well counts only its tests.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write, pipe};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use clap::Args;

use crate::Result;
use crate::tally::{Tally, count};
use crate::workspace::{Workspace, cargo, have, root};

/// After so many seconds a step is ended, where the program `timeout` is there to do it.
const STEP_SECONDS_MAX: u32 = 2400;

/// Arguments of `cargo xtask ci`.
#[derive(Args)]
pub(crate) struct Options {
    /// Run only these steps
    #[arg(long, value_name = "STEP", value_delimiter = ',')]
    only: Vec<String>,
    /// Print the steps and their commands
    #[arg(long)]
    list: bool,
}

/// One check.
struct Step {
    name: &'static str,
    program: Program,
    arguments: &'static [&'static str],
    /// Whether it reads what the step `build` makes.
    needs_build: bool,
}

/// Who does a check.
#[derive(Clone, Copy, PartialEq)]
enum Program {
    Cargo,
    Xtask,
}

const fn step(
    name: &'static str,
    program: Program,
    arguments: &'static [&'static str],
    needs_build: bool,
) -> Step {
    Step {
        name,
        program,
        arguments,
        needs_build,
    }
}

/// All of them, in their order.
const STEPS: &[Step] = &[
    step("fmt", Program::Cargo, &["fmt", "--all", "--check"], false),
    step("clippy", Program::Cargo, CLIPPY, false),
    step("references", Program::Xtask, &["references"], false),
    step("headers", Program::Xtask, &["headers", "--check"], false),
    step(
        "xtask",
        Program::Cargo,
        &["test", "--package", "xtask", "--", "--show-output"],
        false,
    ),
    step("build", Program::Cargo, BUILD, false),
    step("abi", Program::Xtask, &["abi", "--check"], true),
    step("test", Program::Xtask, &["tests"], true),
    step("conformance", Program::Xtask, CONFORMANCE, true),
    step("install", Program::Xtask, &["smoke", "--no-build"], true),
    step("kill", Program::Xtask, KILL, true),
    step("soak", Program::Xtask, SOAK, true),
    step("loom", Program::Xtask, &["loom"], false),
    step("address", Program::Xtask, &["sanitize", "address"], false),
    step("thread", Program::Xtask, &["sanitize", "thread"], false),
    step("valgrind", Program::Xtask, &["valgrind"], false),
    step("fuzz", Program::Xtask, &["fuzz"], false),
];
/// Steps that race with deadlines from end to end. One that fails is run once more; if it passes then it
/// is reported as unstable. The steps `test` and `conformance` take their second looks themselves.
const SECOND_LOOK: &[&str] = &["kill", "soak", "address", "thread", "valgrind"];
const CONFORMANCE: &[&str] = &["conformance", "--check", "--provider", "loopback,example-c"];
const KILL: &[&str] = &["kill", "--no-build", "--times", "30", "--seed", "1"];
const SOAK: &[&str] = &["soak", "--no-build", "--seconds", "30", "--seed", "1"];
const CLIPPY: &[&str] = &[
    "clippy",
    "--workspace",
    "--all-targets",
    "--",
    "-D",
    "warnings",
];
const BUILD: &[&str] = &["build", "--release", "--workspace", "--exclude", "xtask"];

/// What became of a step.
struct Outcome {
    name: &'static str,
    verdict: Verdict,
    time: Duration,
    tally: Tally,
    log: PathBuf,
}

#[derive(PartialEq)]
enum Verdict {
    Passed,
    Failed(String),
    Skipped(String),
}

/// Runs the command; true if all is well.
pub(crate) fn run(options: &Options) -> Result<bool> {
    if let Some(name) = options
        .only
        .iter()
        .find(|name| STEPS.iter().all(|s| s.name != **name))
    {
        return Err(format!("there is no step {name}; see --list").into());
    }
    let chosen =
        |step: &&Step| options.only.is_empty() || options.only.iter().any(|o| o == step.name);
    if options.list {
        for step in STEPS.iter().filter(chosen) {
            println!("{:12} {}", step.name, step.line());
        }
        return Ok(true);
    }
    let logs = Workspace::load()?.target.join("ci");
    fs::create_dir_all(&logs)?;
    // Taken once: a later step may build this program anew.
    let xtask = std::env::current_exe()?;
    let mut outcomes: Vec<Outcome> = Vec::new();
    for step in STEPS.iter().filter(chosen) {
        let unbuilt = outcomes
            .iter()
            .any(|o| o.name == "build" && o.verdict != Verdict::Passed);
        let log = logs.join(format!("{}.log", step.name));
        let outcome = if step.needs_build && unbuilt {
            Outcome::not_run(step.name, "the build failed", log.clone())
        } else {
            step.run(&xtask, log.clone())?
        };
        let outcome = match &outcome.verdict {
            Verdict::Failed(why) if SECOND_LOOK.contains(&step.name) => {
                let why = format!("step {}: {why}", step.name);
                println!("\n{why}: once more");
                fs::rename(&log, logs.join(format!("{}.first.log", step.name)))?;
                let mut second = step.run(&xtask, log)?;
                if second.verdict == Verdict::Passed {
                    second.tally.unstable.push(why);
                }
                second
            }
            _ => outcome,
        };
        outcomes.push(outcome);
    }
    Ok(report(outcomes))
}

impl Step {
    fn line(&self) -> String {
        let program = if self.program == Program::Cargo {
            "cargo"
        } else {
            "cargo xtask"
        };
        format!("{program} {}", self.arguments.join(" "))
    }

    /// Why it cannot run here.
    fn obstacle(&self) -> Option<&'static str> {
        let first = *self.arguments.first()?;
        let component = matches!((self.program, first), (Program::Cargo, "fmt" | "clippy"));
        let absent = || {
            let quiet = || Stdio::null();
            let mut probe = cargo();
            let probe = probe
                .args([first, "--version"])
                .stdout(quiet())
                .stderr(quiet());
            !probe.status().is_ok_and(|status| status.success())
        };
        (component && absent()).then_some("this part of the Rust toolchain is not installed")
    }

    fn run(&self, xtask: &Path, log: PathBuf) -> Result<Outcome> {
        println!("\n=== {}: {}", self.name, self.line());
        if let Some(obstacle) = self.obstacle() {
            println!("SKIP {obstacle}");
            return Ok(Outcome::not_run(self.name, obstacle, log));
        }
        let start = Instant::now();
        let mut command = self.command(xtask);
        let (reader, writer) = pipe()?;
        command
            .stdin(Stdio::null())
            .stdout(writer.try_clone()?)
            .stderr(writer);
        let mut child = command.spawn()?;
        // Our ends of the pipe for writing are in it: the output would never end.
        drop(command);
        let text = copy(BufReader::new(reader), File::create(&log)?)?;
        let status = child.wait()?;
        let tally = count(&text);
        let verdict = match status.code() {
            Some(0) if tally.failed.is_empty() => Verdict::Passed,
            Some(124 | 137) => Verdict::Failed(format!("no end after {STEP_SECONDS_MAX} s")),
            _ => Verdict::Failed(status.to_string()),
        };
        let skips = || text.lines().filter_map(|line| line.strip_prefix("SKIP "));
        let tally = match self.program {
            // A command that prints no test results may still have left something out.
            Program::Xtask if tally == Tally::default() => Tally {
                skipped: skips().map(str::to_owned).collect(),
                ..tally
            },
            Program::Cargo | Program::Xtask => tally,
        };
        Ok(Outcome {
            name: self.name,
            verdict,
            time: start.elapsed(),
            tally,
            log,
        })
    }

    fn command(&self, xtask: &Path) -> Command {
        let inner = match self.program {
            Program::Cargo => cargo().get_program().to_owned(),
            Program::Xtask => xtask.as_os_str().to_owned(),
        };
        // On a desk, an interrupt from the keyboard has to reach the step; `timeout` would keep it
        // off.
        let mut command = if std::env::var_os("CI").is_some() && have("timeout") {
            let mut command = Command::new("timeout");
            command
                .arg("--kill-after=10")
                .arg(STEP_SECONDS_MAX.to_string())
                .arg(inner);
            command
        } else {
            Command::new(inner)
        };
        command.args(self.arguments).current_dir(root());
        command
    }
}

/// Shows and keeps the output of a step.
pub(crate) fn copy(mut reader: impl BufRead, mut log: impl Write) -> Result<String> {
    let (mut text, mut line) = (String::new(), Vec::new());
    while reader.read_until(b'\n', &mut line)? > 0 {
        log.write_all(&line)?;
        let shown = String::from_utf8_lossy(&line);
        print!("{shown}");
        text.push_str(&shown);
        line.clear();
    }
    Ok(text)
}

impl Outcome {
    fn not_run(name: &'static str, why: &str, log: PathBuf) -> Self {
        let verdict = Verdict::Skipped(why.to_owned());
        Self {
            name,
            verdict,
            time: Duration::ZERO,
            tally: Tally::default(),
            log,
        }
    }
}

/// Prints the end; true if all is well.
fn report(outcomes: Vec<Outcome>) -> bool {
    println!(
        "\n{:12} {:>7}  {:>6} {:>6} {:>7}",
        "step", "time", "passed", "failed", "skipped"
    );
    let (mut total, mut good) = (Tally::default(), true);
    for Outcome {
        name,
        verdict,
        time,
        mut tally,
        log,
    } in outcomes
    {
        let remark = match &verdict {
            Verdict::Passed => String::new(),
            Verdict::Failed(why) => format!("  FAILED ({why}), see {}", log.display()),
            Verdict::Skipped(why) => format!("  not run: {why}"),
        };
        match verdict {
            Verdict::Failed(why) if tally.failed.is_empty() => {
                tally.failed.push(format!("step {name}: {why}"));
            }
            Verdict::Skipped(why) => tally.skipped.push(format!("step {name}: {why}")),
            _ => {}
        }
        good &= tally.failed.is_empty();
        println!(
            "{name:12} {:6.1}s  {:>6} {:>6} {:>7}{remark}",
            time.as_secs_f64(),
            tally.passed,
            tally.failed.len(),
            tally.skipped.len()
        );
        total.add(tally);
    }
    for name in &total.failed {
        println!("failed: {name}");
    }
    for name in &total.unstable {
        println!("unstable: {name} passed when it was run again, alone");
    }
    for reason in &total.skipped {
        println!("skipped: {reason}");
    }
    let Tally {
        passed,
        failed,
        skipped,
        unstable: _,
    } = total;
    println!(
        "\n{passed} passed, {} failed, {} skipped",
        failed.len(),
        skipped.len()
    );
    good
}
