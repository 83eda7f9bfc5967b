//! `--plot` and `--report`: the results of a run as charts, and as one file of HTML with a table. They are drawn from the document of
//! `--json`, so that a run that was kept can be drawn, and two can be compared.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use serde_json::Value;
use vipl_tools::report::number;
use vipl_tools::{Error, Result, size};

use crate::chart::{self, Chart, Scale, Series, escaped};
use crate::cli::Options;

/// Figures of tests over the size of their messages: the title, the tests, the figures of each with their words, and the unit.
const LATENCIES: &[(&str, &[&str])] = &[
    ("latency", &["one way", "p99"]),
    ("write-latency", &["one way"]),
];
const STREAMS: &[(&str, &[&str])] = &[
    ("bandwidth", &["stream"]),
    ("bidirectional", &["stream"]),
    ("threads", &["stream"]),
    ("write-bandwidth", &["stream"]),
    ("read", &["stream"]),
];
/// Histograms in one chart: the least size, the greatest, and one in between.
const HISTOGRAMS: usize = 3;
/// Bytes of a run that was kept. All tests at all sizes have less than one MiB.
const BYTES_MAX: usize = 16 << 20;
/// The largest message of a run that was kept, and the largest figure in a unit that is not drawn.
const SIZE_MAX: f64 = (1u64 << 40) as f64;
const FIGURE_MAX: f64 = 1e18;

/// What is drawn, and where to.
pub(crate) struct Pictures {
    plot: Option<PathBuf>,
    report: Option<PathBuf>,
    other: Option<Value>,
}

impl Pictures {
    /// None if no picture was asked for.
    ///
    /// # Errors
    /// The run to compare with cannot be read.
    pub(crate) fn new(options: &Options) -> Result<Option<Self>> {
        if !options.draws() {
            return Ok(None);
        }
        // Before anything is measured.
        for file in options.plot.iter().chain(&options.report) {
            writable(file)?;
        }
        let other = options.compare.as_deref().map(read).transpose()?;
        Ok(Some(Self {
            plot: options.plot.clone(),
            report: options.report.clone(),
            other,
        }))
    }

    /// Draws a run.
    ///
    /// # Errors
    /// A file cannot be written, or there is nothing to draw.
    pub(crate) fn draw(&self, run: &Value) -> Result<()> {
        let other = self.other.as_ref();
        let charts = charts(run, other);
        if charts.is_empty() {
            return Err(Error::Usage(
                "nothing to draw: the charts are of latency, write-latency, bandwidth, write-bandwidth and read".to_owned(),
            ));
        }
        let picture = chart::svg(&heading(run, other), &charts);
        if let Some(file) = &self.plot {
            write(file, &picture)?;
        }
        if let Some(file) = &self.report {
            write(file, &page(run, other, &picture))?;
        }
        Ok(())
    }
}

/// A run that was kept, as `--json` printed it.
///
/// # Errors
/// It cannot be read, or is none.
pub(crate) fn read(file: &Path) -> Result<Value> {
    let name = file.display().to_string();
    let text =
        vipl_sys::file::read_text(file, BYTES_MAX).map_err(|error| Error::io(&name, error))?;
    let run: Value =
        serde_json::from_str(&text).map_err(|error| Error::Usage(format!("{name}: {error}")))?;
    if !run["results"].is_array() {
        return Err(Error::Usage(format!(
            "{name} is not what vip_perf --json prints"
        )));
    }
    for (number, result) in results(&run).enumerate() {
        check(result).map_err(|what| Error::Usage(format!("{name}: results[{number}].{what}")))?;
    }
    Ok(run)
}

/// Whether there are pictures of a test.
pub(crate) fn is_drawn(test: &str) -> bool {
    LATENCIES.iter().chain(STREAMS).any(|one| one.0 == test)
}

/// Whether the numbers of a result can come from a measurement; else the field, and why not.
fn check(result: &Value) -> std::result::Result<(), String> {
    let within = |field: String, value: &Value, low: f64, high: f64| match value.as_f64() {
        Some(number) if !(low..=high).contains(&number) => Err(format!(
            "{field} is {number:e}, not between {low:e} and {high:e}"
        )),
        _ => Ok(()),
    };
    let is_drawn = is_drawn(word(result, "test"));
    within("bytes".to_owned(), &result["bytes"], 0.0, SIZE_MAX)?;
    for list in ["figures", "limits", "peers"] {
        for (number, figure) in result[list].as_array().into_iter().flatten().enumerate() {
            let (low, high) = match word(figure, "unit") {
                "ns" if is_drawn => (1e-3, 1e15),
                "µs" if is_drawn => (1e-6, 1e12),
                "MB/s" if is_drawn => (1e-9, 1e12),
                "GB/s" if is_drawn => (1e-12, 1e9),
                _ => (-FIGURE_MAX, FIGURE_MAX),
            };
            let field = format!("{list}[{number}].value");
            within(field, &figure["value"], low, high)?;
        }
    }
    for (number, bar) in result["times"].as_array().into_iter().flatten().enumerate() {
        for (place, high) in [(0, 1e15), (1, 1e15), (2, FIGURE_MAX)] {
            within(format!("times[{number}][{place}]"), &bar[place], 0.0, high)?;
        }
    }
    Ok(())
}

