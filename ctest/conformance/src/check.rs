//! The checker: assertions, plan and programs have to name the same things.

use std::collections::BTreeSet;
use std::fs;

use crate::assertions::{self, expand, ids_in};
use crate::plan::{ELSEWHERE, ENTRIES, RUST_TESTS};

/// What does not fit together, one line each.
pub(crate) fn complaints() -> std::io::Result<Vec<String>> {
    let known: BTreeSet<String> = assertions::all().iter().map(|a| a.id.to_owned()).collect();
    let sources = sources()?;
    let mut lines = Vec::new();
    let mut planned = BTreeSet::new();
    for entry in ENTRIES {
        for id in entry.shows.iter().flat_map(|shows| expand(shows.ids)) {
            if !known.contains(&id) {
                lines.push(format!(
                    "the plan of {} names {id}, which is no assertion",
                    entry.program
                ));
            }
            planned.insert(id);
        }
        let file = |name: &str| name.split('.').next() == Some(entry.program);
        if !sources.iter().any(|(name, _)| file(name)) {
            lines.push(format!(
                "the plan names {}, which is no program",
                entry.program
            ));
        }
    }
    let others = RUST_TESTS
        .iter()
        .map(|t| (t.ids, t.name))
        .chain(ELSEWHERE.iter().map(|e| (e.ids, e.why)));
    for (ids, name) in others {
        for id in expand(ids) {
            if !known.contains(&id) {
                lines.push(format!(
                    "the plan names {id} for \"{name}\", which is no assertion"
                ));
            }
            planned.insert(id);
        }
    }
    for (name, text) in &sources {
        for id in ids_in(text) {
            if !known.contains(id) {
                lines.push(format!("{name} names {id}, which is no assertion"));
            }
        }
    }
    let without = known.difference(&planned);
    lines.extend(without.map(|id| format!("{id} is shown by nothing in the plan")));
    Ok(lines)
}

/// The text of every C source, by file name.
fn sources() -> std::io::Result<Vec<(String, String)>> {
    let mut all = Vec::new();
    for entry in fs::read_dir(vipl_ctest::source("programs"))? {
        let path = entry?.path();
        let name = path
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        all.push((name, fs::read_to_string(&path)?));
    }
    all.sort();
    Ok(all)
}

#[cfg(test)]
mod tests {
    #[test]
    fn plan_and_programs_fit_the_list() {
        assert_eq!(
            super::complaints().expect("the sources"),
            Vec::<String>::new()
        );
    }
}
