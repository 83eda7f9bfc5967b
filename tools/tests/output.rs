//! What the tools print, and what they say when that or something else does not work.

use std::fs::File;
use std::process::{Command, Output, Stdio};

use serde_json::Value;
use vipl_ctest::library_dir;

const PINGPONG: &str = env!("CARGO_BIN_EXE_vip_pingpong");
const PERF: &str = env!("CARGO_BIN_EXE_vip_perf");
const INFO: &str = env!("CARGO_BIN_EXE_vipinfo");

/// A tool with the library under test.
fn tool(program: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new(program);
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("VIPL_") {
            command.env_remove(name);
        }
    }
    command
        .args(arguments)
        .env("VIPL_LIBRARY", library_dir().join("libvipl.so.1"))
        .env("VIPL_CONFIG", "/dev/null")
        .stdin(Stdio::null());
    command
}

fn run(program: &str, arguments: &[&str]) -> (Output, String, String) {
    let output = tool(program, arguments).output().expect("a tool");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    (output, said, told)
}

/// A full disk is an error with a message, and no panic.
#[test]
fn a_full_output_is_an_error() {
    for (program, arguments) in [
        (INFO, vec!["-d", "via_lo"]),
        (INFO, vec!["--json", "-d", "via_lo"]),
        (PINGPONG, vec!["--self", "-s", "8", "-n", "10", "-w", "0"]),
        (PINGPONG, vec!["--self", "-s", "8", "-n", "10", "--json"]),
        (PERF, vec!["register", "--runs", "1", "--seconds", "0.01"]),
        (
            PERF,
            vec!["register", "--runs", "1", "--seconds", "0.01", "--csv"],
        ),
    ] {
        let full = File::options()
            .write(true)
            .open("/dev/full")
            .expect("/dev/full");
        let output = tool(program, &arguments)
            .stdout(full)
            .output()
            .expect("a tool");
        let told = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {told}");
        assert!(
            told.contains("cannot write to standard output"),
            "{arguments:?}: {told}"
        );
        assert!(!told.contains("panicked"), "{arguments:?}: {told}");
    }
}

/// The same for an output that is closed, or open for reading only, and for what the command line prints.
#[test]
fn no_output_at_all_is_an_error() {
    let shell = |program: &str, redirection: &str, arguments: &str| {
        let mut command = tool(
            "sh",
            &[
                "-c",
                &format!("exec \"$0\" {arguments} {redirection}"),
                program,
            ],
        );
        let output = command.output().expect("a shell");
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(
            output.status.code(),
            Some(1),
            "{program} {arguments} {redirection}: {told}"
        );
        assert!(told.contains("cannot write to standard output"), "{told}");
    };
    for redirection in [">&-", "1</dev/null", ">/dev/full"] {
        shell(INFO, redirection, "-d via_lo");
        for program in [INFO, PINGPONG, PERF] {
            for arguments in ["--help", "--version", "--generate man"] {
                shell(program, redirection, arguments);
            }
        }
    }
}

/// With --json an error is a document, too.
#[test]
fn an_error_is_json_where_json_was_asked_for() {
    for (program, arguments) in [
        (INFO, ["--json", "-d", "nosuch"].as_slice()),
        (PINGPONG, &["--json", "--self", "-d", "nosuch"]),
        (PERF, &["--json", "--self", "-d", "nosuch", "latency"]),
    ] {
        let (output, said, told) = run(program, arguments);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {told}");
        let document: Value = serde_json::from_str(&said).unwrap_or_else(|e| panic!("{e}: {said}"));
        let error = document["error"].as_str().unwrap_or_default();
        assert!(
            error.contains("VIP_INVALID_PARAMETER"),
            "{arguments:?}: {said}"
        );
    }
}

