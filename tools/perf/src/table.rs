//! `--table`: the figures by which the library is judged, each with what it must and what it should
//! reach.

use serde_json::{Value, json};
use vipl_tools::report::{Table, number, with_unit};
use vipl_tools::stats::{Better, Goal, Verdict};
use vipl_tools::{Error, Result, size};

use crate::bench::{Measured, Params};
use crate::context::Context;
use crate::machine::Session;
use crate::peers::{Peer, Peers, in_path};
use crate::reference::Reference;
use crate::show;
use crate::tests::Test;
use vipl_tools::placement::Placement;

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
const UCX_MEAN: By = By::Ratio(Reference::Peer(Peer::UcxAmMean));
const UCX_RATE: By = By::Ratio(Reference::Peer(Peer::UcxTagRate));
const UCX_STREAM: By = By::Ratio(Reference::Peer(Peer::UcxTagStream));
const UCX_PUTS: By = By::Ratio(Reference::Peer(Peer::UcxPutStream));
const ITSELF: By = By::Figure(0);

/// VIs where many are asked for.
const MANY: usize = 1000;

const K: usize = 1 << 10;
const M: usize = 1 << 20;

use Test::{
    Bandwidth, Company, Connect, Cq, CqRandom, Idle, IdleMemory, Latency, Library, Open, Pinned,
    Post, Profiled, Rate, Register, Write, WriteLatency,
};

