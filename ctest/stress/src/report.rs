//! What a party tells its supervisor: lines on the standard output, and the end with a fault.

use std::io::Write;
use std::sync::atomic::{AtomicU64, Ordering};

/// What this process has done so far.
pub(crate) struct Counts {
    pub(crate) messages: AtomicU64,
    pub(crate) bytes: AtomicU64,
    pub(crate) rdma: AtomicU64,
    pub(crate) partings: AtomicU64,
}

pub(crate) static COUNTS: Counts = Counts {
    messages: AtomicU64::new(0),
    bytes: AtomicU64::new(0),
    rdma: AtomicU64::new(0),
    partings: AtomicU64::new(0),
};

/// Adds to a count.
pub(crate) fn count(which: &AtomicU64, more: u64) {
    which.fetch_add(more, Ordering::Relaxed);
}

/// Tells one line. Without a supervisor there is no reason to live.
pub(crate) fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    if writeln!(out, "{line}").and_then(|()| out.flush()).is_err() {
        std::process::exit(1);
    }
}

/// Tells all counts.
pub(crate) fn say_counts() {
    let of = |which: &AtomicU64| which.load(Ordering::Relaxed);
    say(&format!(
        "counts {} {} {} {}",
        of(&COUNTS.messages),
        of(&COUNTS.bytes),
        of(&COUNTS.rdma),
        of(&COUNTS.partings)
    ));
}

/// Something is wrong: tells it and ends the process.
pub(crate) fn fault(what: &str) -> ! {
    say(&format!("wrong {what}"));
    std::process::exit(1);
}
