//! What the log says: every call at level `trace`, changes of state at `debug`, one line about each call that
//! fails.

use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use vipl_ctest::{Agent, Finished, Run, program, source, work_dir};

/// An empty file of this test alone.
fn log_file(name: &str) -> PathBuf {
    let path = work_dir().join(format!("{name}.log"));
    let _ = std::fs::remove_file(&path);
    path
}

/// Makes the failing calls of these names; the log has this level.
fn failing(level: &str, calls: &[&str]) -> Finished {
    let mut run = Run::strict(program("failing"))
        .env("VIPL_LOG", level)
        .env("VIPL_HOSTS", "/dev/null")
        .env("VIPL_AGENT", "off")
        .env("VIPL_CONNECT_GRACE_MS", "0")
        .allow("");
    for call in calls {
        run = run.arg(call);
    }
    run.pass()
}

/// A failing call leaves one line of this level at least, which says all of `said`; the default level shows it
/// if it is a warning.
fn one_line(call: &str, level: &str, said: &[&str]) {
    let levels = ["error", "warn", "info"];
    let finished = failing("info", &[call]);
    let mut lines = finished.log(&levels);
    // What opening the device has to say.
    let opening = ["] info plugin: ", "] info agent: ", " is served by "];
    lines.retain(|line| !opening.iter().any(|text| line.contains(text)));
    assert_eq!(
        lines.len(),
        1,
        "{}",
        finished.report(&format!("one line about {call}, not {lines:?}"))
    );
    for text in said.iter().chain([&format!("] {level} ").as_str()]) {
        assert!(
            lines[0].contains(text),
            "{}",
            finished.report(&format!("{call}: no {text:?}"))
        );
    }
}

#[test]
fn a_failing_call_leaves_one_line() {
    one_line(
        "null",
        "warn",
        &["VipDestroyVi(ViHandle NULL) = VIP_INVALID_PARAMETER: ViHandle is NULL"],
    );
    one_line(
        "null-out",
        "warn",
        &["VipRecvDone(", "DescriptorPtr is NULL"],
    );
    one_line(
        "kind",
        "warn",
        &[
            "VipPostSend(",
            "ViHandle is the handle of a completion queue; expected: a VI",
        ],
    );
    one_line(
        "no-handle",
        "warn",
        &["VipCQDone(", "CQHandle is not a handle of this library"],
    );
    one_line(
        "arm",
        "warn",
        &["vipl_cq_arm refused: the CQ has no descriptor; call vipl_cq_fd first"],
    );
    one_line(
        "arm-closed",
        "warn",
        &["vipl_cq_arm refused: the program has closed file descriptor"],
    );
    one_line(
        "stale",
        "warn",
        &[
            "VipRecvDone(",
            "was the handle of a VI, which has been destroyed",
        ],
    );
    one_line(
        "foreign-cq",
        "warn",
        &["VipCreateVi(", "RecvCQHandle belongs to the NIC handle"],
    );
    one_line(
        "foreign-tag",
        "warn",
        &["VipDestroyPtag(", "belongs to another NIC handle"],
    );
    one_line(
        "range",
        "warn",
        &[
            "cannot register 8192 bytes at 0x",
            "not all of these pages are mapped",
        ],
    );
    one_line(
        "region",
        "warn",
        &["VipDeregisterMem", "names no region of this NIC handle"],
    );
    one_line(
        "free-region",
        "warn",
        &["vipl_free: 1 regions have memory of 0x", "it is not freed"],
    );
    one_line(
        "free-stranger",
        "warn",
        &["vipl_free: 0x", "is no address that vipl_alloc gave"],
    );
    one_line(
        "alloc-nothing",
        "warn",
        &["vipl_alloc: 0 bytes cannot be allocated"],
    );
    one_line("alloc-all", "warn", &["vipl_alloc: there are no"]);
    one_line("state", "warn", &["VIP_INVALID_STATE", "the VI is Idle"]);
    one_line(
        "level",
        "warn",
        &["VIP_INVALID_RELIABILITY_LEVEL", "vipinfo"],
    );
    one_line("close", "warn", &["VipCloseNic refused"]);
    one_line(
        "no-match",
        "info",
        &[
            "\"nobody\" at address 02:56:49:4c:00:00",
            "no thread is in VipConnectWait",
        ],
    );
    one_line(
        "no-host",
        "info",
        &["no process of this user has opened a NIC at this address"],
    );
    one_line("name", "warn", &["no.such.host.invalid"]);
}

