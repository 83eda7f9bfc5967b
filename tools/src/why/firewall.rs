//! What nftables does with datagrams to a port of this host, as far as its rules can be read.
//!
//! Rules are followed in their order, with jumps. A rule that depends on something else than protocol, port, interface
//! and the state of a new connection may match or not: what follows from it is unknown.

use std::process::{Command, Stdio};

use serde_json::Value;

use super::{Finding, Kind};

/// Jumps that are followed.
const DEPTH: usize = 16;

/// A datagram from another host.
pub(super) struct Flow {
    pub(super) is_v4: bool,
    /// The port that it is for.
    pub(super) port: u16,
    /// The interface by which it comes, if known.
    pub(super) interface: Option<String>,
}

/// What becomes of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Passes,
    Dropped,
    /// Depends on what is not known here.
    Depends,
    /// No verdict yet: the next rule, or the rest of the chain that jumped here.
    GoesOn,
    /// The rest of the chain is left out.
    Returns,
}

/// The rules, or why they cannot be read.
pub(super) fn rules() -> Result<Value, String> {
    let output = Command::new("nft")
        .args(["-j", "list", "ruleset"])
        .stdin(Stdio::null())
        .output();
    let output = match output {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            return Err("nft is not installed, so rules are not read".to_owned());
        }
        Err(error) => return Err(format!("nft: {error}")),
        Ok(output) => output,
    };
    if !output.status.success() {
        let why = String::from_utf8_lossy(&output.stderr);
        let why = why.lines().next().unwrap_or("it failed").to_owned();
        return Err(format!("nft list ruleset: {why}; root may read the rules"));
    }
    serde_json::from_slice(&output.stdout).map_err(|error| format!("nft list ruleset: {error}"))
}

/// What the rules do with these; the first one is the agent's port.
pub(super) fn judge(rules: &Value, flows: &[Flow]) -> Vec<Finding> {
    let fates = || flows.iter().map(|flow| (flow.port, fate(rules, flow)));
    if let Some((port, _)) = fates().find(|(_, fate)| *fate == Fate::Dropped) {
        let is_agents = flows.first().is_some_and(|flow| flow.port == port);
        let (what, ports) = match (is_agents, flows) {
            (false, [_, low, high]) => ("a data port", format!("{}-{}", low.port, high.port)),
            _ => ("the port of the Kernel Agent", port.to_string()),
        };
        return vec![
            Kind::Firewall
                .found(format!("nftables drops datagrams to UDP port {port}, {what}"))
                .mended_by(format!("as root: nft insert rule inet TABLE CHAIN udp dport {ports} accept (nft list ruleset shows TABLE and CHAIN)")),
        ];
    }
    if fates().any(|(_, fate)| fate == Fate::Depends) {
        let why =
            "nftables has rules that depend on more than port and interface: nft list ruleset";
        return vec![Finding::unknown("firewall", why)];
    }
    let ports: Vec<String> = flows.iter().map(|flow| flow.port.to_string()).collect();
    vec![Finding::fine(
        "firewall",
        format!("nftables admits UDP ports {}", ports.join(", ")),
    )]
}

fn objects<'a>(rules: &'a Value, kind: &'a str) -> impl Iterator<Item = &'a Value> {
    let all = rules["nftables"].as_array().into_iter().flatten();
    all.filter_map(move |object| object.get(kind))
}

/// Every base chain for incoming packets has its say; a drop in one is final.
fn fate(rules: &Value, flow: &Flow) -> Fate {
    let concerns = |chain: &&Value| {
        let family = chain["family"].as_str().unwrap_or_default();
        let of_family = family == "inet" || family == if flow.is_v4 { "ip" } else { "ip6" };
        of_family
            && matches!(chain["hook"].as_str(), Some("input" | "prerouting"))
            && chain["type"] == "filter"
    };
    let mut all = Fate::Passes;
    for chain in objects(rules, "chain").filter(concerns) {
        let end = match walk(rules, chain, flow, 0) {
            Fate::GoesOn if chain["policy"] == "drop" => Fate::Dropped,
            other => other,
        };
        match end {
            Fate::Dropped => return Fate::Dropped,
            Fate::Depends => all = Fate::Depends,
            Fate::Passes | Fate::GoesOn | Fate::Returns => {}
        }
    }
    all
}

