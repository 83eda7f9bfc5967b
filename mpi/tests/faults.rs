//! What a job does while something goes wrong: it says what MPI says, and does not wait for ever.

mod common;

use std::fs;
use std::path::Path;
use std::thread::sleep;
use std::time::Duration;

use common::{Job, program};
use vipl_ctest::{Agent, Finished};

const RANKS: usize = 3;

fn expect_ok(finished: &Finished, what: &str) {
    let good = finished.status.success() && finished.stdout.contains("ok: 3 ranks");
    assert!(good && !finished.timed_out, "{}", finished.report(what));
}

fn expect_end(finished: &Finished, what: &str) {
    let ended = !finished.status.success() && !finished.timed_out && !finished.held;
    assert!(ended, "{}", finished.report(what));
}

/// Ranks that send before the receiver looks fill its window, wait, and lose nothing.
#[test]
fn a_receiver_that_is_late() {
    let Some(program) = program("faults") else {
        return;
    };
    for device in ["via_lo", "clan:", "sim:seed=7,loss=0.01"] {
        let finished = Job::new(device, RANKS, &program).arg("late").run();
        expect_ok(&finished, device);
    }
}

#[test]
fn a_receiver_that_never_receives_and_ends_the_job() {
    let Some(program) = program("faults") else {
        return;
    };
    for device in ["via_lo", "clan:"] {
        let finished = Job::new(device, RANKS, &program).arg("never").run();
        expect_end(&finished, device);
    }
}

/// Runs a job whose agent is killed in the middle; `another` says whether a new one takes its place.
fn agent_killed(device: &str, program: &Path, another: bool) -> Finished {
    let dir = tempfile::tempdir().expect("a folder");
    let agent = Agent::start_in(dir.path()).expect("an agent");
    let flag = dir.path().join("flag");
    fs::write(&flag, "").expect("a file");
    let begun = |rank| dir.path().join(format!("flag.{rank}"));
    Job::new(device, RANKS, program)
        .env("VIPL_AGENT", agent.socket().to_str().expect("a path"))
        .arg("steady")
        .arg(flag.to_str().expect("a path"))
        .run_while(|job| {
            while job.is_running() && !(0..RANKS).all(|rank| begun(rank).exists()) {
                sleep(Duration::from_millis(5));
            }
            drop(agent);
            let _next = another.then(|| Agent::start_in(dir.path()).expect("another agent"));
            if another {
                fs::remove_file(&flag).expect("the flag");
            }
            while job.is_running() {
                sleep(Duration::from_millis(5));
            }
        })
}

/// Connections of loopback go on without their agent, and the next one takes over.
#[test]
fn an_agent_that_is_restarted() {
    let Some(program) = program("faults") else {
        return;
    };
    let finished = agent_killed("via_lo", &program, true);
    expect_ok(&finished, "a job whose agent was restarted");
}

/// The device of `clan` ends with its agent: the job ends, too.
#[test]
fn a_device_that_dies() {
    let Some(program) = program("faults") else {
        return;
    };
    let finished = agent_killed("clan:", &program, false);
    expect_end(&finished, "a job whose device died");
}
