//! What every test is made of: its parameters, its figures, and the loop that repeats it between two
//! looks at the machine's own limits.

use std::time::Duration;

use serde_json::{Value, json};
use vipl_tools::Result;
use vipl_tools::cable::{self, Turns};
use vipl_tools::endpoint::ViSpec;
use vipl_tools::limits;
use vipl_tools::machine;
use vipl_tools::options::{self, Level};
use vipl_tools::session::Session;
use vipl_tools::stats::{agreed, median};

/// What a test is asked for, one size at a time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Params {
    pub(crate) bytes: usize,
    pub(crate) level: Level,
    pub(crate) transfer_max: Option<usize>,
    pub(crate) window: usize,
    pub(crate) wait: bool,
    pub(crate) iterations: Option<u64>,
    pub(crate) time: Duration,
    pub(crate) vis: usize,
}

impl Params {
    /// The VIs that it needs on this device.
    pub(crate) fn vi(&self, session: &Session) -> Result<ViSpec> {
        options::vi_spec(
            session.nic.attributes(),
            self.level,
            self.bytes,
            self.transfer_max,
        )
    }
}

/// One figure of a test.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Figure {
    pub(crate) name: &'static str,
    pub(crate) unit: &'static str,
    pub(crate) value: f64,
}

pub(crate) fn figure(name: &'static str, value: f64, unit: &'static str) -> Figure {
    Figure { name, unit, value }
}

/// A limit of the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Limit {
    /// A cache line to and fro, one way: the mean over many lines.
    CacheLine,
    /// Messages to and fro, copied in and copied out, one way.
    RawPingPong,
    /// A stream of cache lines with eight bytes each.
    RawRing,
    /// Copies in one process.
    Memcpy,
    /// Copies into the other process, made by the kernel.
    ProcessWrite,
    /// Eight bytes to and fro, written by the kernel into memory that is polled, one way.
    ProcessWriteTurns,
    /// Copies from process to process, made by the kernel, one half by each of the two processors.
    BothHalves,
    /// Raw frames to and fro on the interface, one way.
    FrameTurns,
    /// TCP to and fro on the interface, one way.
    TcpTurns,
    /// A stream of raw frames, each as large as the interface lets it be.
    FrameStream,
    /// A stream of raw frames of 64 bytes.
    FrameRate,
}

impl Limit {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::CacheLine => "mean line",
            Self::RawPingPong => "raw ping-pong",
            Self::RawRing => "raw ring",
            Self::Memcpy => "memcpy",
            Self::ProcessWrite => "process_vm_writev",
            Self::ProcessWriteTurns => "polled process_vm_writev",
            Self::BothHalves => "both halves",
            Self::FrameTurns => "raw frames",
            Self::TcpTurns => "TCP",
            Self::FrameStream => "raw stream",
            Self::FrameRate => "64 B raw frames",
        }
    }

    pub(crate) fn unit(self) -> &'static str {
        match self {
            Self::CacheLine
            | Self::RawPingPong
            | Self::ProcessWriteTurns
            | Self::FrameTurns
            | Self::TcpTurns => "ns",
            Self::Memcpy | Self::ProcessWrite | Self::BothHalves | Self::FrameStream => "GB/s",
            Self::RawRing | Self::FrameRate => "M/s",
        }
    }

    /// Both processes poll meanwhile.
    pub(crate) fn takes_two_cpus(self) -> bool {
        !matches!(
            self,
            Self::Memcpy | Self::ProcessWrite | Self::FrameStream | Self::FrameRate
        )
    }

    /// Measures it now; None where the machine has no such thing.
    fn measure(
        self,
        session: &mut Session,
        bytes: usize,
        most: Option<u64>,
    ) -> Result<Option<f64>> {
        match self {
            Self::CacheLine => machine::one_way(session, 0),
            Self::RawPingPong => machine::one_way(session, bytes),
            Self::RawRing => machine::ring_rate(session).map(|rate| Some(rate / 1e6)),
            Self::Memcpy => limits::memcpy_rate(&mut session.buffers, bytes).map(Some),
            Self::ProcessWrite => machine::write_rate(session, bytes),
            Self::ProcessWriteTurns => machine::write_turns(session),
            Self::BothHalves => machine::halves_rate(session, bytes),
            Self::FrameTurns => cable::one_way(session, Turns::Frames, bytes, most),
            Self::TcpTurns => cable::one_way(session, Turns::Tcp, bytes, most),
            Self::FrameStream => {
                let (rate, payload) = cable::stream(session, None, most)?;
                Ok(Some(rate * payload as f64 / 1e9))
            }
            Self::FrameRate => {
                let (rate, _) = cable::stream(session, Some(RATE_FRAME), most)?;
                Ok(Some(rate / 1e6))
            }
        }
    }
}

