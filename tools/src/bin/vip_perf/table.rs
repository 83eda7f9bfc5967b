//! `--table`: the nine figures by which the library is judged, each with what it must and what it
//! should reach.

use serde_json::{Value, json};
use vipl_tools::Result;
use vipl_tools::report::{Table, number, with_unit};
use vipl_tools::session::Session;
use vipl_tools::stats::{Better, Goal};

use crate::bench::{Limit, Measured, Params, Plan};
use crate::show;
use crate::tests::{Test, measure};

/// One line of the table.
struct Line {
    name: &'static str,
    test: Test,
    bytes: usize,
    limits: &'static [Limit],
    /// The limit to divide by; without one the first figure itself is judged.
    by: Option<Limit>,
    unit: &'static str,
    goal: Goal,
}

const fn lower(at_least: f64, aim: f64) -> Goal {
    Goal {
        better: Better::Lower,
        at_least,
        aim,
    }
}

const fn higher(at_least: f64, aim: f64) -> Goal {
    Goal {
        better: Better::Higher,
        at_least,
        aim,
    }
}

const NEAR: &[Limit] = &[Limit::CacheLine];
const PING: &[Limit] = &[Limit::CacheLine, Limit::RawPingPong];
const COPY: &[Limit] = &[Limit::CacheLine, Limit::Memcpy, Limit::ProcessWrite];

/// VIs of lines 6 and 7.
const MANY: usize = 1000;

const LINES: [Line; 9] = [
    Line {
        name: "8 B send/receive, one way ÷ mean cache line",
        test: Test::Latency,
        bytes: 8,
        limits: NEAR,
        by: Some(Limit::CacheLine),
        unit: "",
        goal: lower(1.35, 1.15),
    },
    Line {
        name: "4 KiB send/receive, one way ÷ raw ping-pong",
        test: Test::Latency,
        bytes: 4096,
        limits: PING,
        by: Some(Limit::RawPingPong),
        unit: "",
        goal: lower(1.5, 1.1),
    },
    Line {
        name: "64 KiB stream ÷ memcpy",
        test: Test::Bandwidth,
        bytes: 64 << 10,
        limits: COPY,
        by: Some(Limit::Memcpy),
        unit: "",
        goal: higher(0.25, 0.35),
    },
    Line {
        name: "1 MiB RDMA Write stream ÷ memcpy",
        test: Test::Write,
        bytes: 1 << 20,
        limits: COPY,
        by: Some(Limit::Memcpy),
        unit: "",
        goal: higher(0.6, 0.9),
    },
    Line {
        name: "8 B messages, window 64",
        test: Test::Rate,
        bytes: 8,
        limits: NEAR,
        by: None,
        unit: "M/s",
        goal: higher(15.0, 40.0),
    },
    Line {
        name: "CQ poll, 1 active of 1000 VIs ÷ of 1 VI",
        test: Test::Cq,
        bytes: 8,
        limits: NEAR,
        by: None,
        unit: "",
        goal: lower(1.5, 1.1),
    },
    Line {
        name: "memory of an idle connected VI pair",
        test: Test::IdleMemory,
        bytes: 8,
        limits: &[],
        by: None,
        unit: "KiB",
        goal: lower(64.0, 16.0),
    },
    Line {
        name: "VipRegisterMem + VipDeregisterMem, 4 KiB",
        test: Test::Register,
        bytes: 4096,
        limits: &[],
        by: None,
        unit: "µs",
        goal: lower(2.0, 0.5),
    },
    Line {
        name: "post and done without transport",
        test: Test::Post,
        bytes: 8,
        limits: &[],
        by: None,
        unit: "ns",
        goal: lower(80.0, 40.0),
    },
];

/// VIs that the memory line needs; it is measured in processes of its own, before all others.
pub(crate) const MEMORY_VIS: usize = MANY;

/// Measures all lines but the one of memory, which is given.
pub(crate) fn run(
    session: &mut Session,
    params: Params,
    runs: usize,
    memory: Result<Measured>,
) -> Vec<(usize, Result<Measured>)> {
    let mut memory = Some(memory);
    let mut results = Vec::new();
    for (index, line) in LINES.iter().enumerate() {
        if line.test == Test::IdleMemory {
            results.extend(memory.take().map(|memory| (index, memory)));
            continue;
        }
        eprintln!(
            "measuring {} of {}: {} ...",
            index + 1,
            LINES.len(),
            line.name
        );
        let params = Params {
            bytes: line.bytes,
            vis: MANY,
            window: 64,
            transfer_max: None,
            ..params
        };
        let plan = Plan {
            runs,
            limits: line.limits,
            most: None,
        };
        results.push((index, measure(line.test, session, params, plan)));
    }
    results
}

/// The figure of a line that is judged.
fn judged(line: &Line, measured: &Measured) -> f64 {
    match line.by {
        Some(limit) => measured.bound(limit).map_or(f64::NAN, |bound| bound.ratio),
        None => measured
            .figures
            .first()
            .map_or(f64::NAN, |figure| figure.value),
    }
}

