//! C programs, untouched, with one side on each of two hosts: over a good cable, over a bad one, and over one
//! that is cut. What a bad cable does comes from the seed that a failure shows.

use std::time::Duration;

use vipl_ethernet_tests::{Apart, INTERFACE, Namespaces, Relay, Weather};

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
fn tulip() {
    all_programs("tulip");
}

#[test]
fn gnic2() {
    all_programs("gnic2");
}

#[test]
fn clan() {
    all_programs("clan");
}

/// The same with frames of 9000 bytes; and with the name that an M-VIA program used.
#[test]
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
        apart
            .run(name, "")
            .without("VIPL_DEVICE_MAP")
            .env("VIPL_DEVICE", format!("/dev/via_{INTERFACE}"))
            .pass();
    }
}

/// The reliable levels do not let a program notice what the cable does.
fn bad_cable(card: &str, seed: u64) {
    let Some(hosts) = skipped(Namespaces::bridge(2)) else {
        return;
    };
    let weather = Weather {
        seed,
        loss: 0.03,
        duplicate: 0.02,
        reorder: 0.03,
        corrupt: 0.02,
        ..Weather::default()
    };
    println!("{weather:?}");
    let relay = Relay::start(&hosts, weather).expect("a relay");
    let apart = Apart::new(&hosts);
    let device = format!("{card}:{INTERFACE}");
    apart.run("tour", &device).pass();
    for level in ["RD", "RR"] {
        apart.run("rdma", &device).arg("-l").arg(level).pass();
    }
    assert!(relay.forwarded() > 0);
}

#[test]
fn bad_cable_tulip() {
    bad_cable("tulip", 11);
}

#[test]
fn bad_cable_gnic2() {
    bad_cable("gnic2", 12);
}

/// A cable that is cut for two seconds costs time and nothing else.
#[test]
fn a_short_cut_is_survived() {
    let Some(hosts) = skipped(Namespaces::bridge(2)) else {
        return;
    };
    let relay = Relay::start(&hosts, Weather::default()).expect("a relay");
    let apart = Apart::new(&hosts);
    std::thread::scope(|scope| {
        let run = apart.run("cable", "gnic2:eth0").arg("survive");
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

/// A cable that is cut for good: both sides are told.
#[test]
fn a_cut_for_good_is_told_to_both() {
    let Some(hosts) = skipped(Namespaces::bridge(2)) else {
        return;
    };
    let relay = Relay::start(&hosts, Weather::default()).expect("a relay");
    let apart = Apart::new(&hosts);
    std::thread::scope(|scope| {
        let run = apart
            .run("cable", "tulip:eth0")
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

/// Both sides are told when something happens to the interface of a busy program.
fn told(what: impl FnOnce(&Namespaces)) {
    let Some(hosts) = skipped(Namespaces::pair()) else {
        return;
    };
    let apart = Apart::new(&hosts);
    std::thread::scope(|scope| {
        let run = apart
            .run("cable", "gnic2:eth0")
            .arg("lose")
            .allow("a frame cannot be sent")
            .allow("the interface has gone")
            .allow("has failed")
            .allow("VIP_ERROR_CATASTROPHIC")
            .allow("VIP_ERROR_CONN_LOST");
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

#[test]
fn an_interface_that_is_removed() {
    told(|hosts| {
        let removed = hosts
            .command(0, "ip")
            .args(["link", "del", INTERFACE])
            .status()
            .expect("ip");
        assert!(removed.success());
    });
}

#[test]
fn an_interface_that_is_switched_off() {
    told(|hosts| hosts.set_up(1, false));
}

#[test]
fn a_smaller_mtu() {
    told(|hosts| hosts.set_mtu(0, 600));
}
