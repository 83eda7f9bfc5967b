//! Tables for people, and the same as CSV.

#![forbid(unsafe_code)]

use std::io::Write as _;
use std::process::ExitCode;

use vipl_sys::text::{lines, one_line};

use crate::{Error, Result, sys};

/// Writes to standard output, without control characters but line feeds: names of devices, files and peers may
/// hold some. Unlike `print!` it returns an error when that fails.
///
/// # Errors
/// The output is full, or closed.
pub fn print(text: &str) -> Result<()> {
    vipl_cli::output::write(lines(text).as_bytes())
        .map_err(|error| Error::io("cannot write to standard output", error))
}

/// Writes a line to standard error, without control characters. It is lost if that is closed, or its terminal has gone.
pub fn note(text: &str) {
    let _ = writeln!(std::io::stderr(), "{}", lines(text));
}

/// Characters of a line: `COLUMNS`, else those of the terminal, else 80.
#[must_use]
pub fn width() -> usize {
    let given = std::env::var("COLUMNS")
        .ok()
        .and_then(|text| text.parse().ok());
    given.or_else(sys::columns).unwrap_or(80)
}

/// Ends a tool that has failed. With `json` the error is also a document on standard output.
pub fn failed(tool: &str, error: &Error, json: bool) -> ExitCode {
    note(&format!("{tool}: {error}"));
    let on_output = !matches!(error, Error::Io { what, .. } if what.ends_with("standard output"));
    if json && on_output {
        let document = serde_json::json!({"error": error.to_string()});
        let _ = print(&format!("{document:#}\n"));
    }
    ExitCode::FAILURE
}

/// A table of text cells with a line of headings.
#[derive(Clone, Debug, Default)]
pub struct Table {
    headings: Vec<String>,
    rows: Vec<Vec<String>>,
    left: Vec<bool>,
}

impl Table {
    /// A table with these headings. A heading that begins with `<` is aligned to the left.
    #[must_use]
    pub fn new(headings: &[&str]) -> Self {
        Self {
            headings: headings
                .iter()
                .map(|h| h.trim_start_matches('<').to_owned())
                .collect(),
            left: headings.iter().map(|h| h.starts_with('<')).collect(),
            rows: Vec::new(),
        }
    }

    /// Adds a row; missing cells are empty.
    pub fn row(&mut self, cells: Vec<String>) {
        let cells = cells.iter().map(|cell| one_line(cell).into_owned());
        self.rows.push(cells.collect());
    }

    /// Whether it has no rows.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    fn widths(&self) -> Vec<usize> {
        let width = |column: usize| {
            let cells = self.rows.iter().filter_map(|row| row.get(column));
            cells
                .chain(self.headings.get(column))
                .map(|c| c.chars().count())
                .max()
                .unwrap_or(0)
        };
        (0..self.headings.len()).map(width).collect()
    }

    fn line(&self, cells: &[String], widths: &[usize]) -> String {
        let mut line = String::new();
        for (column, width) in widths.iter().enumerate() {
            let cell = cells.get(column).map_or("", String::as_str);
            let padding = " ".repeat(width - cell.chars().count());
            if column > 0 {
                line.push_str("  ");
            }
            if self.left[column] {
                line.push_str(cell);
                line.push_str(&padding);
            } else {
                line.push_str(&padding);
                line.push_str(cell);
            }
        }
        line.truncate(line.trim_end().len());
        line
    }

    /// The headings and rows, in columns as wide as they need.
    #[must_use]
    pub fn text(&self) -> String {
        let widths = self.widths();
        let lines = std::iter::once(&self.headings).chain(&self.rows);
        lines
            .map(|cells| self.line(cells, &widths) + "\n")
            .collect()
    }

    /// The same in no more than `width` characters, if its columns can be divided: the rest follows below, each time with
    /// the first `repeated` columns. Rows that would be empty are left out.
    #[must_use]
    pub fn fitted(&self, width: usize, repeated: usize) -> String {
        let widths = self.widths();
        let mut blocks: Vec<Vec<usize>> = Vec::new();
        let mut used = 0;
        for column in repeated..widths.len() {
            used += 2 + widths[column];
            if used > width || blocks.is_empty() {
                blocks.push((0..repeated).collect());
                used = widths[..repeated]
                    .iter()
                    .map(|width| width + 2)
                    .sum::<usize>();
                used += widths[column];
            }
            if let Some(block) = blocks.last_mut() {
                block.push(column);
            }
        }
        let block = |columns: &Vec<usize>| {
            let mut part = self.of(columns);
            part.rows
                .retain(|row| row.iter().any(|cell| !cell.is_empty()));
            part.text()
        };
        let texts: Vec<String> = blocks.iter().map(block).collect();
        texts.join("\n")
    }

    /// Some of the columns.
    fn of(&self, columns: &[usize]) -> Self {
        let chosen = |cells: &Vec<String>| {
            let cells = columns.iter().map(|column| cells.get(*column).cloned());
            cells.map(Option::unwrap_or_default).collect()
        };
        Self {
            headings: chosen(&self.headings),
            rows: self.rows.iter().map(chosen).collect(),
            left: columns.iter().map(|column| self.left[*column]).collect(),
        }
    }

    /// Comma-separated values with quotes where needed.
    #[must_use]
    pub fn csv(&self) -> String {
        let lines = std::iter::once(&self.headings).chain(&self.rows);
        lines.map(|cells| csv_line(cells) + "\n").collect()
    }
}

