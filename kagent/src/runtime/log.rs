//! Log lines of the form `vipkad[pid] level subsystem: message`.
//!
//! `VIPL_LOG` is shared with the library: a list of `level` and `subsystem=level`. Unknown subsystems are
//! ignored. A line that cannot be written is lost; the agent continues.
//!
//! Any process that may call the agent, and any host that may send it frames, can cause log lines. Therefore
//! lines are rate-limited by their place in the source; the next line written reports how many were
//! suppressed. `debug` and `trace` are not limited.

#![forbid(unsafe_code)]

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt::Arguments;
use std::fs::File;
use std::io::Write;
use std::panic::Location;
use vipl_sys::clock::Instant;

/// Severity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Level {
    Error,
    Warn,
    Info,
    Debug,
}

const NAMES: [(&str, Option<Level>); 6] = [
    ("off", None),
    ("error", Some(Level::Error)),
    ("warn", Some(Level::Warn)),
    ("info", Some(Level::Info)),
    ("debug", Some(Level::Debug)),
    // `debug` is the finest level of the agent.
    ("trace", Some(Level::Debug)),
];

/// Burst of lines from one place in the source.
const BURST: f64 = 20.0;
/// Lines per second from one place after the burst.
const PER_SECOND: f64 = 2.0;
/// The same for `info`, which has a line for each process that connects or ends.
const INFO_BURST: f64 = 1000.0;
const INFO_PER_SECOND: f64 = 100.0;

/// Token bucket of one place.
#[derive(Debug)]
struct Allowance {
    lines: f64,
    since: Instant,
    suppressed: u64,
}

impl Allowance {
    /// Takes one line. Returns the number of lines suppressed before it, or `None` if this one is suppressed.
    fn take(&mut self, now: Instant, burst: f64, per_second: f64) -> Option<u64> {
        let passed = now.saturating_duration_since(self.since).as_secs_f64();
        self.lines = (self.lines + passed * per_second).min(burst);
        self.since = now;
        if self.lines < 1.0 {
            self.suppressed += 1;
            return None;
        }
        self.lines -= 1.0;
        Some(std::mem::take(&mut self.suppressed))
    }
}

/// The log.
#[derive(Debug)]
pub struct Log {
    pid: u32,
    level: Option<Level>,
    by_subsystem: Vec<(String, Option<Level>)>,
    file: Option<RefCell<File>>,
    /// By file and line of the source.
    allowances: RefCell<BTreeMap<(&'static str, u32), Allowance>>,
}

impl Log {
    /// Reads `VIPL_LOG` and `VIPL_LOG_FILE`. To be called before the working directory changes.
    pub fn from_environment() -> Self {
        let mut log = Self::parse(&std::env::var("VIPL_LOG").unwrap_or_default());
        if let Some(path) = std::env::var_os("VIPL_LOG_FILE").filter(|path| !path.is_empty()) {
            match vipl_sys::file::open_log(path.as_ref(), 0o600) {
                Ok(file) => log.file = Some(RefCell::new(file.into())),
                Err(cause) => log.warn("log", format_args!("{}: {cause}", path.display())),
            }
        }
        log
    }

    fn parse(spec: &str) -> Self {
        let mut log = Self {
            pid: std::process::id(),
            level: Some(Level::Warn),
            by_subsystem: Vec::new(),
            file: None,
            allowances: RefCell::default(),
        };
        for shut_down in spec
            .split(',')
            .map(str::trim)
            .filter(|shut_down| !shut_down.is_empty())
        {
            let (subsystem, name) = shut_down
                .split_once('=')
                .map_or((None, shut_down), |(subsystem, name)| {
                    (Some(subsystem), name)
                });
            match (subsystem, level_named(name)) {
                (None, Some(level)) => log.level = level,
                (Some(subsystem), Some(level)) => {
                    log.by_subsystem.push((subsystem.to_owned(), level));
                }
                (_, None) => log.warn("log", format_args!("VIPL_LOG: no level called {name}")),
            }
        }
        log
    }

    /// Whether `debug` lines of this subsystem are written; for lines that are expensive to make.
    pub(crate) fn wants_debug(&self, subsystem: &str) -> bool {
        self.wants(Level::Debug, subsystem)
    }

