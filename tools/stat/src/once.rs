//! Everything as plain text, once.

use std::fmt::Write;

use vipl_pages::read::Vi;
use vipl_sys::text::one_line;
use vipl_tools::report::wrapped;

use crate::end::{End, Sign};
use crate::model::{Model, ProcessNow};
use crate::view::View;
use crate::words;

/// Descriptors of each queue that are shown of a process that has ended; JSON has all.
const DESCRIPTORS: usize = 16;

/// What further lines of a note begin with.
const INDENT: &str = "    ";

/// Said of a process that has kept no descriptors.
const NO_FLIGHTS: &str =
    "Started with VIPL_FLIGHT=true, a process keeps the last 256 descriptors of each queue, too";

/// Stands before the processes that have ended, too.
const OTHERS: &str = "Others have ended, too; vipstat --last PID shows one of them";

/// The event of the latest sample of a VI.
const MESSAGE: &str = "the latest message that was looked at";

/// The tables, each no wider than `width`; `is_narrowed`: of some
/// processes only.
pub(crate) fn text(model: &Model, width: usize, is_narrowed: bool) -> String {
    let mut text = String::new();
    if model.processes.is_empty() && is_narrowed {
        text += &wrapped("no process that is shown here has that", width, "", "");
    } else if model.processes.is_empty() {
        let nothing =
            "no process of this user publishes anything; those of other users are for root";
        text += &wrapped(nothing, width, "", "");
    }
    let agent = model
        .agent
        .as_ref()
        .and_then(|agent| agent["agent"].as_str());
    let agent = agent.map_or(String::new(), |agent| format!(", {agent}"));
    let budgets = format!("budgets of this user at the Kernel Agent{agent}");
    let tables = [
        ("processes", View::processes(model)),
        ("VIs", View::vis(model)),
        ("NICs", View::nics(model)),
        ("completion queues", View::cqs(model)),
        ("counters", View::counters(model)),
        (&budgets, View::budgets(model)),
        ("devices", View::devices(model)),
    ];
    for (name, view) in tables {
        if !view.rows.is_empty() {
            let blank = if text.is_empty() { "" } else { "\n" };
            text += blank;
            text += &wrapped(name, width, "", "");
            text += &view.text(width);
        }
    }
    let mut notes: Vec<String> = model.processes.iter().filter_map(left_out).collect();
    for (path, why) in &model.unreadable {
        notes.push(format!("cannot read {}: {why}", path.display()));
    }
    text.extend(notes.iter().map(|note| wrapped(note, width, "", INDENT)));
    text
}

/// What is not seen of a process.
fn left_out(process: &ProcessNow) -> Option<String> {
    let (pid, about) = (process.seen.pid, &process.seen.pages.process);
    let mut parts = Vec::new();
    if about.vis_left_out > 0 {
        parts.push(format!("{} more VIs are not published", about.vis_left_out));
    }
    if about.pages_left_out > 0 {
        let pages = about.pages_left_out;
        parts.push(format!("its file system was full (pages missing: {pages})"));
    }
    (!parts.is_empty()).then(|| format!("process {pid}: {}", parts.join("; ")))
}

/// What the processes of a model were doing when they ended, and which others have ended.
pub(crate) fn last(model: &Model, others: &[ProcessNow], width: usize) -> String {
    let mut text = String::new();
    for process in &model.processes {
        let about = &process.seen.pages.process;
        let end = process.end.unwrap_or(End {
            time: model.time,
            sign: Sign::Latest,
        });
        let (pid, program) = (process.seen.pid, one_line(&about.program));
        let how = words::end(end, model.time);
        text += &wrapped(
            &format!("process {pid}, {program}: {how}"),
            width,
            "",
            INDENT,
        );
        if let Some(note) = left_out(process) {
            text += &wrapped(&note, width, "", INDENT);
        }
        let one = Model {
            time: model.time,
            processes: vec![process.clone()],
            ..Model::default()
        };
        for view in [View::nics(&one), View::vis(&one), View::cqs(&one)] {
            if !view.rows.is_empty() {
                let _ = write!(text, "\n{}", view.text(width));
            }
        }
        let recorders = process.seen.recorders();
        for vi in &process.vis {
            let page = recorders.of(&vi.page);
            let _ = writeln!(text, "\nVI {} ({:#x})", page.number, page.handle);
            text += &events(&page, end, width);
            text += &words::descriptors(&page, DESCRIPTORS, width);
        }
        if !about.has_flights && !process.vis.is_empty() {
            text += &wrapped(NO_FLIGHTS, width, "\n", "");
        }
        if !others.is_empty() {
            text += &wrapped(OTHERS, width, "\n", "");
        }
        for other in others {
            text += &wrapped(&also(other, end), width, "  ", INDENT);
        }
    }
    text
}