/// A program may poll a stale handle, or repeat another mistake; the log is not flooded.
#[test]
fn mistakes_are_reported_ten_times_a_second() {
    for call in [
        "null",
        "range",
        "region",
        "free-region",
        "free-stranger",
        "alloc-none",
    ] {
        let finished = failing("warn", &[call; 500]);
        let lines = finished.log(&["warn"]).len();
        assert!(lines >= 10, "{}", finished.report(call));
        assert!(lines < 500, "{}", finished.report(call));
    }
}

/// Every exported function is in the trace of the test programs, with its result.
#[test]
fn a_trace_has_every_call() {
    let log = log_file("trace");
    let programs = [
        "tour",
        "vi",
        "cq",
        "ns",
        "peer",
        "nic",
        "notify",
        "registration",
    ];
    for name in programs {
        Run::strict(program(name))
            .env("VIPL_LOG", "trace")
            .env("VIPL_LOG_FILE", &log)
            .seconds(200)
            .pass();
    }
    let text = std::fs::read_to_string(&log).expect("a log");
    let mut seen = BTreeSet::new();
    for line in text.lines() {
        let Some((_, call)) = line.split_once("] trace call: ") else {
            continue;
        };
        let Some((name, rest)) = call.split_once('(') else {
            continue;
        };
        if rest.contains(") = VIP_") {
            seen.insert(name.to_owned());
        }
    }
    let symbols = std::fs::read_to_string(source("../headers/abi/symbols.txt")).expect("a list");
    let missing: Vec<&str> = symbols
        .lines()
        .filter(|name| name.starts_with("Vip") && !seen.contains(*name))
        .collect();
    assert!(missing.is_empty(), "not in the trace: {missing:?}");
    for part in [
        "VipOpenNic(DeviceName \"/dev/via_lo\") = VIP_SUCCESS, NicHandle 0x",
        "Timeout infinite",
        "{delivery, MaxTransferSize ",
        "Status DONE|OP_RECEIVE, Length ",
    ] {
        assert!(text.contains(part), "no {part:?} in the trace");
    }
}

/// Polls without a result are folded: 1000 of them are two lines.
#[test]
fn repeated_polls_are_folded() {
    let finished = failing("trace", &["polls"]);
    let polls: Vec<&str> = finished
        .log(&["trace"])
        .into_iter()
        .filter(|line| line.contains("VipRecvDone(") && line.contains("VIP_NOT_DONE"))
        .collect();
    assert_eq!(polls.len(), 2, "{}", finished.report("folded polls"));
    assert!(polls[1].ends_with(", 999 times more"), "{polls:?}");
}

/// With `debug`, the life of each object is expected.
#[test]
fn debug_reports_every_change_of_state() {
    let finished = Run::strict(program("tour"))
        .env("VIPL_LOG", "debug")
        .allow("")
        .pass();
    let lines = finished.log(&["debug"]);
    for part in [
        "] debug nic: NIC 0x",
        "opened: plug-in loopback, address 02:56:49:4c:00:00",
        "closed",
        "] debug mem: protection tag 0x",
        "registered: ",
        "deregistered",
        "] debug cq: CQ 0x",
        "Idle -> Connect Pending",
        "Connect Pending -> Connected with VI ",
        "of process ",
        "Connected -> Idle (VipDisconnect)",
        "requests a connection with 02:56:49:4c:00:00",
        "] debug agent: the Kernel Agent at ",
        "] debug plugin: loading ",
    ] {
        assert!(
            lines.iter().any(|line| line.contains(part)),
            "{}",
            finished.report(&format!("no line with {part:?}"))
        );
    }
}

