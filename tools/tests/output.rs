//! What `vipinfo` and `vip_pingpong` print, and what they say when that or something else does not work.

use serde_json::Value;
use vipl_ctest::{fails_without_output, help_fits, run_tool};

const PINGPONG: &str = env!("CARGO_BIN_EXE_vip_pingpong");
const INFO: &str = env!("CARGO_BIN_EXE_vipinfo");

/// A standard output that is full, closed, or open for reading only is an error with a message, and no panic; also for
/// what the command line prints.
#[test]
fn no_output_at_all_is_an_error() {
    fails_without_output(INFO, &["-d", "via_lo"]);
    fails_without_output(INFO, &["--json", "-d", "via_lo"]);
    fails_without_output(PINGPONG, &["--self", "-s", "8", "-n", "10", "-w", "0"]);
    fails_without_output(PINGPONG, &["--self", "-s", "8", "-n", "10", "--json"]);
    for program in [INFO, PINGPONG] {
        for arguments in [&["--help"][..], &["--version"], &["--generate", "man"]] {
            fails_without_output(program, arguments);
        }
    }
}

/// With --json an error is a document, too.
#[test]
fn an_error_is_json_where_json_was_asked_for() {
    for (program, arguments) in [
        (INFO, ["--json", "-d", "nosuch"].as_slice()),
        (PINGPONG, &["--json", "--self", "-d", "nosuch"]),
    ] {
        let (output, stdout, stderr) = run_tool(program, arguments);
        assert_eq!(output.status.code(), Some(1), "{stderr}");
        let document: Value =
            serde_json::from_str(&stdout).unwrap_or_else(|e| panic!("{e}: {stdout}"));
        let error = document["error"].as_str().unwrap_or_default();
        assert!(error.contains("VIP_INVALID_PARAMETER"), "{stdout}");
    }
}

/// One object with all figures; nothing else on standard output.
#[test]
fn figures_as_json_and_csv() {
    let arguments = ["--self", "-s", "8,4k", "-n", "101", "-w", "10"];
    let (output, stdout, stderr) = run_tool(PINGPONG, &[&arguments[..], &["--json"]].concat());
    assert!(output.status.success(), "{stderr}");
    let document: Value = serde_json::from_str(&stdout).unwrap_or_else(|e| panic!("{e}: {stdout}"));
    let results = document["results"].as_array().expect("a list");
    assert_eq!(results.len(), 2, "{stdout}");
    assert_eq!(results[1]["bytes"], 4096, "{stdout}");
    assert_eq!(
        results[1]["iterations"], 101,
        "as many as were asked for: {stdout}"
    );
    for figure in ["mean", "p50", "p99"] {
        let value = results[0]["one_way_us"][figure].as_f64();
        assert!(value.is_some_and(|value| value > 0.0), "{figure}: {stdout}");
    }
    let (output, stdout, stderr) = run_tool(PINGPONG, &[&arguments[..], &["--csv"]].concat());
    assert!(output.status.success(), "{stderr}");
    let lines: Vec<&str> = stdout.lines().collect();
    assert_eq!(lines.len(), 3, "{stdout}");
    assert!(
        lines[0].starts_with("bytes,iterations,mb_per_s,one_way_mean_us,"),
        "{stdout}"
    );
    let (_, stdout, _) = run_tool(PINGPONG, &arguments);
    assert!(
        stdout.contains("one-way times") && stdout.contains("p99 µs"),
        "{stdout}"
    );
}

/// SECURITY.md asks who reports a weakness which agent serves.
#[test]
fn vipinfo_shows_which_agent_serves() {
    let (output, stdout, stderr) = run_tool(INFO, &["-v", "-d", "via_lo"]);
    assert!(output.status.success(), "{stderr}");
    let agent = stdout
        .split_once("Kernel Agent\n")
        .map_or("", |(_, rest)| rest);
    let line = agent.lines().next().unwrap_or_default();
    assert!(
        line.contains("process ") && line.contains("vipkad, version "),
        "{stdout}"
    );
    let whose = ["the system's, for all users", "this user's own"];
    assert!(whose.iter().any(|whose| line.contains(whose)), "{stdout}");
}

/// Lists are lists, and the usual device is the first.
#[test]
fn vipinfo_lists() {
    let (output, stdout, stderr) = run_tool(INFO, &["--json"]);
    assert!(output.status.success(), "{stderr}");
    let document: Value = serde_json::from_str(&stdout).expect("JSON");
    let first = &document["devices"][0];
    assert_eq!(first["name"], "via_lo", "{stdout}");
    let levels = first["attributes"]["ReliabilityLevelSupport"].as_array();
    assert_eq!(levels.map(Vec::len), Some(3), "{first}");
}

/// A client says at once whom it asks, and in the end what to do.
#[test]
fn a_client_without_a_server() {
    let (output, _, stderr) = run_tool(PINGPONG, &["localhost", "-p", "49999", "-s", "8"]);
    assert!(!output.status.success(), "{stderr}");
    let lines: Vec<&str> = stderr.lines().collect();
    assert!(
        lines[0].starts_with("connecting to localhost (address 02:"),
        "{stderr}"
    );
    assert!(lines[0].contains("port 49999"), "{stderr}");
    assert!(
        stderr.contains("start this tool without HOST there first"),
        "{stderr}"
    );
}

#[test]
fn no_iterations_are_refused() {
    let (output, _, stderr) = run_tool(PINGPONG, &["--self", "-n", "0"]);
    assert_eq!(output.status.code(), Some(2), "{stderr}");
    assert!(stderr.contains("0 is not in 1.."), "{stderr}");
}

#[test]
fn help_fits_the_terminal() {
    help_fits(PINGPONG);
    help_fits(INFO);
}