/// One object with all figures; nothing else on standard output.
#[test]
fn figures_as_json_and_csv() {
    let arguments = ["--self", "-s", "8,4k", "-n", "101", "-w", "10"];
    let (output, said, told) = run(PINGPONG, &[&arguments[..], &["--json"]].concat());
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
    let (output, said, told) = run(PINGPONG, &[&arguments[..], &["--csv"]].concat());
    assert!(output.status.success(), "{told}");
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(lines.len(), 3, "{said}");
    assert!(
        lines[0].starts_with("bytes,iterations,mb_per_s,one_way_mean_us,"),
        "{said}"
    );
    let (_, said, _) = run(PINGPONG, &arguments);
    assert!(
        said.contains("one-way times") && said.contains("p99 µs"),
        "{said}"
    );
}

/// Short runs of lines of each kind: a ratio, lines that share a measurement, a figure with a unit.
#[test]
fn the_table_has_the_lines_that_were_asked_for() {
    let arguments = ["--table", "--runs", "1", "--seconds", "0.01", "--lines"];
    let (output, said, told) = run(
        PERF,
        &[&arguments[..], &["1,5-7,16,17,20", "--json"]].concat(),
    );
    assert!(output.status.success(), "{told}");
    let document: Value = serde_json::from_str(&said).unwrap_or_else(|e| panic!("{e}: {said}"));
    let table = document["table"].as_array().expect("lines");
    let numbers: Vec<u64> = table
        .iter()
        .filter_map(|line| line["line"].as_u64())
        .collect();
    assert_eq!(numbers, [1, 5, 6, 7, 16, 17, 20], "{said}");
    for line in table {
        // A machine without process_vm_writev has no reference for line 5.
        let value = line["value"].as_f64();
        let possible = line["line"] != 5 || value.is_some();
        assert!(
            !possible || value.is_some_and(|value| value > 0.0),
            "{line}"
        );
        assert!(
            line["verdict"].is_string() && line["at_least"].is_number(),
            "{line}"
        );
    }
    let (output, said, told) = run(PERF, &[&arguments[..], &["20"]].concat());
    assert!(output.status.success(), "{told}");
    assert!(
        said.contains("VipRegisterMem") && said.contains("0.15 µs"),
        "{said}"
    );
    let (output, _, told) = run(PERF, &[&arguments[..], &["99"]].concat());
    assert!(!output.status.success() && told.contains("99"), "{told}");
}

/// The figures of a test by name, from a run with `--json`.
fn figures(arguments: &[&str]) -> Vec<(String, f64)> {
    let (output, said, told) = run(PERF, &[arguments, &["--runs", "1", "--json"]].concat());
    assert!(output.status.success(), "{told}");
    let document: Value = serde_json::from_str(&said).unwrap_or_else(|e| panic!("{e}: {said}"));
    let results = document["results"].as_array().expect("results");
    let all = results
        .iter()
        .flat_map(|result| result["figures"].as_array().expect("figures"));
    let named = all.map(|figure| {
        let name = figure["name"].as_str().unwrap_or_default().to_owned();
        (name, figure["value"].as_f64().unwrap_or(f64::NAN))
    });
    named.collect()
}

/// All to all between three and five processes that poll, yield or wait.
#[test]
fn scale_plays_with_several_processes() {
    for mode in [&[][..], &["--yield"], &["--wait"]] {
        let arguments = ["scale", "--processes", "3,5", "-s", "100", "-n", "20"];
        let figures = figures(&[&arguments[..], mode].concat());
        let names: Vec<&str> = figures.iter().map(|(name, _)| name.as_str()).collect();
        let of_one = ["processes", "round", "messages"];
        assert_eq!(names, [of_one, of_one].concat(), "{mode:?}");
        assert_eq!((figures[0].1, figures[3].1), (3.0, 5.0));
        assert!(figures.iter().all(|(_, value)| *value > 0.0), "{figures:?}");
    }
    let (output, _, told) = run(PERF, &["scale", "--processes", "1"]);
    assert!(
        !output.status.success() && told.contains("2 to 256 processes"),
        "{told}"
    );
}