/// A descriptor error names descriptor, segment, check and region.
#[test]
fn the_default_level_reports_what_is_wrong_with_a_descriptor() {
    let finished = failing("warn", &["outside"]);
    let lines: Vec<&str> = finished
        .log(&["warn"])
        .into_iter()
        .filter(|line| line.contains(" desc: "))
        .collect();
    assert_eq!(lines.len(), 1, "{}", finished.report("one line"));
    for part in [
        "send descriptor 0x",
        "failed with DONE|PROTECTION_ERROR|OP_SEND",
        "segment 1 of 2, 64 bytes at 0x",
        "outside of the region 0x",
    ] {
        assert!(lines[0].contains(part), "{}", finished.report(part));
    }
}

/// Opens a device; gives the warnings.
fn opening(name: &str, settings: &[(&str, &str)]) -> (Finished, Vec<String>) {
    let mut run = Run::compatible(program("opens"))
        .env("VIPL_AGENT", "off")
        .arg(name)
        .allow("");
    for (name, value) in settings {
        run = run.env(name, value);
    }
    let finished = run.pass();
    let lines = finished.log(&["warn", "error"]);
    let lines = lines.into_iter().map(str::to_owned).collect();
    (finished, lines)
}

/// The warnings are one line with all of these words.
fn opening_says(name: &str, settings: &[(&str, &str)], said: &[&str]) {
    let (finished, lines) = opening(name, settings);
    assert_eq!(lines.len(), 1, "{}", finished.report("one line"));
    for text in said {
        assert!(lines[0].contains(text), "{}", finished.report(text));
    }
}

#[test]
fn a_device_that_does_not_open_says_why() {
    opening_says("loopback:300", &[], &["loopback:300", "from 0 to 255"]);
    opening_says("/dev/VIA_LO", &[], &["did you mean via_lo?"]);
    opening_says("via_l", &[], &["did you mean via_lo?"]);
    opening_says("LOPBACK:", &[], &["did you mean loopback?"]);
    opening_says("/dev/", &[], &["no name follows the folder"]);
    opening_says("a=b", &[], &["this name cannot be mapped"]);
    opening_says(
        "nosuch",
        &[],
        &["map it with VIPL_DEVICE_MAP='nosuch=PLUGIN:ARGUMENT'"],
    );
    opening_says(
        "via_lo",
        &[("VIPL_PLUGINS", "loop")],
        &[
            "none found in /",
            "the setting plugins, \"loop\", leaves out clan, gnic2, ip, loopback, sim, tulip, verbs",
        ],
    );
    opening_says("sim:mtu=1", &[], &["mtu=1 is not from 256"]);
}

#[test]
fn settings_that_lead_nowhere_are_reported() {
    opening_says(
        "via_lo",
        &[("VIPL_CONFIG", "/nonexist")],
        &[
            "the configuration file /nonexist cannot be read",
            "VIPL_CONFIG",
        ],
    );
    opening_says(
        "via_lo",
        &[("VIPL_PLUGIN_PATH", "/nonexist")],
        &["no plug-ins from the folder /nonexist (setting plugin_path)"],
    );
    opening_says(
        "via_lo",
        &[("VIPL_LOG", "warn,nic=loud")],
        &["nic=loud", "is not a level"],
    );
    opening_says(
        "via_lo",
        &[("VIPL_SINGLE_COPY", "maybe")],
        &["single_copy: \"maybe\" is not true or false"],
    );
    opening_says(
        "via_lo",
        &[("VIPL_MAX_TRANSFER_SIZE", "1000")],
        &["\"1000\" is not a size from 32768 to 1073741824"],
    );
}