#[rustfmt::skip]
const LINES: [Line; LINE_COUNT] = [
    line("8 B message, one way ÷ mean cache line", Latency, 8, MEAN_LINE, lower(1.20, 1.10)),
    line("64 B message, one way ÷ mean cache line", Latency, 64, MEAN_LINE, lower(1.55, 1.35)),
    line("1 KiB message, one way ÷ raw ping-pong", Latency, K, RAW, lower(1.5, 1.1)),
    line("4 KiB message, one way ÷ raw ping-pong", Latency, 4 * K, RAW, lower(1.5, 1.1)),
    line("8 B RDMA Write ÷ polled process_vm_writev", WriteLatency, 8, KERNEL, lower(1.08, 1.0)),
    line("8 B messages, window 64 ÷ raw ring", Rate, 8, RING, higher(0.28, 0.5)),
    line("64 KiB messages, stream ÷ memcpy", Bandwidth, 64 * K, COPY, higher(0.45, 0.6)),
    line("256 KiB messages, stream ÷ memcpy", Bandwidth, 256 * K, COPY, higher(0.6, 0.9)),
    line("1 MiB messages, stream ÷ memcpy", Bandwidth, M, COPY, higher(0.6, 1.4)),
    line("64 KiB RDMA Writes, stream ÷ memcpy", Write, 64 * K, COPY, higher(0.45, 0.6)),
    line("256 KiB RDMA Writes, stream ÷ memcpy", Write, 256 * K, COPY, higher(0.6, 0.9)),
    line("1 MiB RDMA Writes, stream ÷ memcpy", Write, M, COPY, higher(0.6, 1.4)),
    line("CQ poll, 1 active of 1000 VIs ÷ of 1 VI", Cq, 8, ITSELF, lower(1.5, 1.1)),
    line("8 B over a CQ, one of 1000 VIs ÷ 1 VI", CqRandom, 8, ITSELF, lower(1.6, 1.2)),
    line("8 B, VipRecvWait, pinned ÷ not pinned", Pinned, 8, ITSELF, lower(2.0, 1.0)),
    line("first VipOpenNic, agent running", Open, 8, ITSELF, lower(5.0, 2.5)),
    line("first VipOpenNic, agent to be started", Open, 8, By::Figure(1), lower(12.0, 6.0)),
    line("1000 VIs created and connected, one by one", Connect, 8, ITSELF, lower(1000.0, 250.0)),
    line("memory of an idle connected VI pair", IdleMemory, 8, ITSELF, lower(64.0, 16.0)),
    line("VipRegisterMem + VipDeregisterMem, 4 KiB", Register, 4 * K, ITSELF, lower(0.15, 0.10)),
    line("post and done without transport", Post, 8, ITSELF, lower(80.0, 40.0)),
    line("8 B message, one way ÷ UCX am", Latency, 8, UCX_AM, lower(1.0, 0.9)),
    line("64 B message, one way ÷ UCX am", Latency, 64, UCX_AM, lower(1.0, 0.9)),
    line("1 KiB message, one way ÷ UCX am", Latency, K, UCX_AM, lower(1.2, 0.9)),
    line("4 KiB message, one way ÷ UCX am", Latency, 4 * K, UCX_AM, lower(1.2, 0.9)),
    line("8 B messages, window 64 ÷ UCX tagged", Rate, 8, UCX_RATE, higher(1.7, 3.0)),
    line("64 KiB messages, stream ÷ UCX tagged", Bandwidth, 64 * K, UCX_STREAM, higher(1.0, 1.2)),
    line("1 MiB messages, stream ÷ UCX tagged", Bandwidth, M, UCX_STREAM, higher(1.0, 1.2)),
    line("1 MiB RDMA Writes, stream ÷ UCX put", Write, M, UCX_PUTS, higher(1.0, 1.2)),
    line("8 B in company, mean ÷ UCX am in company", Company, 8, UCX_MEAN, lower(1.5, 1.0)),
    line("8 B under perf record, worst ÷ median", Profiled, 8, ITSELF, lower(3.0, 1.5)),
    line("wake-ups of an idle connected process", Idle, 8, ITSELF, lower(2.0, 1.0)),
    line("8 B RDMA Write, vipl_alloc ÷ mean line", Library, 8, ITSELF, lower(2.0, 1.2)),
    line("64 KiB RDMA Writes, vipl_alloc ÷ messages", Library, 8, By::Figure(2), higher(1.5, 2.0)),
    line("VipDisconnect, 1000 connections ÷ 10", Connect, 8, By::Figure(3), lower(1.5, 1.0)),
];
const LINE_COUNT: usize = 35;

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

    /// What it is measured with.
    fn params(&self, params: Params) -> Params {
        let (bytes, vis, window) = (self.bytes, MANY, 64);
        Params {
            bytes,
            vis,
            window,
            transfer_max: None,
            ..params
        }
    }

    /// The value with a mark for a verdict that is not the usual one.
    fn cell(&self, measured: &Measured) -> String {
        let value = self.judged(measured);
        let mark = match self.goal.judge(value) {
            Verdict::Aim => '*',
            Verdict::Ok => ' ',
            Verdict::Missed => '!',
        };
        format!("{}{mark}", number(value))
    }

    fn goal_text(&self, unit: &str) -> String {
        let (sign, least) = (self.goal.sign(), number(self.goal.at_least));
        format!("{sign} {least}, {}", with_unit(self.goal.aim, unit))
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
        let line = &LINES[*index];
        let peer = line.peer();
        peer.is_none_or(|peer| peers.is_some_and(|peers| peers.has(peer)))
            && (line.test != Profiled || in_path("perf").is_some())
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
            "line {line} needs a tool that is not installed, or --peers"
        )));
    }
    Ok(lines)
}

/// The results of lines, by their indices; of two pairs of processors one after the other.
#[derive(Default)]
pub(crate) struct Results(Vec<(usize, Result<Vec<Measured>>)>);

impl Results {
    /// Measures the line of memory, if it is among these and has not been.
    pub(crate) fn measure_memory(&mut self, context: &Context<'_>, lines: &[usize]) {
        let memory = lines.iter().find(|index| LINES[**index].test == IdleMemory);
        let Some(index) = memory else { return };
        if self.0.iter().all(|(other, _)| other != index) {
            eprintln!("measuring memory, in separate processes ...");
            let params = LINES[*index].params(context.job.params);
            let measured = context.memory(params).map(|measured| vec![measured]);
            self.0.push((*index, measured));
        }
    }

