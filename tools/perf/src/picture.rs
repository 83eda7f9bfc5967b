//! `--plot`: the results of a run as charts.

use std::path::{Path, PathBuf};

use serde_json::Value;
use vipl_tools::report::number;
use vipl_tools::{Error, Result, size};

use crate::axis::{self, Scale};
use crate::chart::{self, Chart, Mark, Series};
use crate::cli::Options;
use crate::kept::{LATENCIES, RATES, STREAMS, drawn, heading, in_unit, read, results, word};
use crate::legend::legend;
use crate::page::page;
use crate::whole::Place;

/// Histograms in one chart: the least size, the greatest, and one in between.
const HISTOGRAMS: usize = 3;
/// What is drawn, and where to.
pub(crate) struct Pictures {
    plot: Option<Place>,
    report: Option<Place>,
    other: Option<Value>,
}

impl Pictures {
    /// None if no picture was asked for.
    ///
    /// # Errors
    /// The run to compare with cannot be read, or a file cannot be written.
    pub(crate) fn new(options: &Options) -> Result<Option<Self>> {
        if !options.draws() {
            return Ok(None);
        }
        // Before anything is measured.
        let read_from = options.from.iter().chain(&options.compare);
        let read_from: Vec<PathBuf> = read_from
            .filter_map(|file| std::fs::canonicalize(file).ok())
            .collect();
        let mut others: Vec<&Path> = read_from.iter().map(PathBuf::as_path).collect();
        let place = |file: &Option<PathBuf>, others: &[&Path]| {
            let place = file.as_deref().map(|file| Place::new(file, others));
            place.transpose()
        };
        let plot = place(&options.plot, &others)?;
        others.extend(plot.iter().map(Place::path));
        let report = place(&options.report, &others)?;
        let other = options.compare.as_deref().map(read).transpose()?;
        Ok(Some(Self {
            plot,
            report,
            other,
        }))
    }

    /// Draws a run.
    ///
    /// # Errors
    /// A file cannot be written, or there is nothing to draw.
    pub(crate) fn draw(&self, run: &Value) -> Result<()> {
        let other = self.other.as_ref();
        let mut head = heading(run, other);
        head.extend(legend(run));
        let charts = charts(run, other);
        if charts.is_empty() {
            let names: Vec<&str> = drawn().collect();
            let why = format!("nothing to draw: the charts are of {}", names.join(", "));
            return Err(Error::Usage(why));
        }
        if let Some(file) = &self.plot {
            file.write(&chart::svg(&head, &charts))?;
        }
        if let Some(file) = &self.report {
            // The page has the heading as text.
            file.write(&page(run, other, &head, &chart::svg(&[], &charts)))?;
        }
        Ok(())
    }
}

fn charts(run: &Value, other: Option<&Value>) -> Vec<Chart> {
    let both = |tests: &[(&str, &[&str])], unit: &str, marks: bool| {
        let mut series = lines(run, tests, unit, false, marks);
        let dashed = other.map_or_else(Vec::new, |other| lines(other, tests, unit, true, marks));
        for mut line in dashed.into_iter().filter(|line| is_own(&line.name)) {
            let same = series.iter().find(|known| known.name == line.name);
            line.colour = same.map_or(series.len(), |known| known.colour);
            line.name += " (dashed)";
            series.push(line);
        }
        series
    };
    let chart = |title: &str, y, scale, series| Chart {
        title: title.to_owned(),
        x: ("bytes of a message", Scale::Bytes),
        y: (y, scale),
        series,
    };
    let mut charts = vec![
        chart(
            "Latency",
            "one way, µs",
            Scale::Decades,
            both(LATENCIES, "µs", false),
        ),
        chart(
            "Bandwidth, with n½ where half of the peak is reached",
            "GB/s",
            Scale::Decades,
            both(STREAMS, "GB/s", true),
        ),
        chart(
            "Message rate",
            "million messages per second",
            Scale::Decades,
            both(RATES, "M/s", false),
        ),
    ];
    let chosen = chosen(run);
    let mut times = histograms(&chosen, false);
    if let Some(other) = other {
        // Those of the same sizes, if there are any: one colour is one size.
        let same: Vec<&Value> = chosen.iter().filter_map(|one| like(other, one)).collect();
        times.extend(histograms(
            &if same.is_empty() {
                self::chosen(other)
            } else {
                same
            },
            true,
        ));
    }
    charts.push(Chart {
        title: "Latencies of single messages, with the 99th percentile".to_owned(),
        x: ("one way, µs", Scale::Decades),
        y: ("% of messages", Scale::Even),
        series: times,
    });
    charts.retain(|chart| chart.series.iter().any(|series| !series.points.is_empty()));
    charts
}

/// Neither a limit nor a peer: those belong to the run at hand.
fn is_own(name: &str) -> bool {
    !name.starts_with("limit: ") && !name.starts_with("peer: ")
}

