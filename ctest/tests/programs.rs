//! Every C program, linked with the library, in the modes and forms its assertions ask for (spec §15):
//! strict and compatible mode, between two processes and between two threads of one.

use vipl_ctest::{Run, program};

/// Strict mode, two processes and one.
fn strict_both(name: &str) {
    Run::strict(program(name)).pass();
    Run::strict(program(name)).arg("-1").pass();
}

/// The compatible mode, two processes and one.
fn compatible_both(name: &str) {
    Run::compatible(program(name)).pass();
    Run::compatible(program(name)).arg("-1").pass();
}

#[test]
fn tour() {
    strict_both("tour");
    compatible_both("tour");
}

#[test]
fn nulls() {
    Run::strict(program("nulls")).allow("cannot open").pass();
    Run::compatible(program("nulls"))
        .allow("cannot open")
        .pass();
}

#[test]
fn nic() {
    Run::strict(program("nic")).allow("cannot open").pass();
    Run::strict(program("nic"))
        .arg("-1")
        .allow("cannot open")
        .pass();
}

#[test]
fn registration() {
    Run::strict(program("registration")).pass();
    Run::compatible(program("registration")).pass();
}

#[test]
fn memory() {
    strict_both("memory");
}

#[test]
fn vi() {
    Run::strict(program("vi")).pass();
    Run::compatible(program("vi")).pass();
}

#[test]
fn queue() {
    Run::strict(program("queue")).pass();
    Run::compatible(program("queue")).pass();
}

#[test]
fn cq() {
    Run::strict(program("cq")).pass();
    Run::compatible(program("cq")).pass();
}

#[test]
fn xfer() {
    strict_both("xfer");
}

#[test]
fn xfer_compatible() {
    Run::compatible(program("xfer")).pass();
}

#[test]
fn errors() {
    strict_both("errors");
    Run::compatible(program("errors")).pass();
}

#[test]
fn rdma() {
    strict_both("rdma");
}

#[test]
fn rdma_of_a_mebibyte() {
    Run::strict(program("rdma"))
        .env("VIPL_MAX_TRANSFER_SIZE", "4194304")
        .pass();
    Run::compatible(program("tour"))
        .env("VIPL_MAX_TRANSFER_SIZE", "4194304")
        .pass();
}

#[test]
fn conn() {
    strict_both("conn");
    Run::compatible(program("conn")).pass();
}

/// It also uses a connection point that is the same for all runs (all zero, CONN-28): one at a time.
#[test]
fn conn_many() {
    strict_both("conn_many");
    Run::compatible(program("conn_many")).pass();
}

#[test]
fn peer() {
    strict_both("peer");
    Run::compatible(program("peer")).pass();
}

#[test]
fn disc() {
    // One line comes from the default handler of asynchronous errors, as it should (ERR-02).
    for run in [
        Run::strict(program("disc")),
        Run::strict(program("disc")).arg("-1"),
        Run::compatible(program("disc")),
    ] {
        let finished = run.allow("VIP_ERROR_CONN_LOST").pass();
        let lines = finished.log(&["warn", "error"]);
        assert_eq!(
            lines.len(),
            1,
            "{}",
            finished.report("ERR-02: one line per error")
        );
    }
}

#[test]
fn waits() {
    Run::strict(program("waits")).pass();
}

#[test]
fn notify() {
    Run::strict(program("notify")).pass();
    Run::compatible(program("notify")).pass();
}

#[test]
fn threads() {
    strict_both("threads");
    Run::compatible(program("threads")).pass();
}

#[test]
fn kill() {
    Run::strict(program("kill")).pass();
    Run::compatible(program("kill")).pass();
}

#[test]
fn forked() {
    strict_both("forked");
    compatible_both("forked");
}

#[test]
fn compat() {
    compatible_both("compat");
}

/// The part of the group that holds in both modes.
#[test]
fn compat_in_strict_mode() {
    strict_both("compat");
}

#[test]
fn stopped() {
    Run::strict(program("stopped")).pass();
    Run::strict(program("stopped"))
        .env("VIPL_SINGLE_COPY", "false")
        .pass();
}

#[test]
fn ns() {
    // The malformed lines of the test's table are reported (spec §12).
    let finished = Run::strict(program("ns")).allow("vip_hosts").pass();
    assert!(
        !finished.log(&["warn"]).is_empty(),
        "{}",
        finished.report("NS-07: bad lines are logged")
    );
}

#[test]
fn dlopen_loop() {
    Run::strict(program("dlopen_loop")).pass();
    Run::compatible(program("dlopen_loop")).pass();
}

#[test]
fn exit_in_handler() {
    Run::strict(program("exit_in_handler")).pass();
    Run::compatible(program("exit_in_handler")).pass();
}

#[test]
fn never_close() {
    Run::strict(program("never_close")).pass();
    Run::compatible(program("never_close")).pass();
}

#[test]
fn shadow() {
    Run::strict(program("shadow")).pass();
    Run::compatible(program("shadow")).pass();
}

#[test]
fn simple() {
    strict_both("simple");
    compatible_both("simple");
}
