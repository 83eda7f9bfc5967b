//! The part of `docs/CONFORMANCE.md` that the suite writes: a column and a section for each plug-in. Those of
//! plug-ins that were not run stay as they are.

use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;

use crate::provider::PROVIDERS;

const BEGIN: &str = "<!-- results: written by `cargo xtask conformance --write` -->";
const END: &str = "<!-- end of results -->";

/// What the page says of one plug-in.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Column {
    /// The plug-in.
    pub(crate) name: String,
    /// Cells of the first table: group, counts.
    pub(crate) groups: Vec<(String, String)>,
    /// Cells of the second table: row of the error table, what came of it.
    pub(crate) rows: Vec<(String, String)>,
    /// The section.
    pub(crate) notes: String,
}

/// The text of these columns.
pub(crate) fn render(columns: &[Column]) -> String {
    let mut text = String::from("Assertions passed / failed / skipped:\n\n");
    table(&mut text, "group", columns, |column| &column.groups);
    text.push_str(
        "\nRows of the error table (specification §6.4), and the levels on which each was observed:\n\n",
    );
    table(&mut text, "row", columns, |column| &column.rows);
    for column in columns {
        let _ = write!(text, "\n### {}\n\n{}\n", column.name, column.notes.trim());
    }
    text
}

/// One table; all columns have the same rows.
fn table(
    text: &mut String,
    corner: &str,
    columns: &[Column],
    cells: impl Fn(&Column) -> &Vec<(String, String)>,
) {
    let names: Vec<&str> = columns.iter().map(|column| column.name.as_str()).collect();
    let _ = writeln!(text, "| {corner} | {} |", names.join(" | "));
    let _ = writeln!(text, "| --- |{}", " --- |".repeat(columns.len()));
    let Some(leftmost) = columns.first() else {
        return;
    };
    for (number, (first, _)) in cells(leftmost).iter().enumerate() {
        let _ = write!(text, "| {first} |");
        for column in columns {
            let cell = cells(column).get(number).map_or("", |(_, cell)| cell);
            let _ = write!(text, " {cell} |");
        }
        text.push('\n');
    }
}

/// Reads what [`render`] has written.
fn parse(text: &str) -> Vec<Column> {
    let mut sections = text.split("\n### ");
    let tables = sections.next().unwrap_or_default();
    let mut columns: Vec<Column> = sections
        .filter_map(|section| {
            let (name, notes) = section.split_once('\n')?;
            Some(Column {
                name: name.to_owned(),
                notes: notes.trim().to_owned() + "\n",
                ..Column::default()
            })
        })
        .collect();
    let mut corner = "";
    let mut names: Vec<&str> = Vec::new();
    for line in tables.lines().filter(|line| line.starts_with('|')) {
        let mut cells = line.trim_matches('|').split('|').map(str::trim);
        match cells.next().unwrap_or_default() {
            "---" => {}
            first @ ("group" | "row") => {
                corner = first;
                names = cells.collect();
            }
            first => {
                for (name, cell) in names.iter().zip(cells) {
                    let Some(column) = columns.iter_mut().find(|column| column.name == *name)
                    else {
                        continue;
                    };
                    let list = match corner {
                        "group" => &mut column.groups,
                        _ => &mut column.rows,
                    };
                    list.push((first.to_owned(), cell.to_owned()));
                }
            }
        }
    }
    columns
}

/// The old columns with the new ones in their places, in the order of the plug-ins.
fn merged(old: Vec<Column>, new: Vec<Column>) -> Vec<Column> {
    let find = |list: &[Column], name| list.iter().find(|column| column.name == name).cloned();
    PROVIDERS
        .iter()
        .filter_map(|provider| find(&new, provider.name).or_else(|| find(&old, provider.name)))
        .collect()
}

/// Puts these columns into the page.
pub(crate) fn write(new: Vec<Column>) -> Result<(), String> {
    let (before, written, after) = parts()?;
    let text = render(&merged(parse(&written), new));
    let text = format!("{before}{BEGIN}\n\n{text}\n{END}{after}");
    fs::write(page(), text).map_err(|error| format!("docs/CONFORMANCE.md: {error}"))
}

/// What differs between these columns and the same ones of the page.
pub(crate) fn differences(new: &[Column]) -> Result<Vec<String>, String> {
    let (_, written, _) = parts()?;
    let written = parse(&written);
    let mut lines = Vec::new();
    for column in new {
        let old = written.iter().find(|old| old.name == column.name);
        let old = render(old.map_or(&[], std::slice::from_ref));
        let new = render(std::slice::from_ref(column));
        let name = &column.name;
        let lacks = |text: &str, line: &str| !text.lines().any(|other| other == line);
        let gone = old.lines().filter(|line| lacks(&new, line));
        lines.extend(gone.map(|line| format!("{name}: - {line}")));
        let come = new.lines().filter(|line| lacks(&old, line));
        lines.extend(come.map(|line| format!("{name}: + {line}")));
    }
    Ok(lines)
}

/// The page.
fn page() -> PathBuf {
    vipl_ctest::source("../docs/CONFORMANCE.md")
}

/// What stands before, between and behind the markers.
fn parts() -> Result<(String, String, String), String> {
    let text = fs::read_to_string(page()).map_err(|e| format!("docs/CONFORMANCE.md: {e}"))?;
    let missing = || "docs/CONFORMANCE.md has no place for the results".to_owned();
    let (before, rest) = text.split_once(BEGIN).ok_or_else(missing)?;
    let (written, after) = rest.split_once(END).ok_or_else(missing)?;
    Ok((before.to_owned(), written.to_owned(), after.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn column(name: &str, cell: &str) -> Column {
        let cells = |first: &str| vec![(first.to_owned(), cell.to_owned())];
        Column {
            name: name.to_owned(),
            groups: cells("ABI"),
            rows: cells("E1"),
            notes: format!("1 run.\n\nAssertions skipped:\n\n- needs {cell}: ABI-01\n"),
        }
    }

    #[test]
    fn what_is_written_is_read() {
        let columns = vec![column("loopback", "1 / 0 / 0"), column("sim", "U, RD")];
        assert_eq!(parse(&render(&columns)), columns);
    }

    #[test]
    fn what_was_not_run_stays() {
        let old = vec![column("loopback", "old"), column("example-c", "old")];
        let new = vec![column("sim", "new"), column("example-c", "new")];
        let all = vec![
            column("loopback", "old"),
            column("sim", "new"),
            column("example-c", "new"),
        ];
        assert_eq!(merged(old, new), all);
    }
}
