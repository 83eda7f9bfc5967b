//! One interface, many users: several programs and several NIC handles at the same time, IP beside them, and
//! what the counters say of it.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::Value;
use vipl_ctest::{Finished, start_together};
use vipl_netns::{Apart, INTERFACE, Impairments, Namespaces, Relay};

const CARDS: [&str; 2] = ["tulip", "gnic2"];

fn skipped(made: Result<Namespaces, String>) -> Option<Namespaces> {
    made.map_err(|why| println!("SKIP network namespaces: {why}"))
        .ok()
}

fn device(card: &str) -> String {
    format!("{card}:{INTERFACE}")
}

/// The counters of side 0 of the program `handles`.
fn counters(finished: &Finished, card: &str) -> impl Fn(&str) -> u64 {
    let mut lines = finished.stdout.lines();
    let text = lines.find_map(|line| line.strip_prefix("counters: "));
    let all: Value = serde_json::from_str(text.expect("counters")).expect("JSON");
    let card = card.to_owned();
    move |name| {
        let value = all[format!("{card}.{name}")].as_u64();
        value.unwrap_or_else(|| panic!("no counter {name} in {all}"))
    }
}

/// Three handles in each of two programs, across the cable and within each program. On a good cable everything
/// that comes is understood.
#[test]
fn several_handles_in_one_program() {
    let Some(hosts) = skipped(Namespaces::pair()) else {
        return;
    };
    let apart = Apart::new(&hosts);
    for card in CARDS {
        let finished = apart.run("handles", &device(card)).pass();
        let counter = counters(&finished, card);
        let (sent, kicks) = (counter("frames_sent"), counter("kicks"));
        assert!(sent > 0 && counter("frames_received") > 0);
        // A system call takes one frame at least.
        assert!(kicks > 0 && kicks <= sent, "{kicks} of {sent}");
        for none in ["frames_corrupt", "frames_bad", "frames_lost"] {
            assert_eq!(counter(none), 0, "{card}: {none}");
        }
    }
}

/// What a bad cable does is counted, and the program does not notice.
#[test]
fn the_counters_show_a_bad_cable() {
    let Some(hosts) = skipped(Namespaces::bridge(2)) else {
        return;
    };
    let impairments = Impairments {
        seed: 21,
        loss: 0.05,
        corrupt: 0.05,
        ..Impairments::default()
    };
    println!("{impairments:?}");
    let relay = Relay::start(&hosts, impairments).expect("a relay");
    let apart = Apart::new(&hosts);
    let finished = apart.run("handles", &device("gnic2")).pass();
    let counter = counters(&finished, "gnic2");
    for some in ["frames_sent_again", "frames_corrupt", "frames_received"] {
        assert!(counter(some) > 0, "{some}");
    }
    let faults = relay.end();
    assert!(faults.lost > 0 && faults.corrupted > 0, "{faults:?}");
    // Only this program's half of the frames is counted here.
    assert!(counter("frames_corrupt") <= faults.corrupted, "{faults:?}");
}

/// Several programs on the same two interfaces, and one whose two processes are both on the first host.
#[test]
fn several_programs_on_one_interface() {
    let Some(hosts) = skipped(Namespaces::pair()) else {
        return;
    };
    let apart = Apart::new(&hosts);
    for card in CARDS {
        let strict = || apart.run("tour", &device(card));
        let here = strict().without("APART_THERE").without("APART_AGENT");
        start_together(vec![strict(), strict(), here]);
    }
}

/// TCP on the same interfaces, byte by byte, while a program is busy for seconds.
#[test]
fn ip_goes_on_beside() {
    let Some(hosts) = skipped(Namespaces::pair()) else {
        return;
    };
    for host in 0..2 {
        let address = format!("10.0.0.{}/24", host + 1);
        let mut ip = hosts.command(host, "ip");
        ip.args(["address", "add", &address, "dev", INTERFACE]);
        assert!(ip.status().expect("ip").success());
    }
    let apart = Apart::new(&hosts);
    let listener = hosts.inside(0, || TcpListener::bind("10.0.0.1:0").expect("a port"));
    let listener = listener.expect("a host");
    let port = listener.local_addr().expect("an address").port();
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| echo(&listener));
        let client = scope.spawn(|| {
            let stream = hosts.inside(1, || TcpStream::connect(("10.0.0.1", port)));
            talk(stream.expect("a host").expect("a connection"), &over)
        });
        apart.run("cable", &device("gnic2")).arg("survive").pass();
        over.store(true, Ordering::SeqCst);
        println!("{} rounds of TCP", client.join().expect("TCP"));
    });
}

const BLOCK: usize = 50_000;

fn patient(stream: &TcpStream) {
    let patience = Some(Duration::from_secs(60));
    stream.set_read_timeout(patience).expect("a time");
    stream.set_write_timeout(patience).expect("a time");
}

fn echo(listener: &TcpListener) {
    let (mut stream, _) = listener.accept().expect("a client");
    patient(&stream);
    let mut block = vec![0; BLOCK];
    while stream.read_exact(&mut block).is_ok() {
        stream.write_all(&block).expect("an answer");
    }
}

/// Sends blocks and checks that they come back; at least a few.
fn talk(mut stream: TcpStream, over: &AtomicBool) -> usize {
    patient(&stream);
    let mut rounds = 0;
    while rounds < 16 || !over.load(Ordering::SeqCst) {
        let block: Vec<u8> = (0..BLOCK).map(|at| (at * 7 + rounds) as u8).collect();
        stream.write_all(&block).expect("a block");
        let mut back = vec![0; BLOCK];
        stream.read_exact(&mut back).expect("an answer");
        assert!(block == back, "round {rounds}");
        rounds += 1;
    }
    rounds
}

/// With a secret every frame of data has a seal: programs work, on a network that repeats frames too, whose copies are
/// dropped. Without one nothing of it is there.
#[test]
fn a_secret_seals_the_data() {
    use std::os::unix::fs::OpenOptionsExt;
    let Some(hosts) = skipped(Namespaces::bridge(2)) else {
        return;
    };
    let file = std::env::temp_dir().join(format!("{}-secret", hosts.name(0)));
    let mut secret = std::fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&file)
        .expect("a file");
    secret
        .write_all(b"a secret of some length")
        .expect("a secret");
    let impairments = Impairments {
        seed: 22,
        duplicate: 0.05,
        ..Impairments::default()
    };
    println!("{impairments:?}");
    let relay = Relay::start(&hosts, impairments).expect("a relay");
    let forged = |apart: &Apart| {
        let finished = apart.run("handles", &device("ip")).pass();
        counters(&finished, "ip")("frames_forged")
    };
    assert_eq!(forged(&Apart::new(&hosts)), 0);
    let apart = Apart::with_secret(&hosts, &file);
    let refused = forged(&apart);
    for name in ["tour", "rdma", "errors"] {
        apart.run(name, &device("ip")).pass();
    }
    std::fs::remove_file(&file).expect("the file");
    let faults = relay.end();
    assert!(
        faults.duplicated > 0 && refused > 0,
        "{refused}: {faults:?}"
    );
}
