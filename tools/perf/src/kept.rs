//! Runs as `--json` prints them, from which pictures and reports are made: so one that was kept can be drawn, and two can be compared.

use std::path::Path;

use serde_json::Value;
use vipl_tools::{Error, Result};

/// Figures of tests over the size of their messages: the title, the tests, the figures of each with their words, and the unit.
pub(crate) const LATENCIES: &[(&str, &[&str])] = &[
    ("latency", &["one way", "p99"]),
    ("write-latency", &["one way"]),
];
pub(crate) const STREAMS: &[(&str, &[&str])] = &[
    ("bandwidth", &["stream"]),
    ("bidirectional", &["stream"]),
    ("threads", &["stream"]),
    ("write-bandwidth", &["stream"]),
    ("read", &["stream"]),
];
pub(crate) const RATES: &[(&str, &[&str])] = &[("rate", &["messages"])];
/// Bytes of a run that was kept. All tests at all sizes have less than one MiB.
const BYTES_MAX: usize = 16 << 20;
/// The largest message of a run that was kept, and the largest figure in a unit that is not drawn.
const SIZE_MAX: f64 = (1u64 << 40) as f64;
const FIGURE_MAX: f64 = 1e18;

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
    drawn().any(|name| name == test)
}

/// The tests of which there are pictures.
pub(crate) fn drawn() -> impl Iterator<Item = &'static str> {
    let all = LATENCIES.iter().chain(STREAMS).chain(RATES);
    all.map(|one| one.0)
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
                "M/s" if is_drawn => (1e-9, 1e9),
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

/// A member that is a text.
pub(crate) fn word<'a>(value: &'a Value, name: &str) -> &'a str {
    value[name].as_str().unwrap_or_default()
}

/// The results of a run.
pub(crate) fn results(run: &Value) -> impl Iterator<Item = &Value> {
    run["results"].as_array().into_iter().flatten()
}

/// What was measured, and on what: a line for each of two runs.
pub(crate) fn heading(run: &Value, other: Option<&Value>) -> Vec<String> {
    let line = |run: &Value| {
        let machine = &run["machine"];
        let (cpu, kernel) = (word(machine, "cpu"), word(machine, "kernel"));
        // Runs of earlier versions have the device alone.
        let measured = match word(run, "conditions") {
            "" => word(run, "device"),
            conditions => conditions,
        };
        [
            measured.to_owned(),
            format!(
                "{cpu}, Linux {kernel}, libvipl {}",
                word(machine, "version")
            ),
        ]
    };
    let [measured, machine] = line(run);
    let mut lines = vec![measured, machine.clone()];
    if let Some(other) = other {
        let [measured, on] = line(other);
        let on = if on == machine {
            "the same machine"
        } else {
            &on
        };
        lines.push(format!("dashed: {measured}; {on}"));
    }
    lines
}

/// A figure in another unit of the same kind.
pub(crate) fn in_unit(figure: &Value, unit: &str) -> Option<f64> {
    let value = figure["value"].as_f64().filter(|value| *value > 0.0)?;
    match (word(figure, "unit"), unit) {
        (given, wanted) if given == wanted => Some(value),
        ("ns", "µs") => Some(value / 1e3),
        ("MB/s", "GB/s") => Some(value / 1e3),
        _ => None,
    }
}

/// The same figure of another run.
pub(crate) fn same(other: &Value, result: &Value, list: &str, name: &str) -> Option<f64> {
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

    #[test]
    fn a_heading_has_device_level_and_machine() {
        let run = |cpu: &str| {
            json!({"machine": {"cpu": cpu, "kernel": "6", "version": "0"}, "device": "via_lo",
                "conditions": "via_lo, level delivery, CPUs 0 and 1, polling"})
        };
        let lines = heading(&run("A"), Some(&run("A")));
        assert_eq!(lines[0], "via_lo, level delivery, CPUs 0 and 1, polling");
        assert_eq!(lines[1], "A, Linux 6, libvipl 0");
        assert!(lines[2].ends_with("polling; the same machine"), "{lines:?}");
        let lines = heading(&run("A"), Some(&run("B")));
        assert!(
            lines[2].ends_with("polling; B, Linux 6, libvipl 0"),
            "{lines:?}"
        );
    }
}