    /// Measures all other lines. Those that judge the same measurement by different references share it.
    pub(crate) fn measure(
        &mut self,
        context: &Context<'_>,
        session: &mut Session,
        lines: &[usize],
    ) {
        let before = self.0.len();
        for index in lines {
            let line = &LINES[*index];
            if line.test == IdleMemory {
                continue;
            }
            let same = |(other, _): &&(usize, Result<Vec<Measured>>)| {
                LINES[*other].test == line.test && LINES[*other].bytes == line.bytes
            };
            let result = match self.0[before..].iter().find(same) {
                Some((_, Ok(measured))) => Ok(measured.clone()),
                Some((_, Err(error))) => Err(Error::Peer(error.to_string())),
                None => {
                    let (name, bytes) = (line.test.name(), size::show(line.bytes));
                    eprintln!("measuring {name}, {bytes} ...");
                    let nic = session.nic.clone();
                    let params = line.params(context.job.params);
                    context.measure(line.test, Some(session), &nic, params)
                }
            };
            self.0.push((*index, result));
        }
    }

    /// The table for people: ratios by placement, and the figures that they are made of.
    pub(crate) fn text(&self) -> String {
        let mut ratios = Table::new(&["", "<", "near", "far", "<at least, aim"]);
        let mut figures = Table::new(&["", "<CPUs", "measured", "by", "mean line", "<runs"]);
        let mut reasons = String::new();
        for (index, line) in LINES.iter().enumerate() {
            let number = (index + 1).to_string();
            let results = self.0.iter().filter(|(other, _)| *other == index);
            let results: Vec<_> = results.map(|(_, result)| result).collect();
            if results.is_empty() {
                continue;
            }
            let mut cells = [String::new(), String::new()];
            let mut unit = "";
            for measured in results.iter().filter_map(|one| one.as_ref().ok()).flatten() {
                unit = line.unit(measured);
                let column = usize::from(measured.placement == Some(Placement::Far));
                cells[column] = line.cell(measured);
                let place = measured.placement.map_or("", Placement::name);
                let mean = measured.bound(Reference::CacheLine);
                let mean = mean.map_or_else(String::new, |by| with_unit(by.value, "ns"));
                let [value, by] = values(line, measured);
                let (place, runs) = (place.to_owned(), show::runs(measured));
                figures.row(vec![number.clone(), place, value, by, mean, runs]);
            }
            for error in results.iter().filter_map(|one| one.as_ref().err()) {
                let missing = cells.iter_mut().find(|cell| cell.is_empty());
                if let Some(cell) = missing {
                    "missed".clone_into(cell);
                }
                reasons += &format!("line {number}: {error}\n");
            }
            let [near, far] = cells;
            ratios.row(vec![
                number,
                line.name.to_owned(),
                near,
                far,
                line.goal_text(unit),
            ]);
        }
        format!("{}{LEGEND}\n{}{reasons}", ratios.text(), figures.text())
    }

    /// The table for programs: a line for each placement.
    pub(crate) fn json(&self) -> Value {
        let mut lines = Vec::new();
        for (index, result) in &self.0 {
            let line = &LINES[*index];
            let object = |unit: &str| {
                json!({
                    "line": index + 1, "name": line.name, "unit": unit,
                    "at_least": line.goal.at_least, "aim": line.goal.aim,
                    "better": if line.goal.better == Better::Lower { "lower" } else { "higher" },
                })
            };
            match result {
                Ok(all) => lines.extend(all.iter().map(|measured| {
                    let mut object = object(line.unit(measured));
                    let value = line.judged(measured);
                    object["value"] = json!(value);
                    object["verdict"] = json!(line.goal.judge(value).text());
                    object["measured"] = measured.to_json();
                    object
                })),
                Err(error) => {
                    let mut object = object("");
                    object["verdict"] = json!("missed");
                    object["error"] = json!(error.to_string());
                    lines.push(object);
                }
            }
        }
        lines.sort_by_key(|line| line["line"].as_u64());
        json!(lines)
    }
}

