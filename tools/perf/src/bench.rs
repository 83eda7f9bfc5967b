//! What every test is made of: its parameters, its figures, and the loop that repeats it between two
//! looks at the machine's own limits, and in turn with other libraries.

use std::borrow::Cow;
use std::time::Duration;

use serde_json::{Value, json};
use vipl_tools::Result;
use vipl_tools::endpoint::ViSpec;
use vipl_tools::options::{self, Level};
use vipl_tools::stats::{Histogram, agreed, median};

use crate::company::Company;
use crate::machine::Session;
use crate::reference::Reference;
use vipl_tools::placement::Placement;

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
    /// Of `threads`, at each side.
    pub(crate) threads: usize,
    /// Of `scale`.
    pub(crate) processes: usize,
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
    pub(crate) name: Cow<'static, str>,
    pub(crate) unit: &'static str,
    pub(crate) value: f64,
}

pub(crate) fn figure(name: impl Into<Cow<'static, str>>, value: f64, unit: &'static str) -> Figure {
    let name = name.into();
    Figure { name, unit, value }
}

/// A test that is open: connected, and ready to be run any number of times.
pub(crate) trait Bench {
    /// Runs it once. The first figure is the one that limits are compared with.
    fn run(&mut self, session: &mut Session) -> Result<Vec<Figure>>;

    /// Times of single messages of the last run in ns, if the test takes them.
    fn times(&mut self) -> Histogram {
        Histogram::default()
    }

    /// Takes it down on both sides; nothing if each run does.
    fn close(self: Box<Self>, _session: &mut Session) -> Result<()> {
        Ok(())
    }
}

/// A reference beside a figure.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Bound {
    pub(crate) reference: Reference,
    pub(crate) value: f64,
    /// The first figure divided by it.
    pub(crate) ratio: f64,
}

/// What a test gave, over all its runs at one placement of the processors.
#[derive(Clone, Debug)]
pub(crate) struct Measured {
    pub(crate) test: &'static str,
    /// The device, if it is not the one that was asked for.
    pub(crate) device: Option<String>,
    pub(crate) bytes: Option<usize>,
    /// None where no cache line was timed.
    pub(crate) placement: Option<Placement>,
    pub(crate) figures: Vec<Figure>,
    pub(crate) bounds: Vec<Bound>,
    /// Times of single messages in ns.
    pub(crate) times: Histogram,
    pub(crate) runs: usize,
    /// Runs that were thrown away because the machine changed.
    pub(crate) discarded: usize,
    /// No run had a steady machine; the figures are of unsteady ones.
    pub(crate) unsteady: bool,
}

/// How often, and beside what.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan<'a> {
    pub(crate) runs: usize,
    pub(crate) references: &'a [Reference],
    /// A run counts only if the limits before and after it agree, and not only the placement.
    pub(crate) strict: bool,
    /// Results show the time of a cache line, and not only the placement.
    pub(crate) shows_line: bool,
    /// Turns or frames of a limit of the cable at most; they take a while when the machine is busy.
    pub(crate) most: Option<u64>,
    /// Processors with a process that computes while peers are measured.
    pub(crate) company: &'a [usize],
}

impl Plan<'_> {
    /// The limits that were taken before and after something, if the machine was the same.
    fn steady(&self, before: &Values, after: &Values) -> Option<Values> {
        if self.strict {
            return steady(before, after);
        }
        let place = |values: &Values| values.first()?.map(Placement::of);
        (place(before) == place(after)).then(|| after.clone())
    }
}

/// Attempts for each run that is wanted.
const ATTEMPTS: usize = 6;

/// Repeats a test. A run counts when the limits before and after it agree; each belongs to the placement that the
/// cache line shows, and no figure mixes two. Another library is measured after each run that counts, and the run
/// counts no more if the limits are different after that. Returns one result for each placement that came up.
pub(crate) fn repeat(
    test: &'static str,
    bytes: Option<usize>,
    bench: &mut dyn Bench,
    session: &mut Session,
    plan: Plan<'_>,
) -> Result<Vec<Measured>> {
    let size = bytes.unwrap_or(0);
    let with_peers = plan.references.iter().any(|by| by.is_peer());
    let mut groups = Groups::new(plan);
    let mut before = measure(session, plan, size, false)?;
    while groups.want_more() {
        let figures = bench.run(session)?;
        let times = bench.times();
        let mut after = measure(session, plan, size, false)?;
        let mut found = plan.steady(&before, &after);
        before.clone_from(&after);
        if with_peers && found.is_some() {
            let peers = measure(session, plan, size, true)?;
            after = measure(session, plan, size, false)?;
            found = plan
                .steady(&before, &after)
                .and(found)
                .map(|limits| merged(limits, &peers));
            before.clone_from(&after);
        }
        groups.add(figures, &times, found.ok_or(after));
    }
    Ok(groups.results(test, bytes))
}

