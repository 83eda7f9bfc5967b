//! A test that is killed leaves no program behind: `CTEST_ORPHAN` makes this file's test the one that is killed.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use vipl_ctest::{Run, end_with_parent};

/// For the end of a process that has got its signal.
const PATIENCE: Duration = Duration::from_secs(60);

/// Whether a process runs; one that no process has waited for does not.
fn runs(pid: &str) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat"))
        .is_ok_and(|stat| !stat.rsplit(')').next().unwrap_or("").starts_with(" Z"))
}

#[test]
fn programs_end_with_the_test_that_started_them() {
    if std::env::var_os("CTEST_ORPHAN").is_some() {
        // The shell's own child inherits the process group, not the signal: `exec` leaves one process.
        let _ = Run::compatible("/bin/sh")
            .arg("-c")
            .arg("echo $$ >&9; exec sleep 1000 9>&-")
            .seconds(1000)
            .finish();
        return;
    }
    let test = std::env::current_exe().expect("this program");
    let mut command = Command::new("sh");
    command
        .arg("-c")
        .arg("exec \"$0\" --exact programs_end_with_the_test_that_started_them 9>&1 >&2")
        .arg(test)
        .env("CTEST_ORPHAN", "1")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    end_with_parent(&mut command);
    let mut killed = command.spawn().expect("this test");
    let mut pid = String::new();
    let mut output = BufReader::new(killed.stdout.take().expect("a pipe"));
    output
        .read_line(&mut pid)
        .expect("the program's process id");
    let pid = pid.trim();
    assert!(runs(pid), "the program {pid:?} does not run");
    killed.kill().expect("SIGKILL");
    killed.wait().expect("the end of the test");
    let begun = Instant::now();
    while runs(pid) {
        assert!(begun.elapsed() < PATIENCE, "process {pid} goes on alone");
        std::thread::sleep(Duration::from_millis(5));
    }
}
