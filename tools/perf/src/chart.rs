//! Charts as SVG: lines over two logarithmic axes, or shares over one.
//!
//! By hand, since it is little: no library of charts knows how wide a text is without a font either, and a page of text that
//! names its colours is legible on any background. Sizes are for a width of 900.

use std::fmt::Write as _;

/// Width of a chart, and of the part between its axes.
pub(crate) const WIDTH: f64 = 900.0;
const PLOT: f64 = 520.0;
/// Height of a chart, and of that part.
pub(crate) const HEIGHT: f64 = 420.0;
const TALL: f64 = 290.0;
const LEFT: f64 = 80.0;
const TOP: f64 = 64.0;
/// Text, lines of the grid, and colours that can be told apart by all, also on paper (Okabe and Ito).
const INK: &str = "#222222";
const GRID: &str = "#d8d8d8";
const COLOURS: [&str; 7] = [
    "#0072b2", "#d55e00", "#009e73", "#aa4499", "#e69f00", "#56b4e9", "#555555",
];
/// Lines of the legend.
const LEGEND: usize = 14;

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

/// One line.
#[derive(Clone, Debug, Default)]
pub(crate) struct Series {
    pub(crate) name: String,
    pub(crate) points: Vec<(f64, f64)>,
    /// Number of its colour.
    pub(crate) colour: usize,
    pub(crate) is_dashed: bool,
    /// Of something to compare with.
    pub(crate) is_thin: bool,
    /// A place on the x axis that is marked, and what is said there.
    pub(crate) mark: Option<(f64, String)>,
}

