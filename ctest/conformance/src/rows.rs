//! The rows of the error table, specification §6.4: which of them were observed, on which levels.
//!
//! The program `errors` prints a line for each row, level and side, with what it expected and what it
//! observed, and ends with a failure when the two differ.

use crate::plan::Level;
use crate::provider::{Abilities, LOSS, NIC_FAILURE, NONE, Provider, READ, WRITE};
use crate::run::Outcome;
use crate::verdict::Verdict;

/// A row, what it takes to bring it about, and its levels.
struct Row {
    id: &'static str,
    needs: Abilities,
    levels: &'static [Level],
}

const ALL: &[Level] = &[Level::U, Level::Rd, Level::Rr];
const RELIABLE: &[Level] = &[Level::Rd, Level::Rr];

const fn row(id: &'static str, needs: Abilities, levels: &'static [Level]) -> Row {
    Row { id, needs, levels }
}

const ROWS: &[Row] = &[
    row("E1", NONE, ALL),
    row("E2", NONE, ALL),
    row("E3", NONE, ALL),
    row("E4", LOSS, ALL),
    row("E5", LOSS, ALL),
    row("E6", NONE, ALL),
    row("E7", NONE, ALL),
    row("E8", NONE, ALL),
    row("E9", WRITE, ALL),
    row("E10", WRITE, ALL),
    row("E11", WRITE, ALL),
    row("E12", LOSS, ALL),
    row("E13", READ, RELIABLE),
    row("E14", NONE, ALL),
    row("E15", NONE, ALL),
    row("E16", NONE, ALL),
    row("E17", LOSS, RELIABLE),
    row("E18", NIC_FAILURE, ALL),
];

/// One row on one provider.
pub(crate) struct Seen {
    /// `E6`.
    pub(crate) id: &'static str,
    /// The levels on which it was observed.
    pub(crate) levels: Vec<&'static str>,
    /// Observed on all levels that the device has.
    pub(crate) verdict: Verdict,
}

/// All rows on a provider.
pub(crate) fn judge(provider: &Provider, outcomes: &[Outcome]) -> Vec<Seen> {
    let lines: Vec<&str> = outcomes
        .iter()
        .filter(|outcome| outcome.run.provider.name == provider.name && outcome.failure.is_none())
        .flat_map(|outcome| outcome.rows.iter().map(String::as_str))
        .filter(|line| line.contains(" observed "))
        .collect();
    let observed = |row: &Row, level: &Level| {
        lines.iter().any(|line| {
            let mut parts = line.split(" | ");
            let id = parts.next().and_then(|part| part.split(' ').next());
            id == Some(row.id) && parts.next() == Some(level.name())
        })
    };
    ROWS.iter()
        .map(|row| {
            let lacking = provider.abilities.lacking(row.needs);
            let able = |level: &&Level| provider.abilities.contains(level.ability());
            let (seen, unseen): (Vec<&Level>, Vec<&Level>) = row
                .levels
                .iter()
                .filter(able)
                .partition(|level| observed(row, level));
            let verdict = if !lacking.is_empty() {
                Verdict::Skipped(format!("needs {lacking}"))
            } else if unseen.is_empty() {
                Verdict::Passed
            } else {
                let names: Vec<&str> = unseen.iter().map(|level| level.name()).collect();
                Verdict::Failed(vec![format!("errors at {}", names.join(", "))])
            };
            Seen {
                id: row.id,
                levels: seen.iter().map(|level| level.name()).collect(),
                verdict,
            }
        })
        .collect()
}