/// The events of a VI, and the latest message that was looked at, by their time before an end.
fn events(vi: &Vi, end: End, width: usize) -> String {
    let before = |time: u64| words::fine_time(end.time.saturating_sub(time));
    let events = vi.events.iter();
    let mut rows: Vec<(u64, String)> = events
        .map(|event| (event.time, words::event(event.happened)))
        .collect();
    let latest = vi.sampled.as_ref().map_or(0, |sampled| sampled.latest);
    if latest > 0 {
        let place = rows.partition_point(|(time, _)| *time <= latest);
        rows.insert(place, (latest, MESSAGE.to_owned()));
    }
    let rows = rows.into_iter().map(|(time, what)| (before(time), what));
    words::events(words::before(end.sign), rows.collect(), width)
}

/// A process that has ended, too, and how long before or after this end.
fn also(other: &ProcessNow, end: End) -> String {
    let pid = other.seen.pid;
    let program = words::program(&other.seen.pages.process.program);
    let Some(its) = other.end else {
        return format!("{pid} {program}");
    };
    let how = match its.sign {
        Sign::Exit => "called exit",
        Sign::Peer(_) => "was killed or crashed",
        Sign::Latest => "was killed or crashed, last sign of life",
    };
    let apart = words::fine_time(its.time.abs_diff(end.time));
    let side = if its.time < end.time {
        "earlier"
    } else {
        "later"
    };
    format!("{pid} {program}: {how} {apart} {side}")
}

#[cfg(test)]
mod tests {
    use vipl_pages::read::Event;
    use vipl_pages::record::Happened;

    use super::*;
    use crate::model::tests::{model, seen};

    const SECOND: u64 = 1_000_000_000;

    /// Two VIs of a process have one origin, and another process that has ended is named.
    #[test]
    fn all_vis_of_a_process_have_one_origin() {
        let mut both = [seen(1, 10), seen(2, 0)];
        let event = |time| Event {
            time,
            happened: Happened::Created,
        };
        let vis = &mut both[0].pages.vis;
        vis.push(vis[0].clone());
        vis[0].events = vec![event(SECOND), event(3 * SECOND)];
        vis[1].events = vec![event(2 * SECOND)];
        if let Some(sampled) = &mut vis[0].sampled {
            sampled.latest = 2 * SECOND + 1500;
        }
        let mut model = model(&[(100 * SECOND, both.to_vec())]);
        let mut other = model.processes.pop().unwrap();
        let end = End {
            time: 12 * SECOND,
            sign: Sign::Peer(2),
        };
        model.processes[0].end = Some(end);
        other.end = Some(End {
            time: 12 * SECOND - 2000,
            sign: Sign::Exit,
        });
        let text = last(&model, &[other], 80);
        let events = "
before the end  event
   11.000000 s  created
    9.999998 s  the latest message that was looked at
    9.000000 s  created
";
        assert!(text.contains(events), "{text}");
        assert!(text.contains("\n   10.000000 s  created\n"), "{text}");
        let head = "process 1, /opt/app/server1: was killed or crashed 88.0 s ago, as its peer,";
        assert!(text.starts_with(head), "{text}");
        assert!(
            text.ends_with("  2 server2: called exit 0.000002 s earlier\n"),
            "{text}"
        );
    }

    #[test]
    fn what_is_left_out_is_said() {
        let said = |vis, pages| {
            let mut one = seen(9, 5);
            let process = &mut one.pages.process;
            (process.vis_left_out, process.pages_left_out) = (vis, pages);
            let model = model(&[(1, vec![one])]);
            let row = View::processes(&model).rows.remove(0);
            let texts = [text(&model, 80, false), last(&model, &[], 80)];
            let notes = texts.map(|text| text.contains("process 9: "));
            assert_eq!(notes[0], notes[1]);
            (
                row.cells[4].text.clone(),
                row.cells[1].text.clone(),
                notes[0],
            )
        };
        let said = |vis, pages| {
            let (vis, program, note) = said(vis, pages);
            (vis, program.ends_with(" (in part)"), note)
        };
        assert_eq!(said(0, 0), ("1".to_owned(), false, false));
        assert_eq!(said(196, 0), ("1 of 197".to_owned(), true, true));
        assert_eq!(said(0, 3), ("1".to_owned(), true, true));
    }
}
