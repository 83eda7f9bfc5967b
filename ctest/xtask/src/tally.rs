//! Counts tests from the output of `cargo test … -- --show-output`.
//!
//! A test that cannot run here prints a line `SKIP reason` and returns. libtest counts it as
//! passed; we count it as skipped, once, whatever the number of its lines. A test that is ignored
//! is skipped too, unless its reason is [`DEEP`]: it counts where it runs.

use std::collections::BTreeSet;

/// Why a test is ignored that another command runs.
pub(crate) const DEEP: &str = "cargo xtask deep";

/// What a step's tests came to.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Tally {
    /// Ran to their end without a complaint or a skip.
    pub passed: usize,
    /// Names of the failed.
    pub failed: Vec<String>,
    /// Name and reason of the skipped.
    pub skipped: Vec<String>,
    /// Names of those among the passed that had failed before.
    pub unstable: Vec<String>,
}

impl Tally {
    /// Adds another step.
    pub(crate) fn add(&mut self, other: Tally) {
        self.passed += other.passed;
        self.failed.extend(other.failed);
        self.skipped.extend(other.skipped);
        self.unstable.extend(other.unstable);
    }
}

/// Reads the output of any number of test programs.
pub(crate) fn count(output: &str) -> Tally {
    let mut tally = Tally::default();
    let mut program = Program::default();
    for line in output.lines() {
        if line.starts_with("test result: ") {
            std::mem::take(&mut program).finish(line, &mut tally);
        } else if let Some(name) = line.strip_prefix("once more, alone: ") {
            if let Some(place) = tally.failed.iter().position(|failed| failed == name) {
                tally.failed.swap_remove(place);
            }
        } else if let Some(name) = line.strip_prefix("unstable: ") {
            tally.unstable.push(name.to_owned());
        } else {
            program.line(line);
        }
    }
    // A program that died has no result line; its exit code fails the step.
    tally
}

/// What is known of one test program before its result line.
#[derive(Default)]
struct Program {
    section: Option<String>,
    failed: Vec<String>,
    ignored: Vec<String>,
    elsewhere: usize,
    skips: Vec<(Option<String>, String)>,
}

impl Program {
    fn line(&mut self, line: &str) {
        if let Some((name, verdict)) = verdict(line) {
            if verdict.starts_with("FAILED") {
                self.failed.push(name.to_owned());
            } else if let Some(why) = verdict.strip_prefix("ignored") {
                match why.strip_prefix(", ").unwrap_or("ignored") {
                    DEEP => self.elsewhere += 1,
                    why => self.ignored.push(format!("{name}: {why}")),
                }
            }
        } else if let Some(name) = section(line) {
            self.section = Some(name.to_owned());
        } else if matches!(line, "successes:" | "failures:") {
            self.section = None;
        } else if let Some(reason) = line.strip_prefix("SKIP") {
            let reason = reason.trim_start_matches([':', ' ']);
            self.skips.push((self.section.clone(), reason.to_owned()));
        }
    }

    fn finish(self, result: &str, tally: &mut Tally) {
        let number = |what: &str| {
            let before = result
                .split(';')
                .find_map(|part| part.trim().strip_suffix(what));
            before
                .and_then(|text| text.trim().rsplit(' ').next()?.parse::<usize>().ok())
                .unwrap_or(0)
        };
        let mut skipped = BTreeSet::new();
        for (name, reason) in &self.skips {
            match name {
                Some(name) if self.failed.contains(name) => {}
                Some(name) if skipped.insert(name.clone()) => {
                    tally.skipped.push(format!("{name}: {reason}"));
                }
                Some(_) => {}
                None if skipped.insert(reason.clone()) => tally.skipped.push(reason.clone()),
                None => {}
            }
        }
        tally.passed += number("passed").saturating_sub(skipped.len());
        let unnamed = number("failed").saturating_sub(self.failed.len());
        tally.failed.extend(self.failed);
        tally
            .failed
            .extend((0..unnamed).map(|_| "a test without a name".to_owned()));
        let unnamed = number("ignored").saturating_sub(self.ignored.len() + self.elsewhere);
        tally.skipped.extend(self.ignored);
        tally
            .skipped
            .extend((0..unnamed).map(|_| "ignored".to_owned()));
    }
}

/// `test NAME ... VERDICT`
fn verdict(line: &str) -> Option<(&str, &str)> {
    line.strip_prefix("test ")?.rsplit_once(" ... ")
}

/// `---- NAME stdout ----`
fn section(line: &str) -> Option<&str> {
    line.strip_prefix("---- ")?.strip_suffix(" stdout ----")
}

#[cfg(test)]
mod tests {
    use super::{Tally, count};

    #[test]
    fn skips_are_not_passes() {
        let output = "running 4 tests\n\
            test a ... ok\ntest b ... ok\ntest c ... FAILED\ntest d ... ignored, needs root\n\n\
            successes:\n\n---- b stdout ----\nSKIP no clang\nSKIP no g++\n\n\n\
            successes:\n    a\n    b\n\nfailures:\n\n---- c stdout ----\nSKIP half\npanicked\n\n\
            failures:\n    c\n\n\
            test result: FAILED. 2 passed; 1 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.0s\n\
            test result: ok. 7 passed; 0 failed; 0 ignored; 0 measured; 1 filtered out; finished in 0.0s\n";
        let expected = Tally {
            passed: 8,
            failed: vec!["c".into()],
            skipped: vec!["b: no clang".into(), "d: needs root".into()],
            unstable: Vec::new(),
        };
        assert_eq!(count(output), expected);
    }

    /// The conformance suite names what failed and what was skipped, and counts the rest.
    #[test]
    fn assertions_count_like_tests() {
        let output = "run loopback::nic_strict_two ... ok (0.1 s)\n\
            test loopback::E4 ... ignored, needs loss of frames\n\
            test loopback::NIC-03 ... FAILED\n  not shown by loopback::nic_strict_two\n\
            test result: FAILED. 285 passed; 1 failed; 1 ignored\n";
        let expected = Tally {
            passed: 285,
            failed: vec!["loopback::NIC-03".into()],
            skipped: vec!["loopback::E4: needs loss of frames".into()],
            unstable: Vec::new(),
        };
        assert_eq!(count(output), expected);
    }

    #[test]
    fn what_passes_the_second_time_is_unstable() {
        let output = "test a ... FAILED\ntest b ... FAILED\n\
            test result: FAILED. 3 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out\n\
            once more, alone: a\ntest a ... ok\n\
            test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 4 filtered out\nunstable: a\n\
            once more, alone: b\ntest b ... FAILED\n\
            test result: FAILED. 0 passed; 1 failed; 0 ignored; 0 measured; 4 filtered out\n";
        let tally = count(output);
        assert_eq!(tally.passed, 4);
        assert_eq!(tally.failed, ["b"]);
        assert_eq!(tally.unstable, ["a"]);
    }

    #[test]
    fn what_another_command_runs_counts_there() {
        let output = "test deep::a ... ignored, cargo xtask deep\ntest b ... ignored, needs root\n\
            test result: ok. 3 passed; 0 failed; 2 ignored; 0 measured; 0 filtered out\n";
        let tally = count(output);
        assert_eq!(
            (tally.passed, tally.skipped),
            (3, vec!["b: needs root".to_owned()])
        );
    }

    #[test]
    fn nothing_counts_as_nothing() {
        assert_eq!(count("error: could not compile\n"), Tally::default());
    }
}
