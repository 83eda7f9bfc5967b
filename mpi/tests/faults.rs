//! What a job does while something goes wrong: it reports what MPI reports, and does not wait for ever.

mod common;

use std::fs;
use std::path::Path;
use std::thread::sleep;
use std::time::Duration;

use common::{Job, program};
use vipl_ctest::{Agent, Finished, Run};

const RANKS: usize = 3;

fn expect_ok(finished: &Finished, what: &str) {
    let good = finished.status.success() && finished.stdout.contains("ok: 3 ranks");
    assert!(good && !finished.timed_out, "{}", finished.report(what));
}

fn expect_end(finished: &Finished, what: &str) {
    let ended = !finished.status.success() && !finished.timed_out && !finished.held;
    assert!(ended, "{}", finished.report(what));
}

/// Ranks that send before the receiver polls fill its window, wait, and lose nothing.
#[test]
fn a_receiver_that_is_late() {
    let Some(program) = program("faults") else {
        return;
    };
    for device in ["via_lo", "clan:", "sim:seed=7,loss=0.01"] {
        for rdm in ["1", "0"] {
            let job = Job::new(device, RANKS, &program).env("FI_VIPL_RDM", rdm);
            expect_ok(&job.arg("late").run(), device);
        }
    }
}

#[test]
fn a_receiver_that_never_receives_and_ends_the_job() {
    let Some(program) = program("faults") else {
        return;
    };
    for (device, rdm) in [("via_lo", "1"), ("via_lo", "0"), ("clan:", "1")] {
        let job = Job::new(device, RANKS, &program).env("FI_VIPL_RDM", rdm);
        expect_end(&job.arg("never").run(), device);
    }
}

/// Runs a job whose agent is killed in the middle; `another`: a new one takes its place.
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

/// Two agents are two hosts for a device that does not leave its own: the job ends with a reason.
#[test]
fn ranks_that_do_not_reach_each_other() {
    let Some(program) = program("tour") else {
        return;
    };
    let place = common::mpi();
    let dirs = [(); 2].map(|()| tempfile::tempdir().expect("a folder"));
    let agents = [0, 1].map(|at: usize| Agent::start_in(dirs[at].path()).expect("an agent"));
    let mut run = Run::compatible(common::wrapper())
        .env("VIPL_FI_PATH", place.folder.as_os_str())
        .env("FI_VIPL_DEVICE", "via_lo")
        .env("FI_VIPL_CONNECT_TIMEOUT", "500")
        .env("OMPI_ALLOW_RUN_AS_ROOT", "1")
        .env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")
        .seconds(common::PATIENCE)
        .arg("--oversubscribe");
    for (at, agent) in agents.iter().enumerate() {
        if at > 0 {
            run = run.arg(":");
        }
        let agent = format!("VIPL_AGENT={}", agent.socket().display());
        run = run.arg("-n").arg("1").arg("-x").arg(agent).arg(&program);
    }
    let finished = run.finish();
    expect_end(&finished, "a job whose ranks do not reach each other");
    let named = finished.stderr.contains("no connection to")
        && finished.stderr.contains("does not leave its host");
    assert!(named, "{}", finished.report("the reason"));
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