/// Bytes of the smallest frames that Ethernet has.
const RATE_FRAME: usize = 64;

/// A test that is open: connected, and ready to be run any number of times.
pub(crate) trait Bench {
    /// Runs it once. The first figure is the one that limits are compared with.
    fn run(&mut self, session: &mut Session) -> Result<Vec<Figure>>;

    /// Takes it down on both sides.
    fn close(self: Box<Self>, session: &mut Session) -> Result<()>;
}

/// A limit beside a figure.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Bound {
    pub(crate) limit: Limit,
    pub(crate) value: f64,
    /// The first figure divided by it.
    pub(crate) ratio: f64,
}

/// What a test gave, over all its runs.
#[derive(Clone, Debug)]
pub(crate) struct Measured {
    pub(crate) test: &'static str,
    pub(crate) bytes: Option<usize>,
    pub(crate) figures: Vec<Figure>,
    pub(crate) bounds: Vec<Bound>,
    pub(crate) runs: usize,
    /// Runs that were thrown away because the machine changed.
    pub(crate) discarded: usize,
    /// No run had a steady machine; the figures are of unsteady ones.
    pub(crate) unsteady: bool,
}

/// How often, and between which limits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan<'a> {
    pub(crate) runs: usize,
    pub(crate) limits: &'a [Limit],
    /// Turns or frames of a limit of the cable at most; they take a while when the machine is busy.
    pub(crate) most: Option<u64>,
}

/// Attempts for each run that is wanted.
const ATTEMPTS: usize = 6;

/// Repeats a test. A run counts when the limits before and after it agree.
pub(crate) fn repeat(
    test: &'static str,
    bytes: Option<usize>,
    bench: &mut dyn Bench,
    session: &mut Session,
    plan: Plan<'_>,
) -> Result<Measured> {
    let size = bytes.unwrap_or(0);
    let mut good = Vec::new();
    let mut bad = Vec::new();
    let mut before = measure(session, plan, size)?;
    while good.len() < plan.runs && good.len() + bad.len() < plan.runs * ATTEMPTS {
        let figures = bench.run(session)?;
        let after = measure(session, plan, size)?;
        let steady: Option<Vec<Option<f64>>> = before
            .iter()
            .zip(&after)
            .map(|(before, after)| steady(*before, *after))
            .collect();
        match steady {
            Some(limits) => good.push((figures, limits)),
            None => bad.push((figures, after.clone())),
        }
        before = after;
    }
    let unsteady = good.is_empty();
    let discarded = if unsteady { 0 } else { bad.len() };
    let runs = if unsteady { &bad } else { &good };
    let (figures, bounds) = summarize(runs, plan.limits);
    Ok(Measured {
        test,
        bytes,
        figures,
        bounds,
        runs: runs.len(),
        discarded,
        unsteady,
    })
}

/// Both absent, or both there and close together.
#[allow(clippy::option_option)]
fn steady(before: Option<f64>, after: Option<f64>) -> Option<Option<f64>> {
    match (before, after) {
        (None, None) => Some(None),
        (Some(before), Some(after)) => agreed(before, after).map(Some),
        _ => None,
    }
}

fn measure(session: &mut Session, plan: Plan<'_>, bytes: usize) -> Result<Vec<Option<f64>>> {
    plan.limits
        .iter()
        .map(|limit| limit.measure(session, bytes, plan.most))
        .collect()
}

type Run = (Vec<Figure>, Vec<Option<f64>>);