/// What was measured, and what it is divided by.
fn values(line: &Line, measured: &Measured) -> [String; 2] {
    let value = |index: usize| measured.figures.get(index).map_or(f64::NAN, |f| f.value);
    if line.test == Test::Cq {
        // An empty look and the taking of a message; with many VIs and with one.
        let two = |look, take| format!("{} / {} ns", number(value(look)), number(value(take)));
        return [two(2, 4), two(1, 3)];
    }
    let unit = measured.figures.first().map_or("", |figure| figure.unit);
    let limit = line.by.and_then(|limit| measured.bound(limit));
    let limit = limit.map_or_else(String::new, |b| with_unit(b.value, b.limit.unit()));
    [with_unit(value(0), unit), limit]
}

/// The table for people.
pub(crate) fn text(results: &[(usize, Result<Measured>)]) -> String {
    let headings = [
        "", "<what", "measured", "limit", "ratio", "at least", "aim", "<", "cores", "<runs",
    ];
    let mut table = Table::new(&headings);
    let mut reasons = String::new();
    for (index, result) in results {
        let line = &LINES[*index];
        let bound = |value: f64| format!("{} {}", line.goal.sign(), with_unit(value, line.unit));
        let mut cells = vec![(index + 1).to_string(), line.name.to_owned()];
        match result {
            Ok(measured) => {
                let value = judged(line, measured);
                cells.extend(values(line, measured));
                cells.push(if line.unit.is_empty() {
                    number(value)
                } else {
                    String::new()
                });
                cells.extend([bound(line.goal.at_least), bound(line.goal.aim)]);
                cells.push(line.goal.judge(value).text().to_owned());
                let near = measured.bound(Limit::CacheLine);
                cells.push(near.map_or_else(String::new, |b| with_unit(b.value, "ns")));
                cells.push(show::runs(measured));
            }
            Err(error) => {
                cells.extend(["", "", ""].map(str::to_owned));
                cells.extend([bound(line.goal.at_least), bound(line.goal.aim)]);
                cells.push("missed".to_owned());
                reasons += &format!("line {}: {error}\n", index + 1);
            }
        }
        table.row(cells);
    }
    let legend = "cores: one way of a cache line between the two CPUs, the mean over many lines, while this line was measured\n";
    format!("{}{legend}{reasons}", table.text())
}

/// The table for programs.
pub(crate) fn json(results: &[(usize, Result<Measured>)]) -> Value {
    let lines = results.iter().map(|(index, result)| {
        let line = &LINES[*index];
        let mut object = json!({
            "line": index + 1, "name": line.name, "unit": line.unit,
            "at_least": line.goal.at_least, "aim": line.goal.aim,
            "better": if line.goal.better == Better::Lower { "lower" } else { "higher" },
        });
        match result {
            Ok(measured) => {
                let value = judged(line, measured);
                object["value"] = json!(value);
                object["verdict"] = json!(line.goal.judge(value).text());
                object["measured"] = measured.to_json();
            }
            Err(error) => {
                object["verdict"] = json!("missed");
                object["error"] = json!(error.to_string());
            }
        }
        object
    });
    json!(lines.collect::<Vec<_>>())
}

#[cfg(test)]
mod unit {
    use super::*;
    use crate::bench::{Bound, figure};
    use vipl_tools::Error;

    fn measured(value: f64, ratio: f64) -> Measured {
        Measured {
            test: "latency",
            bytes: Some(8),
            figures: vec![figure("one way", value, "µs")],
            bounds: vec![Bound {
                limit: Limit::CacheLine,
                value: 60.0,
                ratio,
            }],
            runs: 5,
            discarded: 0,
            unsteady: false,
        }
    }

    #[test]
    fn a_line_is_judged_by_its_ratio() {
        let text = text(&[(0, Ok(measured(0.072, 1.2)))]);
        let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(words.contains(" 1.20 ≤ 1.35 ≤ 1.15 ok "), "{text}");
        assert!(!text.contains("missed"));
    }

    #[test]
    fn a_line_that_failed_is_missed_and_says_why() {
        let text = text(&[(4, Err(Error::Usage("no device".to_owned())))]);
        assert!(
            text.contains("missed") && text.contains("line 5: no device"),
            "{text}"
        );
    }

    #[test]
    fn json_has_value_and_verdict() {
        let value = json(&[(0, Ok(measured(0.1, 1.5)))]);
        assert_eq!(value[0]["value"], 1.5);
        assert_eq!(value[0]["verdict"], "missed");
    }

    #[test]
    fn aims_are_not_easier_than_what_must_be_reached() {
        for line in &LINES {
            let (at_least, aim) = (line.goal.at_least, line.goal.aim);
            let harder = match line.goal.better {
                Better::Lower => aim <= at_least,
                Better::Higher => aim >= at_least,
            };
            assert!(harder, "{}", line.name);
        }
    }
}
