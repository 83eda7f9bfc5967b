//! Connections whose other side is in no file that was given.

use std::collections::HashSet;

use super::file::{Call, Recording};
use crate::{Error, Result};

/// Checks that the files have both sides of connections: a call that made one would wait for a peer that never comes, and so
/// would all that wait for its messages. A note for each file that has such calls beside others.
///
/// # Errors
/// No connection of the run has its other side here.
pub(super) fn are_here(recordings: &[Recording]) -> Result<Vec<String>> {
    let made = || recordings.iter().flat_map(connections);
    let here: HashSet<(u64, u64)> = made().map(|(_, side)| side).collect();
    let has_pair = here
        .iter()
        .any(|(id, side)| here.contains(&(*id, side ^ 1)));
    let unfinished: HashSet<&str> = recordings.iter().flat_map(unfinished).collect();
    let mut notes = Vec::new();
    for one in recordings {
        // What the process of a cut file called last is not in it.
        let mut others = recordings.iter().filter(|other| !std::ptr::eq(*other, one));
        if others.any(|other| other.is_cut) {
            continue;
        }
        let is_alone = |call: &Call, (id, side): (u64, u64)| {
            !here.contains(&(id, side ^ 1)) && !unfinished.contains(counterpart(&call.name))
        };
        if let Some((call, _)) = connections(one).find(|(call, side)| is_alone(call, *side)) {
            let (file, line, name) = (&one.name, call.line, &call.name);
            notes.push(format!(
                "{file}:{line}: {name} connects to a process whose file is not here; give all files of the run"
            ));
        }
    }
    match notes.into_iter() {
        mut notes if !has_pair => notes
            .next()
            .map_or(Ok(Vec::new()), |note| Err(Error::Usage(note))),
        notes => Ok(notes.collect()),
    }
}

/// The calls that made connections, and the number and side of each.
fn connections(recording: &Recording) -> impl Iterator<Item = (&Call, (u64, u64))> {
    let calls = recording.calls.iter();
    calls.filter_map(|call| Some((call, call.connection()?)))
}

/// The functions of calls that may have been the other side of a connection, without the number of one: the peer had gone when
/// the call ended, its thread was cancelled, or no call took its result.
fn unfinished(recording: &Recording) -> impl Iterator<Item = &str> {
    let made: HashSet<u64> = connections(recording)
        .map(|(call, _)| call.number("ViHandle"))
        .collect();
    let calls = recording.calls.iter();
    let calls = calls.filter(move |call| !made.contains(&call.number("ViHandle")));
    calls.map(|call| call.name.as_str())
}

/// The function that makes the other side of a connection.
fn counterpart(function: &str) -> &str {
    match function {
        "VipConnectAccept" => "VipConnectRequest",
        "VipConnectRequest" => "VipConnectAccept",
        _ => "VipConnectPeerRequest",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(name: &str, words: &str, calls: &[&str]) -> Recording {
        let calls = calls.iter().map(|call| format!("1 1 2 {call}\n"));
        let calls: String = calls.collect();
        let text = format!("vipl-record 1 1 b{words}\n{calls}");
        Recording::parse(name, &text).expect("a recording")
    }

    const ACCEPT: &str = "VipConnectAccept VIP_SUCCESS ViHandle=0x6 connection=0x1/0";
    const REQUEST: &str = "VipConnectRequest VIP_SUCCESS ViHandle=0x6 connection=0x1/1";
    const OTHER: &str = "VipConnectAccept VIP_SUCCESS ViHandle=0x7 connection=0x2/0";
    const PEER: &str = "VipConnectPeerWait VIP_SUCCESS ViHandle=0x8 connection=0x3/0";
    const WHY: &str = "connects to a process whose file is not here; give all files of the run";

    #[test]
    fn a_run_without_any_other_side_is_refused_and_one_with_some_is_noted() {
        let refused = |files: &[Recording]| are_here(files).expect_err("a refusal").to_string();
        let noted = |files: &[Recording]| are_here(files).expect("no refusal");
        for call in [ACCEPT, REQUEST, PEER] {
            let files = [file("a", "", &["VipOpenNic VIP_SUCCESS", call])];
            let name = call.split(' ').next().unwrap_or_default();
            assert_eq!(refused(&files), format!("a:3: {name} {WHY}"));
        }
        // Requests that failed before are no other side of the one that did not.
        let failed = "VipConnectRequest VIP_NO_MATCH ViHandle=0x5";
        assert!(refused(&[file("a", "", &[failed, REQUEST])]).contains(WHY));
        let (server, client) = (file("s", "", &[ACCEPT, OTHER]), file("c", "", &[REQUEST]));
        let note = format!("s:3: VipConnectAccept {WHY}");
        assert_eq!(noted(&[server, client]), [note]);
        assert!(noted(&[file("a", "", &[ACCEPT, REQUEST])]).is_empty());
        assert!(noted(&[file("a", "", &["VipOpenNic VIP_SUCCESS"])]).is_empty());
    }

    /// The other side may have been made by a call that has no number of a connection, or that is missing.
    #[test]
    fn a_call_that_may_be_the_other_side_is_taken_for_it() {
        let cancelled = "VipConnectRequest left ViHandle=0x9";
        let unasked = "VipConnectPeerRequest VIP_SUCCESS ViHandle=0x9";
        for (call, other) in [(ACCEPT, cancelled), (PEER, unasked)] {
            for files in [
                vec![file("a", "", &[call, other])],
                vec![file("a", "", &[call]), file("b", "", &[other])],
            ] {
                assert_eq!(are_here(&files).expect("no refusal"), [""; 0]);
            }
        }
        let cut = || file("cut", " ends", &[]);
        let files = [file("a", "", &[ACCEPT]), cut()];
        assert_eq!(are_here(&files).expect("no refusal"), [""; 0]);
        // Its own end says nothing of another process.
        let files = [file("a", " ends", &[ACCEPT])];
        assert!(are_here(&files).is_err());
    }
}
