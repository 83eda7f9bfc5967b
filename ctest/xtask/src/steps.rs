//! Runs the steps of `cargo xtask ci` and `cargo xtask deep`, and reports what came of them.
//!
//! All steps run, whatever fails before them, except those that need a step that failed. The output of each
//! step is kept in `target/ci/`; without a terminal, only what did not go well is shown. The report ends with a table and, alone on the last line, the
//! count of tests: a failed step without a failed test counts as one failed, a step that could not run as
//! one skipped; a step that went well counts its tests only.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, IsTerminal, Write, pipe};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::Result;
use crate::tally::{Tally, count};
use crate::workspace::{Workspace, cargo, have, root};

/// A step is ended after so many seconds, where the program `timeout` is there to do it.
const STEP_SECONDS_MAX: u64 = 1200;
/// A run that fails first and passes when it is repeated is told by name; more of them fail the command.
const UNSTABLE_MAX: usize = 3;
/// Stands for the seconds that a step takes of those that are left.
pub(crate) const SECONDS: &str = "{seconds}";

/// One check.
#[derive(Clone, Copy)]
pub(crate) struct Step {
    pub name: &'static str,
    program: Program,
    arguments: &'static [&'static str],
    /// A step that has to pass before.
    needs: Option<&'static str>,
    /// Of the time that is left it takes so many percent, and at least so many seconds.
    share: Option<(u64, u64)>,
    /// It is not begun when so many percent of the time for all steps are over.
    until: u32,
}

/// Who does a check.
#[derive(Clone, Copy, PartialEq)]
enum Program {
    Cargo,
    Xtask,
}

/// A step that is a command of cargo.
pub(crate) const fn cargo_step(name: &'static str, arguments: &'static [&'static str]) -> Step {
    Step {
        name,
        program: Program::Cargo,
        arguments,
        needs: None,
        share: None,
        until: 100,
    }
}

/// A step that is a command of this program.
pub(crate) const fn step(name: &'static str, arguments: &'static [&'static str]) -> Step {
    Step {
        program: Program::Xtask,
        ..cargo_step(name, arguments)
    }
}

/// How the steps of a command are run.
pub(crate) struct Plan<'a> {
    /// Name of the command, and of the file with its count; without one the count is only printed.
    pub name: Option<&'static str>,
    pub steps: &'a [Step],
    /// Time for all steps together.
    pub time: Option<Duration>,
}

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

impl Plan<'_> {
    /// Runs the steps of these names, all without names, or lists them; true if all is well.
    pub(crate) fn run(&self, only: &[String], list: bool) -> Result<bool> {
        let is_step = |name: &&String| self.steps.iter().any(|step| step.name == **name);
        if let Some(name) = only.iter().find(|name| !is_step(name)) {
            return Err(format!("there is no step {name}; see --list").into());
        }
        let chosen = self
            .steps
            .iter()
            .filter(|step| only.is_empty() || only.iter().any(|name| name == step.name));
        if list {
            for step in chosen {
                println!("{:12} {}", step.name, step.line(&step.words(SECONDS)));
            }
            return Ok(true);
        }
        let logs = Workspace::load()?.target.join("ci");
        fs::create_dir_all(&logs)?;
        // Taken once: a later step may build this program anew.
        let xtask = std::env::current_exe()?;
        let begun = Instant::now();
        let mut outcomes: Vec<Outcome> = Vec::new();
        for step in chosen {
            let log = logs.join(format!("{}.log", step.name));
            let failed = |name: &&str| {
                let of = |o: &&Outcome| o.name == *name && o.verdict != Verdict::Passed;
                outcomes.iter().find(of).is_some()
            };
            let left = self.time.map(|time| time.saturating_sub(begun.elapsed()));
            let is_late = |time: Duration| begun.elapsed() * 100 > time * step.until;
            let outcome = if let Some(needed) = step.needs.filter(failed) {
                Outcome::not_run(step.name, &format!("it needs the step {needed}"), log)
            } else if self.time.is_some_and(is_late) {
                let why = "no time was left for it; in another turn it comes earlier";
                println!("\n=== {}\nSKIP {why}", step.name);
                Outcome::not_run(step.name, why, log)
            } else {
                step.run(&xtask, log, left)?
            };
            outcomes.push(outcome);
        }
        let (text, good) = report(outcomes);
        if let Some(name) = self.name {
            fs::write(logs.join(format!("{name}.count")), &text)?;
        }
        print!("{text}");
        Ok(good)
    }
}

impl Step {
    /// The same, left out unless this step has passed.
    pub(crate) const fn needs(mut self, name: &'static str) -> Step {
        self.needs = Some(name);
        self
    }

