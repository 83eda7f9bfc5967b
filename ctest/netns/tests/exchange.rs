//! C programs, untouched, with one side on each of two hosts: over a good cable, over a bad one, and over one
//! that is cut. What a bad cable does comes from the seed that a failure shows.

use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

use kagent_proto::setup::SETUP_ETHERTYPE;
use vipl_netns::{Apart, INTERFACE, Impairments, Namespaces, Relay};
use vipl_plugin_abi::VIPL_DATA_ETHERTYPE as ETHERTYPE;

/// What is run over every card: all levels, RDMA, completion queues, waits, errors, disconnects.
const PROGRAMS: [&str; 7] = ["tour", "simple", "rdma", "errors", "cq", "threads", "waits"];

fn skipped(made: Result<Namespaces, String>) -> Option<Namespaces> {
    made.map_err(|why| println!("SKIP network namespaces: {why}"))
        .ok()
}

fn all_programs(card: &str) {
    let Some(hosts) = skipped(Namespaces::pair()) else {
        return;
    };
    let apart = Apart::new(&hosts);
    let device = format!("{card}:{INTERFACE}");
    for name in PROGRAMS {
        apart.run(name, &device).pass();
    }
    // On Unreliable it sends without a pause, and a network loses some of that.
    for level in ["RD", "RR"] {
        // On a busy machine it takes minutes.
        apart
            .run("xfer", &device)
            .arg("-l")
            .arg(level)
            .seconds(900)
            .pass();
    }
    // One line comes from the default handler of asynchronous errors, as it should (ERR-02).
    apart
        .run("disc", &device)
        .allow("VIP_ERROR_CONN_LOST")
        .pass();
}

#[test]
fn gnic2() {
    all_programs("gnic2");
}

#[test]
fn clan() {
    all_programs("clan");
}

#[test]
fn ip() {
    all_programs("ip");
}

/// Addresses of 18 bytes. An interface without an IPv4 address gives its IPv6 one.
#[test]
fn ip_version_6() {
    let Some(hosts) = skipped(Namespaces::pair()) else {
        return;
    };
    for host in 0..2 {
        hosts.take_ipv4(host);
    }
    let apart = Apart::new(&hosts);
    for name in ["tour", "rdma"] {
        apart.run(name, "ip:eth0").pass();
    }
}

/// The interface takes frames of 9000 bytes and the other end drops them, which the kernel reports as a lack of room.
#[test]
fn large_frames_at_one_end() {
    let Some(hosts) = skipped(Namespaces::pair()) else {
        return;
    };
    hosts.set_mtu(0, 9000);
    let apart = Apart::new(&hosts);
    for (name, device) in [("tour", "gnic2:eth0"), ("rdma", "clan:eth0")] {
        let allowed = "a frame cannot be sent";
        apart.run(name, device).allow(allowed).pass();
    }
}

/// The name that a program of the card used: the interface comes from a setting, and from nowhere else.
#[test]
fn the_name_of_the_card() {
    let Some(hosts) = skipped(Namespaces::pair()) else {
        return;
    };
    let apart = Apart::new(&hosts);
    let plain = |name| {
        let run = apart.run(name, "").without("VIPL_DEVICE_MAP");
        run.env("VIPL_DEVICE", "/dev/clanvi0")
    };
    let tap = hosts.tap(1).expect("a tap");
    // Without it the two hosts do not find each other, and nothing is sent.
    let alone = plain("tour").finish();
    assert!(alone.complaint().is_some(), "two hosts without a network");
    assert_eq!(take_via_frames(&tap), 0);
    plain("tour").env("VIPL_CLAN_INTERFACE", INTERFACE).pass();
    assert!(take_via_frames(&tap) > 0, "nothing has gone over the cable");
}

/// Takes all frames that have come; gives how many are of the two protocols.
fn take_via_frames(tap: &OwnedFd) -> usize {
    let mut found = 0;
    let mut frame = [0u8; 64];
    loop {
        // SAFETY: room for as many bytes as it says; what is longer is cut.
        let bytes = unsafe { libc::recv(tap.as_raw_fd(), frame.as_mut_ptr().cast(), 64, 0) };
        if bytes < 14 {
            return found;
        }
        let kind = u16::from_be_bytes([frame[12], frame[13]]);
        found += usize::from([ETHERTYPE, SETUP_ETHERTYPE].contains(&kind));
    }
}

/// The reliable levels do not let a program notice what the cable does.
fn bad_cable(card: &str, seed: u64) {
    let Some(hosts) = skipped(Namespaces::bridge(2)) else {
        return;
    };
    let impairments = Impairments {
        seed,
        loss: 0.03,
        duplicate: 0.02,
        reorder: 0.03,
        corrupt: 0.02,
        ..Impairments::default()
    };
    println!("{impairments:?}");
    let relay = Relay::start(&hosts, impairments).expect("a relay");
    let apart = Apart::new(&hosts);
    let device = format!("{card}:{INTERFACE}");
    apart.run("tour", &device).pass();
    for level in ["RD", "RR"] {
        apart.run("rdma", &device).arg("-l").arg(level).pass();
    }
    assert!(relay.forwarded() > 0);
}