const LEGEND: &str =
    "*: reaches the aim; !: misses what it must reach. near, far: a cache line takes
less than 120 ns between the two CPUs, or more; without a place a figure is at
the left. one way: the median, without interruptions.
";

/// What was measured, and what it is divided by.
fn values(line: &Line, measured: &Measured) -> [String; 2] {
    let figure = |index: usize| number(value(measured, index));
    if line.test == Cq {
        // An empty look and the taking of a message; with many VIs and with one.
        let two = |look, take| format!("{} / {} ns", figure(look), figure(take));
        return [two(2, 4), two(1, 3)];
    }
    if matches!(line.test, CqRandom | Pinned | Profiled) {
        let [over, under] = match line.test {
            CqRandom => [4, 1],
            Pinned => [1, 2],
            _ => [2, 1],
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

#[cfg(test)]
mod unit {
    use super::*;
    use crate::bench::{Bound, figure};

    fn measured(value: f64, ratio: f64, line_ns: f64) -> Measured {
        Measured {
            test: "latency",
            device: None,
            bytes: Some(8),
            placement: Some(Placement::of(line_ns)),
            figures: vec![figure("one way", value, "µs")],
            times: vipl_tools::stats::Histogram::default(),
            bounds: vec![Bound {
                reference: Reference::CacheLine,
                value: line_ns,
                ratio,
            }],
            runs: 5,
            discarded: 2,
            unsteady: false,
        }
    }

    fn words(text: &str) -> String {
        text.split_whitespace().collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn a_line_is_judged_by_its_ratio_near_and_far() {
        let both = vec![measured(0.069, 1.15, 60.0), measured(0.2, 1.4, 143.0)];
        let text = Results(vec![(0, Ok(both))]).text();
        let found = words(&text);
        let ratios = " 1.15 1.40! ≤ 1.20, 1.10";
        let figures =
            "1 near 0.069 µs 60.0 ns 60.0 ns 5 (+2 discarded) 1 far 0.20 µs 143 ns 143 ns";
        assert!(found.contains(ratios) && found.contains(figures), "{text}");
        assert!(!text.contains("missed"));
    }

    #[test]
    fn every_line_of_the_table_fits_a_terminal() {
        let all = (0..LINES.len()).map(|index| (index, Ok(vec![measured(0.069, 1.15, 60.0)])));
        let text = Results(all.collect()).text();
        let longest = text.lines().map(|line| line.chars().count()).max();
        assert!(longest <= Some(80), "{text}");
    }

    #[test]
    fn a_line_without_a_reference_is_judged_with_its_unit() {
        let register = LINES.iter().position(|line| line.test == Register).unwrap();
        let text = Results(vec![(register, Ok(vec![measured(0.2, 9.9, 60.0)]))]).text();
        assert!(words(&text).contains(" 0.20! ≤ 0.15, 0.10 µs"), "{text}");
    }

    #[test]
    fn a_line_that_failed_is_missed_and_says_why() {
        let text = Results(vec![(4, Err(Error::Usage("no device".to_owned())))]).text();
        assert!(
            text.contains("missed") && text.contains("line 5: no device"),
            "{text}"
        );
    }

    #[test]
    fn json_has_value_and_verdict() {
        let value = Results(vec![(0, Ok(vec![measured(0.1, 1.5, 60.0)]))]).json();
        assert_eq!(value[0]["value"], 1.5);
        assert_eq!(value[0]["verdict"], "missed");
        assert_eq!(value[0]["measured"]["placement"], "near");
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
                By::Ratio(by) => {
                    by == Reference::CacheLine || line.test.limits(line.bytes).contains(&by)
                }
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
        assert!(error.to_string().contains("or --peers"), "{error}");
    }
}
