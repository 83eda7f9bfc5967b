//! Medians, percentiles, and when two figures agree.

#![forbid(unsafe_code)]

use std::collections::BTreeMap;

/// Sorts the samples and returns the value below which `fraction` of them lie (nearest rank); 0 for none.
pub fn percentile(samples: &mut [f64], fraction: f64) -> f64 {
    if samples.is_empty() {
        return 0.0;
    }
    samples.sort_by(f64::total_cmp);
    let rank = (fraction * (samples.len() - 1) as f64).round() as usize;
    samples[rank.min(samples.len() - 1)]
}

/// The median: for an even number of samples the mean of the two in the middle; 0 for none.
#[must_use]
pub fn median(samples: &[f64]) -> f64 {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => 0.0,
        n if n % 2 == 1 => sorted[middle],
        _ => f64::midpoint(sorted[middle - 1], sorted[middle]),
    }
}

/// The mean of a figure taken before and after, or None when they differ by more than a quarter: then
/// the machine has changed in between.
#[must_use]
pub fn agreed(before: f64, after: f64) -> Option<f64> {
    let (low, high) = (before.min(after), before.max(after));
    (low > 0.0 && high <= low * 1.25).then(|| f64::midpoint(before, after))
}

/// How many samples lie between which values: eight steps for each doubling.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Histogram(BTreeMap<i32, u64>);

/// Steps of a [`Histogram`] for each doubling.
const STEPS: f64 = 8.0;

impl Histogram {
    /// Adds samples; those that are not above 0 are left out.
    pub fn add(&mut self, samples: &[f64]) {
        for sample in samples.iter().filter(|sample| **sample > 0.0) {
            *self
                .0
                .entry((sample.log2() * STEPS).floor() as i32)
                .or_default() += 1;
        }
    }

    /// Adds those of another one.
    pub fn merge(&mut self, other: &Self) {
        for (step, count) in &other.0 {
            *self.0.entry(*step).or_default() += count;
        }
    }

    /// From, to, and how many, in order of the values.
    pub fn steps(&self) -> impl Iterator<Item = (f64, f64, u64)> {
        let edge = |step: i32| (f64::from(step) / STEPS).exp2();
        self.0
            .iter()
            .map(move |(step, count)| (edge(*step), edge(step + 1), *count))
    }
}

/// Which direction is good.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Better {
    /// The figure should be small.
    Lower,
    /// The figure should be large.
    Higher,
}

/// What a figure should reach.
#[derive(Clone, Copy, Debug)]
pub struct Goal {
    /// Which direction is good.
    pub better: Better,
    /// What it must reach.
    pub at_least: f64,
    /// What it should reach.
    pub aim: f64,
}

/// How a figure stands to its goal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The aim is reached.
    Aim,
    /// What it must reach is reached.
    Ok,
    /// Neither.
    Missed,
}

impl Goal {
    /// Judges a figure. A figure that is not a number has missed.
    #[must_use]
    pub fn judge(&self, value: f64) -> Verdict {
        let reaches = |bound: f64| match self.better {
            Better::Lower => value <= bound,
            Better::Higher => value >= bound,
        };
        if reaches(self.aim) {
            Verdict::Aim
        } else if reaches(self.at_least) {
            Verdict::Ok
        } else {
            Verdict::Missed
        }
    }

    /// The sign to write before a bound.
    #[must_use]
    pub fn sign(&self) -> &'static str {
        match self.better {
            Better::Lower => "≤",
            Better::Higher => "≥",
        }
    }
}

impl Verdict {
    /// As the table says it.
    #[must_use]
    pub fn text(self) -> &'static str {
        match self {
            Self::Aim => "ok, aim",
            Self::Ok => "ok",
            Self::Missed => "missed",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn median_of_odd_even_and_none() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
        assert_eq!(median(&[]), 0.0);
    }

    #[test]
    fn percentiles_are_samples() {
        let mut samples: Vec<f64> = (1..=101).rev().map(f64::from).collect();
        assert_eq!(percentile(&mut samples, 0.0), 1.0);
        assert_eq!(percentile(&mut samples, 0.5), 51.0);
        assert_eq!(percentile(&mut samples, 0.99), 100.0);
        assert_eq!(percentile(&mut samples, 1.0), 101.0);
        assert_eq!(percentile(&mut [], 0.5), 0.0);
    }

    #[test]
    fn a_quarter_apart_still_agrees() {
        assert_eq!(agreed(100.0, 120.0), Some(110.0));
        assert_eq!(agreed(125.0, 100.0), Some(112.5));
        assert_eq!(agreed(100.0, 126.0), None);
        assert_eq!(agreed(0.0, 0.0), None);
    }

    #[test]
    fn samples_are_counted_by_steps() {
        let mut times = Histogram::default();
        times.add(&[100.0, 101.0, 200.0, 0.0]);
        let mut other = Histogram::default();
        other.add(&[100.5]);
        times.merge(&other);
        let steps: Vec<_> = times.steps().collect();
        assert_eq!(steps.iter().map(|step| step.2).collect::<Vec<_>>(), [3, 1]);
        assert!(steps[0].0 <= 100.0 && 101.0 < steps[0].1, "{steps:?}");
    }

    #[test]
    fn goals_are_judged_in_their_direction() {
        let latency = Goal {
            better: Better::Lower,
            at_least: 1.35,
            aim: 1.15,
        };
        assert_eq!(latency.judge(1.15), Verdict::Aim);
        assert_eq!(latency.judge(1.2), Verdict::Ok);
        assert_eq!(latency.judge(1.36), Verdict::Missed);
        assert_eq!(latency.judge(f64::NAN), Verdict::Missed);
        let rate = Goal {
            better: Better::Higher,
            at_least: 15.0,
            aim: 40.0,
        };
        assert_eq!(rate.judge(41.0), Verdict::Aim);
        assert_eq!(rate.judge(15.0), Verdict::Ok);
        assert_eq!(rate.judge(14.9), Verdict::Missed);
    }
}
