//! From runs to assertions: what passed, what failed, what was skipped and why.

use std::collections::{BTreeMap, BTreeSet};

use crate::assertions::{self, expand, group};
use crate::plan::{ELSEWHERE, Planned, RUST_TESTS};
use crate::provider::{Abilities, Provider};
use crate::rows;
use crate::run::Outcome;
use crate::verdict::Verdict;

/// Verdicts by provider and identifier, in the order of the list.
pub(crate) struct Results {
    /// Provider, identifier, verdict.
    pub(crate) all: Vec<(&'static str, String, Verdict)>,
}

/// What is known of one assertion while runs are counted.
#[derive(Default)]
struct Tally {
    shown: bool,
    failed: Vec<String>,
    lacking: Vec<Abilities>,
    reasons: BTreeSet<String>,
}

impl Tally {
    fn reason(&mut self, why: impl Into<String>) {
        self.reasons.insert(why.into());
    }

    /// Why nothing could show it. Of what runs lack, the least that would let one of them run is named.
    fn why(&self) -> Option<String> {
        let least = |one: &&Abilities| {
            let less = |other: &Abilities| other != *one && one.contains(*other);
            !self.lacking.iter().any(less)
        };
        let lacking = self
            .lacking
            .iter()
            .filter(least)
            .map(|lacks| format!("needs {lacks}"));
        let mut reasons: Vec<String> = lacking.chain(self.reasons.iter().cloned()).collect();
        reasons.sort();
        reasons.dedup();
        (!reasons.is_empty()).then(|| reasons.join("; "))
    }
}

/// Counts. `rust` gives for each Rust test its verdict: a skip's reason or the failure.
pub(crate) fn judge(
    providers: &[&'static Provider],
    runs: &[Planned],
    outcomes: &[Outcome],
    rust: &[Result<Option<String>, String>],
) -> Results {
    let mut all = Vec::new();
    for provider in providers {
        let mut tallies: BTreeMap<String, Tally> = BTreeMap::new();
        let mut note = |id: &str, change: &dyn Fn(&mut Tally)| {
            change(tallies.entry(id.to_owned()).or_default());
        };
        for run in runs.iter().filter(|run| run.provider.name == provider.name) {
            let outcome = outcomes
                .iter()
                .find(|one| one.run.to_string() == run.to_string());
            for (id, lacks) in run.shows() {
                if !lacks.is_empty() {
                    note(&id, &|t| t.lacking.push(lacks));
                } else if outcome.is_some_and(|o| o.failure.is_none() && o.shown.contains(&id)) {
                    note(&id, &|t| t.shown = true);
                } else {
                    note(&id, &|t| t.failed.push(run.to_string()));
                }
            }
        }
        for (test, verdict) in RUST_TESTS.iter().zip(rust) {
            for id in expand(test.ids) {
                let name = format!("{}::{}", test.file, test.name);
                if test.provider != provider.name {
                    let why = format!("is shown on {} only, by {name}", test.provider);
                    note(&id, &|t| t.reason(why.clone()));
                    continue;
                }
                match verdict {
                    Ok(None) => note(&id, &|t| t.shown = true),
                    Ok(Some(why)) => note(&id, &|t| t.reason(why.clone())),
                    Err(_) => note(&id, &|t| t.failed.push(name.clone())),
                }
            }
        }
        for elsewhere in ELSEWHERE {
            for id in expand(elsewhere.ids) {
                note(&id, &|t| t.reason(elsewhere.why.to_owned()));
            }
        }
        for assertion in assertions::all() {
            let tally = tallies.remove(assertion.id).unwrap_or_default();
            let verdict = match tally {
                Tally { failed, .. } if !failed.is_empty() => Verdict::Failed(failed),
                Tally { shown: true, .. } => Verdict::Passed,
                tally => match tally.why() {
                    Some(why) => Verdict::Skipped(why),
                    None => Verdict::Failed(vec!["no run".to_owned()]),
                },
            };
            all.push((provider.name, assertion.id.to_owned(), verdict));
        }
        for seen in rows::judge(provider, outcomes) {
            all.push((provider.name, seen.id.to_owned(), seen.verdict));
        }
    }
    Results { all }
}

/// Passed, failed, skipped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    /// Number of the passed.
    pub(crate) passed: usize,
    /// Number of the failed.
    pub(crate) failed: usize,
    /// Number of the skipped.
    pub(crate) skipped: usize,
}

impl Counts {
    fn add(&mut self, verdict: &Verdict) {
        match verdict {
            Verdict::Passed => self.passed += 1,
            Verdict::Failed(_) => self.failed += 1,
            Verdict::Skipped(_) => self.skipped += 1,
        }
    }
}

impl Results {
    /// The counts of one group, or of all, on one provider.
    pub(crate) fn counts(&self, provider: &str, of: Option<&str>) -> Counts {
        let mut counts = Counts::default();
        for (name, id, verdict) in &self.all {
            if *name == provider && of.is_none_or(|of| group(id) == of) {
                counts.add(verdict);
            }
        }
        counts
    }

    /// The groups, in order.
    pub(crate) fn groups(&self) -> Vec<&str> {
        let mut groups: Vec<&str> = Vec::new();
        for (_, id, _) in &self.all {
            if !groups.contains(&group(id)) {
                groups.push(group(id));
            }
        }
        groups
    }

    /// The skipped of one provider, by reason.
    pub(crate) fn skips(&self, provider: &str) -> BTreeMap<&str, Vec<&str>> {
        let mut skips: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for (name, id, verdict) in &self.all {
            if let (true, Verdict::Skipped(why)) = (*name == provider, verdict) {
                skips.entry(why).or_default().push(id);
            }
        }
        skips
    }
}
