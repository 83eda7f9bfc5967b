//! Charts as SVG: lines over two logarithmic axes, or shares over one.
//!
//! By hand, since it is little: no library of charts knows how wide a text is without a font either, and a page of text that
//! names its colours is legible on any background. Sizes are for a width of 900. No text stands between the lines, where it
//! would cover some: what is said of a line is in the legend, below its name.

use std::fmt::Write as _;

use crate::axis::{Axis, Scale, is_shown};

/// Width of a chart, and of the part between its axes.
const WIDTH: f64 = 900.0;
const PLOT: f64 = 520.0;
/// Least height of a chart, and height of that part.
const HEIGHT: f64 = 420.0;
const TALL: f64 = 290.0;
const LEFT: f64 = 80.0;
const TOP: f64 = 64.0;
/// Text, lines of the grid, and colours that can be told apart by all, also on paper (Okabe and Ito).
const INK: &str = "#222222";
const GRID: &str = "#d8d8d8";
const SAID: &str = "#555555";
const COLOURS: [&str; 7] = [
    "#0072b2", "#d55e00", "#009e73", "#aa4499", "#e69f00", "#56b4e9", "#555555",
];
/// Characters of a line of the heading.
const LINE: usize = 110;
/// Distance of the lines of the legend, and of the second ones.
const ROW: f64 = 20.0;
const SECOND: f64 = 17.0;

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
    pub(crate) mark: Option<Mark>,
}

/// A place on the x axis that is marked.
#[derive(Clone, Debug)]
pub(crate) struct Mark {
    pub(crate) x: f64,
    /// How high; up to the top if not.
    pub(crate) y: Option<f64>,
    /// What the legend says of it.
    pub(crate) text: String,
}

/// Lines over common axes.
#[derive(Clone, Debug)]
pub(crate) struct Chart {
    pub(crate) title: String,
    pub(crate) x: (&'static str, Scale),
    pub(crate) y: (&'static str, Scale),
    pub(crate) series: Vec<Series>,
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

/// A line of the heading in parts that fit, broken at spaces.
fn broken(line: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    for word in line.split(' ') {
        if let Some(last) = parts.last_mut() {
            if !last.is_empty() && last.chars().count() + word.chars().count() >= LINE {
                parts.push(format!("    {word}"));
            } else {
                let space = if last.is_empty() { "" } else { " " };
                *last += &format!("{space}{word}");
            }
        }
    }
    parts
}

/// All charts, one below the other, under a heading.
pub(crate) fn svg(heading: &[String], charts: &[Chart]) -> String {
    let heading: Vec<String> = heading.iter().flat_map(|line| broken(line)).collect();
    let head = match heading.len() {
        0 => 0.0,
        some => 24.0 * some as f64 + 16.0,
    };
    let height = head + charts.iter().map(Chart::height).sum::<f64>();
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" height=\"{height}\" \
         font-family=\"DejaVu Sans, Verdana, sans-serif\" font-size=\"13\" fill=\"{INK}\">\n\
         <rect width=\"{WIDTH}\" height=\"{height}\" fill=\"#ffffff\"/>\n"
    );
    for (number, line) in heading.iter().enumerate() {
        let y = 24.0 * (number + 1) as f64;
        let line = escaped(line);
        let _ = writeln!(text, "<text x=\"16\" y=\"{y}\">{line}</text>");
    }
    let mut top = head;
    for chart in charts {
        let drawn = chart.svg();
        let _ = writeln!(text, "<g transform=\"translate(0 {top})\">\n{drawn}</g>");
        top += chart.height();
    }
    text + "</svg>\n"
}

impl Series {
    fn colour(&self) -> &'static str {
        COLOURS[self.colour % COLOURS.len()]
    }

    /// Attributes of its line.
    fn stroke(&self) -> String {
        let width = if self.is_thin { 1.2 } else { 2.4 };
        let dashes = match self.is_dashed {
            true => " stroke-dasharray=\"6 4\"",
            false => "",
        };
        let colour = self.colour();
        format!("fill=\"none\" stroke=\"{colour}\" stroke-width=\"{width}\"{dashes}")
    }

    /// A point on it. Colours are few, and not all people see them, so forms differ, too.
    fn point(&self, x: f64, y: f64) -> String {
        let form = match self.colour % 4 {
            0 => format!("<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3.5\""),
            1 => format!("<path d=\"M{:.1} {:.1}h6.4v6.4h-6.4z\"", x - 3.2, y - 3.2),
            2 => format!("<path d=\"M{x:.1} {:.1}l4.4 7.4h-8.8z\"", y - 4.6),
            _ => format!(
                "<path d=\"M{x:.1} {:.1}l4.4 4.4l-4.4 4.4l-4.4 -4.4z\"",
                y - 4.4
            ),
        };
        format!("{form} fill=\"{}\"/>", self.colour())
    }

    /// Height of its part of the legend.
    fn rows(&self) -> f64 {
        ROW + if self.mark.is_some() { SECOND } else { 0.0 }
    }
}

impl Chart {
    /// The legend may be higher than the rest.
    fn height(&self) -> f64 {
        let rows = self.series.iter().map(Series::rows).sum::<f64>();
        HEIGHT.max(TOP + rows + ROW)
    }

