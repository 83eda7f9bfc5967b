//! A post is a store into a doorbell. It makes no system call except the packet that wakes a sleeping device, and a
//! check of the socket before it. The device is stopped while the application posts, so that it falls asleep at most
//! once.

mod device;

use vipl_ctest::{Agent, Program, Run, find_tool, skip, source, work_dir};

use device::{Device, wait_for};

/// The name of the system call in a line of the trace, which begins with a process id.
fn call(line: &str) -> &str {
    let rest = line
        .trim_start_matches(|c: char| c.is_ascii_digit())
        .trim_start();
    rest.split('(').next().unwrap_or(rest)
}

#[test]
fn a_post_makes_no_system_call() {
    if find_tool("strace").is_none() {
        skip("there is no strace here");
        return;
    }
    let program = Program::new(source("../plugins/clan/tests/posting.c"))
        .flag(format!("-I{}", source("programs").display()))
        .linked()
        .build(&work_dir().join("bin").join("posting"));
    let trace = work_dir().join(format!("posting-{}.trace", std::process::id()));
    // An agent that is already running: strace follows what the application starts.
    let dir = tempfile::tempdir().expect("a folder");
    let agent = Agent::start_in(dir.path()).expect("an agent");
    let file = |name: &str| dir.path().join(name);
    let (ready, go, posted) = (file("ready"), file("go"), file("posted"));
    let mut run = Run::compatible("strace")
        .env("VIPL_AGENT", agent.socket())
        .env("CLAN_READY", &ready)
        .env("CLAN_GO", &go)
        .env("CLAN_POSTED", &posted)
        .arg("-f")
        .arg("-qq")
        .arg("-o")
        .arg(&trace)
        .arg(&program)
        .arg("-d")
        .arg("clan:")
        .start();
    let mut ended = || !run.is_running();
    wait_for("the program", || ready.exists() || ended());
    if ready.exists() {
        let device = Device::of(agent.socket());
        device.stop();
        std::fs::write(&go, "").expect("a file");
        wait_for("the posts", || posted.exists() || ended());
    }
    let finished = run.finish();
    let complaint = finished.complaint();
    if finished.stderr.contains("ptrace") {
        skip("strace may not trace here");
        return;
    }
    assert!(complaint.is_none(), "{}", finished.report("the program"));
    let text = std::fs::read_to_string(&trace).expect("the trace");
    let _ = std::fs::remove_file(&trace);
    let marks: Vec<usize> = (text.lines().enumerate())
        .filter(|(_, line)| call(line) == "getppid")
        .map(|(number, _)| number)
        .collect();
    let &[first, last] = &marks[..] else {
        panic!("{} marks", marks.len());
    };
    let thread = |line: &str| line.split_whitespace().next().map(str::to_owned);
    let lines: Vec<&str> = text.lines().collect();
    let poster = thread(lines[first]);
    let made: Vec<&str> = lines[first + 1..last]
        .iter()
        .copied()
        .filter(|line| thread(line) == poster)
        .collect();
    // The packet, and before it a check whether the socket is still ours.
    let wakes = made.iter().filter(|line| call(line) == "sendmsg").count();
    let checks = (made.iter())
        .filter(|line| call(line).contains("fstat"))
        .count();
    assert_eq!(made.len(), wakes + checks, "while posting: {made:#?}");
    assert!(wakes <= 1 && checks <= wakes, "woken: {made:#?}");
}
