//! The test matrix of the life of processes and threads: the programs of `life/` in their variations, on one device.

use std::fmt;
use std::os::unix::process::ExitStatusExt;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::compile::life;
use crate::run::{Finished, Run};

/// Runs at the same time: most of them wait.
const TOGETHER: usize = 4;
/// What no run may say, whatever it is about.
const WRONG: &[&str] = &[
    "FATAL",
    "a bug in this library",
    "panicked",
    "AddressSanitizer",
];
/// Rounds of destructors of thread-specific data (PTHREAD_DESTRUCTOR_ITERATIONS).
const ROUNDS: u32 = 4;

/// One run.
struct Cell {
    program: &'static str,
    words: Vec<String>,
    env: Vec<(&'static str, &'static str)>,
    status: i32,
    /// What has to be in its log.
    says: &'static str,
}

fn cell(program: &'static str, words: &[&str], status: i32) -> Cell {
    Cell {
        program,
        words: words.iter().map(|word| (*word).to_owned()).collect(),
        env: Vec::new(),
        status,
        says: "",
    }
}

/// All cells, or those that `cargo xtask ci` has time for.
fn cells(whole: bool) -> Vec<Cell> {
    let mut cells = Vec::new();
    let loud = |cell: Cell| Cell {
        env: vec![("VIPL_LOG", "trace")],
        ..cell
    };
    cells.push(cell("cancel", if whole { &["3"] } else { &[] }, 0));
    cells.push(cell("handlers", &[], 0));
    for (state, how, status) in ends() {
        cells.push(cell("ends", &[state, how], status));
    }
    if !whole {
        // A number of ways that has no divisor in common with this visits each way and each state.
        let mut number = 0;
        cells.retain(|cell| {
            number += usize::from(cell.program == "ends");
            cell.program != "ends" || number % 4 == 1
        });
    }
    for round in 1..=ROUNDS {
        cells.push(cell("keys", &[&round.to_string()], 0));
    }
    for (how, status) in [
        ("throw", 3),
        ("caught", 0),
        ("local", 0),
        ("static", 0),
        ("cancel", 0),
    ] {
        cells.push(cell("leaves", &[how], status));
    }
    for subset in 0..8 {
        if whole || matches!(subset, 4 | 7) {
            cells.push(loud(cell("output", &["closed", &subset.to_string()], 0)));
            cells.push(loud(cell("output", &["later", &subset.to_string()], 0)));
        }
    }
    for what in ["broken", "full", "socket", "devfull"] {
        cells.push(loud(cell("output", &[what], 0)));
    }
    for how in ["disconnect", "exit", "kill"] {
        cells.push(Cell {
            says: "VIP_ERROR_CONN_LOST",
            ..cell("lost", &[how], 1)
        });
    }
    if whole {
        cells.push(loud(cell("cancel", &[], 0)));
        cells.push(loud(cell("handlers", &[], 0)));
    }
    cells
}

/// Every end of a process in every state, and the status that it leaves.
fn ends() -> Vec<(&'static str, &'static str, i32)> {
    const STATES: &[&str] = &[
        "open",
        "posted",
        "connected",
        "waiting",
        "handler",
        "connecting",
    ];
    const WAYS: &[&str] = &["exit", "_exit", "quick", "return", "main", "exec", "fork"];
    let mut ends = Vec::new();
    for state in STATES {
        for way in WAYS {
            let status = match (*state, *way) {
                // A handler's thread does not return to `main`.
                ("handler", "return" | "main") => continue,
                (_, "exec" | "main") => 0,
                _ => 7,
            };
            ends.push((*state, *way, status));
        }
    }
    ends
}

/// What came of a device's cells.
pub struct Report {
    device: String,
    cells: usize,
    by_program: Vec<(&'static str, usize)>,
    /// What went wrong.
    pub failures: Vec<String>,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts: Vec<String> = self
            .by_program
            .iter()
            .map(|(program, count)| format!("{count} {program}"))
            .collect();
        write!(
            f,
            "{}: {} runs ({}), {} failed",
            self.device,
            self.cells,
            parts.join(", "),
            self.failures.len()
        )
    }
}

/// Runs the matrix on a device; `place` brings a run to where the device is.
pub fn matrix(device: &str, whole: bool, place: impl Fn(Run) -> Run + Sync) -> Report {
    let cells = cells(whole);
    let next = AtomicUsize::new(0);
    let failures = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..TOGETHER {
            scope.spawn(|| {
                while let Some(cell) = cells.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let finished = place(run(cell, device)).finish();
                    if let Some(why) = judge(cell, &finished) {
                        failures
                            .lock()
                            .expect("a list")
                            .push(finished.report(&format!("{device}: {why}")));
                    }
                }
            });
        }
    });
    let mut by_program: Vec<(&'static str, usize)> = Vec::new();
    for cell in &cells {
        match by_program
            .iter_mut()
            .find(|(name, _)| *name == cell.program)
        {
            Some((_, count)) => *count += 1,
            None => by_program.push((cell.program, 1)),
        }
    }
    Report {
        device: device.to_owned(),
        cells: cells.len(),
        by_program,
        failures: failures.into_inner().expect("a list"),
    }
}

fn run(cell: &Cell, device: &str) -> Run {
    let mut run = Run::compatible(life(cell.program)).seconds(180);
    run = match cell.program {
        "leaves" => run.arg(device),
        _ => run.arg("-d").arg(device),
    };
    for word in &cell.words {
        run = run.arg(word);
    }
    for (name, value) in &cell.env {
        run = run.env(name, *value);
    }
    run
}

/// What is wrong with it.
fn judge(cell: &Cell, finished: &Finished) -> Option<String> {
    if finished.timed_out {
        return Some("it hangs".to_owned());
    }
    if let Some(signal) = finished.status.signal() {
        return Some(format!("signal {signal} ended it"));
    }
    if finished.status.code() != Some(cell.status) {
        return Some(format!("status {}, not {}", finished.status, cell.status));
    }
    if !finished.stderr.contains(cell.says) {
        return Some(format!("it does not say {:?}", cell.says));
    }
    let said = |text: &&&str| finished.stderr.contains(**text) || finished.stdout.contains(**text);
    WRONG
        .iter()
        .find(said)
        .map(|text| format!("it says {text:?}"))
}
