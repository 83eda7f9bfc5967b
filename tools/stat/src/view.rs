//! Tables of a model, for text and for the screen.

use serde_json::Value;
use vipl_pages::read::Sampled;
use vipl_sys::text::one_line;
use vipl_tools::report::wrapped;

use crate::model::{ADDRESS_IP, Model, NicNow, ProcessNow, Rates, ViNow};
use crate::words;

/// Characters of a line in which a text can be read; with less, the columns beside it follow below.
const ENOUGH: usize = 20;

/// Characters of a line that a text has at least.
const LEAST: usize = 8;

/// A cell: its text, and the number by which it is sorted, if it is one.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Cell {
    pub(crate) text: String,
    pub(crate) number: Option<f64>,
}

/// A column.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Column {
    pub(crate) heading: &'static str,
    /// Aligned to the left.
    pub(crate) left: bool,
    /// On a narrow screen the column with the highest number goes first.
    pub(crate) rank: u8,
}

/// What a row is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Subject {
    Process(std::path::PathBuf),
    Vi(std::path::PathBuf, u64),
    Other,
}

/// A row.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    pub(crate) subject: Subject,
    pub(crate) cells: Vec<Cell>,
}

/// A table.
#[derive(Clone, Debug)]
pub(crate) struct View {
    pub(crate) columns: Vec<Column>,
    /// The first columns, which say what a row is about, and stand before each part of a table that is too wide.
    pub(crate) keys: usize,
    pub(crate) rows: Vec<Row>,
}

fn text(text: impl Into<String>) -> Cell {
    let text = text.into();
    Cell {
        text: one_line(&text).into_owned(),
        number: None,
    }
}

fn number(value: u64) -> Cell {
    Cell {
        text: value.to_string(),
        number: Some(value as f64),
    }
}

/// How many are seen of all.
fn of(seen: u64, all: u64) -> Cell {
    Cell {
        text: match seen == all {
            true => all.to_string(),
            false => format!("{seen} of {all}"),
        },
        number: Some(all as f64),
    }
}

fn short(value: f64, words: fn(f64) -> String) -> Cell {
    Cell {
        text: words(value),
        number: Some(value),
    }
}

/// A rate, or nothing at the first look.
fn rate(rates: Option<Rates>, of: fn(Rates) -> f64, words: fn(f64) -> String) -> Cell {
    rates.map_or_else(|| text("-"), |rates| short(of(rates), words))
}

/// The time of this share of the sends; nothing if none was sampled.
fn quantile(sampled: &Sampled, share: f64) -> Cell {
    let time = sampled.quantile(share);
    Cell {
        text: time.map_or_else(|| "-".to_owned(), words::short_time),
        number: Some(time.unwrap_or(0) as f64),
    }
}

fn age(nanoseconds: Option<u64>) -> Cell {
    Cell {
        text: nanoseconds.map(words::time).unwrap_or_default(),
        number: Some(nanoseconds.unwrap_or(0) as f64),
    }
}

const fn left(heading: &'static str, rank: u8) -> Column {
    Column {
        heading,
        left: true,
        rank,
    }
}

const fn right(heading: &'static str, rank: u8) -> Column {
    Column {
        heading,
        left: false,
        rank,
    }
}

