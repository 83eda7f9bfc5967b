//! The end of the device, seen by an application.

mod device;

use std::path::PathBuf;

use vipl_ctest::{Agent, Program, Run, source, work_dir};

use device::{Device, wait_for};

fn program(name: &str) -> PathBuf {
    Program::new(source(format!("../plugins/clan/tests/{name}.c")))
        .flag(format!("-I{}", source("programs").display()))
        .linked()
        .build(&work_dir().join("bin").join(name))
}

#[test]
fn a_program_lives_through_the_end_of_the_device() {
    let dir = tempfile::tempdir().expect("a folder");
    let agent = Agent::start_in(dir.path()).expect("an agent");
    let ready = dir.path().join("ready");
    let run = Run::compatible(program("device_death"))
        .env("VIPL_AGENT", agent.socket())
        .env("CLAN_READY", &ready)
        .arg("-d")
        .arg("clan:")
        .allow("the device has ended")
        .allow("has failed")
        .start();
    wait_for("the program", || ready.exists());
    Device::of(agent.socket()).kill();
    let finished = run.finish();
    finished.expect_pass();
}
