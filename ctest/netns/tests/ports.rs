//! Interfaces that receive nothing: ports of a bridge or a bond, which are refused, also when they become one while they are
//! in use; and an address that the host does not have any more.

use std::time::{Duration, Instant};

use vipl_ctest::{Run, program};
use vipl_netns::{Apart, INTERFACE, Namespaces};

const MASTER: &str = "m0";

fn skipped(made: Result<Namespaces, String>) -> Option<Namespaces> {
    made.map_err(|why| println!("SKIP network namespaces: {why}"))
        .ok()
}

/// Runs `ip link` on host 0; false: it has complained.
fn link(hosts: &Namespaces, words: &str) -> bool {
    let mut command = hosts.command(0, "ip");
    command.arg("link").args(words.split(' '));
    command.output().expect("ip").status.success()
}

/// A program on host 0 alone.
fn on_host(apart: &Apart, name: &str, device: &str) -> Run {
    apart.on_first_host(Run::strict(program(name)).env("VIPL_DEVICE", device))
}

#[test]
fn ports_of_bridges_and_bonds_are_refused() {
    let Some(hosts) = skipped(Namespaces::pair()) else {
        return;
    };
    let apart = Apart::new(&hosts);
    for kind in ["bridge", "bond", "team"] {
        if !link(&hosts, &format!("add {MASTER} type {kind}")) {
            assert_ne!(kind, "bridge", "every kernel has bridges");
            println!("SKIP {kind}: this kernel has none");
            continue;
        }
        link(&hosts, &format!("set {INTERFACE} down"));
        assert!(link(&hosts, &format!("set {INTERFACE} master {MASTER} up")));
        for card in ["gnic2", "tulip", "clan"] {
            let finished = on_host(&apart, "simple", &format!("{card}:{INTERFACE}")).finish();
            let refused = format!("{INTERFACE} is a port of {MASTER}, which takes its frames");
            let is_refused = finished.stderr.contains(&refused);
            let report = finished.report("a port is refused by the name of its master");
            assert!(is_refused && finished.complaint().is_some(), "{report}");
        }
        // No plug-in claims it, either.
        let named = on_host(&apart, "simple", &format!("/dev/via_{INTERFACE}"));
        let finished = named.env("VIPL_LOG", "info").finish();
        let report = finished.report("a port has no device");
        assert!(!finished.stderr.contains("is served by"), "{report}");
        assert!(link(&hosts, &format!("set {INTERFACE} nomaster")));
        assert!(link(&hosts, &format!("del {MASTER}")));
        on_host(&apart, "simple", &format!("gnic2:{INTERFACE}")).pass();
    }
}

/// A VLAN's interface receives its frames, and so does the one below it.
#[test]
fn interfaces_of_vlans_work() {
    let Some(hosts) = skipped(Namespaces::pair()) else {
        return;
    };
    for host in 0..2 {
        let add = format!("link add link {INTERFACE} name vlan5 type vlan id 5");
        for words in [&*add, "link set vlan5 up"] {
            let mut command = hosts.command(host, "ip");
            let output = command.args(words.split(' ')).output().expect("ip");
            if !output.status.success() {
                return println!("SKIP VLANs: this kernel has none: {output:?}");
            }
        }
    }
    let apart = Apart::new(&hosts);
    for device in ["gnic2:vlan5", "tulip:vlan5", &format!("gnic2:{INTERFACE}")] {
        apart.run("tour", device).pass();
    }
}

/// A server that waits for clients is told when something happens to its host, as it says in the log.
fn reported(device: &str, open: &str, what: impl FnOnce(&Namespaces), text: &str) {
    let Some(hosts) = skipped(Namespaces::pair()) else {
        return;
    };
    let apart = Apart::new(&hosts);
    let run = on_host(&apart, "deaf", device);
    let run = [text, "has failed", "VIP_ERROR_CATASTROPHIC"]
        .into_iter()
        .fold(run, |run, text| run.allow(text));
    let mut server = run.start();
    let begun = Instant::now();
    let sockets = || {
        let mut command = hosts.command(0, "cat");
        let output = command.arg(format!("/proc/net/{open}")).output();
        let text = String::from_utf8(output.expect("cat").stdout).expect("text");
        text.lines().count()
    };
    // A line of headings, the agent's socket, and that of the NIC.
    while sockets() < 3 {
        assert!(server.is_running(), "the server has ended");
        assert!(begun.elapsed() < Duration::from_secs(60), "no socket");
        std::thread::sleep(Duration::from_millis(20));
    }
    // It sets its handler after the NIC is open, and the agent opens more sockets before that.
    std::thread::sleep(Duration::from_secs(1));
    what(&hosts);
    let finished = server.finish();
    finished.expect_pass();
    let report = finished.report(text);
    assert!(finished.stderr.contains(text), "{report}");
}

fn enslave(hosts: &Namespaces) {
    assert!(link(hosts, &format!("add {MASTER} type bridge")));
    assert!(link(hosts, &format!("set {INTERFACE} master {MASTER}")));
}

#[test]
fn an_interface_of_gnic2_that_becomes_a_port() {
    let text = "the interface has become a port of m0, which takes its frames";
    reported(&format!("gnic2:{INTERFACE}"), "packet", enslave, text);
}

#[test]
fn an_interface_of_clan_that_becomes_a_port() {
    let text = "clan: the interface has become a port";
    reported(&format!("clan:{INTERFACE}"), "packet", enslave, text);
}

#[test]
fn an_address_that_the_host_loses() {
    let text = "this host does not have the address 10.76.0.1 any more";
    let lose = |hosts: &Namespaces| hosts.take_ipv4(0);
    reported(&format!("ip:{INTERFACE}"), "udp", lose, text);
}
