//! `vipinfo --why` where something is wrong, and where nothing is.

use std::io::{BufRead, BufReader};
use std::process::Stdio;

use serde_json::Value;
use vipl_ctest::{Agent, end_with_parent, fails_without_output, tool, with_library};
use vipl_netns::{Apart, INTERFACE, Namespaces};

const INFO: &str = env!("CARGO_BIN_EXE_vipinfo");

/// A finding of an answer.
fn finding<'a>(answer: &'a Value, name: &str) -> Option<&'a Value> {
    let mut all = answer["findings"].as_array().expect("findings").iter();
    all.find(|finding| finding["name"] == name)
}

/// Asks with these variables; gives the exit code and the answer.
fn ask(variables: &[(&str, &str)], arguments: &[&str]) -> (Option<i32>, Value) {
    let mut command = tool(INFO, &[&["--json", "--why"], arguments].concat());
    let output = command
        .envs(variables.iter().copied())
        .output()
        .expect("vipinfo");
    let text = String::from_utf8_lossy(&output.stdout);
    let answer = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
    (output.status.code(), answer)
}

/// What is wrong decides the exit code, and is told with what mends it.
#[test]
fn what_is_wrong_is_found_and_mended() {
    let (code, answer) = ask(&[], &["nosuch"]);
    assert_eq!(code, Some(1), "{answer}");
    let unknown = finding(&answer, "unknown-device").unwrap_or_else(|| panic!("{answer}"));
    assert!(
        unknown["found"]
            .to_string()
            .contains("VIPL_DEVICE_MAP='nosuch="),
        "{unknown}"
    );
    assert_eq!(answer["verdict"], "broken");

    let (code, answer) = ask(&[("VIPL_AGENT", "off")], &["loopback:"]);
    assert_eq!(code, Some(1), "{answer}");
    let private = finding(&answer, "private-agent").unwrap_or_else(|| panic!("{answer}"));
    assert!(
        private["mend"].to_string().contains("unset VIPL_AGENT"),
        "{private}"
    );

    let (code, answer) = ask(&[("VIPL_STRIKT", "1")], &["loopback:"]);
    let setting = finding(&answer, "setting").unwrap_or_else(|| panic!("{answer}"));
    assert!(
        setting["found"].to_string().contains("VIPL_STRIKT"),
        "{setting}"
    );
    assert_eq!(code, Some(3), "{answer}");

    let (code, answer) = ask(&[("VIPL_PLUGINS", "none")], &["loopback:"]);
    assert_eq!(code, Some(1), "{answer}");
    assert!(finding(&answer, "no-plug-ins").is_some(), "{answer}");

    let (code, answer) = ask(&[("VIPL_AGENT", "/nowhere/agent")], &["loopback:"]);
    assert_eq!(code, Some(1), "{answer}");
    assert!(finding(&answer, "no-agent").is_some(), "{answer}");
    assert!(finding(&answer, "closed-device").is_some(), "{answer}");
}

/// No library: there is an answer all the same.
#[test]
fn without_a_library_there_is_an_answer() {
    let (code, answer) = ask(&[("VIPL_LIBRARY", "/nowhere/libvipl.so.1")], &[]);
    assert_eq!(code, Some(1), "{answer}");
    assert!(finding(&answer, "no-library").is_some(), "{answer}");
    assert!(finding(&answer, "system calls").is_some(), "{answer}");
}

/// A plug-in that is refused is told by its file, with the others in use.
#[test]
fn a_refused_plugin_is_found() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("libvipl_broken.so");
    std::fs::write(&file, "no library").expect("a file");
    let path = folder.path().to_string_lossy().into_owned();
    let (code, answer) = ask(&[("VIPL_PLUGIN_PATH", &path)], &["loopback:"]);
    let refused = finding(&answer, "refused-plug-in").unwrap_or_else(|| panic!("{answer}"));
    let found = refused["found"].to_string();
    assert!(found.contains("libvipl_broken.so: "), "{refused}");
    assert!(finding(&answer, "device").is_some(), "{answer}");
    assert_eq!(code, Some(3), "{answer}");
}

/// Nothing is wider than the terminal.
#[test]
fn answers_fit_the_terminal() {
    for (columns, device) in [("40", "nosuch"), ("80", "loopback:")] {
        let mut command = tool(INFO, &["--why", device]);
        let output = command.env("COLUMNS", columns).output().expect("vipinfo");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let most = columns.parse().expect("a number");
        let wide = text.lines().find(|line| line.chars().count() > most);
        assert_eq!(wide, None, "{text}");
        assert!(text.contains("plug-ins: "), "{text}");
    }
}

#[test]
fn no_output_at_all_is_an_error() {
    fails_without_output(INFO, &["--why"]);
}

