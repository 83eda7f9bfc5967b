//! `vip_perf` between two hosts: what it measures, and what it compares that with. No figure is judged.

use std::process::{Command, Output, Stdio};

use serde_json::Value;
use vipl_ctest::{Run, library_dir};
use vipl_netns::{Apart, INTERFACE, Namespaces};

/// Runs `vip_perf` on host 0 with its partner on host 1.
fn vip_perf(hosts: &Namespaces, arguments: &[&str]) -> Output {
    let mut command = hosts.command(0, env!("CARGO_BIN_EXE_vip_perf"));
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("VIPL_") {
            command.env_remove(name);
        }
    }
    command
        .env("VIPL_LIBRARY", library_dir().join("libvipl.so.1"))
        .env("VIPL_CONFIG", "/dev/null")
        .args(["--self", "--netns", hosts.name(1), "--json"])
        .args(["--runs", "1", "-n", "200"])
        .args(arguments)
        .stdin(Stdio::null());
    command.output().expect("ip netns exec")
}

fn ip(hosts: &Namespaces, host: usize, arguments: &[&str]) {
    let mut command = Command::new("ip");
    command.args(["-n", hosts.name(host)]).args(arguments);
    assert!(command.status().expect("ip").success(), "{arguments:?}");
}

/// Two hosts whose interfaces have no IP addresses.
fn hosts() -> Option<Namespaces> {
    let hosts = Namespaces::pair()
        .map_err(|why| println!("SKIP network namespaces: {why}"))
        .ok()?;
    for host in 0..2 {
        ip(
            &hosts,
            host,
            &["link", "set", INTERFACE, "addrgenmode", "none"],
        );
        ip(&hosts, host, &["address", "flush", "dev", INTERFACE]);
    }
    Some(hosts)
}

/// The names of each test's limits, every one of them with a value and a ratio.
fn limits(output: &Output) -> Vec<(String, Vec<String>)> {
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let answer: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let results = answer["results"].as_array().expect("results");
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let of_test = |result: &Value| {
        let limits = result["limits"].as_array().expect("limits");
        for limit in limits {
            for what in ["value", "ratio"] {
                let number = limit[what].as_f64();
                assert!(number.is_some_and(|number| number > 0.0), "{result}");
            }
        }
        let names = limits.iter().map(|limit| text(&limit["name"])).collect();
        (text(&result["test"]), names)
    };
    results.iter().map(of_test).collect()
}

fn expect(output: &Output, wanted: &[(&str, &[&str])]) {
    let wanted = wanted.iter().map(|(test, limits)| {
        let limits = limits.iter().map(|name| (*name).to_owned());
        ((*test).to_owned(), limits.collect())
    });
    assert_eq!(limits(output), wanted.collect::<Vec<_>>());
}

#[test]
fn figures_are_divided_by_those_of_the_interface() {
    let Some(hosts) = hosts() else { return };
    let tests = ["latency", "bandwidth", "rate", "-s", "64", "--limits"];

    let without = vip_perf(&hosts, &[&["-d", "tulip:eth0"], &tests[..]].concat());
    let all: [(&str, &[&str]); 3] = [
        ("latency", &["raw frames"]),
        ("bandwidth", &["raw stream"]),
        ("rate", &["64 B raw frames"]),
    ];
    expect(&without, &all);
    let said = String::from_utf8_lossy(&without.stderr);
    assert!(said.contains("TCP is not measured: the two eth0"), "{said}");

    for (host, address) in [(0, "10.0.0.1/24"), (1, "10.0.0.2/24")] {
        ip(&hosts, host, &["address", "add", address, "dev", INTERFACE]);
        hosts.set_mtu(host, 9000);
    }
    // Messages that do not fit into a frame are compared with TCP alone.
    let latency = ["latency", "-s", "64,65536", "--limits", "-d", "gnic2:eth0"];
    let with = vip_perf(&hosts, &latency);
    let both: [(&str, &[&str]); 2] = [
        ("latency", &["raw frames", "UDP", "TCP"]),
        ("latency", &["TCP"]),
    ];
    expect(&with, &both);
}

