//! A server between strangers: what it serves, what it refuses, and that the next client is served.

#[path = "../../tests/stranger/mod.rs"]
mod stranger;

use serde_json::{Value, json};
use stranger::{Server, library, plays, port};
use vipl_client::Library;
use vipl_tools::session::Session;

const PERF: &str = env!("CARGO_BIN_EXE_vip_perf");

/// Asks a server something as a stranger; it must refuse, and say so to both sides.
fn refused(vipl: &'static Library, server: &Server, questions: &[Value], words: &str) {
    let mut session =
        Session::<()>::connect(vipl, "via_lo", "localhost", server.port).expect("a session");
    let (last, before) = questions.split_last().expect("a question");
    for question in before {
        session.ask(question).expect("an answer");
    }
    let stdout = session.ask(last).expect_err("a refusal").to_string();
    assert!(
        stdout.contains("refused: ") && stdout.contains(words),
        "{last}: {stdout}"
    );
    let stderr = server.says("refused: ");
    assert!(stderr.contains(words), "{last}: {stderr}");
    server.says("waiting for the next one");
}

/// What a process asks of one that it has started, asked by a stranger: each former kind of request.
#[test]
fn a_stranger_names_no_process_address_device_or_socket() {
    let (vipl, server) = (library(), Server::start(PERF, port(0), &[]));
    // Memory of this very process, which the server's user may write.
    let victim = Box::leak(Box::new(0x1111_1111_1111_1111_u64));
    let place = std::ptr::from_mut(victim);
    let buffer = json!({"pid": std::process::id(), "source": place as u64, "target": place as u64});
    for question in [
        json!({"op": "limit-buffers", "size": 8, "buffer": buffer}),
        json!({"op": "limit-writes", "turns": 1, "buffer": buffer}),
        json!({"op": "limit-halves", "size": 8, "copies": 1, "buffer": buffer}),
        json!({"op": "limit-turns", "size": 0, "turns": 1}),
        json!({"op": "limit-stream", "messages": 1}),
        json!({"op": "limit-buffers", "size": 1u64 << 33, "buffer": buffer}),
        json!({"op": "cable-open", "device": "tulip:lo", "any": true, "partner": {}}),
        json!({"op": "cable-tcp", "ip": "127.0.0.1"}),
        json!({"op": "cable-udp", "ip": "127.0.0.1", "driver": "127.0.0.1", "port": 9}),
        json!({"op": "cable-turns", "what": "udp", "size": 8, "turns": 1, "round": 1}),
        json!({"op": "cable-stream", "count": 1, "round": 1}),
        json!({"op": "limit-futex", "turns": 1}),
        json!({"op": "cable-trains", "mtu": 1500, "count": 1}),
        json!({"op": "usage"}),
        json!({"op": "sleeps"}),
        json!({"op": "cpu"}),
        json!({"op": "\u{1b}[2J"}),
        json!([]),
    ] {
        refused(vipl, &server, &[question], "a server serves tests only");
    }
    // SAFETY: the box above, which nothing else has.
    assert_eq!(unsafe { place.read_volatile() }, 0x1111_1111_1111_1111);
    let memory = json!({"op": "memory", "level": 2, "transfer_max": 4096, "vis": 1, "channel": 1});
    refused(vipl, &server, &[memory], "idle-memory needs --self");
    plays(PERF, server.port, &["latency", "-n", "100", "--runs", "1"]);
    assert!(server.ends());
}

/// Numbers of tests are refused where they are too large, with the bound.
#[test]
fn every_number_of_a_test_has_a_bound() {
    let vipl = library();
    let server = Server::start(PERF, port(1), &["--client-memory", "1m"]);
    let with = |name: &str, value: u64| {
        let mut question = json!({"op": "stream", "channel": 1, "kind": 0, "level": 2,
            "transfer_max": 1 << 30, "bytes": 8, "window": 8, "wait": true});
        question[name] = json!(value);
        question
    };
    refused(
        vipl,
        &server,
        &[with("bytes", 1 << 40)],
        "bytes is 1099511627776; this server accepts 0 to 1048576",
    );
    refused(
        vipl,
        &server,
        &[with("bytes", 1 << 20)],
        "more than 1048576 bytes of memory",
    );
    refused(
        vipl,
        &server,
        &[with("window", 1 << 40)],
        "window is 1099511627776",
    );
    refused(vipl, &server, &[with("level", 7)], "level is 7");
    let several = |op: &str, name: &str, value: u64| {
        let mut question = with(name, value);
        question["op"] = json!(op);
        question
    };
    for (question, words) in [
        (
            several("threads", "threads", 33),
            "threads is 33; this server accepts 1 to 32",
        ),
        (several("threads", "threads", 0), "threads is 0"),
        (
            several("duplex", "bytes", 1 << 19),
            "more than 1048576 bytes of memory",
        ),
        (several("duplex", "kind", 1), "kind is not 0"),
    ] {
        refused(vipl, &server, &[question], words);
    }
    refused(vipl, &server, &[with("channel", u64::MAX)], "channel is");
    let many =
        json!({"op": "connect", "level": 2, "transfer_max": 4096, "vis": 1u64 << 32, "channel": 1});
    refused(vipl, &server, &[many], "vis is 4294967296");
    refused(
        vipl,
        &server,
        &[json!({"op": "go", "n": 1})],
        "no test is open",
    );
    plays(PERF, server.port, &["rate", "-n", "100", "--runs", "1"]);
    assert!(server.ends());
}

/// Streams in both directions, and of several threads.
#[test]
fn strangers_have_several_streams() {
    let server = Server::start(PERF, port(2), &[]);
    let short = ["-n", "2000", "--runs", "1", "--threads", "3"];
    plays(
        PERF,
        server.port,
        &[&["bidirectional", "threads"], &short[..]].concat(),
    );
    assert!(server.ends());
}
