//! `--table`: the figures by which the library is judged, each with what it must and what it should
//! reach.

use serde_json::{Value, json};
use vipl_tools::report::{Table, number, with_unit};
use vipl_tools::stats::{Better, Goal};
use vipl_tools::{Error, Result, size};

use crate::bench::{Measured, Params, Plan};
use crate::machine::Session;
use crate::peers::{Peer, Peers};
use crate::reference::Reference;
use crate::show;
use crate::tests::{Test, measure};

/// One line of the table.
struct Line {
    name: &'static str,
    test: Test,
    bytes: usize,
    by: By,
    goal: Goal,
}

/// What is judged.
#[derive(Clone, Copy, PartialEq, Eq)]
enum By {
    /// The first figure divided by this.
    Ratio(Reference),
    /// A figure itself.
    Figure(usize),
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

const fn line(name: &'static str, test: Test, bytes: usize, by: By, goal: Goal) -> Line {
    Line {
        name,
        test,
        bytes,
        by,
        goal,
    }
}

const MEAN_LINE: By = By::Ratio(Reference::CacheLine);
const RAW: By = By::Ratio(Reference::RawPingPong);
const KERNEL: By = By::Ratio(Reference::ProcessWriteTurns);
const RING: By = By::Ratio(Reference::RawRing);
const COPY: By = By::Ratio(Reference::Memcpy);
const UCX_AM: By = By::Ratio(Reference::Peer(Peer::UcxAm));
const UCX_RATE: By = By::Ratio(Reference::Peer(Peer::UcxTagRate));
const UCX_STREAM: By = By::Ratio(Reference::Peer(Peer::UcxTagStream));
const UCX_PUTS: By = By::Ratio(Reference::Peer(Peer::UcxPutStream));
const ITSELF: By = By::Figure(0);

/// VIs where many are asked for.
const MANY: usize = 1000;
/// VIs that the memory line needs; it is measured in processes of its own, before all others.
pub(crate) const MEMORY_VIS: usize = MANY;

const K: usize = 1 << 10;
const M: usize = 1 << 20;

use Test::{
    Bandwidth, Connect, Cq, CqRandom, IdleMemory, Latency, Open, Pinned, Post, Rate, Register,
    Write, WriteLatency,
};

#[rustfmt::skip]
const LINES: [Line; LINE_COUNT] = [
    line("8 B message, one way ÷ mean cache line", Latency, 8, MEAN_LINE, lower(1.20, 1.10)),
    line("64 B message, one way ÷ mean cache line", Latency, 64, MEAN_LINE, lower(1.55, 1.35)),
    line("1 KiB message, one way ÷ raw ping-pong", Latency, K, RAW, lower(1.5, 1.1)),
    line("4 KiB message, one way ÷ raw ping-pong", Latency, 4 * K, RAW, lower(1.5, 1.1)),
    line("8 B RDMA Write, polled ÷ polled process_vm_writev", WriteLatency, 8, KERNEL, lower(1.08, 1.0)),
    line("8 B messages, window 64 ÷ raw ring", Rate, 8, RING, higher(0.28, 0.5)),
    line("64 KiB messages, stream ÷ memcpy", Bandwidth, 64 * K, COPY, higher(0.45, 0.6)),
    line("256 KiB messages, stream ÷ memcpy", Bandwidth, 256 * K, COPY, higher(0.6, 0.9)),
    line("1 MiB messages, stream ÷ memcpy", Bandwidth, M, COPY, higher(0.6, 1.4)),
    line("64 KiB RDMA Writes, stream ÷ memcpy", Write, 64 * K, COPY, higher(0.45, 0.6)),
    line("256 KiB RDMA Writes, stream ÷ memcpy", Write, 256 * K, COPY, higher(0.6, 0.9)),
    line("1 MiB RDMA Writes, stream ÷ memcpy", Write, M, COPY, higher(0.6, 1.4)),
    line("CQ poll, 1 active of 1000 VIs ÷ of 1 VI", Cq, 8, ITSELF, lower(1.5, 1.1)),
    line("8 B over a CQ, random one of 1000 VIs ÷ 1 VI", CqRandom, 8, ITSELF, lower(1.6, 1.2)),
    line("8 B, VipRecvWait, pinned ÷ not pinned processes", Pinned, 8, ITSELF, lower(2.0, 1.0)),
    line("first VipOpenNic, agent running", Open, 8, ITSELF, lower(5.0, 2.5)),
    line("first VipOpenNic, agent to be started", Open, 8, By::Figure(1), lower(12.0, 6.0)),
    line("1000 VIs created and connected, one by one", Connect, 8, ITSELF, lower(1000.0, 250.0)),
    line("memory of an idle connected VI pair", IdleMemory, 8, ITSELF, lower(64.0, 16.0)),
    line("VipRegisterMem + VipDeregisterMem, 4 KiB", Register, 4 * K, ITSELF, lower(0.15, 0.10)),
    line("post and done without transport", Post, 8, ITSELF, lower(80.0, 40.0)),
    line("8 B message, one way ÷ UCX active message", Latency, 8, UCX_AM, lower(1.0, 0.9)),
    line("64 B message, one way ÷ UCX active message", Latency, 64, UCX_AM, lower(1.0, 0.9)),
    line("1 KiB message, one way ÷ UCX active message", Latency, K, UCX_AM, lower(1.2, 0.9)),
    line("4 KiB message, one way ÷ UCX active message", Latency, 4 * K, UCX_AM, lower(1.2, 0.9)),
    line("8 B messages, window 64 ÷ UCX tagged", Rate, 8, UCX_RATE, higher(1.7, 3.0)),
    line("64 KiB messages, stream ÷ UCX tagged", Bandwidth, 64 * K, UCX_STREAM, higher(1.0, 1.2)),
    line("1 MiB messages, stream ÷ UCX tagged", Bandwidth, M, UCX_STREAM, higher(1.0, 1.2)),
    line("1 MiB RDMA Writes, stream ÷ UCX put", Write, M, UCX_PUTS, higher(1.0, 1.2)),
];
const LINE_COUNT: usize = 29;

impl Line {
    fn peer(&self) -> Option<Peer> {
        match self.by {
            By::Ratio(Reference::Peer(peer)) => Some(peer),
            _ => None,
        }
    }

