//! Everything as plain text, once.

use std::fmt::Write;

use vipl_sys::text::one_line;
use vipl_tools::report::wrapped;

use crate::model::Model;
use crate::view::View;
use crate::words;

/// Descriptors of each queue that are shown of a process that has ended; JSON has all.
const DESCRIPTORS: usize = 16;

/// What further lines of a note begin with.
const INDENT: &str = "    ";

/// Said of a process that has kept no descriptors.
const NO_FLIGHTS: &str =
    "Started with VIPL_FLIGHT=true, a process keeps the last 256 descriptors of each queue, too";

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
        ("processes", View::processes(model), 2),
        ("VIs", View::vis(model), 2),
        ("NICs", View::nics(model), 2),
        ("completion queues", View::cqs(model), 1),
        ("counters", View::counters(model), 2),
        (&budgets, View::budgets(model), 1),
        ("devices", View::devices(model), 2),
    ];
    for (name, view, repeated) in tables {
        if !view.rows.is_empty() {
            let blank = if text.is_empty() { "" } else { "\n" };
            text += blank;
            text += &wrapped(name, width, "", "");
            text += &view.text(width, repeated);
        }
    }
    let mut notes = Vec::new();
    for process in &model.processes {
        let out = process.seen.pages.process.vis_left_out;
        if out > 0 {
            let pid = process.seen.pid;
            notes.push(format!("process {pid}: {out} more VIs are not published"));
        }
    }
    for (path, why) in &model.unreadable {
        notes.push(format!("cannot read {}: {why}", path.display()));
    }
    text.extend(notes.iter().map(|note| wrapped(note, width, "", INDENT)));
    text
}

/// What a process was doing when it ended, or does now.
pub(crate) fn last(model: &Model, width: usize) -> String {
    let mut text = String::new();
    for process in &model.processes {
        let about = &process.seen.pages.process;
        let end = if process.seen.runs {
            "runs".to_owned()
        } else if about.ended != 0 {
            format!(
                "called exit {} before now",
                words::time(model.time.saturating_sub(about.ended))
            )
        } else {
            let ago = words::time(model.time.saturating_sub(about.clock));
            format!("was killed or crashed; it was last seen {ago} before now")
        };
        let blank = if text.is_empty() { "" } else { "\n" };
        text += blank;
        let (pid, program) = (process.seen.pid, one_line(&about.program));
        text += &wrapped(
            &format!("process {pid}, {program}: {end}"),
            width,
            "",
            INDENT,
        );
        let one = Model {
            time: model.time,
            processes: vec![process.clone()],
            ..Model::default()
        };
        for (view, repeated) in [
            (View::nics(&one), 2),
            (View::vis(&one), 2),
            (View::cqs(&one), 1),
        ] {
            if !view.rows.is_empty() {
                let _ = write!(text, "\n{}", view.text(width, repeated));
            }
        }
        let recorders = process.seen.recorders();
        for vi in &process.vis {
            let page = recorders.of(&vi.page);
            let _ = writeln!(text, "\nVI {} ({:#x})", page.number, page.handle);
            let last = page
                .events
                .iter()
                .map(|event| event.time)
                .max()
                .unwrap_or(0);
            for event in &page.events {
                let ago = last.saturating_sub(event.time);
                text += &words::event_line(ago, event.happened, width);
            }
            text += &words::descriptors(&page, DESCRIPTORS, width);
        }
        if !about.has_flights && !process.vis.is_empty() {
            text += &wrapped(NO_FLIGHTS, width, "\n", "");
        }
    }
    text
}