#[test]
fn a_device_that_is_not_there_is_an_error() {
    let Some(hosts) = hosts() else { return };
    let output = vip_perf(&hosts, &["-d", "tulip:eth1", "latency", "--limits"]);
    assert!(!output.status.success());
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("tulip:eth1"), "{said}");
}

/// `vipinfo` of one host with an agent of the other, as where two containers share `/run/vipl`.
#[test]
fn an_agent_of_another_network_namespace_is_refused() {
    let Some(hosts) = hosts() else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let socket = folder.path().join("agent");
    let mut agent = hosts
        .command(1, library_dir().join("vipkad").to_str().expect("a path"))
        .args(["--foreground", "--idle-ms", "0", "--socket"])
        .arg(&socket)
        .env("VIPL_LOG", "off")
        .stdin(Stdio::null())
        .spawn()
        .expect("vipkad");
    let info = |host: usize| {
        let mut command = hosts.command(host, env!("CARGO_BIN_EXE_vipinfo"));
        command
            .env("VIPL_LIBRARY", library_dir().join("libvipl.so.1"))
            .env("VIPL_CONFIG", "/dev/null")
            .env("VIPL_AGENT", &socket)
            .env("VIPL_LOG", "error")
            .args(["-v", "-d", &format!("tulip:{INTERFACE}")]);
        let output = command.output().expect("ip netns exec");
        let text = [output.stdout, output.stderr].concat();
        (
            output.status.success(),
            String::from_utf8_lossy(&text).into_owned(),
        )
    };
    while !socket.exists() {
        assert!(agent.try_wait().expect("vipkad").is_none(), "it has ended");
        std::thread::yield_now();
    }
    let (right, wrong) = (info(1), info(0));
    agent.kill().expect("vipkad");
    agent.wait().expect("vipkad");
    assert!(right.0, "{}", right.1);
    assert!(
        right.1.contains("at the Kernel Agent") && right.1.contains("pending requests"),
        "{}",
        right.1
    );
    let expected = format!("{INTERFACE}: the running Kernel Agent is in another network");
    assert!(!wrong.0 && wrong.1.contains(&expected), "{}", wrong.1);
}

/// `vipinfo` names the plug-in that a user gets: for a plain user, the names of raw Ethernet are those of UDP.
#[test]
fn vipinfo_tells_what_a_plain_user_gets() {
    let Ok(hosts) = Namespaces::pair().map_err(|why| println!("SKIP network namespaces: {why}"))
    else {
        return;
    };
    let vipinfo = |apart: &Apart, arguments: &[&str]| {
        let run = Run::strict(env!("CARGO_BIN_EXE_vipinfo"))
            .env("VIPL_LIBRARY", apart.library().join("libvipl.so.1"));
        let run = arguments
            .iter()
            .fold(run, |run, argument| run.arg(argument));
        let finished = apart.on_first_host(run).finish();
        assert!(finished.status.success(), "{}", finished.report("vipinfo"));
        finished.stdout
    };
    let served = |text: &str, name: &str| {
        let line = text.lines().find(|line| line.starts_with(name));
        let word = line.and_then(|line| line.split_whitespace().nth(1));
        word.unwrap_or_else(|| panic!("{name}: {text}")).to_owned()
    };
    let (via, address) = (format!("via_{INTERFACE}"), hosts.ipv4(0).to_string());
    for (plain, ethernet, best) in [(false, "gnic2:eth0", "loopback:"), (true, "ip:eth0", "ip:")] {
        let apart = match plain {
            false => Apart::new(&hosts),
            true => Apart::of_user(&hosts, 65_530),
        };
        let map = vipinfo(&apart, &["-m", &via, "VINIC"]);
        assert_eq!(served(&map, &via), ethernet, "{map}");
        assert_eq!(served(&map, "VINIC"), best, "{map}");
        let list = vipinfo(&apart, &[]);
        let of_device = list.split_once(&format!("{via}\n")).expect(&list).1;
        assert_eq!(
            served(of_device.trim_start(), "plug-in"),
            ethernet,
            "{list}"
        );
        assert_eq!(of_device.contains(&address), best == "ip:", "{list}");
    }
}