/// Medians over the runs; ratios are taken run by run.
fn summarize(runs: &[Run], limits: &[Limit]) -> (Vec<Figure>, Vec<Bound>) {
    let Some((first, _)) = runs.first() else {
        return (Vec::new(), Vec::new());
    };
    let values = |index: usize| {
        runs.iter()
            .map(|run| run.0[index].value)
            .collect::<Vec<f64>>()
    };
    let figures = first.iter().enumerate();
    let figures: Vec<Figure> = figures
        .map(|(i, f)| Figure {
            value: median(&values(i)),
            ..f.clone()
        })
        .collect();
    let bound = |(index, limit): (usize, &Limit)| {
        let pairs: Vec<(f64, f64)> = runs
            .iter()
            .filter_map(|run| Some((comparable(&run.0[0], *limit), run.1[index]?)))
            .collect();
        if pairs.is_empty() {
            return None;
        }
        let value = median(&pairs.iter().map(|pair| pair.1).collect::<Vec<f64>>());
        let ratio = median(
            &pairs
                .iter()
                .map(|(figure, limit)| figure / limit)
                .collect::<Vec<_>>(),
        );
        Some(Bound {
            limit: *limit,
            value,
            ratio,
        })
    };
    (
        figures,
        limits.iter().enumerate().filter_map(bound).collect(),
    )
}

/// A figure in the unit of a limit; not a number when the two cannot be compared.
fn comparable(figure: &Figure, limit: Limit) -> f64 {
    match (figure.unit, limit.unit()) {
        ("µs", "ns") => figure.value * 1e3,
        (unit, limit) if unit == limit => figure.value,
        _ => f64::NAN,
    }
}

impl Measured {
    pub(crate) fn bound(&self, limit: Limit) -> Option<Bound> {
        self.bounds
            .iter()
            .find(|bound| bound.limit == limit)
            .copied()
    }

    pub(crate) fn to_json(&self) -> Value {
        let figures = self.figures.iter();
        let figures = figures.map(|f| json!({"name": f.name, "value": f.value, "unit": f.unit}));
        let bounds = self.bounds.iter().map(|bound| {
            let (name, unit) = (bound.limit.name(), bound.limit.unit());
            json!({"name": name, "value": bound.value, "unit": unit, "ratio": bound.ratio})
        });
        json!({
            "test": self.test, "bytes": self.bytes, "runs": self.runs,
            "discarded": self.discarded, "unsteady": self.unsteady,
            "figures": figures.collect::<Vec<_>>(), "limits": bounds.collect::<Vec<_>>(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_taken_run_by_run() {
        // The machine was twice as slow in the second run, and so was the test.
        let run = |value, limit| (vec![figure("one way", value, "µs")], vec![Some(limit)]);
        let runs = [run(0.1, 80.0), run(0.2, 160.0), run(0.1, 80.0)];
        let (figures, bounds) = summarize(&runs, &[Limit::CacheLine]);
        assert_eq!(figures, [figure("one way", 0.1, "µs")]);
        assert_eq!(
            bounds,
            [Bound {
                limit: Limit::CacheLine,
                value: 80.0,
                ratio: 1.25
            }]
        );
    }

    #[test]
    fn only_like_is_compared_with_like() {
        assert_eq!(
            comparable(&figure("one way", 0.25, "µs"), Limit::CacheLine),
            250.0
        );
        assert_eq!(
            comparable(&figure("stream", 5.0, "GB/s"), Limit::Memcpy),
            5.0
        );
        assert!(comparable(&figure("messages", 5.0, "M/s"), Limit::Memcpy).is_nan());
        assert!(comparable(&figure("stream", 5.0, "GB/s"), Limit::CacheLine).is_nan());
    }

    #[test]
    fn an_absent_limit_gives_no_bound() {
        let runs = [(vec![figure("stream", 5.0, "GB/s")], vec![None])];
        assert!(summarize(&runs, &[Limit::ProcessWrite]).1.is_empty());
        assert!(summarize(&[], &[Limit::Memcpy]).0.is_empty());
    }

    #[test]
    fn a_machine_is_steady_when_both_looks_agree() {
        assert_eq!(steady(Some(50.0), Some(60.0)), Some(Some(55.0)));
        assert_eq!(steady(Some(50.0), Some(300.0)), None);
        assert_eq!(steady(None, None), Some(None));
        assert_eq!(steady(Some(50.0), None), None);
    }
}
