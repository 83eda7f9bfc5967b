//! The end of the device, seen by a program.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use vipl_ctest::{Agent, Program, Run, source, work_dir};

const PATIENCE: Duration = Duration::from_secs(60);

fn program(name: &str) -> PathBuf {
    Program::new(source(&format!("../plugins/clan/tests/{name}.c")))
        .flag(format!("-I{}", source("programs").display()))
        .linked()
        .build(&work_dir().join("bin").join(name))
}

/// The device of the agent with this socket.
fn device_of(agent: &Path) -> Option<i32> {
    let text = |pid: i32, file: &str| std::fs::read(format!("/proc/{pid}/{file}")).ok();
    let pids = std::fs::read_dir("/proc").expect("/proc").flatten();
    pids.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok())
        .find(|pid| {
            let parent = || {
                let stat = String::from_utf8(text(*pid, "stat")?).ok()?;
                let (_, rest) = stat.rsplit_once(')')?;
                let parent: i32 = rest.split_whitespace().nth(1)?.parse().ok()?;
                text(parent, "cmdline")
            };
            let socket = agent.as_os_str().as_encoded_bytes();
            text(*pid, "comm").is_some_and(|comm| comm == b"vipl-clan\n")
                && parent().is_some_and(|line| line.windows(socket.len()).any(|w| w == socket))
        })
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
    let begun = Instant::now();
    while !ready.exists() && begun.elapsed() < PATIENCE {
        std::thread::sleep(Duration::from_millis(5));
    }
    if let Some(device) = device_of(agent.socket()) {
        // SAFETY: a process that our own agent has started.
        unsafe { libc::kill(device, libc::SIGKILL) };
    }
    let finished = run.finish();
    finished.expect_pass();
}