    fn svg(&self) -> String {
        let points = || self.series.iter().flat_map(|series| series.points.iter());
        let x = Axis::new(self.x.1, points().map(|point| point.0));
        let y = Axis::new(self.y.1, points().map(|point| point.1));
        let mut text = String::new();
        let _ = writeln!(
            text,
            "<text x=\"{LEFT}\" y=\"34\" font-size=\"16\" font-weight=\"bold\">{}</text>",
            escaped(&self.title)
        );
        text += &self.grid(&x, &y);
        for series in &self.series {
            text += &self.marked(series, &x, &y);
        }
        for series in &self.series {
            text += &self.line(series, &x, &y);
        }
        text + &self.legend()
    }

    /// Axes with their words.
    fn grid(&self, x: &Axis, y: &Axis) -> String {
        let (right, bottom) = (LEFT + PLOT, TOP + TALL);
        let mut text = String::new();
        for tick in &x.ticks {
            let (place, label) = (at(x, *tick), escaped(&x.label(*tick)));
            let _ = writeln!(
                text,
                "<path d=\"M{place:.1} {TOP}V{bottom}\" stroke=\"{GRID}\"/>\
                 <text x=\"{place:.1}\" y=\"{}\" text-anchor=\"middle\">{label}</text>",
                bottom + 20.0
            );
        }
        for tick in &y.ticks {
            let (place, label) = (up(y, *tick), escaped(&y.label(*tick)));
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
        text
    }

    /// The place that is marked: a dotted line, up to a ring if it has a height.
    fn marked(&self, series: &Series, x: &Axis, y: &Axis) -> String {
        let Some(mark) = series.mark.as_ref().filter(|m| is_shown(self.x.1, m.x)) else {
            return String::new();
        };
        let (place, bottom) = (at(x, mark.x.clamp(x.low, x.high)), TOP + TALL);
        let colour = series.colour();
        let top = mark
            .y
            .filter(|height| is_shown(self.y.1, *height))
            .map_or(TOP, |height| up(y, height.clamp(y.low, y.high)));
        let ring = match mark.y {
            Some(_) => format!(
                "<circle cx=\"{place:.1}\" cy=\"{top:.1}\" r=\"6\" fill=\"#ffffff\" stroke=\"{colour}\"/>"
            ),
            None => String::new(),
        };
        let dots = if series.is_dashed { "1 4" } else { "3 3" };
        format!(
            "<path d=\"M{place:.1} {top:.1}V{bottom}\" stroke=\"{colour}\" stroke-dasharray=\"{dots}\"/>{ring}\n"
        )
    }

    /// The line itself; a point that has no place on an axis is a gap.
    fn line(&self, series: &Series, x: &Axis, y: &Axis) -> String {
        let has_place =
            |point: &(f64, f64)| is_shown(self.x.1, point.0) && is_shown(self.y.1, point.1);
        let (mut path, mut places) = (String::new(), Vec::new());
        let mut step = 'M';
        for point in &series.points {
            if !has_place(point) {
                step = 'M';
                continue;
            }
            let (across, high) = (at(x, point.0), up(y, point.1));
            let _ = write!(path, "{step}{across:.1} {high:.1}");
            places.push((across, high));
            step = 'L';
        }
        if places.is_empty() {
            return String::new();
        }
        let mut text = String::new();
        // Two sizes are no curve.
        if places.len() > 2 || !self.has_points() {
            text += &format!("<path d=\"{path}\" {}/>\n", series.stroke());
        }
        if self.has_points() {
            for (across, high) in places {
                text += &series.point(across, high);
                text.push('\n');
            }
        }
        text
    }

    /// Whether measured points are seen: not of a histogram.
    fn has_points(&self) -> bool {
        self.y.1 != Scale::Even
    }

    fn legend(&self) -> String {
        let x = LEFT + PLOT + 16.0;
        let mut y = TOP + 8.0;
        let mut text = String::new();
        for series in &self.series {
            let point = match self.has_points() {
                true => series.point(x + 12.0, y),
                false => String::new(),
            };
            let _ = writeln!(
                text,
                "<path d=\"M{x} {y}h24\" {}/>{point}<text x=\"{}\" y=\"{}\">{}</text>",
                series.stroke(),
                x + 30.0,
                y + 4.5,
                escaped(&series.name)
            );
            if let Some(mark) = &series.mark {
                let _ = writeln!(
                    text,
                    "<text x=\"{}\" y=\"{}\" font-size=\"12\" fill=\"{SAID}\">{}</text>",
                    x + 30.0,
                    y + 4.0 + SECOND,
                    escaped(&mark.text)
                );
            }
            y += series.rows();
        }
        text
    }
}

/// Places of values in a chart.
fn at(axis: &Axis, value: f64) -> f64 {
    LEFT + PLOT * axis.place(value)
}

fn up(axis: &Axis, value: f64) -> f64 {
    TOP + TALL * (1.0 - axis.place(value))
}

#[cfg(test)]
mod tests {
    use super::*;

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