#[test]
fn bad_cable_gnic2() {
    bad_cable("gnic2", 12);
}

#[test]
fn bad_cable_ip() {
    bad_cable("ip", 14);
}

/// A cable that is cut for two seconds costs time and nothing else.
fn a_short_cut_is_survived(card: &str) {
    let Some(hosts) = skipped(Namespaces::bridge(2)) else {
        return;
    };
    let relay = Relay::start(&hosts, Impairments::default()).expect("a relay");
    let apart = Apart::new(&hosts);
    std::thread::scope(|scope| {
        let run = apart.run("cable", &format!("{card}:{INTERFACE}"));
        let run = run.arg("survive");
        let program = scope.spawn(|| run.pass());
        wait_for_traffic(&relay);
        relay.cut(true);
        std::thread::sleep(Duration::from_secs(2));
        relay.cut(false);
        let _ = program
            .join()
            .map_err(|panic| std::panic::resume_unwind(panic));
    });
}

/// Connections outlive the agents that made them, and end in good order with the next ones.
#[test]
fn connections_of_ip_outlive_their_agents() {
    let Some(hosts) = skipped(Namespaces::bridge(2)) else {
        return;
    };
    let relay = Relay::start(&hosts, Impairments::default()).expect("a relay");
    let mut apart = Apart::new(&hosts);
    let run = apart.run("cable", &format!("ip:{INTERFACE}"));
    // That there are other agents is told.
    let run = run.arg("survive").allow("the Kernel Agent exited");
    std::thread::scope(|scope| {
        let program = scope.spawn(|| run.pass());
        wait_for_traffic(&relay);
        apart.replace_agents(&hosts);
        let finished = program.join();
        let finished = finished.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        let taken = finished
            .stderr
            .matches("another one has taken over")
            .count();
        assert_eq!(
            taken,
            2,
            "{}",
            finished.report("both sides have new agents")
        );
    });
}

/// What a server that waits sees when the agents are killed and others take their places.
fn a_waiting_server_and_other_agents(card: &str, words: &[&str], allowed: &[&str]) {
    let Some(hosts) = skipped(Namespaces::bridge(2)) else {
        return;
    };
    let mut apart = Apart::new(&hosts);
    let folder = tempfile::tempdir().expect("a folder");
    let run = apart.run("agents_replaced", &format!("{card}:{INTERFACE}"));
    let run = words
        .iter()
        .fold(run.arg(folder.path()), |run, word| run.arg(word));
    let run = allowed.iter().fold(run, |run, text| run.allow(text));
    let mut program = run.allow("the Kernel Agent exited").start();
    let kill = folder.path().join("kill");
    while program.is_running() && !kill.exists() {
        std::thread::sleep(Duration::from_millis(5));
    }
    apart.replace_agents(&hosts);
    std::fs::write(folder.path().join("replaced"), "").expect("a file");
    program.finish().expect_pass();
}

#[test]
fn a_waiting_server_of_ip_is_reached_by_way_of_the_next_agent() {
    a_waiting_server_and_other_agents("ip", &[], &[]);
}

/// The data sockets of raw Ethernet end with their agent.
#[test]
fn a_waiting_server_of_gnic2_learns_that_it_is_not_reached() {
    let allowed = [
        "does not know the data socket",
        "VipConnectWait: the Kernel Agent",
    ];
    a_waiting_server_and_other_agents("gnic2", &["deaf"], &allowed);
}

#[test]
fn a_short_cut_is_survived_by_gnic2() {
    a_short_cut_is_survived("gnic2");
}

#[test]
fn a_short_cut_is_survived_by_ip() {
    a_short_cut_is_survived("ip");
}

#[test]
fn a_short_cut_is_survived_by_clan() {
    a_short_cut_is_survived("clan");
}

/// A cable that is cut for good: both sides are told.
fn a_cut_for_good_is_reported_to_both(card: &str) {
    let Some(hosts) = skipped(Namespaces::bridge(2)) else {
        return;
    };
    let relay = Relay::start(&hosts, Impairments::default()).expect("a relay");
    let apart = Apart::new(&hosts);
    std::thread::scope(|scope| {
        let run = apart
            .run("cable", &format!("{card}:{INTERFACE}"))
            .arg("lose")
            .allow("VIP_ERROR_CONN_LOST");
        let program = scope.spawn(|| run.pass());
        wait_for_traffic(&relay);
        relay.cut(true);
        let _ = program
            .join()
            .map_err(|panic| std::panic::resume_unwind(panic));
    });
}

