//! Draws the screen.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::{Paragraph, Row, Table};
use vipl_sys::text::one_line;

use super::{Screen, Tab};
use crate::model::{Model, ProcessNow, ViNow};
use crate::view::Subject;
use crate::words;

const BOLD: Style = Style::new().add_modifier(Modifier::BOLD);
const REVERSED: Style = Style::new().add_modifier(Modifier::REVERSED);

/// Descriptors of each queue of a VI that are shown.
const DESCRIPTORS: usize = 12;

impl Screen {
    pub(super) fn draw(&mut self, frame: &mut Frame<'_>) {
        let rows = [
            Constraint::Length(1),
            Constraint::Length(1),
            Constraint::Fill(1),
            Constraint::Length(1),
        ];
        let [head, tabs, body, keys] = Layout::vertical(rows).areas(frame.area());
        frame.render_widget(Paragraph::new(self.head()).style(BOLD), head);
        frame.render_widget(Paragraph::new(self.tabs(tabs.width.into())), tabs);
        match self.shown() {
            Some((process, vi)) => {
                let lines = detail(&self.model, process, vi);
                let lines: Vec<Line<'_>> = lines.into_iter().map(Line::from).collect();
                frame.render_widget(Paragraph::new(lines), body);
            }
            None => self.draw_table(frame, body),
        }
        frame.render_widget(
            Paragraph::new(self.keys(keys.width.into())).style(REVERSED),
            keys,
        );
    }

    fn head(&self) -> String {
        let (mut sent, mut received, mut vis) = (0.0, 0.0, 0_u64);
        for sums in self.model.processes.iter().map(|process| &process.sums) {
            vis = vis.wrapping_add(sums.vis);
            if let Some(rates) = sums.rates {
                sent += rates.sent;
                received += rates.received;
            }
        }
        let paused = if self.paused { " PAUSED" } else { "" };
        format!(
            "vipstat{paused} {} proc {vis} VIs {} sent/s {} recv/s",
            self.model.processes.len(),
            words::count(sent),
            words::count(received)
        )
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
        if self.typing || !self.filter.is_empty() {
            let cursor = if self.typing { "_" } else { " (Esc: all)" };
            return format!("/{}{cursor}", one_line(&self.filter));
        }
        if let Some((_, pid)) = &self.only {
            return format!("process {pid} (Esc: all)");
        }
        let long =
            "q quit  arrows move  Enter open  Esc back  s sort  r reverse  / filter  p pause";
        let short = "q quit Enter open s sort / filter p pause";
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
        let widths = view.widths();
        let aligned = |place: usize, text: &str| {
            let line = Line::from(text.to_owned());
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
        let widths = kept
            .iter()
            .map(|place| Constraint::Length(widths[*place] as u16));
        let table = Table::new(rows.collect::<Vec<_>>(), widths.collect::<Vec<_>>())
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

/// All that there is of a VI.
fn detail(model: &Model, process: &ProcessNow, vi: &ViNow) -> Vec<String> {
    let page = &vi.page;
    let time = |age: Option<u64>| age.map_or_else(|| "-".to_owned(), words::time);
    let mut lines = vec![
        format!("VI {} {:#x}", page.number, page.handle),
        format!(
            "process {} {}",
            process.seen.pid,
            one_line(words::program(&process.seen.pages.process.program))
        ),
        format!(
            "{} for {}, connection {}",
            words::state(page.state),
            words::time(model.time.saturating_sub(page.state_since)),
            page.connections
        ),
        format!("peer {}", words::peer(page, vi.is_ip)),
        format!(
            "{}, messages to {} B",
            words::level(page.level),
            page.transfer_max
        ),
    ];
    for (name, queue, age) in [
        ("send", &page.send, vi.send_age),
        ("recv", &page.recv, vi.recv_age),
    ] {
        lines.push(format!(
            "{name}: {} posted, {} done, {} failed",
            queue.posted, queue.taken, queue.failed
        ));
        lines.push(format!(
            "      {} on it, oldest {}",
            queue.depth(),
            time(age)
        ));
    }
    lines.extend(samples(vi));
    lines.push(String::new());
    lines.push("events".to_owned());
    for event in page.events.iter().rev() {
        let ago = words::time(model.time.saturating_sub(event.time));
        lines.push(format!("{ago:>8} ago  {}", words::event(event.happened)));
    }
    let descriptors = words::descriptors(page, DESCRIPTORS);
    if !descriptors.is_empty() {
        lines.push(String::new());
    }
    lines.extend(descriptors);
    lines
}

/// Bytes, and times of sends.
fn samples(vi: &ViNow) -> Vec<String> {
    let Some(total) = &vi.page.sampled else {
        return Vec::new();
    };
    let [sent, received] = total.bytes.map(|bytes| words::bytes(bytes as f64));
    let mut lines = vec![format!("bytes: {sent} sent, {received} received")];
    if let Some(rates) = vi.rates {
        lines.push(format!(
            "       {}/s sent, {}/s received",
            words::bytes(rates.sent_bytes),
            words::bytes(rates.received_bytes)
        ));
    }
    if vi.sampled.count() > 0 {
        let time = |share| words::short_time(vi.sampled.quantile(share).unwrap_or(0));
        lines.push(format!(
            "a send takes {} (p50), {} (p90), {} (p99)",
            time(0.5),
            time(0.9),
            time(0.99)
        ));
    }
    lines
}