/// One line for each figure, placement of the processors, limit and peer.
fn lines(
    run: &Value,
    tests: &[(&str, &[&str])],
    unit: &str,
    is_dashed: bool,
    marks: bool,
) -> Vec<Series> {
    let mut all: Vec<Series> = Vec::new();
    let mut add = |name: String, bytes: f64, value: f64| {
        let known = all.len();
        match all.iter_mut().find(|series| series.name == name) {
            Some(series) => series.points.push((bytes, value)),
            None => all.push(Series {
                name,
                points: vec![(bytes, value)],
                colour: known,
                is_dashed,
                is_thin: false,
                mark: None,
            }),
        }
    };
    for result in results(run) {
        let Some((test, figures)) = tests.iter().find(|(test, _)| *test == word(result, "test"))
        else {
            continue;
        };
        let Some(bytes) = result["bytes"].as_f64() else {
            continue;
        };
        let place = result["placement"]
            .as_str()
            .map_or(String::new(), |place| format!(", {place}"));
        for figure in result["figures"].as_array().into_iter().flatten() {
            let name = word(figure, "name");
            if let (true, Some(value)) = (figures.contains(&name), in_unit(figure, unit)) {
                let name = match name {
                    "stream" | "one way" | "messages" => "",
                    name => name,
                };
                add(
                    format!("{test} {name}").trim_end().to_owned() + &place,
                    bytes,
                    value,
                );
            }
        }
        for (kind, list) in [("limit", "limits"), ("peer", "peers")] {
            for by in result[list].as_array().into_iter().flatten() {
                if let Some(value) = in_unit(by, unit) {
                    add(format!("{kind}: {}{place}", word(by, "name")), bytes, value);
                }
            }
        }
    }
    for series in &mut all {
        series
            .points
            .sort_by(|one, other| one.0.total_cmp(&other.0));
        series.is_thin = !is_own(&series.name);
        if marks && !series.is_thin {
            series.mark = half_size(&series.points);
        }
    }
    all
}

/// n½ as von Eicken and Vogels measured it: the size of messages at which half of the greatest bandwidth is reached, between two
/// measured sizes along a straight line in the chart.
fn half_size(points: &[(f64, f64)]) -> Option<Mark> {
    let peak = points.iter().map(|point| point.1).fold(0.0, f64::max);
    let half = peak / 2.0;
    let first = points.iter().position(|point| point.1 >= half)?;
    let (size, reached) = points[first];
    let mark = |size: f64, height: f64, is: &str| Mark {
        x: size,
        y: Some(height),
        text: format!("n½ {is} {}", axis::size(size)),
    };
    if first == 0 {
        return (points.len() > 1).then(|| mark(size, reached, "≤"));
    }
    let (before, least) = points[first - 1];
    let share = (half / least).ln() / (reached / least).ln();
    let size = before * (size / before).powf(share);
    Some(mark(size, half, "="))
}

/// Results of which there are histograms: of the least size, the greatest, and one in between.
fn chosen(run: &Value) -> Vec<&Value> {
    let all: Vec<&Value> = results(run).filter(with_times).collect();
    match all.len() {
        0..=HISTOGRAMS => all,
        some => [0, some / 2, some - 1].map(|number| all[number]).to_vec(),
    }
}

fn with_times(result: &&Value) -> bool {
    word(result, "test") == "latency" && result["times"].is_array()
}

/// The result of another run for the same size and placement.
fn like<'a>(other: &'a Value, one: &Value) -> Option<&'a Value> {
    let is_like = |result: &&Value| {
        result["bytes"] == one["bytes"] && result["placement"] == one["placement"]
    };
    results(other).filter(with_times).find(is_like)
}

