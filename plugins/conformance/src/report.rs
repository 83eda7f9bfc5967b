//! What the suite prints, and the part of `docs/CONFORMANCE.md` that it writes.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;

use crate::plan::Planned;
use crate::provider::Provider;
use crate::results::{Results, Verdict};
use crate::rows;
use crate::run::Outcome;

const BEGIN: &str = "<!-- results: written by `cargo xtask conformance --write` -->";
const END: &str = "<!-- end of results -->";

/// The generated part: counts by group, and what was skipped.
pub(crate) fn markdown(
    results: &Results,
    providers: &[&'static Provider],
    runs: &[Planned],
    outcomes: &[Outcome],
) -> String {
    let mut text = String::from("| group |");
    for provider in providers {
        let _ = write!(text, " {}: passed | failed | skipped |", provider.name);
    }
    text.push_str("\n| --- |");
    text.push_str(&" ---: | ---: | ---: |".repeat(providers.len()));
    text.push('\n');
    let groups = results.groups();
    for group in groups.iter().map(|group| Some(*group)).chain([None]) {
        let _ = write!(text, "| {} |", group.unwrap_or("**all**"));
        for provider in providers {
            let counts = results.counts(provider.name, group);
            let _ = write!(
                text,
                " {} | {} | {} |",
                counts.passed, counts.failed, counts.skipped
            );
        }
        text.push('\n');
    }
    for provider in providers {
        let planned = runs.iter().filter(|run| run.provider.name == provider.name);
        let (able, unable): (Vec<&Planned>, Vec<&Planned>) =
            planned.partition(|run| run.lacks().is_empty());
        let _ = writeln!(text, "\n`{}`: {} runs.", provider.name, able.len());
        if !unable.is_empty() {
            let mut reasons: BTreeMap<String, usize> = BTreeMap::new();
            for run in unable {
                *reasons.entry(run.lacks().to_string()).or_default() += 1;
            }
            let _ = writeln!(
                text,
                "\nRuns left out on `{}`, by what the device would need:\n",
                provider.name
            );
            for (what, number) in reasons {
                let _ = writeln!(text, "- {what}: {number}");
            }
        }
        let skips = results.skips(provider.name);
        if !skips.is_empty() {
            let _ = writeln!(text, "\nAssertions skipped on `{}`:\n", provider.name);
            for (why, ids) in skips {
                let _ = writeln!(text, "- {why}: {}", ids.join(", "));
            }
        }
    }
    text.push_str(&error_table(providers, outcomes));
    text
}

/// On which levels each row of the error table was observed.
fn error_table(providers: &[&'static Provider], outcomes: &[Outcome]) -> String {
    let mut text = String::from(
        "\nRows of the error table (specification §6.4), and the levels on which each was observed:\n\n| row |",
    );
    let mut lines: Vec<String> = Vec::new();
    for provider in providers {
        let _ = write!(text, " {} |", provider.name);
        for (number, seen) in rows::judge(provider, outcomes).into_iter().enumerate() {
            if lines.len() <= number {
                lines.push(format!("| {} |", seen.id));
            }
            let cell = match seen.verdict {
                Verdict::Skipped(why) => why,
                Verdict::Passed => seen.levels.join(", "),
                Verdict::Failed(_) => "FAILED".to_owned(),
            };
            let _ = write!(lines[number], " {cell} |");
        }
    }
    let _ = write!(
        text,
        "\n| --- |{}\n{}\n",
        " --- |".repeat(providers.len()),
        lines.join("\n")
    );
    text
}

/// The page.
fn page() -> PathBuf {
    vipl_ctest::source("../docs/CONFORMANCE.md")
}

/// Puts the generated part into the page.
pub(crate) fn write(generated: &str) -> Result<(), String> {
    let (before, _, after) = parts()?;
    let text = format!("{before}{BEGIN}\n\n{generated}\n{END}{after}");
    fs::write(page(), text).map_err(|error| format!("docs/CONFORMANCE.md: {error}"))
}

/// What differs between the page and the generated part.
pub(crate) fn difference(generated: &str) -> Result<Vec<String>, String> {
    let (_, written, _) = parts()?;
    let written: Vec<&str> = written.trim().lines().collect();
    let generated: Vec<&str> = generated.trim().lines().collect();
    let mut lines = Vec::new();
    lines.extend(
        written
            .iter()
            .filter(|l| !generated.contains(l))
            .map(|l| format!("- {l}")),
    );
    lines.extend(
        generated
            .iter()
            .filter(|l| !written.contains(l))
            .map(|l| format!("+ {l}")),
    );
    Ok(lines)
}

/// What stands before, between and behind the markers.
fn parts() -> Result<(String, String, String), String> {
    let text = fs::read_to_string(page()).map_err(|e| format!("docs/CONFORMANCE.md: {e}"))?;
    let missing = || "docs/CONFORMANCE.md has no place for the results".to_owned();
    let (before, rest) = text.split_once(BEGIN).ok_or_else(missing)?;
    let (written, after) = rest.split_once(END).ok_or_else(missing)?;
    Ok((before.to_owned(), written.to_owned(), after.to_owned()))
}

/// Prints what the runs came to: unstable ones, failures, counts. The last lines have the form that
/// cargo's tests print, so that they can be counted with them.
pub(crate) fn print(
    results: &Results,
    outcomes: &[Outcome],
    rust: &[(String, String)],
    table: &str,
) {
    let unstable = outcomes
        .iter()
        .filter_map(|o| Some((o.run, o.unstable.as_ref()?)));
    for (run, first) in unstable.clone() {
        println!("\nunstable: {run}\n{first}");
    }
    let failures = outcomes
        .iter()
        .filter_map(|o| Some((o.run.to_string(), o.failure.clone()?)));
    for (run, failure) in failures.clone().chain(rust.iter().cloned()) {
        println!("\nFAILED {run}\n{failure}");
    }
    println!("\n{table}");
    let (mut passed, mut failed, mut ignored) = (0, 0, 0);
    for (provider, id, verdict) in &results.all {
        match verdict {
            Verdict::Passed => passed += 1,
            Verdict::Failed(runs) => {
                failed += 1;
                println!("test {provider}::{id} ... FAILED");
                println!("  not shown by {}", runs.join(", "));
            }
            Verdict::Skipped(why) => {
                ignored += 1;
                println!("test {provider}::{id} ... ignored, {why}");
            }
        }
    }
    println!("{} runs, {} unstable", outcomes.len(), unstable.count());
    for (run, _) in failures.chain(rust.iter().cloned()) {
        println!("failed: {run}");
    }
    let word = if failed == 0 { "ok" } else { "FAILED" };
    println!("test result: {word}. {passed} passed; {failed} failed; {ignored} ignored");
}