/// Lines over common axes.
#[derive(Clone, Debug)]
pub(crate) struct Chart {
    pub(crate) title: String,
    pub(crate) x: (&'static str, Scale),
    pub(crate) y: (&'static str, Scale),
    pub(crate) series: Vec<Series>,
}

/// A range of an axis, and where its values are.
struct Axis {
    scale: Scale,
    low: f64,
    high: f64,
    ticks: Vec<f64>,
}

impl Axis {
    fn new(scale: Scale, values: impl Iterator<Item = f64>) -> Self {
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
                high = high.max(2.0 * low);
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
    fn place(&self, value: f64) -> f64 {
        match self.scale {
            Scale::Even => (value - self.low) / (self.high - self.low),
            _ => (value / self.low).ln() / (self.high / self.low).ln(),
        }
    }

    fn label(&self, value: f64) -> String {
        match self.scale {
            Scale::Bytes => size(value),
            _ => plain(value),
        }
    }
}

/// Whether a value has a place on an axis: ticks and lines of all others would have no end.
fn is_shown(scale: Scale, value: f64) -> bool {
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

/// Text as it stands in XML.
pub(crate) fn escaped(text: &str) -> String {
    let text = text
        .replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;");
    let is_allowed = |c: &char| !c.is_control();
    text.replace('"', "&quot;")
        .chars()
        .filter(is_allowed)
        .collect()
}

/// All charts, one below the other, under a heading.
pub(crate) fn svg(heading: &[String], charts: &[Chart]) -> String {
    let head = 24.0 * heading.len() as f64 + 16.0;
    let height = head + HEIGHT * charts.len() as f64;
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" height=\"{height}\" \
         font-family=\"DejaVu Sans, Verdana, sans-serif\" font-size=\"13\" fill=\"{INK}\">\n\
         <rect width=\"{WIDTH}\" height=\"{height}\" fill=\"#ffffff\"/>\n"
    );
    for (number, line) in heading.iter().enumerate() {
        let (y, weight) = (
            24.0 * (number + 1) as f64,
            if number == 0 {
                " font-weight=\"bold\""
            } else {
                ""
            },
        );
        let _ = writeln!(
            text,
            "<text x=\"16\" y=\"{y}\"{weight}>{}</text>",
            escaped(line)
        );
    }
    for (number, chart) in charts.iter().enumerate() {
        let top = head + HEIGHT * number as f64;
        let _ = writeln!(
            text,
            "<g transform=\"translate(0 {top})\">\n{}</g>",
            chart.svg()
        );
    }
    text + "</svg>\n"
}

impl Chart {
    fn svg(&self) -> String {
        let points = || self.series.iter().flat_map(|series| series.points.iter());
        let x = Axis::new(self.x.1, points().map(|point| point.0));
        let y = Axis::new(self.y.1, points().map(|point| point.1));
        let at = |value: f64| LEFT + PLOT * x.place(value);
        let up = |value: f64| TOP + TALL * (1.0 - y.place(value));
        let (right, bottom) = (LEFT + PLOT, TOP + TALL);
        let mut text = String::new();
        let _ = writeln!(
            text,
            "<text x=\"{LEFT}\" y=\"34\" font-size=\"16\" font-weight=\"bold\">{}</text>",
            escaped(&self.title)
        );
        for tick in &x.ticks {
            let (place, label) = (at(*tick), escaped(&x.label(*tick)));
            let _ = writeln!(
                text,
                "<path d=\"M{place:.1} {TOP}V{bottom}\" stroke=\"{GRID}\"/>\
                 <text x=\"{place:.1}\" y=\"{}\" text-anchor=\"middle\">{label}</text>",
                bottom + 20.0
            );
        }
        for tick in &y.ticks {
            let (place, label) = (up(*tick), escaped(&y.label(*tick)));
            let _ = writeln!(
                text,
                "<path d=\"M{LEFT} {place:.1}H{right}\" stroke=\"{GRID}\"/>\
                 <text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{label}</text>",
                LEFT - 8.0,
                place + 4.5
            );
        }
        let _ = writeln!(
            text,
            "<path d=\"M{LEFT} {TOP}V{bottom}H{right}\" fill=\"none\" stroke=\"{INK}\"/>\
             <text x=\"{:.1}\" y=\"{}\" text-anchor=\"middle\">{}</text>\
             <text transform=\"translate(20 {:.1}) rotate(-90)\" text-anchor=\"middle\">{}</text>",
            LEFT + PLOT / 2.0,
            bottom + 42.0,
            escaped(self.x.0),
            TOP + TALL / 2.0,
            escaped(self.y.0)
        );
        let mut marks = 0.0;
        for (number, series) in self.series.iter().enumerate() {
            let colour = COLOURS[series.colour % COLOURS.len()];
            let width = if series.is_thin { 1.2 } else { 2.4 };
            let dashes = if series.is_dashed {
                " stroke-dasharray=\"6 4\""
            } else {
                ""
            };
            let shown = series
                .points
                .iter()
                .filter(|point| is_shown(self.x.1, point.0) && is_shown(self.y.1, point.1));
            let places: Vec<(f64, f64)> = shown.map(|(x, y)| (at(*x), up(*y))).collect();
            let path: Vec<String> = places
                .iter()
                .map(|(x, y)| format!("{x:.1} {y:.1}"))
                .collect();
            if !path.is_empty() {
                let _ = writeln!(
                    text,
                    "<path d=\"M{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"{width}\"{dashes}/>",
                    path.join("L")
                );
            }
            if places.len() <= 24 {
                for (x, y) in &places {
                    let _ = writeln!(
                        text,
                        "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\" fill=\"{colour}\"/>"
                    );
                }
            }
            let mark = series.mark.as_ref();
            if let Some((place, said)) = mark.filter(|mark| is_shown(self.x.1, mark.0)) {
                let (place, level) = (at(place.clamp(x.low, x.high)), TOP + 14.0 + 17.0 * marks);
                let (anchor, side) = match place > LEFT + PLOT * 0.7 {
                    true => ("end", -6.0),
                    false => ("start", 6.0),
                };
                let _ = writeln!(
                    text,
                    "<path d=\"M{place:.1} {TOP}V{bottom}\" stroke=\"{colour}\" stroke-dasharray=\"2 3\"/>\
                     <text x=\"{:.1}\" y=\"{level}\" text-anchor=\"{anchor}\" fill=\"{colour}\" stroke=\"#ffffff\" \
                     stroke-width=\"4\" paint-order=\"stroke\">{}</text>",
                    place + side,
                    escaped(said)
                );
                marks += 1.0;
            }
            if number < LEGEND {
                let (x, y) = (right + 16.0, TOP + 8.0 + 20.0 * number as f64);
                let _ = writeln!(
                    text,
                    "<path d=\"M{x} {y}h24\" stroke=\"{colour}\" stroke-width=\"{width}\"{dashes}/>\
                     <text x=\"{}\" y=\"{}\">{}</text>",
                    x + 30.0,
                    y + 4.5,
                    escaped(&series.name)
                );
            }
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short() {
        let texts = [0.126, 0.5, 1.5, 2.0, 20.0, 1000.0, 0.02].map(plain);
        assert_eq!(texts, ["0.13", "0.5", "1.5", "2", "20", "1000", "0.02"]);
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

    #[test]
    fn names_are_text_and_no_markup() {
        let series = Series {
            name: "<b>&\u{7}".to_owned(),
            points: vec![
                (8.0, 1.0),
                (64.0, f64::NAN),
                (0.0, 2.0),
                (16.0, -1.0),
                (32.0, 5e-324),
                (f64::MAX, 1e308),
            ],
            ..Series::default()
        };
        let chart = Chart {
            title: "\"".to_owned(),
            x: ("bytes", Scale::Bytes),
            y: ("µs", Scale::Decades),
            series: vec![series],
        };
        let text = svg(&["a<b".to_owned()], &[chart]);
        assert!(
            text.contains("&lt;b&gt;&amp;<") && text.contains("a&lt;b"),
            "{text}"
        );
        assert!(!text.contains("NaN") && !text.contains("inf"), "{text}");
    }
}