impl View {
    /// The processes.
    pub(crate) fn processes(model: &Model) -> View {
        let columns = vec![
            right("pid", 0),
            left("program", 0),
            right("user", 7),
            right("NICs", 8),
            right("VIs", 5),
            right("conn", 3),
            right("sent/s", 1),
            right("recv/s", 1),
            right("sent", 9),
            right("recv", 9),
            right("errors", 3),
            right("memory", 6),
            right("sent B/s", 4),
            right("recv B/s", 4),
            right("p50", 6),
            right("p99", 5),
        ];
        let row = |process: &ProcessNow| {
            let about = &process.seen.pages.process;
            let sums = &process.sums;
            Row {
                subject: Subject::Process(process.seen.path.clone()),
                cells: vec![
                    number(process.seen.pid),
                    text(match about.vis_left_out | about.pages_left_out {
                        0 => words::program(&about.program).to_owned(),
                        _ => format!("{} (in part)", words::program(&about.program)),
                    }),
                    number(process.seen.user.into()),
                    number(sums.nics as u64),
                    of(sums.vis.wrapping_sub(about.vis_left_out), sums.vis),
                    number(sums.connected as u64),
                    rate(sums.rates, |r| r.sent, words::count),
                    rate(sums.rates, |r| r.received, words::count),
                    short(sums.sent as f64, words::count),
                    short(sums.received as f64, words::count),
                    number(sums.errors),
                    short(sums.registered as f64, words::bytes),
                    rate(sums.rates, |r| r.sent_bytes, words::bytes),
                    rate(sums.rates, |r| r.received_bytes, words::bytes),
                    quantile(&sums.sampled, 0.5),
                    quantile(&sums.sampled, 0.99),
                ],
            }
        };
        View {
            columns,
            keys: 2,
            rows: model.processes.iter().map(row).collect(),
        }
    }

    /// The VIs.
    pub(crate) fn vis(model: &Model) -> View {
        let columns = vec![
            right("pid", 0),
            right("VI", 0),
            left("state", 1),
            left("peer", 5),
            left("level", 8),
            right("sent/s", 6),
            right("recv/s", 6),
            right("sent", 2),
            right("recv", 2),
            right("on SQ", 3),
            right("oldest", 7),
            right("on RQ", 3),
            right("errors", 4),
            right("sent B/s", 9),
            right("recv B/s", 9),
            right("p50", 9),
            right("p99", 8),
        ];
        let row = |process: &ProcessNow, vi: &ViNow| {
            let page = &vi.page;
            let failed = page.send.failed.wrapping_add(page.recv.failed);
            Row {
                subject: Subject::Vi(process.seen.path.clone(), page.handle),
                cells: vec![
                    number(process.seen.pid),
                    number(page.number),
                    text(words::state(page.state)),
                    text(words::peer(page, vi.is_ip)),
                    text(words::level(page.level)),
                    rate(vi.rates, |r| r.sent, words::count),
                    rate(vi.rates, |r| r.received, words::count),
                    short(page.send.taken as f64, words::count),
                    short(page.recv.taken as f64, words::count),
                    number(page.send.depth()),
                    age(vi.send_age),
                    number(page.recv.depth()),
                    number(failed.wrapping_add(page.errors)),
                    rate(vi.rates, |r| r.sent_bytes, words::bytes),
                    rate(vi.rates, |r| r.received_bytes, words::bytes),
                    quantile(&vi.sampled, 0.5),
                    quantile(&vi.sampled, 0.99),
                ],
            }
        };
        let processes = model.processes.iter();
        let rows = processes.flat_map(|process| process.vis.iter().map(move |vi| row(process, vi)));
        View {
            columns,
            keys: 2,
            rows: rows.collect(),
        }
    }

    /// The NIC handles, with their memory.
    pub(crate) fn nics(model: &Model) -> View {
        let columns = vec![
            right("pid", 0),
            left("device", 0),
            left("plug-in", 2),
            left("address", 3),
            right("VIs", 1),
            right("regions", 4),
            right("memory", 1),
            right("tags", 5),
            right("errors", 2),
        ];
        let mut rows = Vec::new();
        for process in &model.processes {
            for NicNow { page: nic, vis } in &process.nics {
                let cells = vec![
                    number(process.seen.pid),
                    text(&*nic.device),
                    text(&*nic.plugin),
                    text(words::host(&nic.address, nic.address_form == ADDRESS_IP)),
                    number(*vis as u64),
                    number(nic.regions),
                    short(nic.region_bytes as f64, words::bytes),
                    number(nic.tags),
                    number(nic.errors),
                ];
                rows.push(Row {
                    subject: Subject::Process(process.seen.path.clone()),
                    cells,
                });
            }
        }
        View {
            columns,
            keys: 2,
            rows,
        }
    }