type Run = (Vec<Figure>, Values);

/// The runs by placement: without one, near, far.
struct Groups<'a> {
    plan: Plan<'a>,
    attempts: usize,
    most: usize,
    good: [Vec<Run>; 3],
    bad: [Vec<Run>; 3],
    /// Of the good ones.
    times: [Histogram; 3],
}

const PLACES: [Option<Placement>; 3] = [None, Some(Placement::Near), Some(Placement::Far)];

impl<'a> Groups<'a> {
    fn new(plan: Plan<'a>) -> Self {
        Self {
            plan,
            attempts: 0,
            most: plan.runs * ATTEMPTS,
            good: Default::default(),
            bad: Default::default(),
            times: Default::default(),
        }
    }

    /// Whether a placement that has come up lacks runs. When one has enough, another one gets as many attempts again.
    fn want_more(&mut self) -> bool {
        let runs = self.plan.runs;
        if self.good.iter().any(|group| group.len() == runs) {
            self.most = self.most.min(self.attempts + runs);
        }
        let mut seen = self.good.iter().filter(|group| !group.is_empty());
        let enough = seen.clone().next().is_some() && seen.all(|group| group.len() >= runs);
        !enough && self.attempts < self.most
    }

    /// Adds a run with the references of a steady machine, or with those after it.
    fn add(
        &mut self,
        figures: Vec<Figure>,
        times: &Histogram,
        found: std::result::Result<Values, Values>,
    ) {
        self.attempts += 1;
        let is_good = found.is_ok();
        let (groups, values) = match found {
            Ok(values) => (&mut self.good, values),
            Err(values) => (&mut self.bad, values),
        };
        let mut both = self.plan.references.iter().zip(&values);
        let line = both.find(|(by, _)| **by == Reference::CacheLine);
        let placement = line.and_then(|(_, line)| line.map(Placement::of));
        let group = PLACES.iter().position(|place| *place == placement);
        let group = group.unwrap_or(0);
        groups[group].push((figures, values));
        if is_good {
            self.times[group].merge(times);
        }
    }

    fn results(&self, test: &'static str, bytes: Option<usize>) -> Vec<Measured> {
        let unsteady = self.good.iter().all(Vec::is_empty);
        let groups = if unsteady { &self.bad } else { &self.good };
        let some = (0..PLACES.len()).filter(|group| !groups[*group].is_empty());
        some.map(|group| {
            let (figures, mut bounds) = summarize(&groups[group], self.plan.references);
            bounds.retain(|by| self.plan.shows_line || by.reference != Reference::CacheLine);
            Measured {
                test,
                device: None,
                bytes,
                placement: PLACES[group],
                figures,
                bounds,
                times: self.times[group].clone(),
                runs: groups[group].len(),
                discarded: if unsteady { 0 } else { self.bad[group].len() },
                unsteady,
            }
        })
        .collect()
    }
}

/// The values of all references, in order; None for one that is absent or was not asked for.
type Values = Vec<Option<f64>>;

/// Limits that were taken before and after something, if they agree.
fn steady(before: &Values, after: &Values) -> Option<Values> {
    let both = before.iter().zip(after);
    both.map(|(before, after)| both_agree(*before, *after))
        .collect()
}

fn merged(limits: Values, peers: &Values) -> Values {
    limits
        .into_iter()
        .zip(peers)
        .map(|(limit, peer)| limit.or(*peer))
        .collect()
}

/// Both absent, or both there and close together.
#[allow(clippy::option_option)]
fn both_agree(before: Option<f64>, after: Option<f64>) -> Option<Option<f64>> {
    match (before, after) {
        (None, None) => Some(None),
        (Some(before), Some(after)) => agreed(before, after).map(Some),
        _ => None,
    }
}

/// Measures the peers, or all else.
fn measure(session: &mut Session, plan: Plan<'_>, bytes: usize, peers: bool) -> Result<Values> {
    let _company = if peers {
        Company::start(plan.company)?
    } else {
        Company::default()
    };
    let value = |reference: &Reference| match reference.is_peer() == peers {
        true => reference.measure(session, bytes, plan.most),
        false => Ok(None),
    };
    plan.references.iter().map(value).collect()
}

/// Medians over the runs; ratios are taken run by run.
fn summarize(runs: &[Run], references: &[Reference]) -> (Vec<Figure>, Vec<Bound>) {
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
    let bound = |(index, reference): (usize, &Reference)| {
        let pairs: Vec<(f64, f64)> = runs
            .iter()
            .filter_map(|run| Some((comparable(&run.0[0], *reference), run.1[index]?)))
            .collect();
        if pairs.is_empty() {
            return None;
        }
        let value = median(&pairs.iter().map(|pair| pair.1).collect::<Vec<f64>>());
        let ratio = median(
            &pairs
                .iter()
                .map(|(figure, reference)| figure / reference)
                .collect::<Vec<_>>(),
        );
        Some(Bound {
            reference: *reference,
            value,
            ratio,
        })
    };
    (
        figures,
        references.iter().enumerate().filter_map(bound).collect(),
    )
}