/// A file that does not exist yet, or a regular one. To open a FIFO waits for its reader.
fn writable(file: &Path) -> Result<()> {
    match std::fs::metadata(file) {
        Ok(about) if !about.is_file() => Err(Error::Usage(format!(
            "{} exists and is no regular file",
            file.display()
        ))),
        _ => Ok(()),
    }
}

fn write(file: &Path, text: &str) -> Result<()> {
    writable(file)?;
    std::fs::write(file, text).map_err(|error| Error::io(file.display().to_string(), error))
}

fn word<'a>(value: &'a Value, name: &str) -> &'a str {
    value[name].as_str().unwrap_or_default()
}

fn results(run: &Value) -> impl Iterator<Item = &Value> {
    run["results"].as_array().into_iter().flatten()
}

/// What was measured, and on what.
fn heading(run: &Value, other: Option<&Value>) -> Vec<String> {
    let line = |run: &Value| {
        let machine = &run["machine"];
        let (cpu, kernel) = (word(machine, "cpu"), word(machine, "kernel"));
        format!(
            "{}: {cpu}, Linux {kernel}, libvipl {}",
            word(run, "device"),
            word(machine, "version")
        )
    };
    let mut lines = vec![line(run)];
    lines.extend(other.map(|other| format!("dashed: {}", line(other))));
    lines
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
    ];
    let mut times = histograms(run, false);
    times.extend(other.map_or_else(Vec::new, |other| histograms(other, true)));
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
                let name = if name == "stream" || name == "one way" {
                    ""
                } else {
                    name
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

/// A figure in another unit of the same kind.
fn in_unit(figure: &Value, unit: &str) -> Option<f64> {
    let value = figure["value"].as_f64().filter(|value| *value > 0.0)?;
    match (word(figure, "unit"), unit) {
        (given, wanted) if given == wanted => Some(value),
        ("ns", "µs") => Some(value / 1e3),
        ("MB/s", "GB/s") => Some(value / 1e3),
        _ => None,
    }
}

/// n½ as von Eicken and Vogels measured it: the size of messages at which half of the greatest bandwidth is reached, between two
/// measured sizes along a straight line in the chart.
fn half_size(points: &[(f64, f64)]) -> Option<(f64, String)> {
    let peak = points.iter().map(|point| point.1).fold(0.0, f64::max);
    let half = peak / 2.0;
    let first = points.iter().position(|point| point.1 >= half)?;
    let (size, reached) = points[first];
    if first == 0 {
        return (points.len() > 1).then(|| (size, format!("n½ ≤ {}", chart::size(size))));
    }
    let (before, least) = points[first - 1];
    let share = (half / least).ln() / (reached / least).ln();
    let size = before * (size / before).powf(share);
    Some((size, format!("n½ = {}", chart::size(size))))
}

/// Histograms of the least size, the greatest, and one in between.
fn histograms(run: &Value, is_dashed: bool) -> Vec<Series> {
    let with_times =
        |result: &&Value| word(result, "test") == "latency" && result["times"].is_array();
    let all: Vec<&Value> = results(run).filter(with_times).collect();
    let chosen: Vec<&Value> = match all.len() {
        0..=HISTOGRAMS => all,
        some => [0, some / 2, some - 1].map(|number| all[number]).to_vec(),
    };
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
                points.extend([(end, 0.0), (from, 0.0)]);
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
            mark: p99.map(|p99| (p99, format!("p99 {} µs", number(p99)))),
        }
    });
    series.collect()
}

