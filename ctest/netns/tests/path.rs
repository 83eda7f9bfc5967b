//! Across a router whose links carry packets of different sizes: frames are as long as the path carries, and no host
//! fragments them. And one that translates ports: the peer is followed.

use std::io::Write;
use std::time::{Duration, Instant};

use vipl_ctest::{Finished, Run};
use vipl_netns::{Apart, INTERFACE, Namespaces};

/// An interface of kind `veth` takes packets in that are longer than its MTU, by the tag of a VLAN.
const EXTRA: usize = 4;

fn skipped(made: Result<Namespaces, String>) -> Option<Namespaces> {
    made.map_err(|why| println!("SKIP network namespaces: {why}"))
        .ok()
}

/// Lengths of frames that a search has found, of both sides.
fn found(finished: &Finished) -> Vec<usize> {
    let lines = finished.log(&["info"]).into_iter();
    let sizes =
        lines.filter_map(|line| line.split_once(" carries frames of ")?.1.split(' ').next());
    sizes.map(|size| size.parse().expect("a number")).collect()
}

/// Programs across a router one of whose links is narrower than the interfaces of the hosts, over IPv4 and IPv6.
#[test]
fn the_size_of_the_path_is_found() {
    let Some(hosts) = skipped(Namespaces::routed()) else {
        return;
    };
    hosts.narrow(1300).expect("a narrow link");
    let apart = Apart::new(&hosts);
    for headers in [28, 48] {
        for name in ["tour", "rdma"] {
            let run = apart.run(name, &format!("ip:{INTERFACE}"));
            run.pass();
        }
        let run = apart.run("cable", &format!("ip:{INTERFACE}"));
        let finished = run.arg("survive").env("VIPL_LOG", "info").allow("").pass();
        let (sizes, most) = (found(&finished), 1300 - headers);
        println!("frames of {sizes:?} bytes, of at most {most}");
        assert_eq!(
            sizes.len(),
            2,
            "{}",
            finished.report("both sides have searched")
        );
        assert!(
            sizes
                .iter()
                .all(|size| (most - 7..=most + EXTRA).contains(size)),
            "{sizes:?}"
        );
        (0..2).for_each(|host| hosts.take_ipv4(host));
    }
    assert_eq!(hosts.fragments(), 0, "fragments");
}

/// The link becomes narrower while two programs talk. What is under way arrives in slices, the rest in shorter frames.
#[test]
fn a_path_that_becomes_narrower_is_followed() {
    let Some(hosts) = skipped(Namespaces::routed()) else {
        return;
    };
    let apart = Apart::new(&hosts);
    let run = apart.run("cable", &format!("ip:{INTERFACE}"));
    // The trials take a few seconds, and more on a busy machine.
    let run = run.arg("survive").arg("8");
    let run = run.env("VIPL_LOG", "info").allow("");
    let finished = meanwhile(&hosts, run, || hosts.narrow(1300).expect("a narrow link"));
    let sizes = found(&finished);
    println!("frames of {sizes:?} bytes");
    assert!(sizes.contains(&1472), "{}", finished.report("before"));
    let after = sizes
        .iter()
        .filter(|size| (1265..=1272 + EXTRA).contains(*size));
    assert_eq!(after.count(), 2, "{}", finished.report("after, both sides"));
    let warned = finished.log(&["info"]);
    let vanish = |line: &&&str| line.contains("long frames to ") && line.contains(" vanish");
    assert_eq!(warned.iter().filter(vanish).count(), 2, "{warned:?}");
    assert_eq!(hosts.fragments(), 0, "fragments");
}

/// The router begins to translate the port of a data socket, as when it forgets one translation and makes another:
/// frames to the old port vanish. With a secret the peer follows.
#[test]
fn a_peer_that_moves_is_followed() {
    let Some((hosts, apart)) = with_secret(|hosts| hosts.translate(0, &[])) else {
        return;
    };
    let run = apart
        .run("cable", &format!("ip:{INTERFACE}"))
        .arg("survive");
    let finished = meanwhile(&hosts, run.env("VIPL_LOG", "info").allow(""), || {
        let ports = hosts.data_ports(0);
        assert!(!ports.is_empty(), "host 0 has a data socket");
        hosts.translate(0, &ports).expect("nft");
    });
    let moved = moved(&finished);
    println!("{moved:?}");
    assert_eq!(moved.len(), 1, "{}", finished.report("host 1 follows once"));
    assert!(moved[0].contains("the peer at 10.76.0.1:"), "{moved:?}");
}

/// The ports of data sockets of a host are translated from the beginning. With a secret the peer learns where the host
/// is from its first frame.
#[test]
fn a_peer_behind_other_ports_is_found() {
    let Some((_hosts, apart)) = with_secret(|hosts| hosts.hide(0)) else {
        return;
    };
    // Of Unreliable connections, what is sent to the host before its first frame would be lost.
    let run = apart
        .run("cable", &format!("ip:{INTERFACE}"))
        .arg("survive");
    let finished = run.env("VIPL_LOG", "info").allow("").pass();
    let moved = moved(&finished);
    assert_eq!(moved.len(), 1, "{}", finished.report("host 1 follows once"));
    assert!(moved[0].contains("at 10.76.0.1:2"), "{moved:?}");
}

/// Hosts with a secret and a router with these rules.
fn with_secret(
    rules: impl FnOnce(&Namespaces) -> Result<(), String>,
) -> Option<(Namespaces, Apart)> {
    use std::os::unix::fs::OpenOptionsExt;
    let hosts = skipped(Namespaces::routed())?;
    if let Err(why) = rules(&hosts) {
        println!("SKIP a router that translates: {why}");
        return None;
    }
    // A folder that goes with the agents.
    let folder = std::env::temp_dir().join(hosts.name(0));
    std::fs::create_dir_all(&folder).expect("a folder");
    let secret = folder.join("secret");
    let mut options = std::fs::OpenOptions::new();
    let file = options.write(true).create(true).truncate(true).mode(0o600);
    let mut file = file.open(&secret).expect("a file");
    file.write_all(b"a secret of some length")
        .expect("a secret");
    let apart = Apart::with_secret(&hosts, &secret);
    Some((hosts, apart))
}

/// What the log says about peers that are elsewhere.
fn moved(finished: &Finished) -> Vec<&str> {
    let lines = finished.log(&["info"]).into_iter();
    lines
        .filter(|line| line.contains(": the peer at "))
        .collect()
}

/// Runs a program, and something else while it is busy.
fn meanwhile(hosts: &Namespaces, run: Run, what: impl FnOnce()) -> Finished {
    std::thread::scope(|scope| {
        let program = scope.spawn(|| run.pass());
        let begun = Instant::now();
        while received(hosts) < 500 {
            assert!(begun.elapsed() < Duration::from_secs(120), "no traffic");
            std::thread::sleep(Duration::from_millis(20));
        }
        what();
        let panicked = |panic| std::panic::resume_unwind(panic);
        program.join().unwrap_or_else(panicked)
    })
}

/// Packets that host 1 has received.
fn received(hosts: &Namespaces) -> u64 {
    let path = format!("/sys/class/net/{INTERFACE}/statistics/rx_packets");
    let output = hosts.command(1, "cat").arg(path).output().expect("cat");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.trim().parse().unwrap_or(0)
}
