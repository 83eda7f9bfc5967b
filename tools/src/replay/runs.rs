//! Which files belong together.

use std::collections::{BTreeMap, HashMap};

use super::file::Recording;
use crate::{Error, Result};

/// Checks that the files are of one run: `record` leaves the files of an earlier one where they are, and each of them would be
/// made again beside the others.
///
/// Processes of one run are there at the same time, or are connected, or another process is with both.
///
/// # Errors
/// They are of several; how to choose.
pub(super) fn is_one<'a>(recordings: impl Iterator<Item = &'a Recording>) -> Result<()> {
    let all: Vec<&Recording> = recordings.collect();
    let mut groups = Groups((0..all.len()).collect());
    let mut connections: HashMap<u64, usize> = HashMap::new();
    for (number, one) in all.iter().enumerate() {
        for (id, _) in one.calls.iter().filter_map(|call| call.connection()) {
            let first = *connections.entry(id).or_insert(number);
            groups.join(first, number);
        }
    }
    // By host: clocks of two hosts say nothing of each other.
    let mut hosts: BTreeMap<&str, Vec<(u64, u64, usize)>> = BTreeMap::new();
    for (number, one) in all.iter().enumerate() {
        if let Some((began, ended)) = one.time() {
            let host = hosts.entry(one.boot.as_str()).or_default();
            host.push((began, ended, number));
        }
    }
    for host in hosts.values_mut() {
        host.sort_unstable();
        let mut last: Option<(u64, usize)> = None;
        for (began, ended, number) in host.iter().copied() {
            match last {
                Some((end, other)) if began <= end => {
                    groups.join(other, number);
                    last = Some((end.max(ended), other));
                }
                _ => last = Some((ended, number)),
            }
        }
    }
    for host in hosts.values() {
        let mut runs: Vec<(usize, Vec<&str>)> = Vec::new();
        for (_, _, number) in host {
            let (group, name) = (groups.of(*number), all[*number].name.as_str());
            match runs.iter_mut().find(|(known, _)| *known == group) {
                Some((_, names)) => names.push(name),
                None => runs.push((group, vec![name])),
            }
        }
        if runs.len() > 1 {
            return Err(several(&runs));
        }
    }
    Ok(())
}

fn several(runs: &[(usize, Vec<&str>)]) -> Error {
    let mut text = format!(
        "the files are of {} runs, one after the other; make each again by itself, the last one first:",
        runs.len()
    );
    for (_, names) in runs.iter().rev() {
        text += "\n  vip_replay";
        for name in names {
            text += " ";
            text += name;
        }
    }
    Error::Usage(text)
}

/// Files that belong together, by the number of one of them.
struct Groups(Vec<usize>);

impl Groups {
    fn of(&self, mut number: usize) -> usize {
        while self.0[number] != number {
            number = self.0[number];
        }
        number
    }

    fn join(&mut self, one: usize, other: usize) {
        let (one, other) = (self.of(one), self.of(other));
        self.0[one.max(other)] = one.min(other);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file with calls from and to these times, the connection of one of them, if any, and the host.
    fn file(name: &str, host: &str, from: u64, to: u64, connection: &str) -> Recording {
        let text = format!(
            "vipl-record 1 1 {host}\n1 {from} {from} VipOpenNic VIP_SUCCESS\n1 {to} {to} VipConnectAccept VIP_SUCCESS{connection}\n"
        );
        Recording::parse(name, &text).expect("a recording")
    }

    fn said(files: &[Recording]) -> Option<String> {
        is_one(files.iter()).err().map(|error| error.to_string())
    }

    #[test]
    fn files_of_two_runs_are_distinguished() {
        let early = || [file("a", "h", 10, 30, ""), file("b", "h", 20, 40, "")];
        let late = || [file("c", "h", 60, 80, ""), file("d", "h", 50, 70, "")];
        assert_eq!(said(&early()), None);
        let both: Vec<Recording> = late().into_iter().chain(early()).collect();
        let text = said(&both).expect("two runs");
        let expected = "of 2 runs, one after the other; make each again by itself, the last one first:\n  vip_replay d c\n  vip_replay a b";
        assert!(text.contains(expected), "{text}");
        // A process was there all the time.
        let server = file("s", "h", 5, 90, "");
        let all: Vec<Recording> = early().into_iter().chain(late()).chain([server]).collect();
        assert_eq!(said(&all), None);
        // One on another host was connected with both, or with none.
        let (one, other) = (" connection=0x1/0", " connection=0x2/0");
        let ends = [file("a", "h", 10, 30, one), file("c", "h", 60, 80, other)];
        assert!(said(&ends).is_some());
        let peer = Recording::parse(
            "p",
            "vipl-record 1 1 other\n1 1 2 VipConnectRequest VIP_SUCCESS connection=0x1/1\n1 3 4 VipConnectRequest VIP_SUCCESS connection=0x2/1\n",
        );
        let [a, c] = ends;
        assert_eq!(said(&[a, c, peer.expect("a recording")]), None);
        assert_eq!(
            said(&[file("a", "h", 1, 2, ""), file("b", "other", 5, 6, "")]),
            None
        );
    }

    /// A process that has made no call is of any run.
    #[test]
    fn files_without_calls_are_of_any_run() {
        let empty = Recording::parse("e", "vipl-record 1 1 h\n").expect("a recording");
        assert_eq!(said(&[empty, file("a", "h", 1, 2, "")]), None);
    }
}