    /// The unit of what is judged: none for a ratio.
    fn unit(&self, measured: &Measured) -> &'static str {
        match self.by {
            By::Ratio(_) => "",
            By::Figure(index) => measured.figures.get(index).map_or("", |figure| figure.unit),
        }
    }

    /// The value that is judged.
    fn judged(&self, measured: &Measured) -> f64 {
        match self.by {
            By::Ratio(by) => measured.bound(by).map_or(f64::NAN, |bound| bound.ratio),
            By::Figure(index) => value(measured, index),
        }
    }
}

fn value(measured: &Measured, index: usize) -> f64 {
    measured
        .figures
        .get(index)
        .map_or(f64::NAN, |figure| figure.value)
}

/// Which lines are measured, as indices: those that are asked for, such as `1-4,9`, and that need no peer
/// which is absent.
pub(crate) fn chosen(asked: Option<&str>, peers: Option<&Peers>) -> Result<Vec<usize>> {
    let possible = |index: &usize| {
        let peer = LINES[*index].peer();
        peer.is_none_or(|peer| peers.is_some_and(|peers| peers.has(peer)))
    };
    let Some(text) = asked else {
        return Ok((0..LINES.len()).filter(possible).collect());
    };
    let mut lines = Vec::new();
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let number = |text: &str| {
            text.trim()
                .parse()
                .ok()
                .filter(|n| (1..=LINES.len()).contains(n))
        };
        let (Some(first), Some(last)) = (number(first), number(last)) else {
            let last = LINES.len();
            return Err(Error::Usage(format!(
                "the lines are numbered 1 to {last}, not {part:?}"
            )));
        };
        lines.extend(first - 1..last);
    }
    if let Some(index) = lines.iter().find(|index| !possible(index)) {
        let line = index + 1;
        return Err(Error::Usage(format!(
            "line {line} needs --peers and the tools of that peer"
        )));
    }
    Ok(lines)
}

