//! Everything as plain text, once.

use std::fmt::Write;

use vipl_sys::text::one_line;

use crate::model::Model;
use crate::view::View;
use crate::words;

/// Descriptors of each queue that are shown of a process that has ended; JSON has all.
const DESCRIPTORS: usize = 16;

/// The tables, each no wider than `width` if its columns can be divided; `is_narrowed`: of some
/// processes only.
pub(crate) fn text(model: &Model, width: usize, is_narrowed: bool) -> String {
    let mut text = String::new();
    if model.processes.is_empty() && is_narrowed {
        text += "no process that is shown here has that\n";
    } else if model.processes.is_empty() {
        text += "no process of this user publishes anything; those of other users are for root\n";
    }
    let tables = [
        ("processes", View::processes(model), 2),
        ("VIs", View::vis(model), 2),
        ("NICs", View::nics(model), 2),
        ("completion queues", View::cqs(model), 1),
        ("counters", View::counters(model), 2),
        (
            "budgets of this user at the Kernel Agent",
            View::budgets(model),
            1,
        ),
    ];
    for (name, view, repeated) in tables {
        if !view.rows.is_empty() {
            let blank = if text.is_empty() { "" } else { "\n" };
            let _ = write!(text, "{blank}{name}\n{}", view.text(width, repeated));
        }
    }
    for process in &model.processes {
        let out = process.seen.pages.process.vis_left_out;
        if out > 0 {
            let _ = writeln!(
                text,
                "process {}: {out} more VIs are not published",
                process.seen.pid
            );
        }
    }
    for (path, why) in &model.unreadable {
        let _ = writeln!(text, "cannot read {}: {why}", path.display());
    }
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
        let _ = writeln!(
            text,
            "{blank}process {}, {}: {end}",
            process.seen.pid,
            one_line(&about.program)
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
        for vi in &process.vis {
            let _ = writeln!(text, "\nVI {} ({:#x})", vi.page.number, vi.page.handle);
            let last = vi
                .page
                .events
                .iter()
                .map(|event| event.time)
                .max()
                .unwrap_or(0);
            for event in &vi.page.events {
                let before = words::time(last.saturating_sub(event.time));
                let _ = writeln!(text, "  {before:>8}  {}", words::event(event.happened));
            }
            for line in words::descriptors(&vi.page, DESCRIPTORS) {
                let _ = writeln!(text, "{line}");
            }
        }
    }
    text
}
