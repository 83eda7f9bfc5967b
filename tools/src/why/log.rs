//! What the library says while it is asked.

use std::fs::File;
use std::io::Read;
use std::os::fd::AsRawFd;

use super::{Finding, Kind};
use crate::sys;

/// Lines are kept here, instead of going to standard error. Without memory files they go there.
pub(super) struct Log(Option<File>);

/// A warning or an error.
pub(super) struct Line {
    pub(super) subsystem: String,
    pub(super) text: String,
}

impl Log {
    /// Takes the log of the library, which has not been opened yet.
    pub(super) fn take() -> Self {
        let Ok(file) = sys::growing_file() else {
            return Self(None);
        };
        sys::set_env("VIPL_LOG", "warn");
        sys::set_env(
            "VIPL_LOG_FILE",
            &format!("/proc/self/fd/{}", file.as_raw_fd()),
        );
        Self(Some(file))
    }

    /// The library has read its settings: processes that it starts have a log of their own.
    pub(super) fn taken(&self) {
        for name in ["VIPL_LOG", "VIPL_LOG_FILE"] {
            sys::unset_env(name);
        }
    }

    /// What was said since the last time.
    pub(super) fn lines(&self) -> Vec<Line> {
        let mut text = String::new();
        if let Some(mut file) = self.0.as_ref() {
            let _ = file.read_to_string(&mut text);
        }
        text.lines().filter_map(line).collect()
    }

    /// The same as one text, which says why a call has failed.
    pub(super) fn why(&self) -> Option<String> {
        let texts: Vec<String> = self.lines().into_iter().map(|line| line.text).collect();
        (!texts.is_empty()).then(|| texts.join("; "))
    }

    /// What was said since the last time, and belongs to no check.
    pub(super) fn rest(&self) -> Vec<Finding> {
        self.lines().into_iter().map(finding).collect()
    }
}

/// A line that belongs to no check.
pub(super) fn finding(line: Line) -> Finding {
    match line.subsystem.as_str() {
        "settings" => Kind::Setting
            .found(line.text)
            .mended_by("vipinfo -e lists names, values and where they come from"),
        _ => Kind::Warning.found(line.text),
    }
}

/// `vipl[PID] LEVEL SUBSYSTEM: TEXT`.
fn line(text: &str) -> Option<Line> {
    let (head, text) = text.split_once("] ")?.1.split_once(": ")?;
    let subsystem = head.split_once(' ')?.1.to_owned();
    let text = text.to_owned();
    Some(Line { subsystem, text })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_taken_apart() {
        let one = line("vipl[12] warn settings: VIPL_X: no").unwrap();
        assert_eq!(
            (one.subsystem.as_str(), one.text.as_str()),
            ("settings", "VIPL_X: no")
        );
        assert!(line("nothing of ours").is_none());
    }
}
