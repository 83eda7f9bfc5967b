//! What `vip_perf` prints, and what it says when that or something else does not work.

use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use serde_json::Value;
use vipl_ctest::{Browser, fails_without_output, help_fits, run_tool, tool};

const PERF: &str = env!("CARGO_BIN_EXE_vip_perf");

/// A standard output that is full, closed, or open for reading only is an error with a message, and no panic; also for
/// what the command line prints.
#[test]
fn no_output_at_all_is_an_error() {
    let register = ["register", "--runs", "1", "--seconds", "0.01"];
    fails_without_output(PERF, &register);
    fails_without_output(PERF, &[&register[..], &["--csv"]].concat());
    for arguments in [&["--help"][..], &["--version"], &["--generate", "man"]] {
        fails_without_output(PERF, arguments);
    }
}

/// With --json an error is a document, too.
#[test]
fn an_error_is_json_where_json_was_asked_for() {
    let (output, stdout, stderr) = run_tool(PERF, &["--json", "--self", "-d", "nosuch", "latency"]);
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    let document: Value = serde_json::from_str(&stdout).unwrap_or_else(|e| panic!("{e}: {stdout}"));
    let error = document["error"].as_str().unwrap_or_default();
    assert!(error.contains("VIP_INVALID_PARAMETER"), "{stdout}");
}

/// Short runs of lines of each kind: a ratio, lines that share a measurement, a figure with a unit.
#[test]
fn the_table_has_the_lines_that_were_asked_for() {
    let arguments = ["--table", "--runs", "1", "--seconds", "0.01", "--lines"];
    let (output, stdout, stderr) = run_tool(
        PERF,
        &[&arguments[..], &["1,5-7,16,17,20", "--json"]].concat(),
    );
    assert!(output.status.success(), "{stderr}");
    let document: Value = serde_json::from_str(&stdout).unwrap_or_else(|e| panic!("{e}: {stdout}"));
    let table = document["table"].as_array().expect("lines");
    let numbers: Vec<u64> = table
        .iter()
        .filter_map(|line| line["line"].as_u64())
        .collect();
    assert_eq!(numbers, [1, 5, 6, 7, 16, 17, 20], "{stdout}");
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
    let (output, stdout, stderr) = run_tool(PERF, &[&arguments[..], &["20"]].concat());
    assert!(output.status.success(), "{stderr}");
    assert!(
        stdout.contains("VipRegisterMem") && stdout.contains("≤ 0.15, 0.10 µs"),
        "{stdout}"
    );
    let (output, _, stderr) = run_tool(PERF, &[&arguments[..], &["99"]].concat());
    assert!(
        !output.status.success() && stderr.contains("99"),
        "{stderr}"
    );
}

