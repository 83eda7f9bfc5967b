//! The Kernel Agent is killed, and the next one takes over; or it is stopped.

use std::process::Command;

use vipl_ctest::{Run, library_dir, program, skip};

#[test]
fn connections_outlive_their_agent() {
    for run in [
        Run::strict(program("agent_loss")),
        Run::compatible(program("agent_loss")),
    ] {
        run.arg(library_dir().join("vipkad"))
            .seconds(300)
            .allow("the Kernel Agent exited")
            .allow("VIP_ERROR_CONN_LOST")
            .pass();
    }
}

const DEVICES: [&str; 4] = ["loopback:", "clan:", "ip:127.0.0.1", "sim:"];

/// A second is longer than any limit for replies of the agent.
#[test]
fn waits_have_no_limit_but_their_own() {
    Run::compatible(program("long_wait"))
        .env("VIPL_TEST_TIME", "100")
        .seconds(120)
        .pass();
}

#[test]
fn calls_keep_their_time_while_the_agent_is_stopped() {
    for device in DEVICES {
        Run::compatible(program("agent_stopped"))
            .arg("-d")
            .arg(device)
            .arg(library_dir().join("vipkad"))
            .seconds(300)
            .pass();
    }
}

#[test]
fn calls_without_a_timeout_end_while_the_agent_is_stopped() {
    Run::compatible(program("agent_stopped"))
        .arg(library_dir().join("vipkad"))
        .arg("close")
        .env("VIPL_TEST_TIME", "100")
        .seconds(300)
        .allow("the Kernel Agent does not answer")
        .pass();
}

/// The program's own main thread does not come back from pthread_exit.
#[test]
fn a_process_ends_with_the_last_thread_of_its_program() {
    for device in DEVICES {
        Run::compatible(program("main_exit"))
            .arg("-d")
            .arg(device)
            .seconds(120)
            .pass();
    }
}

#[test]
fn another_agent_is_started() {
    let allowed = |flag: &&&str| {
        let probe = Command::new("unshare").args([**flag, "true"]).output();
        probe.is_ok_and(|probe| probe.status.success())
    };
    let Some(flag) = ["-n", "-rn"].iter().find(allowed) else {
        return skip(
            "this user may not make a network name space, where it would have an agent of its own",
        );
    };
    Run::compatible("/usr/bin/env")
        .arg("unshare")
        .arg(flag)
        .arg(program("agent_auto"))
        .seconds(200)
        .allow("the Kernel Agent exited")
        .pass();
}
