//! Programs whose runs say more than the programs themselves know. All others, and these again on every
//! plug-in, mode, form and level, are run by the conformance suite (`ctest/conformance`).

use vipl_ctest::{Run, program};

/// ERR-02: the default handler of asynchronous errors writes one line per error.
#[test]
fn the_default_handler_logs_one_line() {
    for run in [
        Run::strict(program("disc")),
        Run::compatible(program("disc")),
    ] {
        let finished = run.arg("-l").arg("RD").allow("VIP_ERROR_CONN_LOST").pass();
        let lines = finished.log(&["warn", "error"]);
        assert_eq!(lines.len(), 1, "{}", finished.report("one line per error"));
    }
}

/// NS-07: the malformed lines of the table are reported (spec §12).
#[test]
fn bad_lines_of_a_host_table_are_logged() {
    let finished = Run::strict(program("ns"))
        .allow("vip_hosts")
        .allow("/tmp/no/such/table")
        .pass();
    assert!(
        !finished.log(&["warn"]).is_empty(),
        "{}",
        finished.report("bad lines are logged")
    );
}

/// NS-01, NS-08: without any table each device knows the names of its own host.
#[test]
fn every_device_knows_its_own_host() {
    for device in ["via_lo", "sim:", "clan:"] {
        let finished = Run::strict(program("ns"))
            .allow("vip_hosts")
            .allow("/tmp/no/such/table")
            .arg("-d")
            .arg(device)
            .pass();
        let shown = finished
            .stdout
            .lines()
            .find(|line| line.starts_with("shown:"));
        let shown = shown.unwrap_or_default();
        for id in ["NS-01", "NS-08", "NS-09"] {
            assert!(shown.contains(id), "{}", finished.report(id));
        }
    }
}

/// Messages of a mebibyte, by the program of the demonstration.
#[test]
fn a_tour_of_a_mebibyte() {
    Run::compatible(program("tour"))
        .env("VIPL_MAX_TRANSFER_SIZE", "4194304")
        .pass();
}

/// Memory of a process whose first thread has ended is reached by way of another one.
#[test]
fn without_their_first_threads() {
    for device in ["via_lo", "sim:", "clan:", "ip:127.0.0.1"] {
        for when in ["before", "after"] {
            let run = Run::compatible(program("first_thread"))
                .arg("-d")
                .arg(device);
            run.arg(when).pass();
        }
    }
}
