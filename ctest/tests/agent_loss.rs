//! The Kernel Agent is killed, and the next one takes over.

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