    /// The CQs.
    pub(crate) fn cqs(model: &Model) -> View {
        let columns = vec![
            right("pid", 0),
            left("device", 2),
            right("entries", 0),
            right("room", 0),
            right("added", 1),
            right("queues", 2),
            right("overflows", 1),
            right("CQ", 3),
        ];
        let mut rows = Vec::new();
        for process in &model.processes {
            for cq in &process.seen.pages.cqs {
                let device = process.nic(cq.nic).map_or("?", |nic| &nic.device);
                let cells = vec![
                    number(process.seen.pid),
                    text(device),
                    number(cq.depth()),
                    number(cq.capacity),
                    short(cq.added as f64, words::count),
                    number(cq.attached),
                    number(cq.overflows),
                    text(format!("{:#x}", cq.handle)),
                ];
                rows.push(Row {
                    subject: Subject::Process(process.seen.path.clone()),
                    cells,
                });
            }
        }
        View {
            columns,
            keys: 1,
            rows,
        }
    }

    /// The counters of plug-ins that are not 0.
    pub(crate) fn counters(model: &Model) -> View {
        let columns = vec![right("pid", 1), left("counter", 0), right("value", 0)];
        let mut rows = Vec::new();
        for process in &model.processes {
            for (name, value) in process
                .seen
                .pages
                .counters
                .iter()
                .filter(|(_, value)| *value > 0)
            {
                rows.push(Row {
                    subject: Subject::Process(process.seen.path.clone()),
                    cells: vec![number(process.seen.pid), text(&**name), number(*value)],
                });
            }
        }
        View {
            columns,
            keys: 2,
            rows,
        }
    }

    /// The agent's budgets of this user.
    pub(crate) fn budgets(model: &Model) -> View {
        let columns = vec![left("budget", 0), right("used", 0), right("limit", 1)];
        let lines = model
            .agent
            .iter()
            .flat_map(|agent| agent["budgets"].as_array());
        let rows = lines.flatten().map(|line| Row {
            subject: Subject::Other,
            cells: vec![
                text(line["name"].as_str().unwrap_or_default()),
                number(line["used"].as_u64().unwrap_or(0)),
                number(line["limit"].as_u64().unwrap_or(0)),
            ],
        });
        View {
            columns,
            keys: 1,
            rows: rows.collect(),
        }
    }

    /// The devices that the library names, their plug-ins, and their links.
    pub(crate) fn devices(model: &Model) -> View {
        let columns = vec![
            left("device", 0),
            left("plug-in", 0),
            left("link", 1),
            right("MTU", 2),
            right("Mbit/s", 3),
        ];
        let devices = model.devices.iter().flat_map(|devices| devices.as_array());
        let rows = devices.flatten().map(|device| {
            let word = |value: &Value| text(value.as_str().unwrap_or_default());
            let known = |value: &Value| value.as_u64().map_or_else(|| text(""), number);
            let link = &device["link"];
            Row {
                subject: Subject::Other,
                cells: vec![
                    word(&device["name"]),
                    word(&device["plugin"]),
                    word(&link["state"]),
                    known(&link["mtu"]),
                    known(&link["mbit_per_s"]),
                ],
            }
        });
        View {
            columns,
            keys: 2,
            rows: rows.collect(),
        }
    }

    /// Sorts by a column: numbers from the largest, texts from the first; or the other way. Equal rows keep their order.
    pub(crate) fn sort(&mut self, column: usize, reversed: bool) {
        self.rows.sort_by(|a, b| {
            let (Some(a), Some(b)) = (a.cells.get(column), b.cells.get(column)) else {
                return std::cmp::Ordering::Equal;
            };
            let order = match (a.number, b.number) {
                (Some(a), Some(b)) => b.total_cmp(&a),
                (a_number, b_number) if a_number.is_some() != b_number.is_some() => {
                    b_number.is_some().cmp(&a_number.is_some())
                }
                _ => a.text.cmp(&b.text),
            };
            if reversed { order.reverse() } else { order }
        });
    }

