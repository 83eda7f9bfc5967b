//! A plain user on two hosts: the names of raw Ethernet, which it may not use, and "the best device". Two users on one
//! host.

use std::process::Command;

use vipl_ctest::{Run, program};
use vipl_netns::{Apart, INTERFACE, Namespaces};

/// Likely no user of this machine; nor is the next number.
const USER: u32 = 65_530;

fn hosts() -> Option<Namespaces> {
    if Command::new("setpriv").arg("--version").output().is_err() {
        println!("SKIP plain users: no setpriv");
        return None;
    }
    Namespaces::pair()
        .map_err(|why| println!("SKIP network namespaces: {why}"))
        .ok()
}

fn named(apart: &Apart, name: &str, device: &str) -> Run {
    let run = apart.run(name, "").without("VIPL_DEVICE_MAP");
    run.env("VIPL_DEVICE", device).env("VIPL_LOG", "info")
}

/// The names of Ethernet lead to UDP, on both hosts, and the log says so.
#[test]
fn names_of_ethernet_lead_to_udp() {
    let Some(hosts) = hosts() else { return };
    let apart = Apart::of_user(&hosts, USER);
    let via = format!("via_{INTERFACE}");
    for (device, to) in [
        (
            format!("/dev/{via}"),
            format!("{via} is served by ip:{INTERFACE} "),
        ),
        ("VINIC".to_owned(), "VINIC is served by ip: ".to_owned()),
    ] {
        for name in ["tour", "rdma"] {
            let finished = named(&apart, name, &device).pass();
            let said = finished.log(&["info"]);
            let lines = said.iter().filter(|line| line.contains(&to)).count();
            assert!(lines >= 2, "{}", finished.report("both sides tell"));
        }
    }
}

/// Two users of one host, each with an agent and both with the same secret, find each other over UDP: their agents have a
/// port each. Without a secret they do not: kagent's `users_of_one_host_are_strangers`.
#[test]
fn two_users_of_one_host_connect_with_a_secret() {
    let Some(hosts) = hosts() else { return };
    let secret = "of two users, and of nobody else";
    let apart = Apart::of_users(&hosts, [USER, USER + 1], secret);
    for name in ["tour", "rdma", "peer"] {
        apart.run(name, "ip:").pass();
    }
}

/// What a process may have is not replaced.
#[test]
fn where_ethernet_is_permitted_it_is_used() {
    let Some(hosts) = hosts() else { return };
    let apart = Apart::new(&hosts);
    let device = format!("/dev/via_{INTERFACE}");
    let finished = named(&apart, "tour", &device).pass();
    assert!(
        finished.stderr.contains("is served by gnic2:eth0"),
        "{}",
        finished.report("raw Ethernet")
    );
    let on_one = Run::strict(program("simple")).env("VIPL_DEVICE", "VINIC");
    let finished = apart.on_first_host(on_one.env("VIPL_LOG", "info")).pass();
    assert!(
        finished.stderr.contains("VINIC is served by loopback:"),
        "{}",
        finished.report("VINIC")
    );
}

/// A host without a network has the best device for its own processes, which is loopback, for every user.
#[test]
fn without_a_network_the_best_device_is_loopback() {
    let Some(hosts) = hosts() else { return };
    hosts.set_up(0, false);
    let apart = Apart::of_user(&hosts, USER);
    let run = Run::strict(program("simple")).env("VIPL_DEVICE", "VINIC");
    let finished = apart.on_first_host(run.env("VIPL_LOG", "info")).pass();
    assert!(
        finished.stderr.contains("VINIC is served by loopback:"),
        "{}",
        finished.report("VINIC")
    );
}