/// Histograms of some results.
fn histograms(chosen: &[&Value], is_dashed: bool) -> Vec<Series> {
    let series = chosen.iter().enumerate().map(|(colour, result)| {
        let bars = result["times"].as_array().into_iter().flatten();
        let bars: Vec<(f64, f64, f64)> = bars
            .filter_map(|bar| Some((bar[0].as_f64()?, bar[1].as_f64()?, bar[2].as_f64()?)))
            .collect();
        let sum: f64 = bars.iter().map(|bar| bar.2).sum::<f64>().max(1.0);
        let mut points = Vec::new();
        let mut end = None;
        for (from, to, count) in bars {
            let (from, to, share) = (from / 1e3, to / 1e3, 100.0 * count / sum);
            if let Some(end) = end.filter(|end| from > *end * 1.0001) {
                points.extend([(end, 0.0), (f64::NAN, 0.0), (from, 0.0)]);
            }
            points.extend([(from, share), (to, share)]);
            end = Some(to);
        }
        if let (Some(first), Some(last)) = (points.first().copied(), points.last().copied()) {
            points.insert(0, (first.0, 0.0));
            points.push((last.0, 0.0));
        }
        let p99 = result["figures"]
            .as_array()
            .into_iter()
            .flatten()
            .find(|f| word(f, "name") == "p99");
        let p99 = p99.and_then(|figure| in_unit(figure, "µs"));
        let bytes = result["bytes"].as_u64().unwrap_or(0) as usize;
        let place = result["placement"]
            .as_str()
            .map_or(String::new(), |place| format!(", {place}"));
        Series {
            name: format!(
                "{}{place}{}",
                size::show(bytes),
                if is_dashed { " (dashed)" } else { "" }
            ),
            points,
            colour,
            is_dashed,
            is_thin: false,
            mark: p99.map(|p99| Mark {
                x: p99,
                y: None,
                text: format!("p99 {} µs", number(p99)),
            }),
        }
    });
    series.collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn run(factor: f64) -> Value {
        let result = |test: &str, bytes: u64, name: &str, value: f64, unit: &str| {
            json!({"test": test, "bytes": bytes, "placement": "near", "times": [[100.0, 110.0, 3], [200.0, 220.0, 1]],
                "figures": [{"name": name, "value": value * factor, "unit": unit}],
                "limits": [{"name": "mean line", "value": 60.0, "unit": "ns"}], "peers": []})
        };
        let mut results = Vec::new();
        for power in 3..17u32 {
            let bytes = 1u64 << power;
            let us = 0.15 + bytes as f64 / 30_000.0;
            results.push(result("latency", bytes, "one way", us, "µs"));
            results.push(result(
                "bandwidth",
                bytes,
                "stream",
                bytes as f64 / 1e3 / us,
                "GB/s",
            ));
        }
        json!({"machine": {"cpu": "A & B", "kernel": "6", "version": "0"}, "device": "via_lo", "results": results})
    }

    #[test]
    fn half_of_the_peak_is_found_between_two_sizes() {
        // r(n) = R n / (n + h): half of what is reached at the end, a little below h.
        let points: Vec<(f64, f64)> = (3..21)
            .map(|power| {
                let bytes = f64::from(1u32 << power);
                (bytes, 10.0 * bytes / (bytes + 4096.0))
            })
            .collect();
        let mark = half_size(&points).unwrap();
        assert!((3900.0..4200.0).contains(&mark.x), "{mark:?}");
        assert!(mark.text.starts_with("n½ = "), "{mark:?}");
        let first = half_size(&[(8.0, 5.0), (16.0, 6.0)]).unwrap();
        assert_eq!((&*first.text, first.y), ("n½ ≤ 8 B", Some(5.0)));
        assert!(half_size(&[(8.0, 5.0)]).is_none());
        assert!(half_size(&[]).is_none());
    }

    #[test]
    fn a_run_has_three_charts_and_two_runs_are_compared() {
        let (one, two) = (run(1.0), run(2.0));
        let charts = charts(&one, None);
        assert_eq!(charts.len(), 3);
        assert!(
            charts[0]
                .series
                .iter()
                .any(|series| series.name == "limit: mean line, near")
        );
        assert!(
            charts[1].series[0]
                .mark
                .as_ref()
                .unwrap()
                .text
                .starts_with("n½ = ")
        );
        let text = chart::svg(&heading(&one, Some(&two)), &super::charts(&one, Some(&two)));
        assert!(
            text.contains("stroke-dasharray=\"6 4\"") && text.contains("A &amp; B"),
            "{text}"
        );
        let page = page(&one, Some(&two), &heading(&one, Some(&two)), &text);
        assert!(page.contains("-50.0 %"), "{page}");
        for tag in ["svg", "g", "text", "table", "tr", "td", "p", "html"] {
            let (opened, closed) = (
                page.matches(&format!("<{tag}>")).count()
                    + page.matches(&format!("<{tag} ")).count(),
                page.matches(&format!("</{tag}>")).count(),
            );
            assert_eq!(opened, closed, "{tag}");
        }
        assert!(
            !page.contains("http://") || page.matches("http").count() == 1,
            "nothing is loaded from elsewhere"
        );
    }

    /// None of them is waited for.
    #[test]
    fn only_regular_files_are_read() {
        let folder = tempfile::tempdir().unwrap();
        let fifo = folder.path().join("fifo");
        nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
        for file in [fifo.as_path(), Path::new("/dev/zero"), folder.path()] {
            assert!(read(file).is_err(), "{}", file.display());
        }
    }

    #[test]
    fn a_document_of_something_else_is_refused() {
        let file = std::env::temp_dir().join(format!("vipl-picture-{}", std::process::id()));
        std::fs::write(&file, "{\"table\": []}").unwrap();
        let error = read(&file).unwrap_err().to_string();
        std::fs::remove_file(&file).unwrap();
        assert!(
            error.contains("is not what vip_perf --json prints"),
            "{error}"
        );
        assert!(super::charts(&json!({"results": []}), None).is_empty());
    }
}
