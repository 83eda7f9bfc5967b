//! What the system has too little of, or lacks: calls fail with a code and one log line, and work again
//! afterwards; what is not needed is not missed.

use std::collections::HashMap;
use std::fs;
use std::process::Command;

use vipl_ctest::{Finished, Run, program, skip};

/// One line of the log, of the level `error`, for each of these texts, in this order; no other line.
fn expect_log(finished: &Finished, texts: &[&str]) {
    let lines = finished.log(&["warn", "error"]);
    let as_expected = lines.len() == texts.len()
        && lines
            .iter()
            .zip(texts)
            .all(|(line, text)| line.contains(text) && line.contains("] error "));
    assert!(
        as_expected,
        "{}",
        finished.report(&format!("log: not {texts:?}"))
    );
}

#[test]
fn no_file_descriptors_while_a_nic_is_opened() {
    let run = Run::compatible(program("limits")).arg("opening");
    let finished = run.seconds(200).allow("").pass();
    let mut lines: HashMap<&str, usize> = HashMap::new();
    for line in finished.log(&["warn", "error"]) {
        let process = line.split(['[', ']']).nth(1).unwrap_or_default();
        *lines.entry(process).or_default() += 1;
        assert!(
            line.contains("Too many open files"),
            "{}",
            finished.report("log")
        );
    }
    let refused = finished.stdout.lines();
    let refused: Vec<&str> = refused
        .filter_map(|line| line.strip_prefix("refused: process "))
        .collect();
    assert!(!refused.is_empty(), "{}", finished.report("never refused"));
    for process in &refused {
        assert_eq!(lines.get(process), Some(&1), "{}", finished.report(process));
    }
    assert_eq!(lines.len(), refused.len(), "{}", finished.report("log"));
}

#[test]
fn no_file_descriptors_while_connected() {
    let run = Run::compatible(program("limits")).arg("files");
    let finished = run.allow("").pass();
    let lost = "cannot receive the file descriptors of a new connection: Too many open files";
    // VipOpenNic, and the two ends of a connection.
    expect_log(
        &finished,
        &["no shared memory: Too many open files", lost, lost],
    );
}

#[test]
fn no_address_space() {
    let run = Run::compatible(program("limits")).arg("space");
    let finished = run.allow("").pass();
    let lost = "cannot map a connection: Cannot allocate memory";
    expect_log(&finished, &[lost, lost, "Cannot allocate memory"]);
}

#[test]
fn no_locked_memory() {
    Run::compatible(program("limits")).arg("locked").pass();
}

#[test]
fn no_large_files() {
    let run = Run::compatible(program("limits")).arg("size");
    let finished = run.allow("").pass();
    expect_log(&finished, &["the file size limit (ulimit -f)"]);
}

#[test]
fn no_home() {
    Run::compatible(program("simple")).without("HOME").pass();
    for home in ["/nonexistent/home", "/proc"] {
        // The library looks for its configuration there.
        Run::compatible(program("simple"))
            .without("VIPL_CONFIG")
            .env("HOME", home)
            .pass();
    }
}

#[test]
fn log_file_that_cannot_be_written() {
    let run = Run::compatible(program("simple")).env("VIPL_LOG_FILE", "/nonexistent/folder/log");
    let finished = run.allow("/nonexistent/folder/log").pass();
    let lines: Vec<&str> = finished
        .stderr
        .lines()
        .filter(|line| line.contains("/nonexistent/folder/log"))
        .collect();
    // Each process of the program tells it once.
    let mut processes: Vec<&str> = lines
        .iter()
        .filter_map(|line| line.split(['[', ']']).nth(1))
        .collect();
    processes.sort_unstable();
    processes.dedup();
    let once = !lines.is_empty() && processes.len() == lines.len();
    assert!(once, "{}", finished.report("one line for each process"));
    // A file that takes nothing: the log is lost, the program is not.
    Run::compatible(program("simple"))
        .env("VIPL_LOG_FILE", "/dev/full")
        .env("VIPL_LOG", "trace")
        .pass();
}

/// Runs a program in a mount name space of its own, prepared by a shell script; `None` if that is not
/// permitted here.
fn in_own_mounts(script: &str, name: &str) -> Option<Finished> {
    let flags = ["-m", "-rm"];
    let allowed = |flag: &&&str| {
        let probe = Command::new("unshare")
            .args([**flag, "mount", "-t", "tmpfs", "none", "/dev/shm"])
            .output();
        probe.is_ok_and(|probe| probe.status.success())
    };
    let Some(flag) = flags.iter().find(allowed) else {
        skip("this user may not mount in a name space of its own");
        return None;
    };
    let whole = format!("set -e; {script}; exec \"$@\"");
    let run = Run::compatible("/usr/bin/env").allow("vipstat does not see");
    let run = ["unshare", flag, "sh", "-c", &whole, "sh"]
        .iter()
        .fold(run, |run, word| run.arg(word));
    Some(run.arg(program(name)).pass())
}

#[test]
fn shared_memory_folder_full() {
    let script = "mount -t tmpfs -o size=4096,mode=700 none /dev/shm; \
                  head -c 8192 /dev/zero >/dev/shm/full 2>/dev/null || :; export VIPL_PUBLISH=/dev/shm";
    let Some(full) = in_own_mounts(script, "tour") else {
        return;
    };
    let said =
        "publish: /dev/shm: No space left on device (os error 28); vipstat does not see this";
    let lines = full.log(&["warn"]);
    let is_said = lines.iter().any(|line| line.contains(said));
    assert!(is_said, "{}", full.report("a warning"));
}

#[test]
fn shared_memory_folder_absent() {
    let folder = tempfile::tempdir().expect("a folder");
    let devices = folder.path().join("dev");
    fs::create_dir(&devices).expect("a folder");
    let script = format!(
        "for device in null zero urandom; do touch {0}/$device; mount --bind /dev/$device {0}/$device; done; \
         mount --rbind {0} /dev; test ! -e /dev/shm",
        devices.display()
    );
    in_own_mounts(&script, "tour");
}
