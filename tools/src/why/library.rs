//! The library, its settings and plug-ins, the Kernel Agent, and the device.

use serde_json::Value;
use vipl_client::Library;

use super::log::Log;
use super::page::Page;
use super::{Finding, Kind};
use crate::answering::{self, Answer};
use crate::nic::{Nic, address_text};
use crate::{Result, host};

/// The share of a budget, in tenths, from which it is nearly used up.
const NEARLY: u64 = 9;

/// The device.
pub(super) struct Device {
    /// None if it does not open.
    pub(super) nic: Option<Nic>,
    pub(super) log: Log,
    /// The plug-in that serves it, and the argument; empty if the library does not say.
    pub(super) plugin: String,
    pub(super) argument: String,
}

/// Everything up to the device; none if no plug-in serves it.
pub(super) fn check(device: &str, page: &mut Page) -> Result<Option<Device>> {
    let log = Log::take();
    let vipl = match host::library() {
        Ok(vipl) => vipl,
        Err(error) => {
            let mend = "install it, or set VIPL_LIBRARY=/path/to/libvipl.so.1";
            page.add(vec![
                Kind::NoLibrary.found(error.to_string()).mended_by(mend),
            ])?;
            return Ok(None);
        }
    };
    let version = host::describe(vipl, "version").unwrap_or_default();
    log.taken();
    let own = version["library"].as_str().unwrap_or("of unknown version");
    let file = vipl.path().display();
    page.add(vec![Finding::fine("library", format!("{own}, {file}"))])?;
    page.add(plugins(vipl))?;
    // Each refusal is also a line of the log.
    let lines = log.lines();
    let settings = lines.into_iter().filter(|line| line.subsystem != "plugin");
    page.add(settings.map(super::log::finding).collect())?;
    match agent(vipl, &version, &log) {
        Ok(found) => page.add(found)?,
        Err(silent) => {
            let why = "not looked at, nor the network behind it, since the agent does not answer";
            page.add(vec![silent, Finding::unknown("device", why)])?;
            return Ok(None);
        }
    }
    device_of(vipl, device, log, page)
}

fn plugins(vipl: &Library) -> Vec<Finding> {
    let Some(plugins) = host::describe(vipl, "plugins") else {
        let why = "this VIPL library does not describe itself (vipl_describe)";
        return vec![Finding::unknown("plug-ins", why)];
    };
    let word = |plugin: &Value, name: &str| plugin[name].as_str().unwrap_or_default().to_owned();
    let all = plugins.as_array().cloned().unwrap_or_default();
    let (loaded, refused): (Vec<_>, Vec<_>) = all.iter().partition(|p| p["state"] == "loaded");
    let names: Vec<String> = loaded.iter().map(|plugin| word(plugin, "name")).collect();
    let mut found = vec![if names.is_empty() {
        Kind::NoPlugins
            .found(format!("none beside {} and in its folder vipl/abi1", vipl.path().display()))
            .mended_by("install the whole package, or set VIPL_PLUGIN_PATH to their folder; check VIPL_PLUGINS")
    } else {
        Finding::fine("plug-ins", names.join(", "))
    }];
    found.extend(refused.iter().map(|plugin| {
        let (path, reason) = (word(plugin, "path"), word(plugin, "reason"));
        Kind::RefusedPlugin
            .found(format!("{path}: {reason}"))
            .mended_by(format!(
                "install the plug-in of this version, or remove the file: rm {path}"
            ))
    }));
    found
}