/// A figure in the unit of a reference; not a number when the two cannot be compared.
fn comparable(figure: &Figure, reference: Reference) -> f64 {
    match (figure.unit, reference.unit()) {
        ("µs", "ns") => figure.value * 1e3,
        (unit, other) if unit == other => figure.value,
        _ => f64::NAN,
    }
}

impl Measured {
    pub(crate) fn bound(&self, reference: Reference) -> Option<Bound> {
        let mut bounds = self.bounds.iter();
        bounds.find(|bound| bound.reference == reference).copied()
    }

    pub(crate) fn to_json(&self) -> Value {
        let figures = self.figures.iter();
        let figures = figures.map(|f| json!({"name": f.name, "value": f.value, "unit": f.unit}));
        let bounds = |peers: bool| {
            let chosen = self
                .bounds
                .iter()
                .filter(|bound| bound.reference.is_peer() == peers);
            let shown = chosen.map(|bound| {
                let (name, unit) = (bound.reference.name(), bound.reference.unit());
                json!({"name": name, "value": bound.value, "unit": unit, "ratio": bound.ratio})
            });
            shown.collect::<Vec<_>>()
        };
        let times: Vec<_> = self.times.steps().collect();
        json!({
            "times": times, "test": self.test, "bytes": self.bytes, "runs": self.runs,
            "placement": self.placement.map(Placement::name), "device": self.device,
            "discarded": self.discarded, "unsteady": self.unsteady,
            "figures": figures.collect::<Vec<_>>(), "limits": bounds(false), "peers": bounds(true),
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
        let (figures, bounds) = summarize(&runs, &[Reference::CacheLine]);
        assert_eq!(figures, [figure("one way", 0.1, "µs")]);
        assert_eq!(
            bounds,
            [Bound {
                reference: Reference::CacheLine,
                value: 80.0,
                ratio: 1.25
            }]
        );
    }

    #[test]
    fn only_like_is_compared_with_like() {
        assert_eq!(
            comparable(&figure("one way", 0.25, "µs"), Reference::CacheLine),
            250.0
        );
        assert_eq!(
            comparable(&figure("stream", 5.0, "GB/s"), Reference::Memcpy),
            5.0
        );
        assert!(comparable(&figure("messages", 5.0, "M/s"), Reference::Memcpy).is_nan());
        assert!(comparable(&figure("stream", 5.0, "GB/s"), Reference::CacheLine).is_nan());
    }

    #[test]
    fn an_absent_limit_gives_no_bound() {
        let runs = [(vec![figure("stream", 5.0, "GB/s")], vec![None])];
        assert!(summarize(&runs, &[Reference::ProcessWrite]).1.is_empty());
        assert!(summarize(&[], &[Reference::Memcpy]).0.is_empty());
    }

    #[test]
    fn a_machine_is_steady_when_both_looks_agree() {
        assert_eq!(
            steady(&vec![Some(50.0)], &vec![Some(60.0)]),
            Some(vec![Some(55.0)])
        );
        assert_eq!(steady(&vec![Some(50.0)], &vec![Some(300.0)]), None);
        assert_eq!(steady(&vec![None], &vec![None]), Some(vec![None]));
        assert_eq!(steady(&vec![Some(50.0)], &vec![None]), None);
    }

    #[test]
    fn placements_are_never_mixed() {
        let references = [Reference::CacheLine];
        let mut groups = Groups::new(Plan {
            runs: 2,
            references: &references,
            strict: true,
            shows_line: true,
            most: None,
            company: &[],
        });
        let of = |value| vec![figure("one way", value, "µs")];
        let none = Histogram::default();
        for (value, line) in [(0.06, 58.0), (0.3, 290.0), (0.07, 60.0)] {
            assert!(groups.want_more());
            groups.add(of(value), &none, Ok(vec![Some(line)]));
        }
        groups.add(of(9.0), &none, Err(vec![Some(300.0)]));
        // Near has enough, far gets as many attempts again.
        assert!(groups.want_more());
        groups.add(of(0.32), &none, Ok(vec![Some(300.0)]));
        assert!(!groups.want_more());
        let [near, far] = &groups.results("latency", Some(8))[..] else {
            panic!("two placements")
        };
        assert_eq!((near.placement, far.placement), (PLACES[1], PLACES[2]));
        assert_eq!((near.figures[0].value, far.figures[0].value), (0.065, 0.31));
        assert_eq!((near.discarded, far.discarded), (0, 1));
    }

    #[test]
    fn a_peer_has_its_place_among_the_references() {
        let limits = vec![Some(50.0), None, None];
        let peers = vec![None, Some(80.0), None];
        assert_eq!(merged(limits, &peers), [Some(50.0), Some(80.0), None]);
    }
}
