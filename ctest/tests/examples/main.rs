//! The programs of `examples/`, built by their Makefile as a user builds them.

mod dsm;

use vipl_ctest::{Finished, Run, Started, examples};

/// What each small program is run on.
const DEVICES: [&str; 3] = ["via_lo", "clan:", "sim:loss=0.02"];

/// A run of one of them. The examples break connections on purpose.
fn run(name: &str, arguments: &[&str]) -> Run {
    let run = Run::compatible(examples().join(name)).args(arguments);
    run.seconds(240).allow("VIP_ERROR_CONN_LOST")
}

fn says(finished: &Finished, name: &str, expected: &[&str]) {
    let shown = finished.report(name);
    assert!(finished.status.success() && !finished.timed_out, "{shown}");
    for text in expected {
        assert!(finished.stdout.contains(text), "{text:?}: {shown}");
    }
}

/// What a program prints on each device.
fn shows(name: &str, expected: &[&str]) {
    for device in DEVICES {
        says(&run(name, &[device]).finish(), name, expected);
    }
}

#[test]
fn hello() {
    shows("hello", &["27 bytes: hello from another process"]);
}

#[test]
fn pingpong() {
    shows("pingpong", &["64 bytes by RDMA Write: ", " us one way"]);
}

#[test]
fn errors() {
    shows(
        "errors",
        &[
            "server: VIP_ERROR_RECVQ_EMPTY: a message came",
            "the VI is in VIP_STATE_ERROR",
            "client: ",
        ],
    );
}

#[test]
fn server() {
    shows("server", &["server: 8 clients, 100 messages each"]);
}

#[test]
fn rdma_write() {
    shows(
        "rdma_write",
        &["the window has: written from another process"],
    );
}

#[test]
fn rdma_read() {
    for device in DEVICES {
        let expected = match device {
            "clan:" => "this device has no RDMA Read",
            _ => "the other process has: read without a word",
        };
        says(
            &run("rdma_read", &[device]).finish(),
            "rdma_read",
            &[expected],
        );
    }
}

#[test]
fn reconnect() {
    shows("reconnect", &["60 answers over 3 connections"]);
}

/// One client after the other at the plain server, several together at the event loop.
#[test]
fn echo() {
    // The two servers have one name, so they take turns.
    for device in DEVICES {
        for (server, clients) in [("echo_server", 1), ("event_loop", 4)] {
            let all = clients.to_string();
            let mut runs = vec![run(server, &[device, &all])];
            let client = || run("echo_client", &["localhost", device, "50"]);
            runs.extend((0..clients).map(|_| client()));
            let started: Vec<Started> = runs.into_iter().map(Run::start).collect();
            let finished: Vec<Finished> = started.into_iter().map(Started::finish).collect();
            let total = match server {
                "event_loop" => "4 clients have left, 200 messages",
                _ => "client 1: 50 messages",
            };
            says(&finished[0], server, &[total]);
            for client in &finished[1..] {
                says(
                    client,
                    "echo_client",
                    &["50 messages to localhost and back"],
                );
            }
        }
    }
}

/// Every program of `mp` with 2, 4 and 8 ranks.
fn messages_on(device: &str) {
    for ranks in ["2", "4", "8"] {
        for (program, expected) in [
            ("ring", " sizes came back"),
            ("alltoall", ", every byte is right"),
            ("allreduce", "pi is 3.14159265, 20000 sums are right"),
            ("farm", "farm: 300 results of "),
        ] {
            let program_path = examples().join(program);
            let arguments = ["-d", device, "-n", ranks];
            let finished = run("mprun", &arguments).arg(program_path).finish();
            says(&finished, program, &[expected]);
        }
    }
}

#[test]
fn mp_over_loopback() {
    messages_on("via_lo");
}

#[test]
fn mp_over_clan() {
    messages_on("clan:");
}

#[test]
fn mp_over_a_network_that_loses() {
    messages_on("sim:loss=0.02");
}

#[test]
fn mp_over_ip() {
    messages_on("ip:");
}

/// The benchmark measures; what it measures is no matter of a test.
#[test]
fn mp_bench() {
    let program = examples().join("mp_bench");
    let finished = run("mprun", &[]).arg(program).arg("1").finish();
    says(&finished, "mp_bench", &["8 bytes one way: ", "1 MiB: "]);
}

/// A job ends with its first rank that fails, and says which one that was.
#[test]
fn a_rank_that_fails_ends_its_job() {
    let script = "[ $MP_RANK = 1 ] && exit 3; exec sleep 1000";
    let finished = run("mprun", &["-n", "3", "sh", "-c", script]).finish();
    let shown = finished.report("mprun");
    assert_eq!(finished.status.code(), Some(1), "{shown}");
    assert!(finished.stderr.contains("mprun: rank 1 failed"), "{shown}");
}

/// A program that was not started by mprun says so.
#[test]
fn mp_wants_a_job() {
    let alone = run("ring", &[]).finish();
    let shown = alone.report("ring");
    assert!(
        alone.stderr.contains("start the program by mprun"),
        "{shown}"
    );
}

/// A server of the store and its clients; all have to succeed.
fn store(device: &str, how: &str, clients: &[&[&str]]) -> Vec<Finished> {
    let count = clients.len().to_string();
    let mut started = vec![run("kv_server", &[device, &count, how]).start()];
    for arguments in clients {
        let client = run("kv_client", &["localhost", device]).args(arguments);
        started.push(client.start());
    }
    let finished: Vec<Finished> = started.into_iter().map(Started::finish).collect();
    for one in &finished {
        says(one, "kv", &[]);
    }
    finished
}

/// Three writers, each of which reads the keys of all, while the server writes entries in two halves.
#[test]
fn kv_gives_no_value_that_was_never_written() {
    let clients: &[&[&str]] = &[
        &["test", "0", "3", "1000"],
        &["test", "1", "3", "1000"],
        &["test", "2", "3", "1000"],
    ];
    for (device, how) in [
        ("via_lo", "fast"),
        ("via_lo", "slow"),
        ("sim:loss=0.02", "slow"),
    ] {
        let finished = store(device, how, clients);
        says(
            &finished[0],
            "kv_server",
            &["3 clients have left, 3000 PUTs"],
        );
        let again = |one: &Finished| one.stdout.contains("are right, 0 entries were read again");
        let report = finished[1].report("kv_client");
        assert!(
            how == "fast" || !finished[1..].iter().all(again),
            "{report}"
        );
    }
}

/// A device without RDMA Read says so.
#[test]
fn kv_needs_rdma_read() {
    let finished = run("kv_server", &["clan:"]).finish();
    let shown = finished.report("kv_server");
    assert_eq!(finished.status.code(), Some(1), "{shown}");
    assert!(
        finished.stderr.contains("this device has no RDMA Read"),
        "{shown}"
    );
}