#[test]
fn a_cut_for_good_is_reported_to_both_by_tulip() {
    a_cut_for_good_is_reported_to_both("tulip");
}

#[test]
fn a_cut_for_good_is_reported_to_both_by_clan() {
    a_cut_for_good_is_reported_to_both("clan");
}

/// The program has connected and is busy: that many frames are not needed for connecting.
fn wait_for_traffic(relay: &Relay) {
    let begun = std::time::Instant::now();
    while relay.forwarded() < 2000 {
        assert!(begun.elapsed() < Duration::from_secs(120), "no traffic");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Frames that a host's interface has received.
fn received(hosts: &Namespaces, host: usize) -> u64 {
    let path = format!("/sys/class/net/{INTERFACE}/statistics/rx_packets");
    let output = hosts.command(host, "cat").arg(path).output().expect("cat");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.trim().parse().unwrap_or(0)
}

/// Something happens to the interface of a busy program, of which both sides may say these things.
fn meanwhile(card: &str, word: &str, allowed: &[&str], what: impl FnOnce(&Namespaces)) {
    let Some(hosts) = skipped(Namespaces::pair()) else {
        return;
    };
    let apart = Apart::new(&hosts);
    std::thread::scope(|scope| {
        let device = format!("{card}:{INTERFACE}");
        let run = apart.run("cable", &device).arg(word);
        let run = allowed.iter().fold(run, |run, text| run.allow(text));
        let program = scope.spawn(|| run.pass());
        let begun = std::time::Instant::now();
        while received(&hosts, 0) < 2000 {
            assert!(begun.elapsed() < Duration::from_secs(120), "no traffic");
            std::thread::sleep(Duration::from_millis(20));
        }
        what(&hosts);
        let _ = program
            .join()
            .map_err(|panic| std::panic::resume_unwind(panic));
    });
}

/// Both sides are told when something happens to the interface.
fn reported(card: &str, what: impl FnOnce(&Namespaces)) {
    let allowed = [
        "a frame cannot be sent",
        "the interface has been removed",
        "has failed",
        "VIP_ERROR_CATASTROPHIC",
        "VIP_ERROR_CONN_LOST",
    ];
    meanwhile(card, "lose", &allowed, what);
}

fn remove(hosts: &Namespaces) {
    let removed = hosts
        .command(0, "ip")
        .args(["link", "del", INTERFACE])
        .status()
        .expect("ip");
    assert!(removed.success());
}

#[test]
fn an_interface_of_gnic2_that_is_removed() {
    reported("gnic2", remove);
}

#[test]
fn an_interface_of_clan_that_is_removed() {
    reported("clan", remove);
}

#[test]
fn an_interface_of_gnic2_that_is_switched_off() {
    reported("gnic2", |hosts| hosts.set_up(1, false));
}

#[test]
fn an_interface_of_clan_that_is_switched_off() {
    reported("clan", |hosts| hosts.set_up(1, false));
}

/// Frames become shorter. The other host is not informed and finds out.
fn with_a_smaller_mtu(card: &str) {
    let allowed = ["a frame cannot be sent"];
    meanwhile(card, "survive", &allowed, |hosts| hosts.set_mtu(0, 600));
}

#[test]
fn a_smaller_mtu_of_gnic2() {
    with_a_smaller_mtu("gnic2");
}

#[test]
fn a_smaller_mtu_of_clan() {
    with_a_smaller_mtu("clan");
}

#[test]
fn a_smaller_mtu_of_ip() {
    with_a_smaller_mtu("ip");
}

/// What `cargo xtask deep` runs.
mod deep {
    use super::*;

    #[test]
    #[ignore = "cargo xtask deep"]
    fn tulip() {
        all_programs("tulip");
    }

    /// The same with frames of 9000 bytes; and with the name that an M-VIA program used.
    #[test]
    #[ignore = "cargo xtask deep"]
    fn large_frames() {
        let Some(hosts) = skipped(Namespaces::pair()) else {
            return;
        };
        for host in 0..2 {
            hosts.set_mtu(host, 9000);
        }
        let apart = Apart::new(&hosts);
        for name in ["tour", "rdma"] {
            apart.run(name, "gnic2:eth0").pass();
            apart.run(name, "clan:eth0").pass();
            apart.run(name, "ip:eth0").pass();
            apart
                .run(name, "")
                .without("VIPL_DEVICE_MAP")
                .env("VIPL_DEVICE", format!("/dev/via_{INTERFACE}"))
                .pass();
        }
    }

    #[test]
    #[ignore = "cargo xtask deep"]
    fn bad_cable_tulip() {
        bad_cable("tulip", 11);
    }

    #[test]
    #[ignore = "cargo xtask deep"]
    fn bad_cable_clan() {
        bad_cable("clan", 13);
    }
}
