//! A recorded run, again: over the same device, over another one, and changed by hand.

use std::path::{Path, PathBuf};

use vipl_ctest::{Run, fails_without_output, help_fits, program, run_tool};

const REPLAY: &str = env!("CARGO_BIN_EXE_vip_replay");

/// Records a program into a folder; returns the files of its processes.
fn record(dir: &Path, name: &str, bytes: bool) -> Vec<PathBuf> {
    Run::compatible(program(name))
        .env("VIPL_LAYERS", "record")
        .env("VIPL_RECORD_FILE", dir.join("run"))
        .env("VIPL_RECORD_BYTES", if bytes { "true" } else { "false" })
        .allow("VIP_ERROR_")
        .pass();
    let files = std::fs::read_dir(dir).expect("the folder");
    let mut files: Vec<PathBuf> = files.map(|file| file.expect("a file").path()).collect();
    files.sort();
    // The program begins as one process, which may call nothing.
    assert!(files.len() >= 2, "{files:?}");
    files
}

fn replay(files: &[PathBuf], more: &[&str]) -> (Option<i32>, String, String) {
    let files = files
        .iter()
        .map(|file| file.to_str().expect("a plain name"));
    let arguments: Vec<&str> = files.chain(more.iter().copied()).collect();
    let (output, stdout, stderr) = run_tool(REPLAY, &arguments);
    (output.status.code(), stdout, stderr)
}

fn is_the_same(files: &[PathBuf], more: &[&str]) -> String {
    let (code, stdout, stderr) = replay(files, more);
    assert_eq!(code, Some(0), "{more:?}\n{stdout}\n{stderr}");
    assert!(stdout.contains(" 0 differences"), "{stdout}");
    stdout
}

#[test]
fn a_run_is_made_again_over_another_device() {
    let dir = tempfile::tempdir().expect("a folder");
    let files = record(dir.path(), "simple", true);
    for device in ["via_lo", "sim:"] {
        let said = is_the_same(&files, &["--device", device]);
        let made = said
            .lines()
            .last()
            .and_then(|line| line.split(' ').next()?.parse::<u32>().ok());
        assert!(made > Some(500), "{said}");
    }
    // What was received is compared: another message of then is a difference now.
    let sender = files.iter().find_map(|file| {
        let text = std::fs::read_to_string(file).ok()?;
        // Some messages are empty.
        let is_digit = |at: &usize| text.as_bytes().get(*at).is_some_and(u8::is_ascii_hexdigit);
        let data = text
            .match_indices(" data=")
            .map(|(at, mark)| at + mark.len());
        let at = data.into_iter().find(is_digit)?;
        let mut changed = text.into_bytes();
        changed[at] = if changed[at] == b'0' { b'1' } else { b'0' };
        Some((file, changed))
    });
    let (file, changed) = sender.expect("a message");
    std::fs::write(file, changed).expect("the file");
    let (code, stdout, stderr) = replay(&files, &["--device", "via_lo"]);
    assert_eq!(code, Some(1), "{stdout}\n{stderr}");
    assert!(stdout.contains("another content"), "{stdout}");
}

#[test]
fn results_are_compared_without_bytes() {
    let dir = tempfile::tempdir().expect("a folder");
    let files = record(dir.path(), "simple", false);
    is_the_same(&files, &[]);
    let mut changed = 0;
    for file in &files {
        let text = std::fs::read_to_string(file).expect("a recording");
        assert!(!text.contains(" data="), "{text}");
        changed += text.matches("VipCreatePtag VIP_SUCCESS").count();
        let text = text.replace(
            "VipCreatePtag VIP_SUCCESS",
            "VipCreatePtag VIP_ERROR_RESOURCE",
        );
        std::fs::write(file, text).expect("the file");
    }
    let (code, stdout, _) = replay(&files, &["--json"]);
    let document: serde_json::Value =
        serde_json::from_str(&stdout).unwrap_or_else(|e| panic!("{e}: {stdout}"));
    assert_eq!(
        (code, document["count"].as_u64()),
        (Some(1), Some(changed as u64)),
        "{stdout}"
    );
    assert!(
        stdout.contains("was VIP_ERROR_RESOURCE and is VIP_SUCCESS"),
        "{stdout}"
    );
}

#[test]
fn what_is_no_recording_is_said() {
    let (code, _, stderr) = replay(&[PathBuf::from("/dev/null")], &[]);
    assert_eq!(code, Some(2));
    assert!(stderr.contains("/dev/null: no recording"), "{stderr}");
    help_fits(REPLAY);
    fails_without_output(REPLAY, &["--help"]);
}
