//! Checks files of the layer `trace`, twice: by rules of ours, and by Perfetto, which reads them in a headless browser.
//!
//! The format is that of trace events: a list of JSON, whose end may be missing, of events with all members that their phase
//! requires, and arrows with two ends. Both must find the same in a file. `docs/decisions/0160-perfetto-reads-the-traces.md`
//! says where Perfetto is from.

mod devtools;
mod perfetto;
mod server;

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

pub(crate) use perfetto::Perfetto;

/// What a file has.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Seen {
    pub(crate) processes: usize,
    pub(crate) threads: usize,
    /// Slices and marks by their names.
    pub(crate) slices: BTreeMap<String, usize>,
    pub(crate) arrows: usize,
}

/// A trace with an arrow that ends before it begins. A reader that takes it reads nothing.
pub(crate) const WRONG: &str = r#"[
{"pid":1,"tid":1,"ph":"X","ts":2.000,"dur":0.500,"name":"VipPostSend","flow_out":true,"bind_id":"0x1"},
{"pid":2,"tid":2,"ph":"X","ts":1.000,"dur":2.000,"name":"VipRecvDone","flow_in":true,"bind_id":"0x1"},
"#;

/// Reads a file of all processes of a run; says what is wrong with it.
pub(crate) fn check(text: &str) -> Result<Seen, String> {
    let list = format!("{}]", text.trim_end().trim_end_matches(','));
    let events: Vec<Value> = serde_json::from_str(&list).map_err(|error| error.to_string())?;
    let (mut sent, mut received) = (BTreeMap::new(), BTreeMap::new());
    let (mut processes, mut threads) = (BTreeSet::new(), BTreeSet::new());
    let mut seen = Seen::default();
    for event in &events {
        let wrong = |what: &str| Err(format!("{what}: {event}"));
        let time = |name: &str| event[name].as_f64().filter(|time| *time >= 0.0);
        let (Some(name), Some(pid), Some(tid)) = (
            event["name"].as_str(),
            event["pid"].as_u64(),
            event["tid"].as_u64(),
        ) else {
            return wrong("no name, pid or tid");
        };
        if !(event["args"].is_object() || event["args"].is_null()) {
            return wrong("args that are no object");
        }
        match event["ph"].as_str() {
            Some("X") if time("ts").is_some() && time("dur").is_some() => {}
            Some("i") if time("ts").is_some() && event["s"] == "t" => {}
            Some("M") if event["args"]["name"].is_string() => continue,
            _ => return wrong("an unknown phase, or members are missing"),
        }
        processes.insert(pid);
        threads.insert((pid, tid));
        *seen.slices.entry(name.to_owned()).or_default() += 1;
        let (ends, begins) = (event["flow_in"] == true, event["flow_out"] == true);
        let hex = event["bind_id"]
            .as_str()
            .and_then(|id| id.strip_prefix("0x"));
        let id = hex.and_then(|hex| u64::from_str_radix(hex, 16).ok());
        let of_slice = event["ph"] == "X";
        match (id, begins, ends) {
            (None, false, false) if event["bind_id"].is_null() => {}
            (Some(id), true, false) if of_slice => {
                if sent.insert(id, time("ts")).is_some() {
                    return wrong("the second arrow of this name");
                }
            }
            (Some(id), false, true) if of_slice => {
                if received.insert(id, time("ts")).is_some() {
                    return wrong("the second end of an arrow");
                }
            }
            _ => return wrong("an arrow without an end, or with a wrong one"),
        }
    }
    for (id, ended) in &received {
        // Events are sorted by their beginnings, and an end that comes before its beginning is dropped.
        match sent.get(id) {
            None => return Err(format!("the arrow {id:#x} ends and does not begin")),
            Some(began) if began > ended => {
                return Err(format!(
                    "the arrow {id:#x} ends at {ended:?} and begins at {began:?}"
                ));
            }
            Some(_) => {}
        }
    }
    (seen.processes, seen.threads) = (processes.len(), threads.len());
    seen.arrows = received.len();
    Ok(seen)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = r#"[
{"pid":1,"tid":2,"ph":"M","name":"process_name","args":{"name":"hello"}},
{"pid":1,"tid":2,"ph":"X","ts":1.500,"dur":0.100,"name":"VipPostSend","flow_out":true,"bind_id":"0x1f","args":{}},
{"pid":3,"tid":3,"ph":"X","ts":0.500,"dur":2.000,"name":"VipRecvWait","args":{}},
{"pid":3,"tid":3,"ph":"X","ts":2.500,"dur":0.000,"name":"arrives","flow_in":true,"bind_id":"0x1f"},
{"pid":3,"tid":3,"ph":"i","s":"t","ts":3.000,"name":"handler","args":{}},
"#;

    #[test]
    fn the_wrong_one_is_wrong() {
        let error = check(WRONG).unwrap_err();
        assert!(error.contains("and begins at"), "{error}");
    }

    #[test]
    fn events_have_all_members_and_arrows_both_ends() {
        let names = ["VipPostSend", "VipRecvWait", "arrives", "handler"];
        let seen = Seen {
            processes: 2,
            threads: 2,
            slices: names.map(|name| (name.to_owned(), 1)).into(),
            arrows: 1,
        };
        assert_eq!(check(GOOD), Ok(seen));
        for (from, to, why) in [
            (r#""dur":2.000,"#, "", "members are missing"),
            (r#""s":"t","#, "", "members are missing"),
            (r#""ph":"M""#, r#""ph":"Q""#, "an unknown phase"),
            (r#""pid":1,"#, "", "no name, pid or tid"),
            (r#""flow_out":true,"bind_id":"0x1f","#, "", "does not begin"),
            ("0x1f", "31", "an arrow without an end"),
            (r#""ts":2.500"#, r#""ts":1.499"#, "and begins at"),
            (r#""args":{}"#, r#""args":1"#, "no object"),
            ("}},", "}", "expected"),
        ] {
            let error = check(&GOOD.replacen(from, to, 1)).unwrap_err();
            assert!(error.contains(why), "{why}: {error}");
        }
    }
}