/// A page of one file: the charts, and every figure with that of the other run beside it.
fn page(run: &Value, other: Option<&Value>, picture: &str) -> String {
    let mut text = String::from(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n<title>vip_perf</title>\n<style>\n\
         body { font-family: sans-serif; color: #222222; background: #ffffff; max-width: 62em; margin: 1em auto; padding: 0 1em }\n\
         svg { max-width: 100%; height: auto }\n.wide { overflow-x: auto }\ntable { border-collapse: collapse }\n\
         td, th { padding: 0.2em 0.8em; border-bottom: 1px solid #d8d8d8; text-align: right }\n\
         td:first-child, th:first-child { text-align: left }\n</style>\n</head>\n<body>\n<h1>vip_perf</h1>\n",
    );
    for line in heading(run, other) {
        let _ = writeln!(text, "<p>{}</p>", escaped(&line));
    }
    text += picture;
    text += "<h2>All figures</h2>\n<div class=\"wide\">\n<table>\n<tr><th>test</th><th>size</th><th>CPUs</th><th>figure</th><th>value</th>";
    text += if other.is_some() {
        "<th>other run</th><th>change</th></tr>\n"
    } else {
        "</tr>\n"
    };
    for result in results(run) {
        let bytes = result["bytes"]
            .as_u64()
            .map_or(String::new(), |bytes| size::show(bytes as usize));
        for (kind, list) in [("", "figures"), ("limit: ", "limits"), ("peer: ", "peers")] {
            for figure in result[list].as_array().into_iter().flatten() {
                let (name, unit) = (word(figure, "name"), word(figure, "unit"));
                let value = figure["value"].as_f64().unwrap_or(f64::NAN);
                let (test, place) = (word(result, "test"), word(result, "placement"));
                let cells = [
                    test,
                    &bytes,
                    place,
                    &format!("{kind}{name}"),
                    &format!("{} {unit}", number(value)),
                ]
                .map(escaped);
                let _ = write!(text, "<tr><td>{}</td>", cells.join("</td><td>"));
                if let Some(other) = other {
                    let before = same(other, result, list, name);
                    let cells = match before {
                        Some(before) if before > 0.0 => [
                            format!("{} {unit}", number(before)),
                            format!("{:+.1} %", 100.0 * (value / before - 1.0)),
                        ],
                        _ => ["-".to_owned(), String::new()],
                    };
                    let _ = write!(
                        text,
                        "<td>{}</td>",
                        cells.map(|cell| escaped(&cell)).join("</td><td>")
                    );
                }
                text += "</tr>\n";
            }
        }
    }
    text + "</table>\n</div>\n</body>\n</html>\n"
}

/// The same figure of another run.
fn same(other: &Value, result: &Value, list: &str, name: &str) -> Option<f64> {
    let is_same = |candidate: &&Value| {
        ["test", "bytes", "placement"]
            .iter()
            .all(|key| candidate[*key] == result[*key])
    };
    let found = results(other).find(is_same)?;
    let mut figures = found[list].as_array()?.iter();
    figures.find(|figure| word(figure, "name") == name)?["value"].as_f64()
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
        let (size, said) = half_size(&points).unwrap();
        assert!((3900.0..4200.0).contains(&size), "{size}");
        assert!(said.starts_with("n½ = "), "{said}");
        assert_eq!(half_size(&[(8.0, 5.0), (16.0, 6.0)]).unwrap().1, "n½ ≤ 8 B");
        assert_eq!(half_size(&[(8.0, 5.0)]), None);
        assert_eq!(half_size(&[]), None);
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
                .1
                .starts_with("n½ = ")
        );
        let text = chart::svg(&heading(&one, Some(&two)), &super::charts(&one, Some(&two)));
        assert!(
            text.contains("stroke-dasharray=\"6 4\"") && text.contains("A &amp; B"),
            "{text}"
        );
        let page = page(&one, Some(&two), &text);
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

    #[test]
    fn numbers_beyond_all_measurements_are_refused() {
        let latency = |value: &str, bytes: &str, bar: &str| {
            let figure = format!(r#"{{"name": "one way", "value": {value}, "unit": "µs"}}"#);
            let result = format!(
                r#"{{"test": "latency", "bytes": {bytes}, "figures": [{figure}], "times": [{bar}]}}"#
            );
            check(&serde_json::from_str(&result).unwrap())
        };
        assert_eq!(latency("0.5", "8", "[90.5, 98.7, 12]"), Ok(()));
        for value in ["5e-324", "1e-300", "0", "-1", "1e300", "1e308"] {
            let error = latency(value, "8", "[1, 2, 3]").unwrap_err();
            assert!(error.starts_with("figures[0].value is "), "{error}");
        }
        for bytes in ["-5", "1e308"] {
            let error = latency("1", bytes, "[1, 2, 3]").unwrap_err();
            assert!(error.starts_with("bytes is "), "{error}");
        }
        for bar in ["[-1, 2, 3]", "[1, 1e308, 3]", "[1, 2, 1e300]"] {
            let error = latency("1", "8", bar).unwrap_err();
            assert!(error.starts_with("times[0]["), "{error}");
        }
    }

    /// None of them is waited for.
    #[test]
    fn only_regular_files_are_read_and_written() {
        let folder = tempfile::tempdir().unwrap();
        let fifo = folder.path().join("fifo");
        nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
        for file in [fifo.as_path(), Path::new("/dev/zero"), folder.path()] {
            assert!(read(file).is_err(), "{}", file.display());
            let error = write(file, "").unwrap_err().to_string();
            assert!(error.contains("is no regular file"), "{error}");
        }
        let new = folder.path().join("new.svg");
        write(&new, "one").unwrap();
        write(&new, "two").unwrap();
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
