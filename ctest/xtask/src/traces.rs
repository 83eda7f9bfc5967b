//! Checks files of the layer `trace` against the format of trace events that Perfetto and `chrome://tracing` read: a list of JSON, whose
//! end may be missing, of events with all members that their phase requires, and arrows with two ends.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

/// What a file has.
#[derive(Debug, PartialEq)]
pub(crate) struct Seen {
    pub(crate) events: usize,
    pub(crate) arrows: usize,
}

/// Reads a file of all processes of a run; says what is wrong with it.
pub(crate) fn check(text: &str) -> Result<Seen, String> {
    let list = format!("{}]", text.trim_end().trim_end_matches(','));
    let events: Vec<Value> = serde_json::from_str(&list).map_err(|error| error.to_string())?;
    let (mut sent, mut received) = (BTreeMap::new(), BTreeSet::new());
    for event in &events {
        let wrong = |what: &str| Err(format!("{what}: {event}"));
        let is_time = |name: &str| event[name].as_f64().is_some_and(|time| time >= 0.0);
        if !(event["name"].is_string() && event["pid"].is_u64() && event["tid"].is_u64()) {
            return wrong("no name, pid or tid");
        }
        if !event["args"].is_object() {
            return wrong("no args");
        }
        match event["ph"].as_str() {
            Some("X") if is_time("ts") && is_time("dur") => {}
            Some("i") if is_time("ts") && event["s"] == "t" => {}
            Some("M") if event["args"]["name"].is_string() => {}
            _ => return wrong("an unknown phase, or members are missing"),
        }
        let (ends, begins) = (event["flow_in"] == true, event["flow_out"] == true);
        let hex = event["bind_id"]
            .as_str()
            .and_then(|id| id.strip_prefix("0x"));
        let id = hex.and_then(|hex| u64::from_str_radix(hex, 16).ok());
        match (id, begins, ends) {
            (None, false, false) if event["bind_id"].is_null() => {}
            (Some(id), true, false) if event["ph"] == "X" => {
                if sent.insert(id, event).is_some() {
                    return wrong("the second arrow of this name");
                }
            }
            // Events are sorted by their beginnings, and a wait begins before its message.
            (Some(id), false, true) if event["ph"] == "X" && event["name"] != "VipRecvWait" => {
                if !received.insert(id) {
                    return wrong("the second end of an arrow");
                }
            }
            _ => return wrong("an arrow without an end, or with a wrong one"),
        }
    }
    if let Some(id) = received.iter().find(|id| !sent.contains_key(id)) {
        return Err(format!("the arrow {id:#x} ends and does not begin"));
    }
    Ok(Seen {
        events: events.len(),
        arrows: received.len(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = r#"[
{"pid":1,"tid":2,"ph":"M","name":"process_name","args":{"name":"hello"}},
{"pid":1,"tid":2,"ph":"X","ts":1.500,"dur":0.100,"name":"VipPostSend","flow_out":true,"bind_id":"0x1f","args":{}},
{"pid":3,"tid":3,"ph":"X","ts":0.500,"dur":2.000,"name":"VipRecvWait","args":{}},
{"pid":3,"tid":3,"ph":"X","ts":2.500,"dur":0.000,"name":"arrives","flow_in":true,"bind_id":"0x1f","args":{}},
{"pid":3,"tid":3,"ph":"i","s":"t","ts":3.000,"name":"handler","args":{}},
"#;

    #[test]
    fn events_have_all_members_and_arrows_both_ends() {
        let seen = Seen {
            events: 5,
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
            ("arrives", "VipRecvWait", "or with a wrong one"),
            ("}},", "}", "expected"),
        ] {
            let error = check(&GOOD.replacen(from, to, 1)).unwrap_err();
            assert!(error.contains(why), "{why}: {error}");
        }
    }
}