    /// The width of each column.
    pub(crate) fn widths(&self) -> Vec<usize> {
        let width = |(place, column): (usize, &Column)| {
            let cells = self.rows.iter().filter_map(|row| row.cells.get(place));
            let cells = cells.map(|cell| cell.text.chars().count());
            cells
                .max()
                .unwrap_or(0)
                .max(column.heading.trim_end().chars().count())
        };
        self.columns.iter().enumerate().map(width).collect()
    }

    /// The width of each column on a screen: no text takes more than half of it.
    pub(crate) fn cut_widths(&self, width: usize) -> Vec<usize> {
        let widths = self.widths().into_iter().zip(&self.columns);
        let cut = |(own, column): (usize, &Column)| match column.left {
            true => own.min((width / 2).max(column.heading.len())),
            false => own,
        };
        widths.map(cut).collect()
    }

    /// The columns that fit into a width, with one space or more between them; the others go by their rank.
    fn fitting(&self, width: usize) -> Vec<usize> {
        let widths = self.cut_widths(width);
        let mut kept: Vec<usize> = (0..self.columns.len()).collect();
        let needed = |kept: &[usize]| kept.iter().map(|place| widths[*place] + 2).sum::<usize>();
        while kept.len() > 1 && needed(&kept).saturating_sub(2) > width {
            let last = kept.iter().rposition(|place| {
                let rank = self.columns[*place].rank;
                kept.iter().all(|other| self.columns[*other].rank <= rank)
            });
            kept.remove(last.unwrap_or(kept.len() - 1));
        }
        kept
    }

    /// The columns in parts that fit into a width: the first has those that matter most, the others the rest, behind the keys.
    pub(crate) fn parts(&self, width: usize) -> Vec<Vec<usize>> {
        let widths = self.cut_widths(width);
        let first = self.fitting(width);
        let keys: Vec<usize> = (0..self.keys).collect();
        let rest: Vec<usize> = (0..self.columns.len())
            .filter(|place| !first.contains(place))
            .collect();
        let mut parts = vec![first];
        for place in rest {
            let is_new = match parts[1..].last() {
                None => true,
                Some(part) => {
                    let used = part.iter().map(|place| widths[*place] + 2).sum::<usize>();
                    used + widths[place] > width
                }
            };
            if is_new {
                parts.push(keys.clone());
            }
            if let Some(part) = parts.last_mut().filter(|part| !part.contains(&place)) {
                part.push(place);
            }
        }
        parts
    }

    /// A table in text, no wider than `width`: columns that do not fit follow below, each time with the keys, and a text that is
    /// too long for its column has several lines.
    pub(crate) fn text(&self, width: usize) -> String {
        let repeated = self.keys;
        let headings = self.columns.iter().map(|column| {
            let mark = if column.left { "<" } else { "" };
            format!("{mark}{}", column.heading.trim_end())
        });
        let headings: Vec<String> = headings.collect();
        let headings: Vec<&str> = headings.iter().map(String::as_str).collect();
        let mut table = vipl_tools::report::Table::new(&headings);
        let rooms = self.rooms(width, repeated);
        for row in &self.rows {
            let cells = row.cells.iter().zip(&rooms);
            let cells = cells.map(|(cell, room)| match cell.text.chars().count() > *room {
                true => wrapped(&cell.text, *room, "", ""),
                false => cell.text.clone(),
            });
            let cells: Vec<String> = cells.collect();
            let lines = cells.iter().map(|cell| cell.lines().count()).max();
            for line in 0..lines.unwrap_or(0) {
                let part = |cell: &String| cell.lines().nth(line).unwrap_or_default().to_owned();
                table.row(cells.iter().map(part).collect());
            }
        }
        table.fitted(width, repeated)
    }