    /// The step that has to pass before.
    #[cfg(test)]
    pub(crate) fn needed(&self) -> Option<&'static str> {
        self.needs
    }

    /// The same; it takes so many percent of the time that is left, and no less than so many seconds.
    pub(crate) const fn share(mut self, percent: u64, least: u64) -> Step {
        self.share = Some((percent, least));
        self
    }

    /// The same; it is not begun when so many percent of the time for all steps are over.
    pub(crate) const fn until(mut self, percent: u32) -> Step {
        self.until = percent;
        self
    }

    /// The arguments, with the time that it may take.
    fn words(&self, seconds: &str) -> Vec<String> {
        let word = |word: &&str| match *word {
            SECONDS => seconds.to_owned(),
            word => word.to_owned(),
        };
        self.arguments.iter().map(word).collect()
    }

    fn line(&self, words: &[String]) -> String {
        let program = match self.program {
            Program::Cargo => "cargo",
            Program::Xtask => "cargo xtask",
        };
        format!("{program} {}", words.join(" "))
    }

    /// Why it cannot run here.
    fn obstacle(&self) -> Option<String> {
        let first = *self.arguments.first()?;
        let component = matches!(first, "fmt" | "clippy" | "deny") || first.starts_with('+');
        if self.program == Program::Xtask || !component {
            return None;
        }
        let mut probe = Command::new(self.cargo());
        probe.args([first, "--version"]).current_dir(root());
        let present = probe.stdout(Stdio::null()).stderr(Stdio::null()).status();
        (!present.is_ok_and(|status| status.success()))
            .then(|| format!("cargo {first} is not installed"))
    }

    /// The cargo for this step: another toolchain is chosen by rustup's, which is in the path.
    fn cargo(&self) -> OsString {
        match self.arguments.first() {
            Some(first) if first.starts_with('+') => "cargo".into(),
            _ => cargo().get_program().to_owned(),
        }
    }

    fn run(&self, xtask: &Path, log: PathBuf, left: Option<Duration>) -> Result<Outcome> {
        let left = left.map(|left| left.as_secs());
        let seconds = self
            .share
            .map(|(percent, least)| (left.unwrap_or(0) * percent / 100).max(least));
        let words = self.words(&seconds.unwrap_or_default().to_string());
        println!("\n=== {}: {}", self.name, self.line(&words));
        let needed = self.share.map_or(1, |(_, least)| least);
        let obstacle = match left {
            Some(left) if left < needed => Some("no time was left for it".to_owned()),
            _ => self.obstacle(),
        };
        if let Some(obstacle) = obstacle {
            println!("SKIP {obstacle}");
            return Ok(Outcome::not_run(self.name, &obstacle, log));
        }
        let limit = left.map_or(STEP_SECONDS_MAX, |left| left.min(STEP_SECONDS_MAX));
        let start = Instant::now();
        let mut command = self.command(xtask, &words, limit);
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
            // The command's time was up, not the step's: what it has not shown is not known.
            Some(124 | 137) if limit < STEP_SECONDS_MAX && tally.failed.is_empty() => {
                Verdict::Skipped(format!("cut off after {limit} s, when no time was left"))
            }
            Some(124 | 137) => Verdict::Failed(format!("no end after {limit} s")),
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

    fn command(&self, xtask: &Path, words: &[String], limit: u64) -> Command {
        let inner = match self.program {
            Program::Cargo => self.cargo(),
            Program::Xtask => xtask.as_os_str().to_owned(),
        };
        // On a desk, an interrupt from the keyboard has to reach the step; `timeout` would keep it
        // off.
        let mut command = if std::env::var_os("CI").is_some() && have("timeout") {
            let mut command = Command::new("timeout");
            command
                .arg("--kill-after=10")
                .arg(limit.to_string())
                .arg(inner);
            command
        } else {
            Command::new(inner)
        };
        command.args(words).current_dir(root());
        command
    }
}

/// Keeps the output of a step and shows it: all of it on a terminal, otherwise what did not go well.
fn copy(mut reader: impl BufRead, mut log: impl Write) -> Result<String> {
    let everything = io::stdout().is_terminal();
    let mut shown = Shown::default();
    let (mut text, mut bytes) = (String::new(), Vec::new());
    while reader.read_until(b'\n', &mut bytes)? > 0 {
        log.write_all(&bytes)?;
        let line = String::from_utf8_lossy(&bytes);
        if everything || shown.line(line.trim_end()) {
            print!("{line}");
        }
        text.push_str(&line);
        bytes.clear();
    }
    Ok(text)
}

/// Leaves out what tests say that have passed: the thousands of lines of a good run hide the ten of a bad one.
#[derive(Default)]
struct Shown {
    is_in_successes: bool,
    was_empty: bool,
}

