//! The programs of `examples/`, as the README tells to compile and run them.

use vipl_ctest::{Program, Run, source, work_dir};

/// What each prints, on these devices.
fn shows(name: &str, expected: &[&str]) {
    let output = work_dir().join("bin").join(format!("example_{name}"));
    let program = Program::new(source(format!("../examples/{name}.c")))
        .linked()
        .build(&output);
    for device in ["via_lo", "clan:", "sim:"] {
        // The example breaks a connection on purpose, and handles the error itself.
        let run = Run::compatible(&program).arg(device).seconds(120);
        let finished = run.allow("VIP_ERROR_CONN_LOST").finish();
        let shown = finished.report(name);
        assert!(finished.status.success() && !finished.timed_out, "{shown}");
        for text in expected {
            assert!(finished.stdout.contains(text), "{text:?}: {shown}");
        }
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
            "server: VIP_ERROR_RECVQ_EMPTY, the VI is in state 3",
            "client: ",
        ],
    );
}

#[test]
fn server() {
    shows("server", &["server: 8 clients, 100 messages each"]);
}