fn csv_line(cells: &[String]) -> String {
    let quoted = cells.iter().map(|cell| {
        if cell.contains([',', '"', '\n']) {
            format!("\"{}\"", cell.replace('"', "\"\""))
        } else {
            cell.clone()
        }
    });
    quoted.collect::<Vec<_>>().join(",")
}

/// The words of a text in lines of at most `width` characters, the first behind `first` and all others behind `others`; words that
/// fit on no line are broken.
#[must_use]
pub fn wrapped(text: &str, width: usize, first: &str, others: &str) -> String {
    let room = width.max(others.chars().count() + 8);
    let mut lines = vec![first.to_owned()];
    let mut is_empty = true;
    for word in text.split_whitespace() {
        let mut word: Vec<char> = word.chars().collect();
        loop {
            let line = lines.last_mut().expect("a line");
            let used = line.chars().count() + usize::from(!is_empty);
            let left = room.saturating_sub(used);
            if word.len() <= left {
                if !is_empty {
                    line.push(' ');
                }
                line.extend(&word);
                is_empty = false;
                break;
            }
            // A word that fits on no line is broken where it stands, if that is not near the end.
            let is_fresh = is_empty && line.chars().count() == others.chars().count();
            if word.len() > room - others.chars().count() && (is_fresh || left > 8) {
                if !is_empty {
                    line.push(' ');
                }
                line.extend(word.drain(..left));
            }
            lines.push(others.to_owned());
            is_empty = true;
        }
    }
    lines
        .iter()
        .map(|line| line.trim_end().to_owned() + "\n")
        .collect()
}

/// A number with about three digits that count.
#[must_use]
pub fn number(value: f64) -> String {
    if !value.is_finite() {
        return "-".to_owned();
    }
    match value.abs() {
        v if v >= 100.0 => format!("{value:.0}"),
        v if v >= 10.0 => format!("{value:.1}"),
        v if v >= 0.1 || v == 0.0 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

/// A number with its unit.
#[must_use]
pub fn with_unit(value: f64, unit: &str) -> String {
    if unit.is_empty() {
        number(value)
    } else {
        format!("{} {unit}", number(value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Table {
        let mut table = Table::new(&["<name", "value"]);
        table.row(vec!["a".into(), "1".into()]);
        table.row(vec!["long name".into(), "12 µs".into()]);
        table
    }

    #[test]
    fn columns_line_up() {
        assert_eq!(
            sample().text(),
            "name       value\na              1\nlong name  12 µs\n"
        );
    }

    #[test]
    fn columns_that_do_not_fit_follow_below() {
        let mut table = Table::new(&["size", "one", "two", "three"]);
        table.row(["8 B", "1", "2", "3"].map(str::to_owned).to_vec());
        let both = "size  one  two\n 8 B    1    2\n\nsize  three\n 8 B      3\n";
        assert_eq!(table.fitted(14, 1), both);
        assert_eq!(table.fitted(80, 1), table.text());
        assert_eq!(table.fitted(usize::MAX, 1), table.text());
        // A column that is too wide by itself has its own block.
        assert_eq!(table.fitted(1, 0).lines().count(), 4 * 2 + 3);
    }

    #[test]
    fn csv_quotes_what_needs_it() {
        let mut table = Table::new(&["a", "b"]);
        table.row(vec!["x,y".into(), "say \"hi\"".into()]);
        assert_eq!(table.csv(), "a,b\n\"x,y\",\"say \"\"hi\"\"\"\n");
    }

    #[test]
    fn a_cell_is_one_line_without_commands() {
        let mut table = Table::new(&["<a", "b"]);
        table.row(vec!["x\n\x1b[2J".into(), "1".into()]);
        let text = table.text();
        assert_eq!(text.lines().nth(1), Some("x\\n\\u001b[2J  1"), "{text}");
    }

    #[test]
    fn missing_cells_are_empty() {
        let mut table = Table::new(&["<a", "b"]);
        table.row(vec!["x".into()]);
        assert_eq!(table.text(), "a  b\nx\n");
        assert!(!table.is_empty());
    }

    #[test]
    fn numbers_keep_three_digits() {
        assert_eq!(number(1234.5), "1234");
        assert_eq!(number(12.345), "12.3");
        assert_eq!(number(1.2345), "1.23");
        assert_eq!(number(0.01234), "0.012");
        assert_eq!(number(0.0), "0.00");
        assert_eq!(number(f64::NAN), "-");
        assert_eq!(with_unit(2.0, "µs"), "2.00 µs");
    }
}
