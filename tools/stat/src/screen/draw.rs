//! Draws the screen.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::{Paragraph, Row, Table};
use vipl_sys::text::one_line;

use super::{Screen, Tab, detail};
use crate::model::{ProcessNow, ViNow};
use crate::view::Subject;
use crate::words;

const BOLD: Style = Style::new().add_modifier(Modifier::BOLD);
const REVERSED: Style = Style::new().add_modifier(Modifier::REVERSED);

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
        match self.shown() {
            Some((process, vi)) => {
                let text = detail::text(&self.model, process, vi, body.width.into());
                let lines = text.lines().count().saturating_sub(body.height.into());
                let scroll = self.scroll.min(lines);
                frame.render_widget(Paragraph::new(text).scroll((scroll as u16, 0)), body);
                self.scroll = scroll;
            }
            None => self.draw_table(frame, body),
        }
        frame.render_widget(
            Paragraph::new(self.keys(keys.width.into())).style(REVERSED),
            keys,
        );
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

    /// The names of the pages; on a narrow screen that of this one.
    fn tabs(&self, width: usize) -> String {
        let all: Vec<String> = Tab::ALL
            .iter()
            .enumerate()
            .map(|(place, tab)| match *tab == self.tab {
                true => format!("[{} {}]", place + 1, tab.name()),
                false => format!(" {} {} ", place + 1, tab.name()),
            })
            .collect();
        let all = all.concat();
        if all.chars().count() <= width {
            return all;
        }
        let place = Tab::ALL
            .iter()
            .position(|tab| *tab == self.tab)
            .unwrap_or(0);
        format!(
            "[{}/{} {}] Tab: next",
            place + 1,
            Tab::ALL.len(),
            self.tab.name()
        )
    }

    fn keys(&self, width: usize) -> String {
        if self.typing || !self.filter.is_empty() && self.detail.is_none() {
            let cursor = if self.typing { "_" } else { " (Esc: all)" };
            return format!("/{}{cursor}", one_line(&self.filter));
        }
        if self.detail.is_some() {
            return "q quit  arrows scroll  Esc back".to_owned();
        }
        if let Some((_, pid)) = &self.only {
            return format!("process {pid} (Esc: all)");
        }
        let long =
            "q quit  arrows move  Enter open  Esc back  s sort  r reverse  / filter  p pause";
        let short = "q quit Enter open s,r sort / find p hold";
        (if width >= long.len() { long } else { short }).to_owned()
    }

    fn draw_table(&mut self, frame: &mut Frame<'_>, body: Rect) {
        let view = self.view();
        if view.rows.is_empty() {
            let nothing = match self.tab {
                Tab::Processes if self.model.processes.is_empty() => {
                    "no process publishes anything"
                }
                _ => "nothing to show",
            };
            frame.render_widget(Paragraph::new(nothing), body);
            return;
        }
        let kept = view.fitting(body.width.into());
        let widths = view.cut_widths(body.width.into());
        let aligned = |place: usize, text: &str| {
            let line = Line::from(cut(text, widths[place]));
            if view.columns[place].left {
                line
            } else {
                line.right_aligned()
            }
        };
        let header = kept
            .iter()
            .map(|place| aligned(*place, view.columns[*place].heading));
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
