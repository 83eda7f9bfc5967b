//! Draws the screen.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Paragraph, Row, Table};
use vipl_sys::text::one_line;

use super::{Screen, Tab, detail, help};
use crate::model::{ProcessNow, ViNow};
use crate::view::Subject;
use crate::words;

const BOLD: Style = Style::new().add_modifier(Modifier::BOLD);
const REVERSED: Style = Style::new().add_modifier(Modifier::REVERSED);
/// The heading of the column by which rows are sorted.
const SORTED: Style = BOLD.add_modifier(Modifier::UNDERLINED);

impl Screen {
    pub(super) fn draw(&mut self, frame: &mut Frame<'_>) {
        let rows = [
            Constraint::Length(1),
            Constraint::Length(1),
            Constraint::Fill(1),
            Constraint::Length(1),
        ];
        let [head, tabs, body, keys] = Layout::vertical(rows).areas(frame.area());
        frame.render_widget(
            Paragraph::new(self.head(head.width.into())).style(BOLD),
            head,
        );
        frame.render_widget(Paragraph::new(self.tabs(tabs.width.into())), tabs);
        let text = match self.shown() {
            _ if self.help => Some(help::text(body.width.into())),
            Some((process, vi)) => Some(detail::text(&self.model, process, vi, body.width.into())),
            None => None,
        };
        let mut parts = 1;
        if let Some(text) = text {
            let lines = text.lines().count().saturating_sub(body.height.into());
            self.scroll = self.scroll.min(lines);
            let page = Paragraph::new(text).scroll((self.scroll as u16, 0));
            frame.render_widget(page, body);
        } else {
            parts = self.draw_table(frame, body);
        }
        let line = self.keys(keys.width.into(), parts);
        frame.render_widget(Paragraph::new(line).style(REVERSED), keys);
    }

    /// All processes together, in few words on a narrow screen.
    fn head(&self, width: usize) -> String {
        let (mut sent, mut received, mut vis) = (0.0, 0.0, 0_u64);
        for sums in self.model.processes.iter().map(|process| &process.sums) {
            vis = vis.wrapping_add(sums.vis);
            if let Some(rates) = sums.rates {
                sent += rates.sent;
                received += rates.received;
            }
        }
        let paused = if self.paused { "PAUSED " } else { "" };
        let processes = self.model.processes.len();
        let (sent, received) = (words::count(sent), words::count(received));
        let long =
            format!("vipstat {paused}{processes} proc {vis} VIs {sent} sent/s {received} recv/s");
        match long.chars().count() <= width {
            true => long,
            false => format!("{paused}{processes} proc {vis} VIs out {sent} in {received}/s"),
        }
    }

    /// The pages, each with its key, and this one reversed; on a narrow screen this one alone.
    fn tabs(&self, width: usize) -> Line<'static> {
        let name = |place: usize, tab: Tab| format!("[{}] {}", place + 1, tab.name());
        let mut spans: Vec<Span<'_>> = Vec::new();
        for (place, tab) in Tab::ALL.into_iter().enumerate() {
            if place > 0 {
                spans.push("  ".into());
            }
            let style = if tab == self.tab {
                REVERSED
            } else {
                Style::new()
            };
            spans.push(Span::styled(name(place, tab), style));
        }
        let all = Line::from(spans);
        if all.width() <= width {
            return all;
        }
        let place = Tab::ALL
            .iter()
            .position(|tab| *tab == self.tab)
            .unwrap_or(0);
        let others = format!("  Tab: {} of {}  ?: help", place + 1, Tab::ALL.len());
        let own = Span::styled(name(place, self.tab), REVERSED);
        Line::from(vec![own, others.into()])
    }

    /// The last line: what the keys do, as far as there is room. A mark says that the table has more parts.
    fn keys(&self, width: usize, parts: usize) -> String {
        const TABLE: [&str; 3] = [
            "? help  q quit  Enter open  Esc back  s sort  r reverse  / filter  p pause",
            "? help  q quit  Enter open  Esc back  s sort  / filter",
            "? help q quit Enter open",
        ];
        let mark = match parts {
            0 | 1 => String::new(),
            _ => format!("> columns {}/{parts}  ", self.part + 1),
        };
        if self.typing {
            return format!("/{}_", one_line(&self.filter));
        }
        if self.help {
            return "? back  arrows scroll  q quit".to_owned();
        }
        if self.detail.is_some() {
            return "? help  q quit  arrows scroll  Esc back".to_owned();
        }
        if !self.filter.is_empty() {
            return format!("{mark}/{} (Esc: all)", one_line(&self.filter));
        }
        if let Some((_, pid)) = &self.only {
            return format!("{mark}process {pid} (Esc: all)");
        }
        let fits = |keys: &&str| mark.chars().count() + keys.len() <= width;
        let keys = TABLE.into_iter().find(fits).unwrap_or(TABLE[2]);
        format!("{mark}{keys}")
    }

    /// Draws the table; into how many parts its columns are divided.
    fn draw_table(&mut self, frame: &mut Frame<'_>, body: Rect) -> usize {
        let view = self.view();
        if view.rows.is_empty() {
            let nothing = match self.tab {
                Tab::Processes if self.model.processes.is_empty() => {
                    "no process publishes anything; vipstat --last shows one that has ended"
                }
                _ => "nothing to show",
            };
            frame.render_widget(Paragraph::new(nothing), body);
            return 1;
        }
        let parts = view.parts(body.width.into());
        self.part = self.part.min(parts.len() - 1);
        let kept = &parts[self.part];
        let widths = view.cut_widths(body.width.into());
        let aligned = |place: usize, text: &str| {
            let line = Line::from(cut(text, widths[place]));
            if view.columns[place].left {
                line
            } else {
                line.right_aligned()
            }
        };
        let header = kept.iter().map(|place| {
            let heading = aligned(*place, view.columns[*place].heading);
            match *place == self.sort {
                true => heading.style(SORTED),
                false => heading,
            }
        });
        let header = Row::new(header.collect::<Vec<_>>()).style(BOLD);
        let rows = view.rows.iter().map(|row| {
            let cells = kept
                .iter()
                .map(|place| aligned(*place, &row.cells[*place].text));
            Row::new(cells.collect::<Vec<_>>())
        });
        let constraints = kept
            .iter()
            .map(|place| Constraint::Length(widths[*place] as u16));
        let table = Table::new(rows.collect::<Vec<_>>(), constraints.collect::<Vec<_>>())
            .header(header)
            .column_spacing(2)
            .row_highlight_style(REVERSED);
        frame.render_stateful_widget(table, body, &mut self.table);
        parts.len()
    }

    /// The VI that is shown alone, while it is there.
    fn shown(&self) -> Option<(&ProcessNow, &ViNow)> {
        let Some(Subject::Vi(path, handle)) = &self.detail else {
            return None;
        };
        let process = self
            .model
            .processes
            .iter()
            .find(|process| process.seen.path == *path)?;
        let vi = process.vis.iter().find(|vi| vi.page.handle == *handle)?;
        Some((process, vi))
    }
}

/// A text, or its beginning.
fn cut(text: &str, width: usize) -> String {
    match text.chars().count() > width {
        true => text
            .chars()
            .take(width.saturating_sub(1))
            .chain(['…'])
            .collect(),
        false => text.to_owned(),
    }
}
