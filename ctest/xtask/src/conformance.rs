//! `cargo xtask conformance`: runs the conformance suite, the crate `ctest/conformance`.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use clap::Args;

use crate::Result;
use crate::guest::{Guest, good};
use crate::workspace::{build, built, root, run as run_program};

/// Limit of a guest for the suite, in seconds: the suite takes half an hour, on a busy machine hours.
const LONG: u32 = 36_000;

/// Arguments of `cargo xtask conformance`.
#[derive(Args)]
#[command(disable_help_flag = true)]
pub(crate) struct Options {
    /// The build is up to date
    #[arg(long)]
    no_build: bool,
    /// For the plug-in verbs: run what a guest manages in so many seconds, another part every day
    #[arg(long, value_name = "SECONDS")]
    within: Option<u32>,
    /// Options of the suite, see --help
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<String>,
}

/// Runs the command.
pub(crate) fn run(options: &Options) -> Result {
    if !options.no_build {
        build()?;
    }
    if takes_guest(&options.arguments) {
        return in_guest(options);
    }
    suite(&options.arguments)
}

fn suite(arguments: &[String]) -> Result {
    run_program(
        Command::new(built()?.join("vipl-conformance"))
            .args(arguments)
            .env("CTEST_NO_BUILD", "1"),
    )
}

/// Programs are to be run on `verbs` alone, and this machine has no RDMA device.
fn takes_guest(arguments: &[String]) -> bool {
    let has = |name: &str| arguments.iter().any(|argument| argument == name);
    let provider = arguments
        .windows(2)
        .any(|two| two == ["--provider", "verbs"]);
    let devices = || Path::new("/sys/class/infiniband").read_dir();
    (provider || has("--provider=verbs"))
        && !["--list", "--ids", "--compile", "--help"]
            .into_iter()
            .any(has)
        && !devices().is_ok_and(|mut all| all.next().is_some())
}

/// Compiles the programs here, and runs the suite in a guest that may write its page.
fn in_guest(options: &Options) -> Result {
    let guest = Guest::new(options.within.unwrap_or(LONG), Some(root().join("docs")));
    let kernel = match guest.prepare() {
        Ok(kernel) => kernel,
        Err(why) => {
            println!("test verbs ... ignored, {why}");
            return Ok(());
        }
    };
    let mut arguments = options.arguments.clone();
    arguments.push("--compile".to_owned());
    suite(&arguments)?;
    let program = built()?.join("vipl-conformance");
    let mut command = ["env", "CTEST_COMPILED=1"].map(str::to_owned).to_vec();
    command.push(program.to_string_lossy().into_owned());
    command.extend(options.arguments.iter().cloned());
    if options.within.is_some() {
        command.push("--rotate".to_owned());
    }
    let mut seen = Seen::default();
    let status = guest.run(&kernel, &command, &mut |line| seen.line(line))?;
    match (status, options.within) {
        (None, Some(seconds)) => {
            print!("{}", seen.report(seconds));
            match seen.failed.len() {
                0 => Ok(()),
                failed => Err(format!(
                    "{failed} runs failed, and there was no time to repeat them"
                )
                .into()),
            }
        }
        (status, _) => good(status),
    }
}

/// What is known of the runs of a guest whose time was up.
#[derive(Default)]
struct Seen {
    passed: usize,
    failed: BTreeSet<String>,
}

impl Seen {
    /// A line of the suite.
    fn line(&mut self, line: &str) {
        let run = line.strip_prefix("run ");
        let Some((name, verdict)) = run.and_then(|run| run.split_once(" ... ")) else {
            return;
        };
        if verdict.starts_with("FAILED") {
            self.failed.insert(name.to_owned());
        } else if verdict.starts_with("ok") {
            self.failed.remove(name);
            self.passed += 1;
        }
    }

    /// All of it in the form of tests.
    fn report(&self, seconds: u32) -> String {
        let mut lines: String = self
            .failed
            .iter()
            .map(|name| format!("test {name} ... FAILED\n"))
            .collect();
        let (passed, failed) = (self.passed, self.failed.len());
        let word = if failed == 0 { "ok" } else { "FAILED" };
        lines += &format!(
            "test verbs ... ignored, the other runs, which a guest did not manage in {seconds} s\n\
             test result: {word}. {passed} passed; {failed} failed; 1 ignored\n"
        );
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_that_failed_counts_unless_it_was_repeated() {
        let mut seen = Seen::default();
        for line in [
            "run verbs::a ... ok (1.0 s)",
            "run verbs::b ... FAILED, once more later (2.0 s)",
            "run verbs::c ... has not ended after 30 s, is ended after 900 s",
            "run verbs::d ... FAILED, once more later (2.0 s)",
            "run verbs::d ... ok the second time",
            "run verbs::e ... FAILED",
        ] {
            seen.line(line);
        }
        assert_eq!(seen.passed, 2);
        assert!(seen.failed.iter().eq(["verbs::b", "verbs::e"]));
        assert_eq!(
            seen.report(9),
            "test verbs::b ... FAILED\ntest verbs::e ... FAILED\n\
             test verbs ... ignored, the other runs, which a guest did not manage in 9 s\n\
             test result: FAILED. 2 passed; 2 failed; 1 ignored\n"
        );
    }
}
