//! Programs of MPI, unmodified, over the provider. Without an Open MPI on this machine each test is skipped with a message.

mod common;

use common::{Job, mpi, program};
use vipl_ctest::{Run, find_tool, skip};

/// Every kind of call, with 2 and with 4 ranks.
fn tour(device: &str, environment: &[(&str, &str)]) {
    let Some(program) = program("tour") else {
        return;
    };
    for ranks in [2, 4] {
        let mut job = Job::new(device, ranks, &program);
        for (name, value) in environment {
            job = job.env(name, value);
        }
        let finished = job.run();
        let good =
            finished.status.success() && finished.stdout.contains(&format!("ok: {ranks} ranks"));
        // `ofi_rxm` closes one of two connections that cross each other: that is no attempt without an answer.
        let calm = !finished.stderr.contains("no answer in time");
        assert!(
            good && calm && !finished.timed_out,
            "{}",
            finished.report("the tour")
        );
    }
}

#[test]
fn a_tour_over_loopback() {
    tour("via_lo", &[]);
}

/// A send completes when it is in the peer's memory.
#[test]
fn a_tour_at_reliable_reception() {
    tour("via_lo", &[("FI_VIPL_RELIABILITY", "reception")]);
}

/// Few and small receives: messages wait for credit and travel in pieces.
#[test]
fn a_tour_through_a_small_window() {
    tour(
        "via_lo",
        &[("FI_VIPL_WINDOW", "1"), ("FI_VIPL_CHUNK", "1500")],
    );
}

/// Receives for more than the device transfers at a time, which `ofi_rxm` would fill.
#[test]
fn a_tour_with_large_packets() {
    for rdm in ["1", "0"] {
        tour(
            "via_lo",
            &[
                ("FI_VIPL_CHUNK", "1048576"),
                ("FI_OFI_RXM_BUFFER_SIZE", "262144"),
                ("FI_VIPL_RDM", rdm),
            ],
        );
    }
}

/// Messages with tags by `ofi_rxm`, as Open MPI 5 and MPICH have them.
#[test]
fn tours_over_ofi_rxm() {
    for device in ["via_lo", "clan:", "sim:seed=7,loss=0.01"] {
        tour(device, &[("FI_VIPL_RDM", "0")]);
    }
    let small = [
        ("FI_VIPL_RDM", "0"),
        ("FI_VIPL_WINDOW", "1"),
        ("FI_VIPL_CHUNK", "1500"),
    ];
    tour("via_lo", &small);
    tour(
        "via_lo",
        &[("FI_VIPL_RDM", "0"), ("FI_VIPL_RELIABILITY", "delivery")],
    );
}

/// The device cannot read remote memory.
#[test]
fn a_tour_over_clan() {
    tour("clan:", &[]);
}

#[test]
fn a_tour_over_a_link_that_loses() {
    tour("sim:seed=7,loss=0.01", &[]);
}

/// Where there is a device for it, such as in a guest.
#[test]
fn a_tour_over_rdma() {
    let devices = std::fs::read_dir("/sys/class/infiniband");
    if devices.map_or(true, |mut devices| devices.next().is_none()) {
        return skip("no RDMA device; cargo xtask guest has one");
    }
    tour("verbs:", &[]);
}

/// Runs a program that prints how many ranks it has in the end, with the provider's messages with tags and with those of `ofi_rxm`.
fn runs(name: &str, device: &str, ranks: usize, in_the_end: usize) {
    let Some(program) = program(name) else {
        return;
    };
    for rdm in ["1", "0"] {
        let job = Job::new(device, ranks, &program).env("FI_VIPL_RDM", rdm);
        let finished = job.run();
        let line = format!("ok: {in_the_end} ranks");
        let good = finished.status.success() && finished.stdout.contains(&line);
        assert!(good && !finished.timed_out, "{}", finished.report(name));
    }
}

#[test]
fn many_threads_of_each_rank() {
    runs("threads", "via_lo", 2, 2);
    runs("threads", "clan:", 4, 4);
}

#[test]
fn one_sided_calls_go_over_vipl() {
    runs("windows", "via_lo", 2, 2);
}

#[test]
fn ranks_that_are_spawned() {
    runs("spawn", "via_lo", 2, 4);
}

#[test]
fn eight_ranks() {
    runs("tour", "via_lo", 8, 8);
}

/// MPI ends the job; nothing waits for ever for the rank that was killed.
#[test]
fn a_rank_that_is_killed_ends_the_job() {
    let Some(program) = program("killed") else {
        return;
    };
    for (device, rdm) in [("via_lo", "1"), ("via_lo", "0"), ("clan:", "1")] {
        let job = Job::new(device, 4, &program).env("FI_VIPL_RDM", rdm);
        let finished = job.run();
        assert!(
            finished.stdout.contains("sum 6"),
            "{}",
            finished.report("the beginning")
        );
        let ended = !finished.status.success() && !finished.timed_out && !finished.held;
        assert!(ended, "{}", finished.report("a job whose rank was killed"));
    }
}

/// libfabric offers the provider, and `ofi_rxm` above it, to programs that request it by its name, and to no others.
#[test]
fn fi_info_shows_the_provider_to_those_who_ask() {
    let Some(fi_info) = find_tool("fi_info") else {
        skip("there is no fi_info");
        return;
    };
    let place = mpi();
    let shown = |arguments: &[&str]| {
        let mut run = Run::compatible(&fi_info)
            .env("FI_PROVIDER_PATH", place.folder.as_os_str())
            .env("VIPL_AGENT", place.agent.as_os_str());
        for argument in arguments {
            run = run.arg(argument);
        }
        run.finish().stdout
    };
    assert!(shown(&["-p", "vipl"]).contains("provider: vipl\n"));
    assert!(shown(&["-p", "vipl;ofi_rxm"]).contains("FI_EP_RDM"));
    assert!(!shown(&[]).contains("provider: vipl"));
    assert!(shown(&["-e"]).contains("FI_VIPL_DEVICE"));
}

/// The wrapper finds the provider, sets the variables and reports what it cannot find.
#[test]
fn the_wrapper_runs_a_job() {
    let Some(program) = program("tour") else {
        return;
    };
    let place = mpi();
    let wrapper = common::wrapper();
    let run = Run::compatible(&wrapper)
        .env("VIPL_FI_PATH", place.folder.as_os_str())
        .env("VIPL_AGENT", place.agent.as_os_str())
        .env("OMPI_ALLOW_RUN_AS_ROOT", "1")
        .env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")
        .seconds(common::PATIENCE)
        .arg("--oversubscribe")
        .arg("-n")
        .arg("2")
        .arg(&program)
        .arg("100000");
    let finished = run.finish();
    let good = finished.status.success() && finished.stdout.contains("ok: 2 ranks");
    assert!(good, "{}", finished.report("the wrapper"));
    assert!(
        !finished.stderr.contains("VIPL_FI_PATH"),
        "{}",
        finished.report("a variable of the wrapper's")
    );

    let nowhere = Run::compatible(&wrapper)
        .env("VIPL_FI_PATH", "/nowhere")
        .arg("-n")
        .arg("1")
        .arg(&program);
    let finished = nowhere.finish();
    assert!(!finished.status.success());
    assert!(
        finished.stderr.contains("libvipl-fi.so"),
        "{}",
        finished.report("no provider")
    );
}