/// What is measured once per connection, per VI or per process.
#[test]
fn set_up_and_many_vis_are_measured() {
    let expect = |arguments: &[&str], names: &[&str]| {
        let figures = figures(arguments);
        let found: Vec<&str> = figures.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(found, names, "{arguments:?}");
        assert!(figures.iter().all(|(_, value)| *value > 0.0), "{figures:?}");
    };
    expect(
        &["connect", "--self", "--vis", "20"],
        &["create and connect", "each", "disconnect and destroy"],
    );
    expect(
        &["cq-random", "--self", "--vis", "20", "-n", "200"],
        &["many ÷ one VI", "1 VI", "10 VIs", "100 VIs", "many VIs"],
    );
    expect(&["open"], &["agent running", "agent started"]);
    let calls = [
        "all four",
        "VipPostSend",
        "VipRecvDone",
        "VipPostRecv",
        "VipSendDone",
    ];
    let calls = [&calls[..], &["VipRecvDone, empty"]].concat();
    expect(&["calls", "-s", "8", "-n", "4000"], &calls);
    expect(
        &["pinned", "-n", "200"],
        &["pinned ÷ not pinned", "pinned", "not pinned"],
    );
}

/// Other libraries are measured where their tools are, and named where they are not.
#[test]
fn peers_stand_beside_or_are_said_to_be_absent() {
    let arguments = ["--self", "--peers", "-s", "8", "-n", "200", "--runs", "1"];
    let (output, said, told) = run(PERF, &[&arguments[..], &["latency", "--json"]].concat());
    assert!(output.status.success(), "{told}");
    let document: Value = serde_json::from_str(&said).unwrap_or_else(|e| panic!("{e}: {said}"));
    let peers = document["results"][0]["peers"].as_array().expect("a list");
    for (library, tool) in [("UCX", "ucx_perftest"), ("libfabric", "fi_pingpong")] {
        let absent = told.contains(&format!(
            "{library} is not measured: {tool} is not installed"
        ));
        let named = |peer: &&Value| {
            peer["name"]
                .as_str()
                .is_some_and(|n| n.starts_with(library))
        };
        let there = peers.iter().filter(named).count();
        assert_eq!(there == 0, absent, "{told}{said}");
    }
    assert!(
        peers.iter().all(|peer| peer["value"].as_f64() > Some(0.0)),
        "{said}"
    );
}

/// SECURITY.md asks who reports a weakness which agent serves.
#[test]
fn vipinfo_tells_which_agent_serves() {
    let (output, said, told) = run(INFO, &["-v", "-d", "via_lo"]);
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
    let (output, said, told) = run(INFO, &["--json"]);
    assert!(output.status.success(), "{told}");
    let document: Value = serde_json::from_str(&said).expect("JSON");
    let first = &document["devices"][0];
    assert_eq!(first["name"], "via_lo", "{said}");
    let levels = first["attributes"]["ReliabilityLevelSupport"].as_array();
    assert_eq!(levels.map(Vec::len), Some(3), "{first}");
}

#[test]
fn no_iterations_are_refused() {
    for program in [PINGPONG, PERF] {
        let (output, _, told) = run(program, &["--self", "-n", "0"]);
        assert_eq!(output.status.code(), Some(2), "{told}");
        assert!(told.contains("0 is not in 1.."), "{told}");
    }
}

/// A client says at once whom it asks, and in the end what to do.
#[test]
fn a_client_without_a_server() {
    let (output, _, told) = run(PINGPONG, &["localhost", "-p", "49999", "-s", "8"]);
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
fn help_fits_the_terminal() {
    for program in [PINGPONG, PERF, INFO] {
        let output = tool(program, &["--help"])
            .env("COLUMNS", "40")
            .output()
            .expect("a tool");
        let help = String::from_utf8_lossy(&output.stdout);
        let longest = help
            .lines()
            .map(|line| line.chars().count())
            .max()
            .unwrap_or(0);
        assert!(longest <= 60, "{longest}: {help}");
        let output = tool(program, &["--help"])
            .env("COLUMNS", "80")
            .output()
            .expect("a tool");
        let help = String::from_utf8_lossy(&output.stdout);
        let longest = help
            .lines()
            .map(|line| line.chars().count())
            .max()
            .unwrap_or(0);
        assert!(longest <= 80, "{longest}: {help}");
    }
}