/// Whether the memory line is among these.
pub(crate) fn needs_memory(lines: &[usize]) -> bool {
    lines.iter().any(|index| LINES[*index].test == IdleMemory)
}

/// The result of a line, by its index.
pub(crate) type Results = Vec<(usize, Result<Measured>)>;

/// Measures these lines but the one of memory, which is given. Lines that judge the same measurement by
/// different references share it.
pub(crate) fn run(
    session: &mut Session,
    params: Params,
    runs: usize,
    lines: &[usize],
    mut memory: Option<Result<Measured>>,
    apart: impl Fn(Test, Params) -> Result<Measured>,
) -> Results {
    let mut results: Results = Vec::new();
    for index in lines {
        let line = &LINES[*index];
        let same = |(other, _): &&(usize, Result<Measured>)| {
            LINES[*other].test == line.test && LINES[*other].bytes == line.bytes
        };
        let result = match results.iter().find(same) {
            Some((_, Ok(measured))) => Ok(measured.clone()),
            Some((_, Err(error))) => Err(Error::Peer(error.to_string())),
            None if line.test == IdleMemory => match memory.take() {
                Some(memory) => memory,
                None => continue,
            },
            None => {
                eprintln!(
                    "measuring {}, {} ...",
                    line.test.name(),
                    size::show(line.bytes)
                );
                let params = Params {
                    bytes: line.bytes,
                    vis: MANY,
                    window: 64,
                    transfer_max: None,
                    ..params
                };
                match line.test.is_apart() {
                    true => apart(line.test, params),
                    false => measure_line(session, params, runs, line.test),
                }
            }
        };
        results.push((*index, result));
    }
    results
}

fn measure_line(
    session: &mut Session,
    params: Params,
    runs: usize,
    test: Test,
) -> Result<Measured> {
    let mut references = test.limits(params.bytes).to_vec();
    if let Some(peers) = session.local().and_then(|own| own.peers.as_ref()) {
        let there = test
            .peers(params.bytes)
            .iter()
            .filter(|peer| peers.has(**peer));
        references.extend(there.map(|peer| Reference::Peer(*peer)));
    }
    let plan = Plan {
        runs,
        references: &references,
        most: None,
    };
    measure(test, session, params, plan)
}

/// What was measured, and what it is divided by.
fn values(line: &Line, measured: &Measured) -> [String; 2] {
    let figure = |index: usize| number(value(measured, index));
    if line.test == Cq {
        // An empty look and the taking of a message; with many VIs and with one.
        let two = |look, take| format!("{} / {} ns", figure(look), figure(take));
        return [two(2, 4), two(1, 3)];
    }
    if matches!(line.test, CqRandom | Pinned) {
        let [over, under] = if line.test == CqRandom {
            [4, 1]
        } else {
            [1, 2]
        };
        return [over, under].map(|index| format!("{} µs", figure(index)));
    }
    let (index, by) = match line.by {
        By::Figure(index) => (index, None),
        By::Ratio(by) => (0, measured.bound(by)),
    };
    let unit = measured.figures.get(index).map_or("", |figure| figure.unit);
    let by = by.map_or_else(String::new, |b| with_unit(b.value, b.reference.unit()));
    [with_unit(value(measured, index), unit), by]
}

/// One way of a cache line in ns below which two processors are near each other: they share a part of the
/// last-level cache.
const NEAR: f64 = 120.0;

/// Where the two processors were.
fn placement(measured: &Measured) -> String {
    let line = measured.bound(Reference::CacheLine);
    line.map_or_else(String::new, |line| {
        let place = if line.value < NEAR { "near" } else { "far" };
        format!("{place}, {}", with_unit(line.value, "ns"))
    })
}

