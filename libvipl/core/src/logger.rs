//! The log: `vipl[pid] level subsystem: message`, one line each, to standard error or a file.

use std::cell::Cell;
use std::fs::File;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::Write;

use log::{Level, LevelFilter, Log, Metadata, Record};
use vipl_sys::stderr::without_signal;
use vipl_sys::{cancel, stderr};

use crate::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use crate::sync::{Mutex, OnceLock};

use crate::settings::Settings;
use crate::watch;

/// The levels up to which lines are logged.
struct Levels {
    general: LevelFilter,
    by_subsystem: Vec<(String, LevelFilter)>,
}

impl Levels {
    /// Parses the setting `log`; adds errors to `problems`.
    fn parse(text: &str, problems: &mut Vec<String>) -> Levels {
        let mut levels = Levels {
            general: LevelFilter::Warn,
            by_subsystem: Vec::new(),
        };
        let parts = text.split(',').map(str::trim);
        for part in parts.filter(|part| !part.is_empty()) {
            match part.split_once('=') {
                Some((name, level)) => {
                    let level = level.parse().unwrap_or_else(|_| {
                        problems.push(format!(
                            "log: {part:?}: {level:?} is not a level; using warn"
                        ));
                        LevelFilter::Warn
                    });
                    levels.by_subsystem.push((name.to_owned(), level));
                }
                None => match part.parse() {
                    Ok(level) => levels.general = level,
                    Err(_) => problems.push(format!(
                        "log: {part:?} is not a level (error, warn, info, debug, trace)"
                    )),
                },
            }
        }
        levels
    }

    fn of(&self, subsystem: &str) -> LevelFilter {
        let mut own = self.by_subsystem.iter();
        own.find(|(name, _)| name == subsystem)
            .map_or(self.general, |(_, level)| *level)
    }

    fn highest(&self) -> LevelFilter {
        let own = self.by_subsystem.iter().map(|(_, level)| *level);
        own.fold(self.general, Ord::max)
    }
}

struct Logger {
    levels: Levels,
    file: Option<Mutex<File>>,
}

impl Log for Logger {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.level() <= self.levels.of(metadata.target())
    }

    fn log(&self, record: &Record<'_>) {
        if !self.enabled(record.metadata()) {
            return;
        }
        let level = record.level().as_str().to_ascii_lowercase();
        let pid = std::process::id();
        let text = format!("vipl[{pid}] {level} {}: {}", record.target(), record.args());
        let line = vipl_sys::text::one_line(&text).into_owned() + "\n";
        mark_logged(record.level());
        if record.level() <= Level::Warn {
            WARNED_NS.store(crate::clock::now_ns(), Ordering::Relaxed);
        }
        // The thread may be in the fast path, and must not be cancelled while it holds the lock.
        let _off = cancel::Off::new();
        // One write per line, so that the lines of several processes do not mix.
        match &self.file {
            Some(file) => {
                let mut file = file.lock();
                let _ = without_signal(libc::SIGXFSZ, libc::EFBIG, || {
                    let written = file.write_all(line.as_bytes());
                    written.map_err(|error| error.raw_os_error().unwrap_or(0))
                });
            }
            None => stderr::write(line.as_bytes()),
        }
    }

    fn flush(&self) {}
}

thread_local! {
    /// The most severe level that this thread has logged since its call began.
    static LOGGED: Cell<Option<Level>> = const { Cell::new(None) };
}

/// Records that the calling thread has logged a line of this level, or need not log one.
pub(crate) fn mark_logged(level: Level) {
    let _ = LOGGED.try_with(|said| {
        let worst = said.get().map_or(level, |before| before.min(level));
        said.set(Some(worst));
    });
}

/// Time of the last warning or error of any thread.
static WARNED_NS: AtomicU64 = AtomicU64::new(0);

/// Whether a thread of the process has logged a warning or an error within the last second: a line of the
/// agent's thread usually explains why a call of another thread fails.
pub(crate) fn has_warned_recently() -> bool {
    let reported = WARNED_NS.load(Ordering::Relaxed);
    reported != 0 && crate::clock::now_ns().saturating_sub(reported) < 1_000_000_000
}

/// Whether this thread has logged a line of this level, or a more severe one, since its call began.
pub(crate) fn has_logged(level: Level) -> bool {
    LOGGED
        .try_with(Cell::get)
        .ok()
        .flatten()
        .is_some_and(|worst| worst <= level)
}

/// Resets the record when a call of the application begins.
pub(crate) fn reset_logged() {
    let _ = LOGGED.try_with(|said| said.set(None));
}

/// Number of objects and kinds of failures that [`first`] remembers.
const REMEMBERED: usize = 1024;
/// Maximum failures per second at `warn`.
const FIRST_PER_SECOND: usize = 10;

/// The failures seen by [`first`].
static SEEN: crate::sync::Mutex<Seen> = crate::sync::Mutex::new(Seen {
    keys: Vec::new(),
    second: u64::MAX,
    lines: 0,
});

struct Seen {
    keys: Vec<u64>,
    second: u64,
    lines: usize,
}

impl Seen {
    fn is_first(&mut self, key: u64, second: u64) -> bool {
        if self.keys.contains(&key) {
            return false;
        }
        if self.second != second {
            (self.second, self.lines) = (second, 0);
        }
        self.lines += 1;
        let reported = self.lines <= FIRST_PER_SECOND && self.keys.len() < REMEMBERED;
        if reported {
            self.keys.push(key);
        }
        reported
    }
}

