//! The programs of `examples/`, built by their Makefile as a user builds them.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use vipl_ctest::{Finished, Run, Started, headers, library_dir, source, work_dir};

/// What each small program is run on.
const DEVICES: [&str; 3] = ["via_lo", "clan:", "sim:loss=0.02"];

/// The folder with all programs.
fn programs() -> &'static Path {
    static DIR: OnceLock<PathBuf> = OnceLock::new();
    DIR.get_or_init(|| {
        let dir = work_dir().join("examples");
        let _ = std::fs::remove_dir_all(&dir);
        std::fs::create_dir_all(&dir).expect("a folder");
        let library = library_dir().display();
        let mut make = Command::new("make");
        make.current_dir(&dir)
            .arg("-f")
            .arg(source("../examples/Makefile"));
        make.arg("CFLAGS=-O2 -g -Werror");
        make.arg(format!("VIPL_CFLAGS=-I{}", headers().display()));
        make.arg(format!("VIPL_LIBS=-L{library} -lvipl"));
        let done = make.output().expect("make");
        let said = String::from_utf8_lossy(&done.stderr);
        assert!(done.status.success(), "{said}");
        dir
    })
}

/// A run of one of them. The examples break connections on purpose.
fn run(name: &str, arguments: &[&str]) -> Run {
    let run = Run::compatible(programs().join(name)).args(arguments);
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