    fn wants(&self, level: Level, subsystem: &str) -> bool {
        let own = self
            .by_subsystem
            .iter()
            .rev()
            .find(|(name, _)| name == subsystem);
        own.map_or(self.level, |&(_, level)| level)
            .is_some_and(|most| level <= most)
    }

    /// Whether this line may be written, and how many from its place were suppressed.
    fn allow(&self, level: Level, place: &'static Location<'static>) -> Option<u64> {
        let (burst, per_second) = match level {
            Level::Error | Level::Warn => (BURST, PER_SECOND),
            Level::Info => (INFO_BURST, INFO_PER_SECOND),
            Level::Debug => return Some(0),
        };
        let now = Instant::now();
        let mut all = self.allowances.borrow_mut();
        let kind = all.entry((place.file(), place.line()));
        let allowance = kind.or_insert(Allowance {
            lines: burst,
            since: now,
            suppressed: 0,
        });
        allowance.take(now, burst, per_second)
    }

    #[track_caller]
    fn line(&self, level: Level, subsystem: &str, message: Arguments<'_>) {
        if !self.wants(level, subsystem) {
            return;
        }
        let more = match self.allow(level, Location::caller()) {
            None => return,
            Some(0) => String::new(),
            Some(count) => format!(" ({count} more like this were suppressed)"),
        };
        let name = match level {
            Level::Error => "error",
            Level::Warn => "warn",
            Level::Info => "info",
            Level::Debug => "debug",
        };
        // One write per line, so that lines of several processes do not mix.
        let text = format!("vipkad[{}] {name} {subsystem}: {message}{more}", self.pid);
        let line = vipl_sys::text::one_line(&text).into_owned() + "\n";
        let _ = match &self.file {
            Some(file) => file.borrow_mut().write_all(line.as_bytes()),
            None => std::io::stderr().write_all(line.as_bytes()),
        };
    }

    /// Something failed.
    #[track_caller]
    pub fn error(&self, subsystem: &str, message: Arguments<'_>) {
        self.line(Level::Error, subsystem, message);
    }

    /// Unexpected, but the agent continues.
    #[track_caller]
    pub fn warn(&self, subsystem: &str, message: Arguments<'_>) {
        self.line(Level::Warn, subsystem, message);
    }

    /// Something was created or ended.
    #[track_caller]
    pub fn info(&self, subsystem: &str, message: Arguments<'_>) {
        self.line(Level::Info, subsystem, message);
    }

    /// For debugging.
    #[track_caller]
    pub fn debug(&self, subsystem: &str, message: Arguments<'_>) {
        self.line(Level::Debug, subsystem, message);
    }
}

fn level_named(name: &str) -> Option<Option<Level>> {
    NAMES
        .iter()
        .find(|(known, _)| *known == name)
        .map(|&(_, level)| level)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_of_one_kind_is_cut_and_counted() {
        let log = Log::parse("info");
        let one = |_| log.allow(Level::Warn, Location::caller());
        let said = (0..1000).filter_map(one).count() as f64;
        // On a slow machine the bucket has been refilled in part.
        assert!((BURST..500.0).contains(&said), "{said}");
        // Another place has its own bucket.
        assert_eq!(log.allow(Level::Warn, Location::caller()), Some(0));
        assert_eq!(log.allow(Level::Debug, Location::caller()), Some(0));
        let start = Instant::now();
        let mut allowance = Allowance {
            lines: 0.0,
            since: start,
            suppressed: 0,
        };
        let after = |ms| start + std::time::Duration::from_millis(ms);
        let mut at = |ms| allowance.take(after(ms), BURST, PER_SECOND);
        let lines = [0, 100, 499, 501, 502, 1100].map(&mut at);
        assert_eq!(lines, [None, None, None, Some(3), None, Some(1)]);
    }

    #[test]
    fn levels_by_subsystem() {
        let table = [
            ("", "client", Level::Warn, true),
            ("", "client", Level::Info, false),
            ("debug", "client", Level::Debug, true),
            ("trace,client=error", "client", Level::Warn, false),
            ("trace,client=error", "socket", Level::Debug, true),
            ("cm=trace", "client", Level::Info, false),
            ("off", "client", Level::Error, false),
            ("off, client=info", "client", Level::Info, true),
        ];
        for (spec, subsystem, level, expected) in table {
            assert_eq!(
                Log::parse(spec).wants(level, subsystem),
                expected,
                "{spec} {subsystem}"
            );
        }
    }
}
