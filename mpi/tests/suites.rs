//! Programs of others, in a short form. Each is skipped where it is not installed.

mod common;

use std::fs;

use common::{Job, has_mpi};
use vipl_ctest::{find_tool, skip};

/// HPC Challenge: linear algebra, transposition, random access to the memory of others, FFT; it checks its results.
#[test]
fn hpcc_with_four_ranks() {
    if !has_mpi() {
        return;
    }
    let Some(hpcc) = find_tool("hpcc") else {
        skip("there is no hpcc");
        return;
    };
    let dir = tempfile::tempdir().expect("a folder");
    let input = include_str!("programs/hpccinf.txt");
    fs::write(dir.path().join("hpccinf.txt"), input).expect("a file");
    let finished = Job::new("via_lo", 4, &hpcc).within(dir.path()).run();
    let output = fs::read_to_string(dir.path().join("hpccoutf.txt")).unwrap_or_default();
    let good = finished.status.success()
        && output.contains("\nSuccess=1\n")
        && !output.contains("FAILED")
        && output.contains("0 tests completed and failed residual checks");
    assert!(good, "{}\n{output}", finished.report("hpcc"));
}

/// NetPIPE's check that what arrives is what was sent.
#[test]
fn netpipe_finds_every_byte() {
    if !has_mpi() {
        return;
    }
    let Some(netpipe) = find_tool("NPopenmpi") else {
        skip("there is no NPopenmpi");
        return;
    };
    let dir = tempfile::tempdir().expect("a folder");
    let mut job = Job::new("via_lo", 2, &netpipe).within(dir.path());
    for argument in ["-i", "-n", "20", "-u", "1048576"] {
        job = job.arg(argument);
    }
    let finished = job.run();
    let output = format!("{}{}", finished.stdout, finished.stderr);
    let passed = output.matches("Integrity check passed").count();
    let good = finished.status.success() && passed > 30 && !output.contains("failed");
    assert!(good, "{}", finished.report("NetPIPE"));
}