impl Shown {
    /// Whether this line, the next one, is shown.
    fn line(&mut self, line: &str) -> bool {
        match line {
            "successes:" => self.is_in_successes = true,
            "failures:" => self.is_in_successes = false,
            _ if line.starts_with("test result: ") => self.is_in_successes = false,
            _ => {}
        }
        let is_result = line.starts_with("test ") || line.starts_with("run ");
        let is_good = is_result && (line.ends_with(" ... ok") || line.contains(" ... ok ("))
            || line.starts_with("test result: ok.")
            || line.starts_with("running ");
        let is_hidden = self.is_in_successes || is_good || line.is_empty() && self.was_empty;
        if !is_hidden {
            self.was_empty = line.is_empty();
        }
        !is_hidden
    }
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

/// The end of the output, and whether all is well.
fn report(outcomes: Vec<Outcome>) -> (String, bool) {
    let mut text = format!(
        "\n{:12} {:>7}  {:>6} {:>6} {:>7}\n",
        "step", "time", "passed", "failed", "skipped"
    );
    let mut total = Tally::default();
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
            Verdict::Skipped(why) => format!("  not run to its end: {why}"),
        };
        match verdict {
            Verdict::Failed(why) if tally.failed.is_empty() => {
                tally.failed.push(format!("step {name}: {why}"));
            }
            Verdict::Skipped(why) => tally.skipped.push(format!("step {name}: {why}")),
            _ => {}
        }
        text.push_str(&format!(
            "{name:12} {:6.1}s  {:>6} {:>6} {:>7}{remark}\n",
            time.as_secs_f64(),
            tally.passed,
            tally.failed.len(),
            tally.skipped.len()
        ));
        total.add(tally);
    }
    if total.unstable.len() > UNSTABLE_MAX {
        let unstable = total.unstable.len();
        total.failed.push(format!(
            "{unstable} runs passed only when they were repeated"
        ));
    }
    let listed = [
        ("failed", &total.failed),
        ("unstable", &total.unstable),
        ("skipped", &total.skipped),
    ];
    for (word, names) in listed {
        for name in names {
            text.push_str(&format!("{word}: {name}\n"));
        }
    }
    text.push_str(&format!(
        "\n{} passed, {} failed, {} skipped\n",
        total.passed,
        total.failed.len(),
        total.skipped.len()
    ));
    (text, total.failed.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn end(verdict: Verdict, unstable: usize) -> (String, bool) {
        let outcome = Outcome {
            name: "one",
            verdict,
            time: Duration::ZERO,
            tally: Tally {
                passed: 3,
                unstable: vec!["a".to_owned(); unstable],
                ..Tally::default()
            },
            log: PathBuf::new(),
        };
        let (text, good) = report(vec![outcome]);
        let unstable_lines = text.lines().filter(|line| *line == "unstable: a");
        assert_eq!(unstable_lines.count(), unstable, "{text}");
        (text.lines().last().unwrap_or_default().to_owned(), good)
    }

    #[test]
    fn a_step_counts_as_failed_or_skipped_once() {
        let failed = Verdict::Failed("exit status: 1".into());
        assert_eq!(
            end(failed, 0),
            ("3 passed, 1 failed, 0 skipped".into(), false)
        );
        let skipped = Verdict::Skipped("no gcc".into());
        assert_eq!(
            end(skipped, 0),
            ("3 passed, 0 failed, 1 skipped".into(), true)
        );
    }

    #[test]
    fn too_many_runs_that_pass_the_second_time_fail() {
        assert_eq!(
            end(Verdict::Passed, UNSTABLE_MAX),
            ("3 passed, 0 failed, 0 skipped".into(), true)
        );
        assert_eq!(
            end(Verdict::Passed, UNSTABLE_MAX + 1),
            ("3 passed, 1 failed, 0 skipped".into(), false)
        );
    }

    #[test]
    fn what_went_well_is_not_shown() {
        let output = "running 3 tests\ntest a ... ok\ntest b ... FAILED\n\nsuccesses:\n\n---- a stdout ----\nseed 7\n\n\n\
            successes:\n    a\n\nfailures:\n\n---- b stdout ----\npanicked\n\n\nfailures:\n    b\n\n\
            test result: FAILED. 1 passed; 1 failed\nrun clan::kill ... ok (0.6 s)\nrun clan::tour ... FAILED (1.0 s)\n";
        let mut shown = Shown::default();
        let lines: Vec<&str> = output.lines().filter(|line| shown.line(line)).collect();
        let expected = [
            "test b ... FAILED",
            "",
            "failures:",
            "",
            "---- b stdout ----",
            "panicked",
            "",
            "failures:",
            "    b",
            "",
            "test result: FAILED. 1 passed; 1 failed",
            "run clan::tour ... FAILED (1.0 s)",
        ];
        assert_eq!(lines, expected);
    }
}