/// A stopped agent is named, and what needs it is left out and said: one wait in all, not one for each call.
#[test]
fn a_stopped_agent_is_asked_once() {
    let folder = tempfile::tempdir().expect("a folder");
    let agent = Agent::start_in(folder.path()).expect("an agent");
    let socket = agent.socket().to_string_lossy().into_owned();
    let asked = |arguments: &[&str]| {
        let mut command = tool(INFO, arguments);
        let output = command.env("VIPL_AGENT", &socket).output();
        let output = output.expect("vipinfo");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        (output.status.code(), text, said)
    };
    let (code, text, said) = asked(&["-m", "via_lo"]);
    assert_eq!(code, Some(0), "{text}{said}");

    let process = agent.process();
    agent.stop();
    let waits = format!("vipinfo: waiting for the Kernel Agent, process {process} (");
    let resumes = format!("`kill -CONT {process}` resumes it");
    let (code, text, said) = asked(&["--json", "--why", "via_lo", "127.0.0.1"]);
    let answer: Value = serde_json::from_str(&text).expect("an answer");
    assert_eq!(code, Some(1), "{answer}");
    let silent = finding(&answer, "no-agent").unwrap_or_else(|| panic!("{answer}"));
    assert!(silent["found"].to_string().contains(&resumes), "{silent}");
    assert!(
        silent["mend"].to_string().contains("kill -CONT"),
        "{silent}"
    );
    let device = finding(&answer, "device").unwrap_or_else(|| panic!("{answer}"));
    assert_eq!(device["verdict"], "unknown", "{device}");
    assert!(
        device["found"].to_string().contains("not looked at"),
        "{device}"
    );
    // What does not need the agent.
    assert!(finding(&answer, "system calls").is_some(), "{answer}");
    assert!(said.contains(&waits), "{said}");

    for arguments in [&["-v"][..], &["-d", "sim:"], &["-m", "via_lo"]] {
        let (code, text, said) = asked(arguments);
        assert_eq!((code, &*text), (Some(1), ""), "{said}");
        assert!(said.contains(&waits) && said.contains(&resumes), "{said}");
        let rest = "Devices are not looked at, since the agent does not answer";
        assert!(said.contains(rest), "{said}");
        // Nothing else was asked, or it would have been said.
        assert_eq!(said.lines().count(), 2, "{said}");
    }
    // No agent is needed for these.
    let (code, text, said) = asked(&["-m", "sim:"]);
    assert_eq!((code, &*said), (Some(0), ""), "{text}");
    let (code, text, said) = asked(&["-e"]);
    assert_eq!((code, &*said), (Some(0), ""), "{text}");
}

/// Another host: first nothing listens there, then its agent answers; then a rule of this host's firewall drops what
/// comes, and the path carries less than the interface.
#[test]
fn the_way_to_another_host() {
    let hosts = match Namespaces::pair() {
        Ok(hosts) => hosts,
        Err(why) => return println!("SKIP network namespaces: {why}"),
    };
    let peer = hosts.ipv4(1).to_string();
    let device = format!("ip:{INTERFACE}");
    let ask = |apart: &Apart| {
        let run = vipl_ctest::Run::strict(INFO)
            .env("VIPL_LIBRARY", apart.library().join("libvipl.so.1"))
            .args(&["--json", "--why", &device, &peer]);
        let finished = apart.on_first_host(run).finish();
        let answer = serde_json::from_str::<Value>(&finished.stdout);
        let answer =
            answer.unwrap_or_else(|error| panic!("{error}: {}", finished.report("vipinfo")));
        (finished.status.code(), answer)
    };
    let apart = Apart::new(&hosts);
    let (code, answer) = ask(&apart);
    assert_eq!(code, Some(1), "{answer}");
    let silent = finding(&answer, "unreached").unwrap_or_else(|| panic!("{answer}"));
    assert!(
        silent["found"]
            .to_string()
            .contains("nothing listens at UDP port 34998"),
        "{silent}"
    );
    assert!(finding(&answer, "interface").is_some(), "{answer}");

    let mut server = hosts.command(1, env!("CARGO_BIN_EXE_vip_pingpong"));
    with_library(&mut server);
    server
        .env("VIPL_AGENT", "off")
        .args(["-d", &device])
        .stderr(Stdio::piped());
    end_with_parent(&mut server);
    let mut server = server.spawn().expect("vip_pingpong");
    let mut said = BufReader::new(server.stderr.take().expect("a pipe"));
    let mut line = String::new();
    said.read_line(&mut line).expect("a line");
    assert!(line.starts_with("waiting for a client"), "{line}");
    let (_, answer) = ask(&apart);
    let answers = finding(&answer, "agent of the host").unwrap_or_else(|| panic!("{answer}"));
    assert_eq!(answers["verdict"], "ok", "{answer}");

    hosts.set_mtu(1, 900);
    let (_, answer) = ask(&apart);
    let narrow = ["small-path", "black-hole"];
    assert!(
        narrow.iter().any(|name| finding(&answer, name).is_some()),
        "{answer}"
    );
    hosts.set_mtu(1, 1500);
    server.kill().expect("the server");
    server.wait().expect("the server");

    let nft = |rules: &str| {
        let mut nft = hosts.command(0, "nft");
        nft.arg(rules).status().is_ok_and(|status| status.success())
    };
    if !nft(
        "add table inet t; add chain inet t c { type filter hook input priority 0; policy drop; }",
    ) {
        return println!("SKIP the firewall: no nft");
    }
    let (code, answer) = ask(&apart);
    let closed = finding(&answer, "firewall").unwrap_or_else(|| panic!("{answer}"));
    assert!(
        closed["mend"]
            .to_string()
            .contains("udp dport 34998 accept"),
        "{closed}"
    );
    assert_eq!(code, Some(1), "{answer}");

    hosts.cut(1);
    let (code, answer) = ask(&apart);
    let cut = finding(&answer, "interface").unwrap_or_else(|| panic!("{answer}"));
    assert_eq!(
        (code, cut["verdict"].as_str()),
        (Some(1), Some("broken")),
        "{answer}"
    );
}