/// The figures of a test by name, from a run with `--json`.
fn figures(arguments: &[&str]) -> Vec<(String, f64)> {
    let (output, stdout, stderr) =
        run_tool(PERF, &[arguments, &["--runs", "1", "--json"]].concat());
    assert!(output.status.success(), "{stderr}");
    let document: Value = serde_json::from_str(&stdout).unwrap_or_else(|e| panic!("{e}: {stdout}"));
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
    let (output, _, stderr) = run_tool(PERF, &["scale", "--processes", "1"]);
    assert!(
        !output.status.success() && stderr.contains("2 to 256 processes"),
        "{stderr}"
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
    for test in ["bidirectional", "threads"] {
        let short = ["--self", "-s", "4k", "-n", "2000", "--threads", "3"];
        expect(
            &[&[test], &short[..]].concat(),
            &["stream", "messages", "CPU"],
        );
    }
    expect(
        &["connect", "--self", "--vis", "20"],
        &[
            "create and connect",
            "each",
            "disconnect and destroy",
            "VipDisconnect, many ÷ few",
            "with many",
            "with few",
        ],
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

/// What is felt beside others and at rest, and what streams cost: each has its figures, and the placement of the two
/// processors.
#[test]
fn company_profilers_and_rest_are_measured() {
    let run = |arguments: &[&str]| {
        let short = ["--self", "--runs", "1", "--seconds", "0.01", "--json"];
        run_tool(PERF, &[arguments, &short].concat())
    };
    let first = |arguments: &[&str]| -> Value {
        let (output, stdout, stderr) = run(arguments);
        assert!(output.status.success(), "{stderr}");
        let document: Value =
            serde_json::from_str(&stdout).unwrap_or_else(|e| panic!("{e}: {stdout}"));
        document["results"][0].clone()
    };
    let value = |result: &Value, name: &str| {
        let mut figures = result["figures"].as_array().expect("figures").iter();
        let found = figures.find(|figure| figure["name"] == name);
        found.and_then(|figure| figure["value"].as_f64())
    };
    let company = first(&["company", "-n", "200"]);
    for name in [
        "one way",
        "median",
        "p99",
        "worst",
        "waiting",
        "waiting, worst",
    ] {
        assert!(value(&company, name) > Some(0.0), "{name}: {company}");
    }
    assert!(value(&company, "worst") >= value(&company, "median"));
    let idle = first(&["idle", "-d", "/dev/via_lo"]);
    assert!(value(&idle, "wake-ups").is_some() && value(&idle, "vip_perf").is_some());
    assert_eq!(idle["device"], "/dev/via_lo");
    let stream = first(&["bandwidth", "-s", "4k", "-n", "20000"]);
    assert!(value(&stream, "CPU") > Some(0.0), "{stream}");
    // A machine with one processor has no distance between two.
    let known = |result: &Value| result["placement"].is_null() || result["placement"].is_string();
    assert!(known(&company) && known(&stream));
    let (output, stdout, stderr) = run(&["profiled", "-n", "200"]);
    if output.status.success() {
        assert!(stdout.contains("worst ÷ median"), "{stdout}");
    } else {
        assert!(stderr.contains("perf"), "{stderr}");
    }
}

/// The processes that compute end with the one that has started them, also when it is killed.
#[test]
fn company_ends_when_vip_perf_is_killed() {
    let mut command = tool(PERF, &["company", "--self", "--seconds", "30"]);
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let mut perf = command.spawn().expect("vip_perf");
    let computing = |parent: u32| -> Vec<u32> {
        let all = std::fs::read_dir("/proc").expect("/proc").flatten();
        let numbers = all.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        let of_it = |pid: &u32| {
            let read = |name: &str| std::fs::read_to_string(format!("/proc/{pid}/{name}"));
            let is_child = read("stat").is_ok_and(|stat| {
                let rest = stat.rsplit(')').next().unwrap_or_default().to_owned();
                rest.split_whitespace().nth(1) == Some(&parent.to_string())
            });
            is_child && read("cmdline").is_ok_and(|line| line.contains("--computes"))
        };
        numbers.filter(of_it).collect()
    };
    let end = Instant::now() + Duration::from_secs(60);
    let mut found = computing(perf.id());
    while found.is_empty() && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(20));
        found = computing(perf.id());
    }
    assert!(!found.is_empty(), "no process computes");
    perf.kill().expect("a kill");
    perf.wait().expect("an end");
    let is_there = |pid: &u32| {
        let line = std::fs::read_to_string(format!("/proc/{pid}/cmdline"));
        line.is_ok_and(|line| line.contains("--computes"))
    };
    while found.iter().any(is_there) && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(!found.iter().any(is_there), "{found:?}");
}

/// Other libraries are measured where their tools are, and named where they are not.
#[test]
fn peers_stand_beside_or_are_said_to_be_absent() {
    let arguments = ["--self", "--peers", "-s", "8", "-n", "200", "--runs", "1"];
    let (output, stdout, stderr) =
        run_tool(PERF, &[&arguments[..], &["latency", "--json"]].concat());
    assert!(output.status.success(), "{stderr}");
    let document: Value = serde_json::from_str(&stdout).unwrap_or_else(|e| panic!("{e}: {stdout}"));
    let peers = document["results"][0]["peers"].as_array().expect("a list");
    for (library, tool) in [("UCX", "ucx_perftest"), ("libfabric", "fi_pingpong")] {
        let absent = stderr.contains(&format!(
            "{library} is not measured: {tool} is not installed"
        ));
        let named = |peer: &&Value| {
            peer["name"]
                .as_str()
                .is_some_and(|n| n.starts_with(library))
        };
        let there = peers.iter().filter(named).count();
        assert_eq!(there == 0, absent, "{stderr}{stdout}");
    }
    assert!(
        peers.iter().all(|peer| peer["value"].as_f64() > Some(0.0)),
        "{stdout}"
    );
}

#[test]
fn no_iterations_are_refused() {
    let (output, _, stderr) = run_tool(PERF, &["--self", "-n", "0"]);
    assert_eq!(output.status.code(), Some(2), "{stderr}");
    assert!(stderr.contains("0 is not in 1.."), "{stderr}");
}

#[test]
fn help_fits_the_terminal() {
    help_fits(PERF);
}

/// Pictures and a report of a run, and of one that was kept, beside another. A browser looks at the report if there is one.
#[test]
fn a_run_is_drawn() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name).to_string_lossy().into_owned();
    let (picture, report, kept) = (path("a.svg"), path("a.html"), path("a.json"));
    let arguments = [
        "--self", "-s", "8,4k", "-n", "200", "--runs", "1", "--json", "--plot", &picture,
    ];
    let (output, stdout, stderr) = run_tool(
        PERF,
        &[&arguments[..], &["latency", "bandwidth", "rate"]].concat(),
    );
    assert!(output.status.success(), "{stderr}");
    let drawn = std::fs::read_to_string(&picture).expect("a picture");
    for text in [
        "Latency",
        "n½",
        "99th percentile",
        "8 B",
        "Message rate",
        "level delivery",
    ] {
        assert!(drawn.contains(text), "{text}: {drawn}");
    }
    std::fs::write(&kept, &stdout).expect("a file");
    let drawing = ["--from", &kept, "--compare", &kept, "--report", &report];
    let (output, _, stderr) = run_tool(PERF, &drawing);
    assert!(output.status.success(), "{stderr}");
    let page = std::fs::read_to_string(&report).expect("a report");
    assert!(page.contains("+0.0 %") && page.contains("<svg "), "{page}");

    for (arguments, why) in [
        (&["--from", &kept][..], "--from needs --plot or --report"),
        (
            &["--self", "--compare", "/nowhere/a.json", "latency"],
            "--compare needs --plot or --report",
        ),
        (
            &["--table", "--compare", "/nowhere/a.json"],
            "--compare needs --plot or --report",
        ),
        (
            &["--from", "/nowhere/a.json", "--plot", &picture],
            "/nowhere/a.json: No such file",
        ),
        (
            &["--from", &kept, "--plot", "/nowhere/a.svg"],
            "/nowhere/a.svg: No such file",
        ),
    ] {
        let (output, _, stderr) = run_tool(PERF, arguments);
        assert_eq!(output.status.code(), Some(1), "{stderr}");
        assert!(stderr.contains(why), "{stderr}");
    }

    let Some(browser) = Browser::find() else {
        return println!("SKIP a look at the report: there is no headless browser");
    };
    for width in [1200, 400] {
        let seen = browser.show(Path::new(&report), "", width).expect("a page");
        assert_eq!(seen.complaint(), None, "{width} pixels: {}", seen.dom);
        // As the browser has read them: elements, not text.
        for part in ["All figures", "99th percentile", "+0.0 %", "n½"] {
            assert!(seen.dom.contains(part), "{part}: {}", seen.dom);
        }
        assert_eq!(seen.dom.matches("<svg ").count(), 1, "{}", seen.dom);
    }
    // What the browser would say of a bad page.
    let broken = path("broken.html");
    let wide = "<body><img src=\"none.png\"><p style=\"width: 2000px\">x</p></body>";
    std::fs::write(&broken, wide).expect("a file");
    let seen = browser.show(Path::new(&broken), "", 400).expect("a page");
    let complaint = seen.complaint().unwrap_or_default();
    assert!(
        complaint.contains("beyond the window") || complaint.contains("console"),
        "{complaint}"
    );
}
