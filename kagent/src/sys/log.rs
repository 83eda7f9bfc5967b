//! Log lines of the form `vipkad[pid] level subsystem: message`.
//!
//! `VIPL_LOG` is shared with the library: a list of `level` and `subsystem=level`, of which the agent
//! takes what it knows and passes over the rest. A line that cannot be written is lost; the agent goes
//! on.

#![forbid(unsafe_code)]

use std::cell::RefCell;
use std::fmt::Arguments;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;

/// How much a line matters.
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
    // The agent has nothing finer than debug.
    ("trace", Some(Level::Debug)),
];

/// Where lines go and which.
#[derive(Debug)]
pub struct Log {
    pid: u32,
    level: Option<Level>,
    by_subsystem: Vec<(String, Option<Level>)>,
    file: Option<RefCell<File>>,
}

impl Log {
    /// As `VIPL_LOG` and `VIPL_LOG_FILE` say. To be called before the working directory changes.
    pub fn from_environment() -> Self {
        let mut log = Self::parse(&std::env::var("VIPL_LOG").unwrap_or_default());
        if let Some(path) = std::env::var_os("VIPL_LOG_FILE").filter(|path| !path.is_empty()) {
            match OpenOptions::new()
                .append(true)
                .create(true)
                .mode(0o600)
                .open(&path)
            {
                Ok(file) => log.file = Some(RefCell::new(file)),
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
        };
        for part in spec
            .split(',')
            .map(str::trim)
            .filter(|part| !part.is_empty())
        {
            let (subsystem, name) = part
                .split_once('=')
                .map_or((None, part), |(subsystem, name)| (Some(subsystem), name));
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

    fn wants(&self, level: Level, subsystem: &str) -> bool {
        let own = self
            .by_subsystem
            .iter()
            .rev()
            .find(|(name, _)| name == subsystem);
        own.map_or(self.level, |&(_, level)| level)
            .is_some_and(|most| level <= most)
    }

    fn line(&self, level: Level, subsystem: &str, message: Arguments<'_>) {
        if !self.wants(level, subsystem) {
            return;
        }
        let name = match level {
            Level::Error => "error",
            Level::Warn => "warn",
            Level::Info => "info",
            Level::Debug => "debug",
        };
        // One write for one line, so that lines of several processes do not mix.
        let line = format!("vipkad[{}] {name} {subsystem}: {message}\n", self.pid);
        let _ = match &self.file {
            Some(file) => file.borrow_mut().write_all(line.as_bytes()),
            None => std::io::stderr().write_all(line.as_bytes()),
        };
    }

    /// Something failed.
    pub fn error(&self, subsystem: &str, message: Arguments<'_>) {
        self.line(Level::Error, subsystem, message);
    }

    /// Odd, but work goes on.
    pub fn warn(&self, subsystem: &str, message: Arguments<'_>) {
        self.line(Level::Warn, subsystem, message);
    }

    /// Something came or went.
    pub fn info(&self, subsystem: &str, message: Arguments<'_>) {
        self.line(Level::Info, subsystem, message);
    }

    /// For those who look for a fault.
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