/// Names of files, devices and settings cannot forge a line of the log, or command a terminal.
#[test]
fn control_characters_of_others_are_escaped() {
    opening_says(
        "via_lo",
        &[("VIPL_CONFIG", "/none\rvipl[1] error é\u{9b}31m")],
        &["/none\\rvipl[1] error é\\u009b31m"],
    );
    let folder = work_dir().join("escaped");
    std::fs::create_dir_all(&folder).expect("a folder");
    let file = folder.join("libvipl_\x1b]0;x\x07.so");
    std::fs::write(&file, "no plug-in").expect("a file");
    let (finished, _) = opening(
        "other:",
        &[("VIPL_PLUGIN_PATH", folder.to_str().expect("UTF-8"))],
    );
    let expected = finished.stderr.contains("libvipl_\\u001b]0;x\\u0007.so");
    assert!(expected, "{}", finished.report("the file's name, escaped"));
    assert!(
        !finished.stderr.contains('\x1b'),
        "{}",
        finished.report("ESC")
    );
}

/// Settings in bytes take the units that the tools take, whatever device; truth has any case.
#[test]
fn sizes_and_truth_are_read_alike_everywhere() {
    for device in ["via_lo", "clan:", "sim:"] {
        let settings = [
            ("VIPL_MAX_TRANSFER_SIZE", "1M"),
            ("VIPL_MAX_REGISTER_BYTES", "64MiB"),
            ("VIPL_EAGER_MAX", "8k"),
            ("VIPL_SINGLE_COPY", "FALSE"),
            ("VIPL_STRICT", "TRUE"),
        ];
        let (finished, lines) = opening(device, &settings);
        assert!(lines.is_empty(), "{}", finished.report("no complaint"));
    }
    // FALSE means what false means: nothing goes in one copy.
    let finished = Run::compatible(program("tour"))
        .env("VIPL_SINGLE_COPY", "FALSE")
        .env("VIPL_MAX_TRANSFER_SIZE", "1M")
        .pass();
    let largest = finished.stdout.contains("up to 1048576 bytes");
    assert!(largest, "{}", finished.report("messages of a mebibyte"));
}

/// A program that names a secret does not speak without one, and the setting is known.
#[test]
fn a_secret_beside_an_agent_that_has_none() {
    let folder = work_dir().join("no-secret");
    std::fs::create_dir_all(&folder).expect("a folder");
    let agent = Agent::start_in(&folder).expect("an agent");
    let run = Run::strict(program("opens")).arg("ip:127.0.0.1").allow("");
    let run = run.env("VIPL_AGENT", agent.socket());
    let finished = run.env("VIPL_SECRET_FILE", "/nowhere/secret").finish();
    let report = finished.report("no secret");
    assert!(
        finished.stdout.contains("ip:127.0.0.1 does not open"),
        "{report}"
    );
    let expected = "VIPL_SECRET_FILE names a secret, and the Kernel Agent that runs has none";
    assert!(finished.stderr.contains(expected), "{report}");
    assert!(!finished.stderr.contains("is not a setting"), "{report}");
}

/// The first line of an agent that ends at once says how; it took 20 seconds, and said that it does not answer.
#[test]
fn an_agent_that_ends_at_once_says_why() {
    let folder = work_dir();
    let program_of = |name: &str, text: &str| {
        let path = folder.join(name);
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
        path
    };
    let wrong = program_of(
        "wrong-agent.sh",
        "#!/bin/sh\necho no libm.so >&2\nexit 127\n",
    );
    let no_program = program_of("no-agent", "?");
    for (path, how) in [
        (&wrong, ", with exit status 127: no libm.so"),
        (
            &no_program,
            ", since it cannot be executed: Exec format error",
        ),
    ] {
        let finished = Run::strict(program("simple"))
            .env("VIPL_AGENT", "off")
            .env("VIPL_AGENT_PROGRAM", path.as_os_str())
            .seconds(60)
            .finish();
        let expected = format!("{} was started and ended at once{how}", path.display());
        assert!(
            finished.stderr.contains(&expected),
            "{}",
            finished.report(&expected)
        );
    }
}
