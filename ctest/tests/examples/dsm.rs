//! The shared memory of `examples/dsm`: its programs, the stress test, mistakes, and ranks that die.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use vipl_ctest::{Finished, Program, Run, Started, examples, library_dir, source};

use super::{run, says};

/// What each program says if its result is that of one process.
const PROGRAMS: [(&str, &str); 4] = [
    (
        "jacobi",
        "20 steps of 256 x 256 points are those of one process",
    ),
    ("matrix", "the product of 160 x 160 is that of one process"),
    ("mergesort", "200000 keys are in the order of one process"),
    ("histogram", "400000 bytes are counted as by one process"),
];

/// Both ways of a page fault to the library.
const METHODS: [&str; 2] = ["signal", "userfaultfd"];

/// A job of one of the programs.
fn job(device: &str, ranks: usize, program: impl AsRef<Path>) -> Run {
    let run = run("mprun", &["-d", device, "-n", &ranks.to_string()]);
    run.arg(program.as_ref())
}

/// The methods that this system permits. A container may forbid userfaultfd, and Linux before 6.4 has not all of it.
fn methods() -> &'static [&'static str] {
    static PERMITTED: OnceLock<usize> = OnceLock::new();
    let count = PERMITTED.get_or_init(|| {
        let plate = job("via_lo", 1, examples().join("jacobi")).args(&["3", "0"]);
        let finished = plate.env("DSM_FAULTS", "userfaultfd").finish();
        if finished.stderr.contains("does not permit it") {
            println!("SKIP page faults by userfaultfd: this system does not permit them");
            return 1;
        }
        says(&finished, "jacobi", &["faults by userfaultfd"]);
        2
    });
    &METHODS[..*count]
}

fn programs(device: &str, ranks: usize, method: &str) {
    for (program, expected) in PROGRAMS {
        let job = job(device, ranks, examples().join(program)).env("DSM_FAULTS", method);
        let by = format!("faults by {method}");
        says(&job.finish(), program, &[&by, expected]);
    }
}

/// So many programs of random numbers, by turns with 2, 4 and 8 ranks.
fn stress(device: &str, how: (&str, &str), seeds: std::ops::Range<usize>, at_a_time: usize) {
    for (turn, first) in seeds.step_by(at_a_time).enumerate() {
        let job = job(device, 2 << (turn % 3), examples().join("dsm_stress"));
        let job = job.args(&[&first.to_string(), &at_a_time.to_string()]);
        let last = first + at_a_time - 1;
        let expected = format!("seeds {first} to {last} are those of one process");
        says(&job.env(how.0, how.1).finish(), "dsm_stress", &[&expected]);
    }
}

#[test]
fn over_loopback() {
    for method in methods() {
        for ranks in [1, 2, 4, 8] {
            programs("via_lo", ranks, method);
        }
        stress("via_lo", ("DSM_FAULTS", method), 0..12, 4);
    }
}

/// Pages that their homes send, as on a device without RDMA Read.
#[test]
fn pages_on_request() {
    stress("via_lo", ("DSM_FETCH", "request"), 100..106, 2);
}

#[test]
fn over_clan() {
    programs("clan:", 4, "signal");
    stress("clan:", ("DSM_FAULTS", "signal"), 200..203, 1);
}

#[test]
fn over_a_network_that_loses() {
    programs("sim:loss=0.02", 4, "signal");
    stress("sim:loss=0.02", ("DSM_FAULTS", "signal"), 300..306, 2);
}

#[test]
fn over_ip() {
    programs("ip:127.0.0.1", 4, "signal");
    stress("ip:127.0.0.1", ("DSM_FAULTS", "signal"), 400..403, 1);
}

/// The benchmark measures; what it measures is no matter of a test.
#[test]
fn bench() {
    for method in methods() {
        let job = job("via_lo", 2, examples().join("dsm_bench")).arg("1");
        let finished = job.env("DSM_FAULTS", method).finish();
        says(
            &finished,
            "dsm_bench",
            &["a page of another rank: ", "ratio "],
        );
    }
}

/// `dsm/mistakes.c`, linked with what the Makefile has made of the library.
fn mistakes() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        let mut program = Program::new(source("dsm/mistakes.c"))
            .flag("-std=c11")
            .flag("-I");
        program = program.flag(source("../examples/dsm"));
        for found in std::fs::read_dir(examples())
            .expect("the examples")
            .flatten()
        {
            if found.path().extension().is_some_and(|kind| kind == "o") {
                program = program.flag(found.path());
            }
        }
        program
            .linked_in(library_dir())
            .build(&examples().join("mistakes"))
    })
}

