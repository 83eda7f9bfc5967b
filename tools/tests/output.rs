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
        let (output, said, told) = run_tool(program, arguments);
        assert_eq!(output.status.code(), Some(1), "{told}");
        let document: Value = serde_json::from_str(&said).unwrap_or_else(|e| panic!("{e}: {said}"));
        let error = document["error"].as_str().unwrap_or_default();
        assert!(error.contains("VIP_INVALID_PARAMETER"), "{said}");
    }
}

/// One object with all figures; nothing else on standard output.
#[test]
fn figures_as_json_and_csv() {
    let arguments = ["--self", "-s", "8,4k", "-n", "101", "-w", "10"];
    let (output, said, told) = run_tool(PINGPONG, &[&arguments[..], &["--json"]].concat());
    assert!(output.status.success(), "{told}");
    let document: Value = serde_json::from_str(&said).unwrap_or_else(|e| panic!("{e}: {said}"));
    let results = document["results"].as_array().expect("a list");
    assert_eq!(results.len(), 2, "{said}");
    assert_eq!(results[1]["bytes"], 4096, "{said}");
    assert_eq!(
        results[1]["iterations"], 101,
        "as many as were asked for: {said}"
    );
    for figure in ["mean", "p50", "p99"] {
        let value = results[0]["one_way_us"][figure].as_f64();
        assert!(value.is_some_and(|value| value > 0.0), "{figure}: {said}");
    }
    let (output, said, told) = run_tool(PINGPONG, &[&arguments[..], &["--csv"]].concat());
    assert!(output.status.success(), "{told}");
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(lines.len(), 3, "{said}");
    assert!(
        lines[0].starts_with("bytes,iterations,mb_per_s,one_way_mean_us,"),
        "{said}"
    );
    let (_, said, _) = run_tool(PINGPONG, &arguments);
    assert!(
        said.contains("one-way times") && said.contains("p99 µs"),
        "{said}"
    );
}

/// SECURITY.md asks who reports a weakness which agent serves.
#[test]
fn vipinfo_tells_which_agent_serves() {
    let (output, said, told) = run_tool(INFO, &["-v", "-d", "via_lo"]);
    assert!(output.status.success(), "{told}");
    let agent = said
        .split_once("Kernel Agent\n")
        .map_or("", |(_, rest)| rest);
    let line = agent.lines().next().unwrap_or_default();
    assert!(
        line.contains("process ") && line.contains("vipkad, version "),
        "{said}"
    );
    let whose = ["the system's, for all users", "this user's own"];
    assert!(whose.iter().any(|whose| line.contains(whose)), "{said}");
}

/// Lists are lists, and the usual device is the first.
#[test]
fn vipinfo_lists() {
    let (output, said, told) = run_tool(INFO, &["--json"]);
    assert!(output.status.success(), "{told}");
    let document: Value = serde_json::from_str(&said).expect("JSON");
    let first = &document["devices"][0];
    assert_eq!(first["name"], "via_lo", "{said}");
    let levels = first["attributes"]["ReliabilityLevelSupport"].as_array();
    assert_eq!(levels.map(Vec::len), Some(3), "{first}");
}

/// A client says at once whom it asks, and in the end what to do.
#[test]
fn a_client_without_a_server() {
    let (output, _, told) = run_tool(PINGPONG, &["localhost", "-p", "49999", "-s", "8"]);
    assert!(!output.status.success(), "{told}");
    let lines: Vec<&str> = told.lines().collect();
    assert!(
        lines[0].starts_with("connecting to localhost (address 02:"),
        "{told}"
    );
    assert!(lines[0].contains("port 49999"), "{told}");
    assert!(
        told.contains("start this tool without HOST there first"),
        "{told}"
    );
}

#[test]
fn no_iterations_are_refused() {
    let (output, _, told) = run_tool(PINGPONG, &["--self", "-n", "0"]);
    assert_eq!(output.status.code(), Some(2), "{told}");
    assert!(told.contains("0 is not in 1.."), "{told}");
}

#[test]
fn help_fits_the_terminal() {
    help_fits(PINGPONG);
    help_fits(INFO);
}
