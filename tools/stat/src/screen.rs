//! The terminal: what is shown, and what the keys do.

mod detail;
mod draw;
mod help;
mod keys;
mod terminal;

use std::borrow::Cow;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use ratatui::crossterm::event::KeyCode;
use ratatui::widgets::TableState;
use vipl_sys::clock::{Instant, now_ns};

use crate::filter::Filter;
use crate::model::{Model, ProcessNow, Sampler};
use crate::view::{Subject, View};
use terminal::{Signals, Terminal};

/// A page of the screen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tab {
    Processes,
    Vis,
    Nics,
    Cqs,
    Counters,
    Agent,
    Devices,
}

impl Tab {
    const ALL: [Tab; 7] = [
        Tab::Processes,
        Tab::Vis,
        Tab::Nics,
        Tab::Cqs,
        Tab::Counters,
        Tab::Agent,
        Tab::Devices,
    ];

    fn name(self) -> &'static str {
        match self {
            Tab::Processes => "processes",
            Tab::Vis => "VIs",
            Tab::Nics => "NICs",
            Tab::Cqs => "CQs",
            Tab::Counters => "counters",
            Tab::Agent => "agent",
            Tab::Devices => "devices",
        }
    }

    fn view(self, model: &Model) -> View {
        match self {
            Tab::Processes => View::processes(model),
            Tab::Vis => View::vis(model),
            Tab::Nics => View::nics(model),
            Tab::Cqs => View::cqs(model),
            Tab::Counters => View::counters(model),
            Tab::Agent => View::budgets(model),
            Tab::Devices => View::devices(model),
        }
    }
}

/// The state of the screen.
pub(crate) struct Screen {
    model: Model,
    tab: Tab,
    table: TableState,
    /// Column by which rows are sorted.
    sort: usize,
    reversed: bool,
    filter: String,
    /// The filter is being typed.
    typing: bool,
    /// The process that is shown alone: its file, and its number.
    only: Option<(PathBuf, u64)>,
    /// The part of the table's columns that is shown.
    part: usize,
    /// The VI that is shown alone.
    detail: Option<Subject>,
    /// The keys are shown.
    help: bool,
    /// Lines of the VI, or of the keys, above the first that is shown.
    scroll: usize,
    paused: bool,
}

/// What a key asks of the loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    Continue,
    Quit,
}

impl Screen {
    pub(crate) fn new(model: Model, filter: String) -> Self {
        Self {
            model,
            tab: Tab::Processes,
            table: TableState::default().with_selected(0),
            sort: 0,
            reversed: true,
            filter,
            typing: false,
            only: None,
            part: 0,
            detail: None,
            help: false,
            scroll: 0,
            paused: false,
        }
    }

    /// The rows as they are shown.
    fn view(&self) -> View {
        let mut model = Filter::new(&self.filter).of(&self.model);
        if let Some((path, _)) = &self.only {
            let is_it = |process: &&ProcessNow| process.seen.path == *path;
            let processes = model.processes.iter().filter(is_it).cloned().collect();
            model = Cow::Owned(Model {
                processes,
                ..model.into_owned()
            });
        }
        let mut view = self.tab.view(&model);
        view.sort(self.sort, self.reversed);
        view
    }

    fn go(&mut self, tab: Tab) {
        (self.tab, self.sort) = (tab, 0);
        // Numbers of processes from the smallest, names from the first.
        self.reversed = !matches!(tab, Tab::Agent | Tab::Devices);
        self.table = TableState::default().with_selected(0);
        (self.part, self.detail, self.help) = (0, None, false);
    }

    fn step(&mut self, rows: isize) {
        if self.detail.is_some() || self.help {
            self.scroll = self.scroll.saturating_add_signed(rows);
            return;
        }
        let count = self.view().rows.len();
        let place = self.table.selected().unwrap_or(0);
        let place = place
            .saturating_add_signed(rows)
            .min(count.saturating_sub(1));
        self.table.select(Some(place));
    }