/// What the rules of a chain do; the verdict of none of them is `GoesOn`.
fn walk(rules: &Value, chain: &Value, flow: &Flow, depth: usize) -> Fate {
    if depth > DEPTH {
        return Fate::Depends;
    }
    let of_chain = |rule: &&Value| {
        rule["family"] == chain["family"]
            && rule["table"] == chain["table"]
            && rule["chain"] == chain["name"]
    };
    let mut unknown = false;
    for rule in objects(rules, "rule").filter(of_chain) {
        let expressions = rule["expr"].as_array().map_or(&[][..], Vec::as_slice);
        let matches = matches(expressions, flow);
        if matches == Some(false) {
            continue;
        }
        let verdict = expressions
            .iter()
            .find_map(|one| verdict(rules, chain, one, flow, depth));
        match (verdict.unwrap_or(Fate::GoesOn), matches) {
            (Fate::GoesOn, _) => {}
            (Fate::Returns, Some(true)) if !unknown => return Fate::GoesOn,
            (fate, Some(true)) if !unknown => return fate,
            // It decides, but another rule may have decided before.
            (_, Some(true)) => return Fate::Depends,
            _ => unknown = true,
        }
    }
    match unknown {
        true => Fate::Depends,
        false => Fate::GoesOn,
    }
}

fn verdict(
    rules: &Value,
    chain: &Value,
    expression: &Value,
    flow: &Flow,
    depth: usize,
) -> Option<Fate> {
    let (name, value) = expression.as_object()?.iter().next()?;
    match name.as_str() {
        "accept" => Some(Fate::Passes),
        "drop" | "reject" => Some(Fate::Dropped),
        "return" => Some(Fate::Returns),
        "jump" | "goto" => {
            let target = objects(rules, "chain").find(|other| {
                other["name"] == value["target"]
                    && other["table"] == chain["table"]
                    && other["family"] == chain["family"]
            })?;
            Some(match walk(rules, target, flow, depth + 1) {
                Fate::GoesOn if name == "goto" => Fate::Returns,
                fate => fate,
            })
        }
        // Rules of iptables, verdict maps, queues.
        "xt" | "vmap" | "queue" => Some(Fate::Depends),
        _ => None,
    }
}

/// Whether all conditions hold; `None`: that depends.
fn matches(expressions: &[Value], flow: &Flow) -> Option<bool> {
    let holds = |one: &Value| match one.as_object()?.keys().next()?.as_str() {
        "match" => condition(&one["match"], flow),
        // What came before decides.
        "limit" | "quota" | "ct count" => None,
        _ => Some(true),
    };
    let answers: Vec<Option<bool>> = expressions.iter().map(holds).collect();
    if answers.contains(&Some(false)) {
        return Some(false);
    }
    (!answers.contains(&None)).then_some(true)
}

fn condition(condition: &Value, flow: &Flow) -> Option<bool> {
    let (left, right) = (&condition["left"], &condition["right"]);
    let protocol = left["payload"]["protocol"].as_str();
    let other = if flow.is_v4 { "ip6" } else { "ip" };
    // A packet without such a header matches neither what it has nor what it has not.
    if matches!(protocol, Some("tcp" | "icmp" | "icmpv6" | "sctp")) || protocol == Some(other) {
        return Some(false);
    }
    let holds = match (
        left["meta"]["key"].as_str(),
        protocol,
        left["ct"]["key"].as_str(),
    ) {
        (Some("l4proto"), _, _) => contains(right, "udp", 17),
        (Some("nfproto"), _, _) => contains(right, if flow.is_v4 { "ipv4" } else { "ipv6" }, 0),
        (Some("iifname" | "iif"), _, _) => match (&flow.interface, right.as_str()) {
            (Some(name), Some(wanted)) if !wanted.starts_with('@') => {
                Some(match wanted.strip_suffix('*') {
                    Some(prefix) => name.starts_with(prefix),
                    None => name == wanted,
                })
            }
            _ => None,
        },
        (_, Some("udp" | "th"), _) if left["payload"]["field"] == "dport" => {
            contains(right, "", u64::from(flow.port))
        }
        (_, Some("ip"), _) if left["payload"]["field"] == "protocol" => contains(right, "udp", 17),
        (_, Some("ip6"), _) if left["payload"]["field"] == "nexthdr" => contains(right, "udp", 17),
        // The first datagram of a host is a new connection.
        (_, _, Some("state")) => contains(right, "new", 8),
        _ => None,
    };
    match condition["op"].as_str() {
        Some("!=") => holds.map(|holds| !holds),
        _ => holds,
    }
}