    /// How wide each column may be.
    fn rooms(&self, width: usize, repeated: usize) -> Vec<usize> {
        let widths = self.widths();
        let sum = |widths: &[usize]| widths.iter().map(|width| width + 2).sum::<usize>();
        let (keys, others) = widths.split_at(repeated);
        let widest = others.iter().max().map_or(0, |width| width + 2);
        let key = |own: &usize| {
            let beside = |others: usize| width.saturating_sub(sum(keys) - own - 2 + others);
            match beside(sum(others)) {
                room @ ENOUGH.. => room,
                _ => beside(widest).max(LEAST),
            }
        };
        let mut rooms: Vec<usize> = keys.iter().map(key).collect();
        let kept = keys.iter().zip(&rooms).map(|(own, room)| *own.min(room));
        let kept = sum(&kept.collect::<Vec<_>>());
        rooms.resize(widths.len(), width.saturating_sub(kept).max(LEAST));
        rooms
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::tests::{model, seen};

    fn sample() -> Model {
        model(&[
            (1_000_000_000, vec![seen(10, 100), seen(9, 0)]),
            (2_000_000_000, vec![seen(10, 1100), seen(9, 5000)]),
        ])
    }

    #[test]
    fn rows_are_sorted() {
        let mut view = View::processes(&sample());
        let pids = |view: &View| -> Vec<String> {
            view.rows
                .iter()
                .map(|row| row.cells[0].text.clone())
                .collect()
        };
        view.sort(8, false);
        assert_eq!(pids(&view), ["9", "10"]);
        view.sort(8, true);
        assert_eq!(pids(&view), ["10", "9"]);
        view.sort(1, false);
        assert_eq!(pids(&view), ["10", "9"], "server10 before server9");
    }

    #[test]
    fn narrow_screens_show_what_matters() {
        let view = View::vis(&sample());
        let names = |width| -> Vec<&str> {
            let kept = view.parts(width).swap_remove(0).into_iter();
            kept.map(|place| view.columns[place].heading).collect()
        };
        assert_eq!(names(200).len(), view.columns.len());
        assert_eq!(names(40), ["pid", "VI", "state", "sent", "recv", "on SQ"]);
        assert!(names(80).contains(&"peer"), "{:?}", names(80));
        assert_eq!(names(1).len(), 1);
    }

    #[test]
    fn no_table_is_wider_than_its_room() {
        let mut asking = seen(11, 0);
        let vi = &mut asking.pages.vis[0];
        (vi.peer, vi.state) = (0, 2);
        vi.peer_address = vec![2; 6];
        vi.remote_point = vec![7; 64];
        asking.pages.nics[0].device = "sim:loss=0.2,reorder=0.1,duplicate=0.1,seed=4711".to_owned();
        let mut model = model(&[(1_000_000_000, vec![asking, seen(4_194_304, 1 << 40)])]);
        model.agent = Some(serde_json::json!({"budgets": [{
            "name": "connection handles of the NICs of one process", "used": 1, "limit": 65_536,
        }]}));
        for view in [
            View::processes(&model),
            View::vis(&model),
            View::nics(&model),
            View::cqs(&model),
            View::counters(&model),
            View::budgets(&model),
        ] {
            for width in [40, 80] {
                let text = view.text(width);
                assert!(
                    text.lines().all(|line| line.chars().count() <= width),
                    "{text}"
                );
                // Nothing is left out, whatever the lines are.
                for cell in view.rows.iter().flat_map(|row| &row.cells) {
                    let mut words = cell.text.split(' ');
                    assert!(
                        words.all(|word| word.len() > 28 || text.contains(word)),
                        "{text}"
                    );
                }
            }
        }
    }
}
