//! A server between strangers: what it serves, what it refuses, and that the next client is served.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::time::Duration;

use serde_json::{Value, json};
use vipl_client::Library;
use vipl_ctest::library_dir;
use vipl_tools::arena::Side;
use vipl_tools::endpoint::{Endpoint, Layout, ViSpec};
use vipl_tools::nic::Nic;
use vipl_tools::rendezvous::Rendezvous;
use vipl_tools::session::Session;

const PINGPONG: &str = env!("CARGO_BIN_EXE_vip_pingpong");
const PERF: &str = env!("CARGO_BIN_EXE_vip_perf");
/// Longer than anything here takes.
const PATIENCE: Duration = Duration::from_secs(120);

fn tool(program: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new(program);
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("VIPL_") {
            command.env_remove(name);
        }
    }
    command
        .args(arguments)
        .env("VIPL_LIBRARY", library_dir().join("libvipl.so.1"))
        .env("VIPL_CONFIG", "/dev/null")
        .stdin(Stdio::null());
    command
}

/// A port that other runs of these tests do not use at the same time.
fn port(test: u16) -> u16 {
    20_000 + (std::process::id() % 13_000) as u16 * 3 + test
}

struct Server {
    child: Child,
    lines: Receiver<String>,
    port: u16,
}

impl Server {
    fn start(program: &str, port: u16, arguments: &[&str]) -> Self {
        let text = port.to_string();
        let mut child = tool(program, &[&["-p", &text], arguments].concat())
            .stderr(Stdio::piped())
            .spawn()
            .expect("a server");
        let said = BufReader::new(child.stderr.take().expect("a pipe"));
        let (tell, lines) = mpsc::channel();
        std::thread::spawn(move || {
            said.lines()
                .map_while(Result::ok)
                .try_for_each(|l| tell.send(l))
        });
        let server = Server { child, lines, port };
        server.says("waiting for a client");
        server
    }

    /// Waits for a line with these words.
    fn says(&self, words: &str) -> String {
        loop {
            let line = self.lines.recv_timeout(PATIENCE);
            let line = line.unwrap_or_else(|error| panic!("no line with {words:?}: {error}"));
            if line.contains(words) {
                return line;
            }
        }
    }

    /// Whether it ends in order.
    fn ends(mut self) -> bool {
        self.child.wait().expect("the server").success()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn library() -> &'static Library {
    Library::open_at(library_dir().join("libvipl.so.1")).expect("the library")
}

/// Asks a server something as a stranger; it must refuse, and say so to both sides.
fn refused(vipl: &'static Library, server: &Server, questions: &[Value], words: &str) {
    let mut session =
        Session::connect(vipl, "via_lo", "localhost", server.port).expect("a session");
    let (last, before) = questions.split_last().expect("a question");
    for question in before {
        session.ask(question).expect("an answer");
    }
    let said = session.ask(last).expect_err("a refusal").to_string();
    assert!(
        said.contains("refused: ") && said.contains(words),
        "{last}: {said}"
    );
    let told = server.says("refused: ");
    assert!(told.contains(words), "{last}: {told}");
    server.says("waiting for the next one");
}

/// A client whose tests are served.
fn plays(program: &str, port: u16, arguments: &[&str]) {
    let port = port.to_string();
    let output = tool(
        program,
        &[&["localhost", "-p", &port, "-s", "8"], arguments].concat(),
    )
    .output()
    .expect("a client");
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{told}");
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
        json!({"op": "usage"}),
        json!({"op": "\u{1b}[2J"}),
        json!([]),
    ] {
        refused(vipl, &server, &[question], "a server serves tests only");
    }
    // SAFETY: the box above, which nobody else has.
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

/// Strangers that connect and say nothing have as many places as there are, for five seconds; one that
/// leaves at once has none.
#[test]
fn silent_strangers_hold_nobody() {
    let (vipl, server) = (library(), Server::start(PINGPONG, port(2), &[]));
    drop(Session::connect(vipl, "via_lo", "localhost", server.port).expect("a session"));
    server.says("asked for no test");
    server.says("waiting for the next one");
    let nic = Nic::open(vipl, "via_lo").expect("a NIC");
    let host = nic.attributes().address.clone();
    let key = [b"vipp".as_slice(), &u32::from(server.port).to_ne_bytes()].concat();
    let silent = || {
        let (level, transfer_max) = (2, 16384);
        let layout = Layout {
            sends: 1,
            receives: 1,
            bytes: 16384,
            separate: false,
        };
        let spec = ViSpec {
            level,
            transfer_max,
        };
        let endpoint = Endpoint::new(&nic, spec, layout, None).expect("a VI");
        let rendezvous = Rendezvous {
            nic: &nic,
            side: Side::Driver,
            remote_host: &host,
            key: &key,
        };
        let limit = Some(Duration::from_secs(60));
        rendezvous
            .join(&endpoint.vi, 0, limit)
            .expect("a connection");
        endpoint
    };
    let endpoints = [silent(), silent(), silent(), silent()];
    server.says("has said nothing for 5 s");
    plays(PINGPONG, server.port, &["-n", "100", "-w", "0", "-c"]);
    drop(endpoints);
    assert!(server.ends());
}
