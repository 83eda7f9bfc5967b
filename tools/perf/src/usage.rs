//! What processes use, as the kernel counts it: memory, and how often their threads have slept.

#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::{Value, json};
use vipl_tools::sys;

/// Memory in bytes. Pages that several processes map are divided between them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Usage {
    /// All of it.
    pub(crate) pss: i64,
    /// The part of it that is shared memory.
    pub(crate) shared: i64,
}

impl Usage {
    /// Sum of two processes.
    #[must_use]
    pub(crate) fn plus(self, other: Self) -> Self {
        Self {
            pss: self.pss + other.pss,
            shared: self.shared + other.shared,
        }
    }
}

/// What this process uses, for the peer.
#[must_use]
pub(crate) fn own() -> Value {
    let usage = of_process(std::process::id()).unwrap_or_default();
    json!({"pss": usage.pss, "shared": usage.shared})
}

/// How often the threads of this process have gone to sleep, each with a wake-up after it, by the name of the thread.
/// A thread of many may be gone before it is seen.
#[must_use]
pub(crate) fn sleeps() -> BTreeMap<String, u64> {
    let mut sleeps = BTreeMap::new();
    let tasks = std::fs::read_dir("/proc/self/task").into_iter().flatten();
    for task in tasks.flatten() {
        let read = |name: &str| std::fs::read_to_string(task.path().join(name)).ok();
        let (Some(name), Some(status)) = (read("comm"), read("status")) else {
            continue;
        };
        let count = count(&status, "voluntary_ctxt_switches:").unwrap_or(0);
        *sleeps.entry(name.trim().to_owned()).or_default() += count as u64;
    }
    sleeps
}

/// Memory of a process, if it may be seen.
#[must_use]
pub(crate) fn of_process(pid: u32) -> Option<Usage> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?;
    Some(Usage {
        pss: field(&text, "Pss:")?,
        shared: field(&text, "Pss_Shmem:").unwrap_or(0),
    })
}

/// Shared memory of the whole machine in bytes, mapped or not.
#[must_use]
pub(crate) fn machine_shared() -> i64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    field(&text, "Shmem:").unwrap_or(0)
}

/// Memory of this user's kernel agents together.
#[must_use]
pub(crate) fn of_agents() -> Usage {
    agents()
        .into_iter()
        .filter_map(of_process)
        .fold(Usage::default(), Usage::plus)
}

/// Process numbers of this user's kernel agents.
#[must_use]
pub(crate) fn agents() -> Vec<u32> {
    use std::os::unix::fs::MetadataExt;
    let mine = |path: &Path| path.metadata().is_ok_and(|data| data.uid() == sys::user());
    let is_agent = |path: &Path| {
        std::fs::read_to_string(path.join("comm")).is_ok_and(|name| name.trim() == "vipkad")
    };
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    entries
        .filter(|entry| mine(&entry.path()) && is_agent(&entry.path()))
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect()
}

/// What a set of processes took between two moments: the growth of their memory, and that of shared
/// memory which the machine holds for them although none of them maps it.
#[must_use]
pub(crate) fn growth(before: (Usage, i64), after: (Usage, i64)) -> i64 {
    let pss = after.0.pss - before.0.pss;
    let mapped = after.0.shared - before.0.shared;
    let unmapped = (after.1 - before.1 - mapped).max(0);
    pss + unmapped
}

fn field(text: &str, name: &str) -> Option<i64> {
    count(text, name).map(|kib| kib * 1024)
}

fn count(text: &str, name: &str) -> Option<i64> {
    let line = text.lines().find(|line| line.starts_with(name))?;
    line.split_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_kib() {
        let text = "Rss:   8 kB\nPss:                 12 kB\nPss_Shmem:            4 kB\n";
        assert_eq!(field(text, "Pss:"), Some(12288));
        assert_eq!(field(text, "Pss_Shmem:"), Some(4096));
        assert_eq!(field(text, "Swap:"), None);
    }

    #[test]
    fn shared_memory_counts_once() {
        let none = (Usage::default(), 100);
        let mapped = (Usage { pss: 10, shared: 8 }, 108);
        assert_eq!(growth(none, mapped), 10);
        let unmapped = (Usage { pss: 2, shared: 0 }, 108);
        assert_eq!(growth(none, unmapped), 10);
        let others_gave_back = (Usage { pss: 2, shared: 0 }, 50);
        assert_eq!(growth(none, others_gave_back), 2);
    }

    #[test]
    fn own_memory_can_be_seen() {
        let own = of_process(std::process::id());
        assert!(own.is_none_or(|usage| usage.pss > 0));
    }

    #[test]
    fn a_thread_that_sleeps_is_counted_by_its_name() {
        let sleeper = || {
            for _ in 0..5 {
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
            let count = sleeps().get("a-sleeper").copied();
            assert!(count.is_some_and(|count| count >= 5), "{count:?}");
        };
        let named = std::thread::Builder::new().name("a-sleeper".to_owned());
        named.spawn(sleeper).unwrap().join().unwrap();
    }
}