/// The table for people.
pub(crate) fn text(results: &[(usize, Result<Measured>)]) -> String {
    let headings = [
        "",
        "<what",
        "measured",
        "reference",
        "ratio",
        "at least",
        "aim",
        "<",
        "<processors",
        "<runs",
    ];
    let mut table = Table::new(&headings);
    let mut reasons = String::new();
    for (index, result) in results {
        let line = &LINES[*index];
        let unit = result.as_ref().map_or("", |measured| line.unit(measured));
        let bound = |value: f64| format!("{} {}", line.goal.sign(), with_unit(value, unit));
        let mut cells = vec![(index + 1).to_string(), line.name.to_owned()];
        let goals = [bound(line.goal.at_least), bound(line.goal.aim)];
        match result {
            Ok(measured) => {
                let value = line.judged(measured);
                cells.extend(values(line, measured));
                let ratio = if unit.is_empty() {
                    number(value)
                } else {
                    String::new()
                };
                cells.push(ratio);
                cells.extend(goals);
                cells.push(line.goal.judge(value).text().to_owned());
                cells.extend([placement(measured), show::runs(measured)]);
            }
            Err(error) => {
                cells.extend(["", "", ""].map(str::to_owned));
                cells.extend(goals);
                cells.push("missed".to_owned());
                reasons += &format!("line {}: {error}\n", index + 1);
            }
        }
        table.row(cells);
    }
    let legend = "processors: one way of a cache line between the two, the mean over many lines, in the same runs\n";
    format!("{}{legend}{reasons}", table.text())
}

/// The table for programs.
pub(crate) fn json(results: &[(usize, Result<Measured>)]) -> Value {
    let lines = results.iter().map(|(index, result)| {
        let line = &LINES[*index];
        let unit = result.as_ref().map_or("", |measured| line.unit(measured));
        let mut object = json!({
            "line": index + 1, "name": line.name, "unit": unit,
            "at_least": line.goal.at_least, "aim": line.goal.aim,
            "better": if line.goal.better == Better::Lower { "lower" } else { "higher" },
        });
        match result {
            Ok(measured) => {
                let value = line.judged(measured);
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

    fn measured(value: f64, ratio: f64) -> Measured {
        Measured {
            test: "latency",
            bytes: Some(8),
            figures: vec![figure("one way", value, "µs")],
            bounds: vec![Bound {
                reference: Reference::CacheLine,
                value: 60.0,
                ratio,
            }],
            runs: 5,
            discarded: 2,
            unsteady: false,
        }
    }

    #[test]
    fn a_line_is_judged_by_its_ratio() {
        let text = text(&[(0, Ok(measured(0.069, 1.15)))]);
        let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
        let expected = " 0.069 µs 60.0 ns 1.15 ≤ 1.20 ≤ 1.10 ok near, 60.0 ns 5 (+2 discarded)";
        assert!(words.contains(expected), "{text}");
        assert!(!text.contains("missed"));
    }

    #[test]
    fn a_line_without_a_reference_is_judged_with_its_unit() {
        let register = LINES.iter().position(|line| line.test == Register).unwrap();
        let text = text(&[(register, Ok(measured(0.2, 9.9)))]);
        let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(
            words.contains(" 0.20 µs ≤ 0.15 µs ≤ 0.10 µs missed "),
            "{text}"
        );
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

    #[test]
    fn every_line_is_divided_by_something_that_its_test_measures() {
        for line in &LINES {
            let there = match line.by {
                By::Ratio(Reference::Peer(peer)) => line.test.peers(line.bytes).contains(&peer),
                By::Ratio(by) => line.test.limits(line.bytes).contains(&by),
                By::Figure(_) => true,
            };
            assert!(there, "{}", line.name);
        }
    }

    #[test]
    fn lines_are_chosen_by_number() {
        assert_eq!(chosen(Some("1-3, 6"), None).unwrap(), [0, 1, 2, 5]);
        for wrong in ["0", "x", "1-99", "", "2-"] {
            assert!(chosen(Some(wrong), None).is_err(), "{wrong}");
        }
        let all = chosen(None, None).unwrap();
        assert!(all.iter().all(|index| LINES[*index].peer().is_none()));
        let of_peer = LINES.iter().position(|line| line.peer().is_some()).unwrap() + 1;
        let error = chosen(Some(&of_peer.to_string()), None).unwrap_err();
        assert!(error.to_string().contains("needs --peers"), "{error}");
    }
}
