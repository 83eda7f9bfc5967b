//! What is found: numbered, in words, once for each place, unless the user has silenced it.

use std::collections::HashMap;
use std::sync::Mutex;

use vipl_plugin_sdk::abi::{VIPL_LOG_INFO, VIPL_LOG_WARN};
use vipl_plugin_sdk::layer::Host;

use crate::place::{Place, shown};

/// Lines of one process at most; the rest is counted.
const LINES_MAX: usize = 500;

/// The number of a finding; `docs/TROUBLESHOOTING.md` has each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub(crate) enum Finding {
    NullTag = 1,
    NullMemAttributes = 2,
    DestroyedWithDescriptors = 3,
    UnflaggedImmediate = 4,
    DescriptorMemory = 5,
    ReceiveBeyondRegion = 6,
    DescriptorChanged = 10,
    BufferChanged = 11,
    PostedTwice = 12,
    DeregisteredInUse = 13,
    UnmappedBeforeDeregistered = 14,
    TwoThreads = 20,
    DestroyedInUse = 21,
    OtherNic = 30,
    Destroyed = 31,
    NotTaken = 40,
    LeftAtClose = 41,
    LeftAtExit = 42,
    NotLookedFor = 43,
    ReceiveQueueEmpty = 50,
    ConnectedWithoutReceives = 51,
}

/// All of them.
pub(crate) const ALL: [Finding; 21] = [
    Finding::NullTag,
    Finding::NullMemAttributes,
    Finding::DestroyedWithDescriptors,
    Finding::UnflaggedImmediate,
    Finding::DescriptorMemory,
    Finding::ReceiveBeyondRegion,
    Finding::DescriptorChanged,
    Finding::BufferChanged,
    Finding::PostedTwice,
    Finding::DeregisteredInUse,
    Finding::UnmappedBeforeDeregistered,
    Finding::TwoThreads,
    Finding::DestroyedInUse,
    Finding::OtherNic,
    Finding::Destroyed,
    Finding::NotTaken,
    Finding::LeftAtClose,
    Finding::LeftAtExit,
    Finding::NotLookedFor,
    Finding::ReceiveQueueEmpty,
    Finding::ConnectedWithoutReceives,
];

impl Finding {
    /// What works here and may not elsewhere, and has good reasons in some programs: told at level `info`.
    fn is_advice(self) -> bool {
        matches!(
            self,
            Finding::TwoThreads | Finding::LeftAtExit | Finding::ConnectedWithoutReceives
        )
    }

    /// `VAL-07`.
    pub(crate) fn name(self) -> String {
        format!("VAL-{:02}", self as u8)
    }
}

/// Findings of the process.
pub(crate) struct Findings {
    host: Host,
    silenced: Vec<Finding>,
    seen: Mutex<HashMap<(Finding, Place), u64>>,
}

impl Findings {
    /// `silence`: names of findings, with commas between them.
    pub(crate) fn new(host: Host, silence: &str) -> Findings {
        let (silenced, unknown) = parse(silence);
        for name in unknown {
            let text =
                format!("validate: silence: {name} is no finding; they are VAL-01 to VAL-51");
            host.log(VIPL_LOG_WARN, &text);
        }
        Findings {
            host,
            silenced,
            seen: Mutex::new(HashMap::new()),
        }
    }

    /// Whether a finding is worth looking for.
    pub(crate) fn wants(&self, finding: Finding) -> bool {
        !self.silenced.contains(&finding)
    }

    /// Says what is not found, or later.
    pub(crate) fn warn(&self, text: &str) {
        self.host.log(VIPL_LOG_WARN, text);
    }

    /// Reports a finding about a call at this place.
    #[cold]
    pub(crate) fn report(&self, finding: Finding, place: Place, text: &str) {
        if !self.wants(finding) {
            return;
        }
        let Ok(mut seen) = self.seen.lock() else {
            return;
        };
        let lines = seen.len();
        let times = seen.entry((finding, place)).or_insert(0);
        *times += 1;
        if *times > 1 || lines >= LINES_MAX {
            return;
        }
        drop(seen);
        let line = format!("{} {}: {text}", finding.name(), shown(place));
        let level = match finding.is_advice() {
            true => VIPL_LOG_INFO,
            false => VIPL_LOG_WARN,
        };
        self.host.log(level, &line);
    }

    /// How often each was found again, at the end of the process.
    pub(crate) fn summarise(&self) {
        let Ok(seen) = self.seen.try_lock() else {
            return;
        };
        let mut again: Vec<_> = seen.iter().filter(|(_, times)| **times > 1).collect();
        again.sort();
        for ((finding, place), times) in again {
            let text = format!("{} {}: {times} times in all", finding.name(), shown(*place));
            self.host.log(VIPL_LOG_INFO, &text);
        }
    }
}

/// The findings that a list names, and names that are none.
fn parse(list: &str) -> (Vec<Finding>, Vec<String>) {
    let (mut known, mut unknown) = (Vec::new(), Vec::new());
    for name in list
        .split(',')
        .map(str::trim)
        .filter(|name| !name.is_empty())
    {
        let name = name.to_ascii_uppercase();
        match ALL.iter().find(|finding| finding.name() == name) {
            Some(finding) => known.push(*finding),
            None => unknown.push(name),
        }
    }
    (known, unknown)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn findings_are_silenced_by_name() {
        let (known, unknown) = parse("VAL-01, val-50,,VAL-99,x");
        assert_eq!(known, [Finding::NullTag, Finding::ReceiveQueueEmpty]);
        assert_eq!(unknown, ["VAL-99", "X"]);
    }

    #[test]
    fn numbers_are_distinct() {
        let mut names: Vec<String> = ALL.iter().map(|finding| finding.name()).collect();
        names.dedup();
        assert_eq!(names.len(), ALL.len());
    }
}