#[test]
fn mistakes_are_reported() {
    for (what, expected) in [
        (
            "nothing",
            "dsm_start: there can be no 0 bytes of shared memory",
        ),
        (
            "all",
            "dsm_start: there can be no 18446744073709551615 bytes of shared memory",
        ),
        ("memory", "dsm_start: no memory for "),
        (
            "differ",
            "has not asked for as much shared memory as this one",
        ),
        ("allocate", "dsm_allocate: no 20480 bytes are left of "),
        ("home", "dsm_allocate: there is no rank 3 of 3"),
        ("lock", "dsm_acquire(1024): locks are 0 to 1023"),
        ("twice", "this rank has the lock already"),
        (
            "release",
            "dsm_release(3): this rank does not have the lock",
        ),
        (
            "thread",
            "only the thread that called dsm_start may use shared memory",
        ),
    ] {
        let job = job("via_lo", 3, mistakes())
            .arg(what)
            .env("DSM_FAULTS", "signal");
        fails(&job.allow("vipl_alloc").finish(), what, expected);
    }
    let job = job("via_lo", 1, mistakes()).env("DSM_FAULTS", "guess");
    fails(
        &job.finish(),
        "guess",
        "DSM_FAULTS=guess: it is signal or userfaultfd",
    );
    let job = run("jacobi", &["2"]).finish();
    assert!(
        job.stderr.contains("usage: jacobi"),
        "{}",
        job.report("jacobi")
    );
}

fn fails(finished: &Finished, what: &str, expected: &str) {
    let shown = finished.report(what);
    assert_eq!(finished.status.code(), Some(1), "{shown}");
    assert!(
        !finished.timed_out && finished.stderr.contains(expected),
        "{shown}"
    );
}

/// A fault elsewhere is the program's own, and system calls find no pages.
#[test]
fn other_faults_stay_what_they_are() {
    for method in methods() {
        let with = |what| {
            let job = job("via_lo", 1, mistakes())
                .arg(what)
                .env("DSM_FAULTS", *method);
            job.finish()
        };
        fails(&with("beyond"), "beyond", "mprun: rank 0 failed");
        let expected = "a read into a page that may not be written: Bad address";
        says(&with("call"), "call", &[expected]);
    }
}

/// A rank is killed. Each of the others, whose mprun would not know, says which one it was and ends, whatever it was doing.
fn dies(device: &str) {
    for what in [
        "at-the-barrier",
        "with-a-lock",
        "while-others-compute",
        "at-the-end",
    ] {
        static JOBS: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let number = JOBS.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let number = format!("{:x}", (std::process::id() << 8 | number) & 0xff_ffff);
        let host = |first| {
            let hosts = "localhost,localhost,localhost";
            let arguments = [
                "-d", device, "-H", hosts, "-f", first, "-n", "1", "-j", &number,
            ];
            run("mprun", &arguments).arg(mistakes()).arg(what).start()
        };
        let started: Vec<Started> = ["0", "1", "2"].map(host).into();
        let finished: Vec<Finished> = started.into_iter().map(Started::finish).collect();
        for (rank, one) in finished.iter().enumerate() {
            fails(one, what, &format!("mprun: rank {rank} failed"));
            let said = one.stderr.contains("has gone");
            assert_eq!(said, rank != 1, "{}", one.report(what));
        }
    }
}

#[test]
fn a_rank_that_dies() {
    for device in ["via_lo", "ip:127.0.0.1"] {
        dies(device);
    }
}

/// Takes a quarter of an hour on two processors.
#[test]
#[ignore = "takes minutes: cargo test -p vipl-ctest --test examples thousand -- --ignored"]
fn a_thousand_seeds_over_a_network_that_loses() {
    seeds_that_lose(1000);
}

/// Half of them with each way to find faults.
fn seeds_that_lose(number: usize) {
    let each = number / 2;
    for (half, method) in methods().iter().cycle().take(2).enumerate() {
        let first = 1 + half * each;
        let how = ("DSM_FAULTS", *method);
        stress("sim:loss=0.02", how, first..first + each, 25);
    }
}

/// What `cargo xtask deep` runs.
mod deep {
    use super::*;

    #[test]
    #[ignore = "cargo xtask deep"]
    fn every_device() {
        for device in ["via_lo", "clan:", "sim:loss=0.02", "ip:127.0.0.1"] {
            for (method, ranks) in methods().iter().cycle().zip([2, 4, 8]) {
                programs(device, ranks, method);
            }
            for method in methods() {
                stress(device, ("DSM_FAULTS", method), 1000..1015, 5);
            }
            stress(device, ("DSM_FETCH", "request"), 1100..1115, 5);
        }
        for device in ["clan:", "sim:loss=0.02"] {
            dies(device);
        }
    }

    #[test]
    #[ignore = "cargo xtask deep"]
    fn seeds_over_a_network_that_loses() {
        seeds_that_lose(50);
    }
}
