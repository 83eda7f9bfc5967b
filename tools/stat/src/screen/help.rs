//! What the keys do, and what the columns mean.

use vipl_tools::report::wrapped;

/// Where the explanations begin.
const INDENT: &str = "                  ";

const KEYS: [(&str, &str); 14] = [
    (
        "1 to 7",
        "a page: processes, VIs, NICs, CQs, counters, agent, devices",
    ),
    ("Tab, Right", "the next page"),
    ("Shift-Tab, Left", "the page before"),
    ("Up, Down, k, j", "a row; of a VI alone, and here, a line"),
    ("PgUp, PgDn", "twenty of these"),
    (">, <", "the columns that had no room, and back"),
    ("Enter", "of a process its VIs, of a VI all there is of it"),
    ("Esc", "back: from a VI, a filter, a process"),
    ("s", "sort by the next column, whose heading is underlined"),
    ("r", "the other way round"),
    (
        "/",
        "show what has a text: type it, and Enter; Esc shows all",
    ),
    ("p", "pause, and go on"),
    ("?", "these lines, and back"),
    ("q, Ctrl-C", "quit"),
];

const COLUMNS: [(&str, &str); 10] = [
    ("conn", "VIs that are connected"),
    (
        "sent, recv",
        "descriptors taken off the send queues and receive queues",
    ),
    ("sent/s, recv/s", "the same each second"),
    ("on SQ, on RQ", "posted and not taken off"),
    (
        "oldest",
        "for how long nothing was taken off a send queue that is not empty",
    ),
    ("errors", "descriptors that failed, and asynchronous errors"),
    ("memory", "bytes that are registered"),
    ("sent B/s, recv B/s", "bytes each second"),
    (
        "p50, p99",
        "percentiles of the time from VipPostSend to the completion of a send",
    ),
    (
        "room, overflows",
        "entries that a CQ can have; times that it had no room",
    ),
];

/// The lines, none wider than `width`.
pub(super) fn text(width: usize) -> String {
    let line = |(name, what): &(&str, &str)| {
        wrapped(
            what,
            width,
            &format!("{name:<0$}  ", INDENT.len()),
            &format!("{INDENT}  "),
        )
    };
    let keys: String = KEYS.iter().map(line).collect();
    let columns: String = COLUMNS.iter().map(line).collect();
    format!("{keys}\n{columns}")
}