/// Which agent serves, and how much of it is left. It is started if there is none, as a program does. The error is that it
/// does not answer.
fn agent(
    vipl: &'static Library,
    version: &Value,
    log: &Log,
) -> std::result::Result<Vec<Finding>, Finding> {
    if version["agent"] == "off" {
        return Ok(vec![
            Kind::PrivateAgent
                .found("VIPL_AGENT=off")
                .mended_by("unset VIPL_AGENT (and `agent` in vipl.conf)"),
        ]);
    }
    let answer = answering::ask(vipl, "vipinfo");
    let said = log.why();
    let budgets = match answer {
        Answer::Given(Some(budgets)) => budgets,
        Answer::Given(None) => {
            let why = said.unwrap_or_else(|| "none answers".to_owned());
            return Ok(vec![no_agent(why)]);
        }
        Answer::Silent(why) => return Err(no_agent(said.unwrap_or(why))),
    };
    let of = |budget: &Value| {
        let number = |name: &str| budget[name].as_u64().unwrap_or(0);
        let (used, limit) = (number("used"), number("limit"));
        let is_full = limit > 0 && used * 10 >= limit * NEARLY;
        is_full.then(|| {
            let name = budget["name"].as_str().unwrap_or_default();
            Kind::Budget
                .found(format!("{used} of {limit} {name}"))
                .mended_by("end programs that are not needed; vipinfo -v shows all budgets")
        })
    };
    let full: Vec<Finding> = budgets["budgets"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(of)
        .collect();
    let who = budgets["agent"].as_str().unwrap_or("unknown").to_owned();
    let mut found = vec![Finding::fine("agent", who.clone())];
    found.extend(condition(
        &who,
        version["library"].as_str().unwrap_or_default(),
    ));
    found.extend(said.map(|said| Kind::Warning.found(said)));
    match full.as_slice() {
        [] => found.push(Finding::fine(
            "budgets",
            "less than nine tenths of each is used",
        )),
        _ => found.extend(full),
    }
    Ok(found)
}

fn no_agent(why: String) -> Finding {
    let mend = match why.contains("has not replied") {
        true => "kill -CONT the process that is named, or kill it",
        false => "vipkad --foreground, to see what it says; or as the line says",
    };
    Kind::NoAgent.found(why).mended_by(mend)
}

/// What the agent's description of itself says against it.
fn condition(agent: &str, library: &str) -> Vec<Finding> {
    let mut found = Vec::new();
    let version = agent.split_once("version ").map(|(_, rest)| {
        let end = rest.find([',', ')', ';']).unwrap_or(rest.len());
        &rest[..end]
    });
    if let Some(version) = version
        && version != library
    {
        found.push(
            Kind::OtherAgent
                .found(format!(
                    "the agent has version {version}, the library {library}"
                ))
                .mended_by(
                    "systemctl restart vipkad; a user's own agent exits with its last program",
                ),
        );
    }
    let marks = ["seccomp filter", "another mount namespace", "no /proc"];
    if let Some(mark) = marks.iter().find(|mark| agent.contains(**mark)) {
        found.push(
            Kind::ConfinedAgent
                .found(format!("the agent runs with: {mark}"))
                .mended_by("end it, and start `vipkad` from a login before the programs"),
        );
    }
    found
}

fn device_of(
    vipl: &'static Library,
    device: &str,
    log: Log,
    page: &mut Page,
) -> Result<Option<Device>> {
    let route = host::describe(vipl, &format!("map {device}")).unwrap_or_default();
    let word = |name: &str| route[name].as_str().unwrap_or_default().to_owned();
    if let Some(error) = route["error"].as_str() {
        let mend = "vipinfo lists the devices; vipinfo -m NAME says which plug-in serves a name";
        page.add(vec![Kind::UnknownDevice.found(error).mended_by(mend)])?;
        return Ok(None);
    }
    let (plugin, argument) = (word("plugin"), word("argument"));
    let target = format!("{device} is {plugin}:{argument}, since {}", word("reason"));
    let mut found = vec![Finding::fine("device name", target)];
    let short = device.trim_start_matches("/dev/");
    if plugin == "ip" && (short.starts_with("via_") || short.starts_with("VINIC")) {
        let mend = "as root: vipkad --system & usermod -aG vipl USER; then log in again";
        found.push(
            Kind::OverUdp
                .found(format!("{device} is ip:{argument}"))
                .mended_by(mend),
        );
    }
    page.add(found)?;
    let nic = match Nic::open(vipl, device) {
        Ok(nic) => {
            let (attributes, address) = (nic.attributes(), address_text(nic.attributes()));
            let levels = attributes.reliability.to_string();
            let opens = format!("opens; address {address}; {levels}");
            page.add(vec![Finding::fine("device", opens)])?;
            Some(nic)
        }
        Err(error) => {
            let why = log.why().map_or(String::new(), |why| format!(": {why}"));
            let found = Kind::ClosedDevice.found(format!("{error}{why}"));
            page.add(vec![found.mended_by(what_opens(&plugin))])?;
            None
        }
    };
    Ok(Some(Device {
        nic,
        log,
        plugin,
        argument,
    }))
}

/// Where the reason lies when a plug-in's device does not open.
fn what_opens(plugin: &str) -> &'static str {
    match plugin {
        "tulip" | "gnic2" => {
            "as root: vipkad --system & usermod -aG vipl USER; without root: ip:INTERFACE"
        }
        "ip" => "ip addr; ss -ulpn; VIPL_UDP_PORT chooses another port",
        "verbs" => {
            "rdma link; ulimit -l unlimited; vipinfo -v lists RDMA devices and what they lack"
        }
        _ => "as the line says; docs/TROUBLESHOOTING.md explains it",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_agent_of_another_version_or_confined_is_found() {
        let agent =
            "process 820 (/usr/libexec/vipl/vipkad, version 0.1.0), the system's, for all users";
        assert_eq!(condition(agent, "0.1.0"), []);
        let old = condition(agent, "0.2.0");
        assert_eq!(old[0].name(), "other-agent");
        assert_eq!(
            old[0].found(),
            "the agent has version 0.1.0, the library 0.2.0"
        );
        let confined = agent.replace("0.1.0)", "0.1.0, which runs with a seccomp filter)");
        assert_eq!(condition(&confined, "0.1.0")[0].name(), "confined-agent");
    }

    #[test]
    fn a_stopped_agent_is_not_taken_for_a_missing_one() {
        let stopped = no_agent("process 7 has not replied for 30 s".to_owned());
        assert!(stopped.mend().unwrap().contains("kill -CONT"));
        assert!(!no_agent("none".to_owned()).mend().unwrap().contains("CONT"));
    }
}