    fn key(&mut self, key: KeyCode) -> Next {
        if self.typing {
            match key {
                KeyCode::Char(c) => self.filter.push(c),
                KeyCode::Backspace => drop(self.filter.pop()),
                KeyCode::Esc => {
                    self.filter.clear();
                    self.typing = false;
                }
                KeyCode::Enter => self.typing = false,
                _ => {}
            }
            return Next::Continue;
        }
        let place = Tab::ALL
            .iter()
            .position(|tab| *tab == self.tab)
            .unwrap_or(0);
        match key {
            KeyCode::Char('q') => return Next::Quit,
            KeyCode::Char('?') => (self.help, self.scroll) = (!self.help, 0),
            KeyCode::Esc if self.help => (self.help, self.scroll) = (false, 0),
            KeyCode::Esc if self.detail.is_some() => self.detail = None,
            KeyCode::Esc if !self.filter.is_empty() => self.filter.clear(),
            KeyCode::Esc => self.only = None,
            KeyCode::Down | KeyCode::Char('j') => self.step(1),
            KeyCode::Up | KeyCode::Char('k') => self.step(-1),
            KeyCode::PageDown => self.step(20),
            KeyCode::PageUp => self.step(-20),
            KeyCode::Tab | KeyCode::Right => self.go(Tab::ALL[(place + 1) % Tab::ALL.len()]),
            KeyCode::BackTab | KeyCode::Left => {
                self.go(Tab::ALL[(place + Tab::ALL.len() - 1) % Tab::ALL.len()]);
            }
            KeyCode::Char(c @ '1'..='7') => self.go(Tab::ALL[c as usize - '1' as usize]),
            KeyCode::Char('>') => self.part += 1,
            KeyCode::Char('<') => self.part = self.part.saturating_sub(1),
            KeyCode::Char('s') => {
                self.sort = (self.sort + 1) % self.view().columns.len();
                self.reversed = false;
            }
            KeyCode::Char('r') => self.reversed = !self.reversed,
            KeyCode::Char('p') => self.paused = !self.paused,
            KeyCode::Char('/') => self.typing = true,
            KeyCode::Enter if !self.help => self.enter(),
            _ => {}
        }
        Next::Continue
    }

    /// A process leads to its VIs, a VI to what there is of it.
    fn enter(&mut self) {
        let view = self.view();
        let row = self.table.selected().and_then(|place| view.rows.get(place));
        match row.map(|row| row.subject.clone()) {
            Some(Subject::Process(path)) => {
                let mut processes = self.model.processes.iter();
                let found = processes.find(|process| process.seen.path == path);
                self.only = found.map(|process| (path, process.seen.pid));
                self.go(Tab::Vis);
            }
            Some(vi @ Subject::Vi(..)) => {
                (self.detail, self.scroll) = (Some(vi), 0);
                self.record();
            }
            _ => {}
        }
    }

    /// Reads events and descriptors of the VI that is shown alone: a look leaves them out.
    fn record(&mut self) {
        let Some(Subject::Vi(path, handle)) = &self.detail else {
            return;
        };
        let mut processes = self.model.processes.iter_mut();
        if let Some(process) = processes.find(|process| process.seen.path == *path) {
            let recorders = process.seen.recorders();
            let mut vis = process.vis.iter_mut();
            if let Some(vi) = vis.find(|vi| vi.page.handle == *handle) {
                vi.page = recorders.of(&vi.page).into_owned();
            }
        }
    }
}

/// Shows the screen until the user leaves it.
///
/// # Errors
/// The terminal, or the folder, cannot be used.
pub(crate) fn run(
    sampler: &mut Sampler,
    interval: Duration,
    filter: &str,
    surroundings: impl Fn(&mut Model),
) -> io::Result<()> {
    let look = |sampler: &mut Sampler| {
        let mut model = sampler.look(now_ns())?;
        surroundings(&mut model);
        io::Result::Ok(model)
    };
    // Threads that a look begins have them blocked, too.
    let signals = Signals::new()?;
    let mut screen = Screen::new(look(sampler)?, filter.to_owned());
    let mut terminal = Terminal::new(signals)?;
    let mut next = Instant::now() + interval;
    loop {
        terminal.draw(|frame| screen.draw(frame))?;
        if let Some(key) = terminal.key(next)?
            && screen.key(key) == Next::Quit
        {
            return Ok(());
        }
        if Instant::now() >= next {
            next = Instant::now() + interval;
            if !screen.paused {
                screen.model = look(sampler)?;
                screen.record();
                screen.step(0);
            }
        }
    }
}

#[cfg(test)]
mod tests;
