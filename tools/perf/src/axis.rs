//! Axes of charts: their ranges, ticks and labels.

/// What an axis shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scale {
    /// Bytes, by powers of two.
    Bytes,
    /// Anything, by powers of ten.
    Decades,
    /// From 0, evenly.
    Even,
}

/// A range of an axis, and where its values are.
pub(crate) struct Axis {
    scale: Scale,
    pub(crate) low: f64,
    pub(crate) high: f64,
    pub(crate) ticks: Vec<f64>,
}

impl Axis {
    /// The range of some values, and at most a dozen ticks.
    pub(crate) fn new(scale: Scale, values: impl Iterator<Item = f64>) -> Self {
        let is_shown = |value: &f64| is_shown(scale, *value);
        let (mut low, mut high) = (f64::INFINITY, 0.0f64);
        for value in values.filter(is_shown) {
            (low, high) = (low.min(value), high.max(value));
        }
        if !low.is_finite() {
            (low, high) = (1.0, 2.0);
        }
        let ticks = match scale {
            Scale::Bytes => {
                (low, high) = (low.log2().floor().exp2(), high.log2().ceil().exp2());
                // A size that is alone stands in the middle.
                if high < 2.0 * low {
                    (low, high) = (low / 2.0, low * 2.0);
                }
                let powers = (high / low).log2().round() as i32;
                let step = powers.div_euclid(8) + 1;
                (0..=powers)
                    .step_by(step as usize)
                    .map(|power| low * f64::from(power).exp2())
                    .collect()
            }
            Scale::Decades => {
                (low, high) = (beyond(low, false), beyond(high * 1.05, true));
                let decades = (high / low).log10();
                let steps: &[f64] = if decades > 3.5 {
                    &[1.0]
                } else {
                    &[1.0, 2.0, 5.0]
                };
                let first = low.log10().floor() as i32;
                let apart = (decades / 10.0) as usize + 1;
                let all = (first..=first + decades as i32 + 2)
                    .step_by(apart)
                    .flat_map(|power| steps.iter().map(move |step| step * 10f64.powi(power)));
                all.filter(|tick| (low * 0.999..=high * 1.001).contains(tick))
                    .collect()
            }
            Scale::Even => {
                low = 0.0;
                let step = beyond((high / 5.0).max(1e-9), true);
                high = (high / step).ceil().max(1.0) * step;
                (0..=(high / step).round() as i32)
                    .map(|number| f64::from(number) * step)
                    .collect()
            }
        };
        Self {
            scale,
            low,
            high,
            ticks,
        }
    }

    /// From 0 to 1.
    pub(crate) fn place(&self, value: f64) -> f64 {
        match self.scale {
            Scale::Even => (value - self.low) / (self.high - self.low),
            _ => (value / self.low).ln() / (self.high / self.low).ln(),
        }
    }

    /// What stands at a tick.
    pub(crate) fn label(&self, value: f64) -> String {
        match self.scale {
            Scale::Bytes => size(value),
            _ => plain(value),
        }
    }
}

/// Whether a value has a place on an axis: ticks and lines of all others would have no end.
pub(crate) fn is_shown(scale: Scale, value: f64) -> bool {
    match scale {
        Scale::Even => (-1e30..=1e30).contains(&value),
        _ => (1e-30..=1e30).contains(&value),
    }
}

/// The next of 1, 2, 5, 10 and so on, above or below.
fn beyond(value: f64, above: bool) -> f64 {
    let decade = 10f64.powf(value.log10().floor());
    let mut steps = [1.0, 2.0, 5.0, 10.0].map(|step| step * decade).into_iter();
    let found = match above {
        true => steps.find(|step| *step >= value * 0.999),
        false => steps.rfind(|step| *step <= value * 1.001),
    };
    found.unwrap_or(decade)
}

/// A number of bytes, rounded.
pub(crate) fn size(bytes: f64) -> String {
    match bytes {
        b if b >= 1_048_576.0 => format!("{} MiB", plain(b / 1_048_576.0)),
        b if b >= 1024.0 => format!("{} KiB", plain(b / 1024.0)),
        b => format!("{} B", plain(b.round())),
    }
}

/// A number with two digits that count, without zeros at its end.
fn plain(value: f64) -> String {
    if value != 0.0 && !(1e-4..1e5).contains(&value.abs()) {
        return format!("{value:.0e}");
    }
    let digits = match value.abs() {
        v if v >= 10.0 || v == 0.0 => 0,
        v if v >= 1.0 => 1,
        v => (1.0 - v.log10().floor()) as usize,
    };
    let text = format!("{value:.digits$}");
    match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short() {
        let texts = [0.126, 0.5, 1.5, 2.0, 20.0, 1000.0, 0.02, 1e7, 1e-5].map(plain);
        assert_eq!(
            texts,
            [
                "0.13", "0.5", "1.5", "2", "20", "1000", "0.02", "1e7", "1e-5"
            ]
        );
        assert_eq!(
            [8.0, 4096.0, 1_500.0, 1_048_576.0].map(size),
            ["8 B", "4 KiB", "1.5 KiB", "1 MiB"]
        );
    }

    #[test]
    fn axes_hold_all_values_and_few_ticks() {
        for (scale, values) in [
            (Scale::Bytes, vec![8.0, 65536.0]),
            (Scale::Bytes, vec![8.0]),
            (Scale::Decades, vec![0.11, 4.0, 3000.0]),
            (Scale::Decades, vec![7.0]),
            (Scale::Even, vec![0.0, 37.0]),
            (Scale::Decades, vec![]),
            (Scale::Decades, vec![1e-30, 1e30]),
            (Scale::Bytes, vec![1.0, 1e30]),
        ] {
            let axis = Axis::new(scale, values.iter().copied());
            assert!(
                (2..=12).contains(&axis.ticks.len()),
                "{scale:?} {values:?}: {:?}",
                axis.ticks
            );
            for value in &values {
                let place = axis.place(*value);
                assert!(
                    (-1e-9..=1.0 + 1e-9).contains(&place),
                    "{scale:?} {value}: {place}"
                );
            }
        }
    }
}
