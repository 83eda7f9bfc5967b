//! Results as people, programs and spreadsheets read them.

use vipl_tools::report::{Table, number};
use vipl_tools::size;

use crate::bench::Measured;
use crate::reference::Reference;
use vipl_tools::placement::Placement;

/// Columns of a terminal.
pub(crate) const WIDTH: usize = 80;

/// One test's results at all sizes, as a table. Columns that would be empty are left out.
pub(crate) fn table(results: &[Measured]) -> String {
    let Some(first) = results.first() else {
        return String::new();
    };
    let sized = results.iter().any(|result| result.bytes.is_some());
    let placed = results.iter().any(|result| result.placement.is_some());
    let mut headings: Vec<String> = sized.then(|| "size".to_owned()).into_iter().collect();
    headings.extend(placed.then(|| "<CPUs".to_owned()));
    let repeated = headings.len();
    headings.extend(first.figures.iter().map(|f| titled(&f.name, f.unit)));
    headings.push("runs".to_owned());
    let most = results
        .iter()
        .max_by_key(|result| result.bounds.len())
        .unwrap_or(first);
    let references: Vec<(Reference, bool)> = most
        .bounds
        .iter()
        .map(|bound| {
            let of_size = results
                .iter()
                .filter_map(|result| result.bound(bound.reference));
            (
                bound.reference,
                of_size.into_iter().any(|bound| bound.ratio.is_finite()),
            )
        })
        .collect();
    for (reference, has_ratio) in &references {
        headings.push(titled(reference.name(), reference.unit()));
        headings.extend(has_ratio.then(|| "ratio".to_owned()));
    }
    let mut table = Table::new(&headings.iter().map(String::as_str).collect::<Vec<_>>());
    for result in results {
        let size = result.bytes.map_or_else(String::new, size::show);
        let mut cells: Vec<String> = sized.then_some(size).into_iter().collect();
        let place = result.placement.map_or("", Placement::name);
        cells.extend(placed.then(|| place.to_owned()));
        cells.extend(result.figures.iter().map(|figure| number(figure.value)));
        cells.push(runs(result));
        for (reference, has_ratio) in &references {
            let (value, ratio) = result
                .bound(*reference)
                .map_or((f64::NAN, f64::NAN), |b| (b.value, b.ratio));
            cells.push(number(value));
            cells.extend(has_ratio.then(|| number(ratio)));
        }
        table.row(cells);
    }
    let device = first.device.as_ref();
    let device = device.map_or_else(String::new, |name| format!(" {name}"));
    format!("{}{device}\n{}", first.test, table.fitted(WIDTH, repeated))
}

fn titled(name: &str, unit: &str) -> String {
    if unit.is_empty() {
        name.to_owned()
    } else {
        format!("{name}, {unit}")
    }
}

/// How many runs count, and how many do not.
pub(crate) fn runs(result: &Measured) -> String {
    match (result.unsteady, result.discarded) {
        (true, _) => format!("{} unsteady", result.runs),
        (false, 0) => result.runs.to_string(),
        (false, discarded) => format!("{} (+{discarded} discarded)", result.runs),
    }
}

/// All results, one figure or limit per line.
pub(crate) fn csv(results: &[Measured]) -> String {
    let mut table = Table::new(&[
        "test",
        "bytes",
        "figure",
        "value",
        "unit",
        "ratio",
        "runs",
        "placement",
    ]);
    for result in results {
        let bytes = result
            .bytes
            .map_or_else(String::new, |bytes| bytes.to_string());
        let mut row = |name: &str, value: f64, unit: &str, ratio: String| {
            let runs = result.runs.to_string();
            let (name, unit) = (name.to_owned(), unit.to_owned());
            let test = result.test.to_owned();
            let place = result.placement.map_or("", Placement::name).to_owned();
            table.row(vec![
                test,
                bytes.clone(),
                name,
                value.to_string(),
                unit,
                ratio,
                runs,
                place,
            ]);
        };
        for figure in &result.figures {
            row(&figure.name, figure.value, figure.unit, String::new());
        }
        for bound in &result.bounds {
            let kind = if bound.reference.is_peer() {
                "peer"
            } else {
                "limit"
            };
            let name = format!("{kind}: {}", bound.reference.name());
            let ratio = if bound.ratio.is_finite() {
                bound.ratio.to_string()
            } else {
                String::new()
            };
            row(&name, bound.value, bound.reference.unit(), ratio);
        }
    }
    table.csv()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::{Bound, figure};

    fn result() -> Measured {
        Measured {
            test: "latency",
            device: None,
            bytes: Some(8),
            placement: None,
            figures: vec![figure("one way", 0.125, "µs"), figure("p99", 0.5, "µs")],
            times: vipl_tools::stats::Histogram::default(),
            bounds: vec![Bound {
                reference: Reference::CacheLine,
                value: 100.0,
                ratio: 1.25,
            }],
            runs: 5,
            discarded: 2,
            unsteady: false,
        }
    }

    #[test]
    fn every_number_has_its_unit_in_the_heading() {
        let text = table(&[result()]);
        let mut lines = text.lines();
        assert_eq!(lines.next(), Some("latency"));
        let heading = lines.next().unwrap();
        assert!(
            heading.contains("one way, µs") && heading.contains("mean line, ns"),
            "{heading}"
        );
        let row: Vec<&str> = lines.next().unwrap().split_whitespace().collect();
        assert_eq!(
            row,
            [
                "8",
                "B",
                "0.12",
                "0.50",
                "5",
                "(+2",
                "discarded)",
                "100",
                "1.25"
            ]
        );
    }

    #[test]
    fn columns_that_mean_nothing_are_left_out() {
        let mut result = result();
        result.bytes = None;
        result.bounds[0].ratio = f64::NAN;
        let text = table(&[result]);
        assert!(!text.contains("size") && !text.contains("ratio"), "{text}");
        assert!(text.contains("mean line, ns"), "{text}");
    }

    #[test]
    fn csv_has_a_line_per_figure_and_limit() {
        let text = csv(&[result()]);
        assert_eq!(text.lines().count(), 4);
        assert!(text.contains("latency,8,one way,0.125,µs,,5,\n"), "{text}");
        assert!(
            text.contains("latency,8,limit: mean line,100,ns,1.25,5,\n"),
            "{text}"
        );
    }
}
