//! `vip_perf` between two hosts: what it measures, and what it compares that with. No figure is judged.

use std::process::{Command, Output};

use serde_json::Value;
use vipl_ctest::with_library;
use vipl_netns::{INTERFACE, Namespaces};

/// Runs `vip_perf` on host 0 with its peer on host 1.
fn vip_perf(hosts: &Namespaces, arguments: &[&str]) -> Output {
    let mut command = hosts.command(0, env!("CARGO_BIN_EXE_vip_perf"));
    with_library(&mut command);
    command
        .args(["--self", "--netns", hosts.name(1), "--json"])
        .args(["--runs", "1", "-n", "200"])
        .args(arguments);
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
    let stdout = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stdout}");
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
    let stdout = String::from_utf8_lossy(&without.stderr);
    assert!(
        stdout.contains("TCP is not measured: the two eth0"),
        "{stdout}"
    );

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
    let stdout = String::from_utf8_lossy(&output.stderr);
    assert!(stdout.contains("tulip:eth1"), "{stdout}");
}