/// The level of a line about a failure: `warn` for the first of its kind with this object, `less` for those
/// that follow. Applications retry, and poll failed objects, so only the first line of each is a warning, and
/// at most ten per second.
#[cold]
pub(crate) fn first(kind: impl Hash, object: impl Hash, less: Level) -> Level {
    let mut hasher = DefaultHasher::new();
    (kind, object).hash(&mut hasher);
    let second = crate::clock::now_ns() / 1_000_000_000;
    if SEEN.lock().is_first(hasher.finish(), second) {
        Level::Warn
    } else {
        less
    }
}

/// Logs why a call or an object has failed, at the level that [`first`] returns for this text and object.
macro_rules! log_failure {
    ($target:literal, $object:expr, $text:literal $($rest:tt)*) => {
        log::log!(
            target: $target,
            crate::logger::first($text, $object, log::Level::Info),
            $text $($rest)*
        )
    };
}
pub(crate) use log_failure;

/// Maximum lines per second and process about bad arguments: an application may poll a stale handle.
const MISTAKES_PER_SECOND: u32 = 10;

/// Whether a line about a bad argument may be logged now.
#[cold]
pub(crate) fn may_log_mistake() -> bool {
    static SECOND: AtomicU64 = AtomicU64::new(u64::MAX);
    static LINES: AtomicU32 = AtomicU32::new(0);
    let now = crate::clock::now_ns() / 1_000_000_000;
    if SECOND.swap(now, Ordering::Relaxed) != now {
        LINES.store(0, Ordering::Relaxed);
    }
    LINES.fetch_add(1, Ordering::Relaxed) < MISTAKES_PER_SECOND
}

/// Logs that an argument of a call cannot be right, as a warning, or not at all beyond the limit.
macro_rules! log_mistake {
    ($target:literal, $($text:tt)*) => {
        if crate::logger::may_log_mistake() {
            log::warn!(target: $target, $($text)*)
        } else {
            crate::logger::mark_logged(log::Level::Warn)
        }
    };
}
pub(crate) use log_mistake;

/// Logs the first use of a leniency of the compatible mode (spec §17), once per place.
macro_rules! log_leniency {
    ($($text:tt)*) => {{
        static ONCE: std::sync::Once = std::sync::Once::new();
        ONCE.call_once(|| log::info!(target: "compat", $($text)*));
    }};
}
pub(crate) use log_leniency;

/// Installs the log, at the first call of the process.
pub(crate) fn install(settings: &Settings) {
    static LOGGER: OnceLock<Logger> = OnceLock::new();
    let mut problems = Vec::new();
    let levels = Levels::parse(settings.text("log"), &mut problems);
    let path = settings.text("log_file");
    let mut file = None;
    if !path.is_empty() {
        match vipl_sys::file::open_log(path.as_ref(), 0o666) {
            Ok(opened) => file = Some(Mutex::new(File::from(opened))),
            Err(error) => problems.push(format!(
                "log_file: {path}: {error}; the log goes to standard error"
            )),
        }
    }
    let logger = LOGGER.get_or_init(|| Logger { levels, file });
    if log::set_logger(logger).is_ok() {
        log::set_max_level(logger.levels.highest());
        if logger.levels.highest() == LevelFilter::Trace {
            watch::turn_on();
        }
    }
    for problem in problems {
        log::warn!(target: "settings", "{problem}");
    }
}

/// Panics of this library are written to its log: descriptor 2 may refer to a file of the application. Not in
/// test programs, which handle their own panics.
#[cfg(not(test))]
pub(crate) fn redirect_panics() {
    std::panic::set_hook(Box::new(|info| {
        stderr::write(format!("vipl: {info}\n").as_bytes());
    }));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_subsystem_may_have_its_own_level() {
        let mut problems = Vec::new();
        let levels = Levels::parse("mem=off, info ,vi=trace,,cq=loud,quiet", &mut problems);
        for (subsystem, level) in [
            ("mem", LevelFilter::Off),
            ("vi", LevelFilter::Trace),
            ("cq", LevelFilter::Warn),
            ("nic", LevelFilter::Info),
        ] {
            assert_eq!(levels.of(subsystem), level, "{subsystem}");
        }
        assert_eq!(levels.highest(), LevelFilter::Trace);
        assert_eq!(problems.len(), 2, "{problems:?}");
        assert!(problems[0].contains("cq=loud") && problems[1].contains("quiet"));
    }

    #[test]
    fn the_first_of_a_kind_is_reported_and_few_in_one_second() {
        let mut seen = Seen {
            keys: Vec::new(),
            second: u64::MAX,
            lines: 0,
        };
        assert!(seen.is_first(1, 5) && !seen.is_first(1, 5) && seen.is_first(2, 5));
        let reported = (3..100).filter(|key| seen.is_first(*key, 5)).count();
        assert_eq!(reported, FIRST_PER_SECOND - 2);
        // A suppressed failure is logged in the next second.
        assert!(seen.is_first(99, 6) && !seen.is_first(1, 6));
    }

    #[test]
    fn a_worse_line_stands_for_a_lesser_one() {
        reset_logged();
        assert!(!has_logged(Level::Error));
        mark_logged(Level::Warn);
        mark_logged(Level::Debug);
        assert!(has_logged(Level::Warn) && has_logged(Level::Info));
        assert!(!has_logged(Level::Error));
        reset_logged();
        assert!(!has_logged(Level::Trace));
    }
}