/// Whether a value, a set, or a range has a name or a number in it.
fn contains(value: &Value, name: &str, number: u64) -> Option<bool> {
    match value {
        // A set that has a name.
        Value::String(text) if text.starts_with('@') => None,
        Value::String(text) => Some(text == name),
        Value::Number(one) => Some(one.as_u64() == Some(number)),
        Value::Array(list) => any(list.iter().map(|one| contains(one, name, number))),
        Value::Object(object) => {
            let list = |name: &str| object.get(name).and_then(Value::as_array);
            if let Some(range) = list("range") {
                let [low, high] = range.as_slice() else {
                    return None;
                };
                return Some((low.as_u64()?..=high.as_u64()?).contains(&number));
            }
            any(list("set")?.iter().map(|one| contains(one, name, number)))
        }
        _ => None,
    }
}

fn any(answers: impl Iterator<Item = Option<bool>>) -> Option<bool> {
    let mut all = Some(false);
    for answer in answers {
        match answer {
            Some(true) => return Some(true),
            None => all = None,
            Some(false) => {}
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn chain(name: &str, policy: &str) -> Value {
        json!({"chain": {"family": "inet", "table": "t", "name": name, "type": "filter", "hook": "input", "policy": policy}})
    }

    fn rule(chain: &str, expr: Value) -> Value {
        json!({"rule": {"family": "inet", "table": "t", "chain": chain, "expr": expr}})
    }

    fn dport(right: Value) -> Value {
        json!({"match": {"op": "==", "left": {"payload": {"protocol": "udp", "field": "dport"}}, "right": right}})
    }

    fn is(key: &str, right: &str) -> Value {
        json!({"match": {"op": "==", "left": {"meta": {"key": key}}, "right": right}})
    }

    fn fate_of(objects: Vec<Value>) -> Fate {
        let flow = Flow {
            is_v4: true,
            port: 34998,
            interface: Some("eth0".to_owned()),
        };
        fate(&json!({"nftables": objects}), &flow)
    }

    #[test]
    fn the_first_rule_that_matches_decides_and_the_policy_at_the_end() {
        let (drop, accept) = (json!({"drop": null}), json!({"accept": null}));
        assert_eq!(fate_of(vec![]), Fate::Passes);
        assert_eq!(fate_of(vec![chain("c", "drop")]), Fate::Dropped);
        let open = |right: Value| rule("c", json!([dport(right), accept]));
        assert_eq!(
            fate_of(vec![chain("c", "drop"), open(json!(34998))]),
            Fate::Passes
        );
        assert_eq!(
            fate_of(vec![chain("c", "drop"), open(json!(22))]),
            Fate::Dropped
        );
        let range = json!({"set": [22, {"range": [30000, 40000]}]});
        assert_eq!(fate_of(vec![chain("c", "drop"), open(range)]), Fate::Passes);
        let closed = rule("c", json!([dport(json!(34998)), drop]));
        assert_eq!(fate_of(vec![chain("c", "accept"), closed]), Fate::Dropped);
    }

    #[test]
    fn other_interfaces_protocols_and_states_do_not_match() {
        let accept = json!({"accept": null});
        let here = rule("c", json!([is("iifname", "eth0"), accept]));
        assert_eq!(fate_of(vec![chain("c", "drop"), here]), Fate::Passes);
        let local = rule("c", json!([is("iifname", "lo"), accept]));
        assert_eq!(fate_of(vec![chain("c", "drop"), local]), Fate::Dropped);
        let state = |right: Value| {
            let condition =
                json!({"match": {"op": "in", "left": {"ct": {"key": "state"}}, "right": right}});
            rule("c", json!([condition, accept]))
        };
        let old = state(json!(["established", "related"]));
        assert_eq!(fate_of(vec![chain("c", "drop"), old]), Fate::Dropped);
        assert_eq!(
            fate_of(vec![chain("c", "drop"), state(json!(["new"]))]),
            Fate::Passes
        );
    }

    #[test]
    fn what_depends_on_more_is_unknown_unless_something_before_decides() {
        let (drop, accept) = (json!({"drop": null}), json!({"accept": null}));
        let from = json!({"match": {"op": "==", "left": {"payload": {"protocol": "ip", "field": "saddr"}}, "right": "10.0.0.1"}});
        let some = rule("c", json!([from, accept]));
        assert_eq!(
            fate_of(vec![chain("c", "drop"), some.clone()]),
            Fate::Depends
        );
        let all = rule("c", json!([drop]));
        assert_eq!(
            fate_of(vec![chain("c", "accept"), all.clone(), some]),
            Fate::Dropped
        );
        let jump = rule("c", json!([{"jump": {"target": "d"}}]));
        let target = json!({"chain": {"family": "inet", "table": "t", "name": "d"}});
        let inner = rule("d", json!([dport(json!(34998)), accept]));
        assert_eq!(
            fate_of(vec![chain("c", "accept"), target, jump, all, inner]),
            Fate::Passes
        );
    }

    #[test]
    fn a_chain_that_is_left_decides_nothing_more() {
        let drop = json!({"drop": null});
        let all = rule("c", json!([drop]));
        let returns = rule("c", json!([dport(json!(34998)), {"return": null}]));
        let end = |policy| fate_of(vec![chain("c", policy), returns.clone(), all.clone()]);
        assert_eq!(end("accept"), Fate::Passes);
        assert_eq!(end("drop"), Fate::Dropped);
        let target = json!({"chain": {"family": "inet", "table": "t", "name": "d"}});
        let to = |how: &str| rule("c", json!([{how: {"target": "d"}}]));
        let of_target = rule("d", json!([{"return": null}]));
        let end = |how| {
            let mut objects = vec![chain("c", "accept"), target.clone(), to(how), all.clone()];
            objects.push(of_target.clone());
            fate_of(objects)
        };
        assert_eq!(end("jump"), Fate::Dropped);
        assert_eq!(end("goto"), Fate::Passes);
    }

    #[test]
    fn packets_of_other_protocols_match_no_negation() {
        let not = |protocol: &str, field: &str, right: Value| {
            let left = json!({"payload": {"protocol": protocol, "field": field}});
            let condition = json!({"match": {"op": "!=", "left": left, "right": right}});
            let rule = rule("c", json!([condition, {"drop": null}]));
            fate_of(vec![chain("c", "accept"), rule])
        };
        assert_eq!(not("tcp", "dport", json!(22)), Fate::Passes);
        assert_eq!(not("ip6", "nexthdr", json!("tcp")), Fate::Passes);
        assert_eq!(not("udp", "dport", json!(22)), Fate::Dropped);
    }

    #[test]
    fn sets_with_names_and_limits_depend_on_more() {
        let accept = json!({"accept": null});
        for condition in [dport(json!("@open")), is("iifname", "@inside")] {
            let open = rule("c", json!([condition, accept]));
            assert_eq!(fate_of(vec![chain("c", "drop"), open]), Fate::Depends);
        }
        let limit = json!({"limit": {"rate": 100, "per": "second", "inv": true}});
        let flood = rule("c", json!([dport(json!(34998)), limit, {"drop": null}]));
        assert_eq!(fate_of(vec![chain("c", "accept"), flood]), Fate::Depends);
        let logged = rule("c", json!([limit, {"log": {"prefix": "gone"}}]));
        assert_eq!(fate_of(vec![chain("c", "drop"), logged]), Fate::Dropped);
    }

    #[test]
    fn a_drop_is_shown_with_the_command_that_opens_the_port() {
        let flow = |port| Flow {
            is_v4: true,
            port,
            interface: None,
        };
        let found = judge(&json!({"nftables": [chain("c", "drop")]}), &[flow(34998)]);
        assert_eq!(found[0].name(), "firewall");
        assert!(found[0].mend().unwrap().contains("udp dport 34998 accept"));
        let data = [
            chain("c", "drop"),
            rule("c", json!([dport(json!(34998)), {"accept": null}])),
        ];
        let found = judge(
            &json!({"nftables": data}),
            &[flow(34998), flow(32768), flow(60999)],
        );
        assert!(
            found[0]
                .mend()
                .unwrap()
                .contains("udp dport 32768-60999 accept")
        );
    }
}
