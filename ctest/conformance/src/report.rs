//! What the suite prints, and what it has to say about each plug-in for `docs/CONFORMANCE.md`.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use crate::page::Column;
use crate::plan::Planned;
use crate::provider::Provider;
use crate::results::Results;
use crate::rows;
use crate::run::Outcome;
use crate::verdict::Verdict;

/// A column for each plug-in that was run.
pub(crate) fn columns(
    results: &Results,
    providers: &[&'static Provider],
    runs: &[Planned],
    outcomes: &[Outcome],
) -> Vec<Column> {
    let column = |provider: &&'static Provider| Column {
        name: provider.name.to_owned(),
        groups: groups(results, provider),
        rows: error_rows(provider, outcomes),
        notes: notes(results, provider, runs),
    };
    providers.iter().map(column).collect()
}

/// Passed, failed and skipped, by group and in all.
fn groups(results: &Results, provider: &Provider) -> Vec<(String, String)> {
    let groups = results.groups();
    groups
        .iter()
        .map(|group| Some(*group))
        .chain([None])
        .map(|group| {
            let counts = results.counts(provider.name, group);
            let cell = format!("{} / {} / {}", counts.passed, counts.failed, counts.skipped);
            (group.unwrap_or("**all**").to_owned(), cell)
        })
        .collect()
}

/// On which levels each row of the error table was observed.
fn error_rows(provider: &Provider, outcomes: &[Outcome]) -> Vec<(String, String)> {
    rows::judge(provider, outcomes)
        .into_iter()
        .map(|seen| {
            let cell = match seen.verdict {
                Verdict::Skipped(why) => why,
                Verdict::Passed => seen.levels.join(", "),
                Verdict::Failed(_) => "FAILED".to_owned(),
            };
            (seen.id.to_owned(), cell)
        })
        .collect()
}

/// The number of runs, and what was left out and why.
fn notes(results: &Results, provider: &Provider, runs: &[Planned]) -> String {
    let planned = runs.iter().filter(|run| run.provider.name == provider.name);
    let (able, unable): (Vec<&Planned>, Vec<&Planned>) =
        planned.partition(|run| run.lacks().is_empty());
    let mut text = format!("{} runs.\n", able.len());
    if !unable.is_empty() {
        let mut reasons: BTreeMap<String, usize> = BTreeMap::new();
        for run in unable {
            *reasons.entry(run.lacks().to_string()).or_default() += 1;
        }
        text.push_str("\nRuns left out, by what the device would need:\n\n");
        for (what, number) in reasons {
            let _ = writeln!(text, "- {what}: {number}");
        }
    }
    let skips = results.skips(provider.name);
    if !skips.is_empty() {
        text.push_str("\nAssertions skipped:\n\n");
        for (why, ids) in skips {
            let _ = writeln!(text, "- {why}: {}", ids.join(", "));
        }
    }
    text
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