    /// Each line is named, with what is marked on it, and no two look alike.
    #[test]
    fn the_legend_grows_with_the_lines() {
        let series = (0..20usize).map(|number| Series {
            name: format!("line {number}"),
            points: vec![(8.0, 1.0 + number as f64)],
            colour: number,
            mark: Some(Mark {
                x: 8.0,
                y: None,
                text: format!("mark {number}"),
            }),
            ..Series::default()
        });
        let chart = Chart {
            title: String::new(),
            x: ("bytes", Scale::Bytes),
            y: ("µs", Scale::Decades),
            series: series.collect(),
        };
        assert!(chart.height() > HEIGHT);
        let looks = chart.series.iter().map(|series| series.point(0.0, 0.0));
        let looks: std::collections::BTreeSet<String> = looks.collect();
        assert_eq!(looks.len(), 20);
        let (height, text) = (chart.height(), svg(&[], &[chart]));
        for number in 0..20 {
            assert!(text.contains(&format!(">line {number}<")), "{text}");
            assert!(text.contains(&format!(">mark {number}<")), "{text}");
        }
        let lowest = text.split(" y=\"").skip(1).filter_map(|rest| {
            let (number, _) = rest.split_once('"')?;
            number.parse().ok()
        });
        assert!(lowest.fold(0.0, f64::max) < height, "{text}");
    }

    #[test]
    fn two_sizes_are_points_and_no_line() {
        let drawn = |sizes: u32| {
            let points = (0..sizes).map(|place| (8.0 * f64::from(place + 1), 1.0));
            let series = vec![Series {
                points: points.collect(),
                ..Series::default()
            }];
            let chart = Chart {
                title: String::new(),
                x: ("bytes", Scale::Bytes),
                y: ("µs", Scale::Decades),
                series,
            };
            let text = chart.svg();
            (
                text.matches("<circle").count(),
                text.matches("stroke-width").count(),
            )
        };
        // Each with that of the legend.
        assert_eq!(drawn(2), (3, 1));
        assert_eq!(drawn(3), (4, 2));
    }

    #[test]
    fn a_long_heading_is_broken() {
        let parts = broken(&"processor ".repeat(30));
        assert!(parts.len() > 2);
        assert!(parts.iter().all(|part| part.chars().count() <= LINE));
        assert_eq!(broken("a b"), ["a b"]);
    }
}
