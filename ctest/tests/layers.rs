//! Layers: programs run under each of them as they do without, bad ones are left out, and who has none pays nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};

use vipl_ctest::{Program, Run, examples, find_tool, library_dir, program, source, work_dir};

/// Programs that between them make every call, on `loopback`.
const PROGRAMS: [&str; 18] = [
    "simple", "tour", "queue", "xfer", "rdma", "cq", "notify", "threads", "conn", "peer", "vi",
    "nic", "memory", "disc", "waits", "errors", "forked", "ns",
];

/// How many of them run at the same time.
const TOGETHER: usize = 3;

/// A folder of one test, empty.
fn folder(name: &str) -> PathBuf {
    let dir = work_dir().join("layers").join(name);
    let _ = std::fs::remove_dir_all(&dir);
    std::fs::create_dir_all(&dir).expect("a folder");
    dir
}

fn under(layers: &str, name: &str) -> Run {
    Run::compatible(program(name))
        .env("VIPL_LAYERS", layers)
        .allow("vip_hosts")
        .allow("/tmp/no/such/table")
        .allow("VIP_ERROR_")
}

/// The value of a member in a line of a trace.
fn member<'a>(line: &'a str, name: &str) -> Option<&'a str> {
    let rest = line.split_once(&format!("\"{name}\":"))?.1;
    Some(match rest.strip_prefix('"') {
        Some(text) => text.split('"').next()?,
        None => rest.split([',', '}']).next()?,
    })
}

/// Calls `check` for each program, several at a time: most of them wait most of the time.
fn each(programs: &[&'static str], check: impl Fn(&'static str) + Sync) {
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..TOGETHER {
            scope.spawn(|| {
                while let Some(name) = programs.get(next.fetch_add(1, Ordering::Relaxed)) {
                    check(name);
                }
            });
        }
    });
}

#[test]
fn programs_run_under_trace() {
    let dir = folder("trace");
    each(&PROGRAMS, |name| {
        let file = dir.join(name);
        under("trace", name).env("VIPL_TRACE_FILE", &file).pass();
        let text = std::fs::read_to_string(&file).expect("a trace");
        assert!(text.starts_with("[\n"), "{name}");
        for line in text.lines().skip(1) {
            // The end of an arrow has no arguments.
            let end = match member(line, "name") {
                Some("arrives") => "\"},",
                _ => "}},",
            };
            assert!(
                line.starts_with("{\"pid\":") && line.ends_with(end),
                "{name}: {line}"
            );
        }
        let opened = text
            .lines()
            .find(|line| member(line, "name") == Some("VipOpenNic"));
        let opened = opened.unwrap_or_else(|| panic!("{name}: no VipOpenNic in\n{text}"));
        assert_eq!(member(opened, "result"), Some("VIP_SUCCESS"), "{name}");
        assert!(member(opened, "dur").is_some(), "{name}");
        // A request whose time is up is not one more poll that found nothing (PEER-04).
        let is_up = |line| {
            member(line, "name") == Some("VipConnectPeerDone")
                && member(line, "result") == Some("VIP_TIMEOUT")
        };
        assert!(name != "peer" || text.lines().any(is_up), "{text}");
    });
}

/// The file of a program that hangs has its calls, and the one in which it is.
#[test]
fn a_trace_names_the_call_that_does_not_return() {
    let file = folder("waits").join("trace");
    let killed = Run::compatible("/bin/sh")
        .args(&["-c", KILL_IN_A_WAIT])
        .arg(examples().join("echo_server"))
        .env("VIPL_LAYERS", "trace")
        .env("VIPL_TRACE_FILE", &file)
        .finish();
    assert!(killed.status.success(), "{}", killed.report("killed"));
    let text = std::fs::read_to_string(&file).expect("a trace");
    let names: Vec<_> = text
        .lines()
        .filter_map(|line| member(line, "name"))
        .collect();
    assert!(names.contains(&"VipCreateVi"), "{text}");
    assert_eq!(names.last(), Some(&"in VipConnectWait"), "{text}");
}

/// Kills the program when its trace says that it waits.
const KILL_IN_A_WAIT: &str = r#"
    "$0" & until grep -q '"name":"in ' "$VIPL_TRACE_FILE"; do sleep 0.1; done
    kill -KILL $!
"#;

/// A file that takes only a part of what is written ends with a whole line: a trace stays one.
#[test]
fn a_file_that_is_full_ends_with_a_whole_line() {
    let dir = folder("full");
    for (layer, variable) in [("record", "VIPL_RECORD_FILE"), ("trace", "VIPL_TRACE_FILE")] {
        let file = dir.join(format!("{layer}.%p"));
        // Two megabytes or four, as the shell counts; the program's own files are smaller.
        let finished = Run::compatible("/bin/sh")
            .args(&["-c", "ulimit -f 4000; exec \"$0\""])
            .arg(program("vi"))
            .env("VIPL_LAYERS", layer)
            .env(variable, file)
            .allow("the file cannot be written any more: File too large")
            .pass();
        let said = finished.stderr.matches("File too large").count();
        assert_eq!(said, 1, "{}", finished.report(layer));
    }
    let files: Vec<PathBuf> = std::fs::read_dir(&dir)
        .expect("the folder")
        .map(|file| file.expect("a file").path())
        .collect();
    assert_eq!(files.len(), 2, "{files:?}");
    for path in files {
        let text = std::fs::read_to_string(&path).expect("its text");
        let last = text.lines().last().unwrap_or_default();
        let is_whole = match text.starts_with("vipl-record") {
            true => last.split(' ').skip(5).all(|word| word.contains('=')),
            false => last.ends_with("},"),
        };
        let length = text.len();
        assert!(
            length > 1_900_000 && length < 4_096_000,
            "{path:?}: {length}"
        );
        assert!(text.ends_with('\n') && is_whole, "{path:?}: {last}");
    }
}

/// A thread that writes to a disk that stands still waits in the kernel. The others go on, and the log says so in either case.
#[test]
fn a_disk_that_stands_still_is_said() {
    let dir = folder("still");
    let shared = dir.join("still_disk.so");
    Program::new(source("layers/still_disk.c"))
        .shared()
        .build(&shared);
    let still = Program::new(source("layers/still.c"))
        .flag("-I")
        .flag(source("programs"))
        .linked()
        .build(&dir.join("still"));
    let said = "trace: the file has taken nothing for 5 s";
    let run = |run: Run, thread: &str| {
        let file = dir.join(thread);
        let run = run.env("VIPL_LAYERS", "trace").preload(&shared);
        let run = run.env("VIPL_TRACE_FILE", &file).env("STILL_FILE", &file);
        run.env("STILL_THREAD", thread).allow(said).start()
    };
    // The program's own thread stays in its write.
    let killed = Run::compatible("/bin/sh")
        .args(&["-c", KILL_WHEN_SAID])
        .arg(&still)
        .arg(dir.join("log"));
    let runs = [run(Run::compatible(&still), "others"), run(killed, "first")];
    for run in runs {
        let finished = run.finish();
        let shown = finished.report(said);
        assert!(finished.status.success(), "{shown}");
        assert_eq!(finished.stderr.matches(said).count(), 1, "{shown}");
    }
}

/// Kills the program when its log says that it waits for its file.
const KILL_WHEN_SAID: &str = r#"
    "$0" 2>"$1" & until grep -q 'has taken nothing' "$1"; do sleep 0.1; done
    kill -KILL $!; cat "$1" >&2
"#;

/// Threads of layers keep no process alive, with NICs and without.
#[test]
fn a_process_ends_with_the_last_thread_of_its_program() {
    let file = folder("last").join("trace");
    under("trace,validate", "main_exit")
        .env("VIPL_TRACE_FILE", &file)
        .allow("VAL-")
        .pass();
}

/// One file shows both sides, and each message that has arrived has the name that its sender gave it.
#[test]
fn messages_of_both_sides_are_joined() {
    let file = folder("joined").join("trace");
    under("trace", "tour").env("VIPL_TRACE_FILE", &file).pass();
    let text = std::fs::read_to_string(&file).expect("a trace");
    let ends = |flow: &str| -> BTreeMap<&str, (&str, f64)> {
        let lines = text
            .lines()
            .filter(|line| member(line, flow) == Some("true"));
        lines
            .filter_map(|line| {
                let at = member(line, "ts")?.parse().ok()?;
                Some((member(line, "bind_id")?, (member(line, "pid")?, at)))
            })
            .collect()
    };
    let (sent, received) = (ends("flow_out"), ends("flow_in"));
    assert!(received.len() > 10, "{text}");
    for (name, (receiver, _)) in &received {
        let (sender, _) = sent
            .get(name)
            .unwrap_or_else(|| panic!("{name} was not sent"));
        assert_ne!(sender, receiver, "{name}");
    }
}

/// Files that may have no byte: the first line of a layer's is lost with one line of the log, and raises no signal.
#[test]
fn a_file_without_room_ends_no_program() {
    let dir = folder("room");
    for (layer, variable) in [("record", "VIPL_RECORD_FILE"), ("trace", "VIPL_TRACE_FILE")] {
        let program = program("limits");
        let finished = Run::compatible("/bin/sh")
            .args(&["-c", "ulimit -f 0; exec \"$0\" \"$@\""])
            .arg(&program)
            .arg("size")
            .env("VIPL_LAYERS", layer)
            .env(variable, dir.join(layer))
            // An agent that it started would have the limit too, and serve other tests.
            .env("VIPL_AGENT", "off")
            .finish();
        let lines = finished.log(&["warn"]);
        let said = format!("{layer}: the file cannot be written any more: File too large");
        assert!(
            lines.len() == 1 && lines[0].contains(&said),
            "{}",
            finished.report(layer)
        );
        // It went on, and ended by itself.
        let by_itself = finished.status.code().is_some();
        assert!(by_itself, "{}", finished.report(layer));
    }
}

#[test]
fn calls_go_to_the_log_without_a_file() {
    let finished = under("trace", "simple").env("VIPL_LOG", "info").pass();
    let lines = finished.log(&["info"]);
    for name in ["VipOpenNic", "VipPostSend", "VipCloseNic"] {
        let text = format!("\"name\":\"{name}\"");
        assert!(
            lines.iter().any(|line| line.contains(&text)),
            "{}",
            finished.report(name)
        );
    }
}

/// A layer that is not found, is no layer, or is bad is left out with one line, and the program runs.
#[test]
fn bad_layers_are_left_out() {
    let dir = folder("bad");
    let bad = |name: &str, wrong: &str| {
        Program::new(source("badplugins/bad_layer.c"))
            .shared()
            .flag(format!("-DBAD_{wrong}"))
            .flag(format!("-DNAME=\"{name}\""))
            .build(&dir.join(format!("libvipl_layer_{name}.so")));
    };
    for (name, wrong, said) in [
        ("magic", "MAGIC", "magic"),
        ("major", "MAJOR", "abi_major"),
        ("kind", "KIND", "kind: expected 0x2, found 0x1"),
        ("size", "SIZE", "vipl_layer.size"),
        ("init", "INIT", "init failed with status -1"),
        ("absent", "ABSENT", "has no operation init_layer"),
    ] {
        bad(name, wrong);
        let finished = under(name, "simple")
            .env("VIPL_PLUGIN_PATH", &dir)
            .allow(&format!("the layer {name} is left out"))
            .pass();
        // One line of each process.
        let lines: Vec<&str> = finished.log(&["error"]);
        assert_eq!(lines.len(), 2, "{}", finished.report(name));
        assert!(
            lines.iter().all(|line| line.contains(said)),
            "{}",
            finished.report(said)
        );
    }
    for name in ["nowhere", "../trace"] {
        let finished = under(name, "simple").allow("is left out").pass();
        let lines = finished.log(&["error"]);
        assert_eq!(lines.len(), 2, "{}", finished.report(name));
        assert!(
            lines.iter().all(|line| line.contains("there is no file")),
            "{}",
            finished.report(name)
        );
    }
    // Its folder is full of layers that were not asked for.
    Run::compatible(program("simple"))
        .env("VIPL_PLUGIN_PATH", &dir)
        .pass();
}

/// The example in C counts calls; layers in front of it and behind it do not change what it sees.
#[test]
fn a_layer_in_c() {
    let dir = folder("example");
    Program::new(source("../examples/layer.c"))
        .flag("-O2")
        .shared()
        .build(&dir.join("libvipl_layer_example.so"));
    for layers in ["example", "trace,example", "example,trace"] {
        let finished = under(layers, "simple")
            .env("VIPL_PLUGIN_PATH", &dir)
            .env("VIPL_TRACE_FILE", dir.join("trace"))
            .env("VIPL_LOG", "info")
            // Of a layer that is not in use.
            .allow("VIPL_TRACE_FILE is not a setting")
            .pass();
        let lines = finished.log(&["info"]);
        let count = |name: &str| {
            let line = lines
                .iter()
                .find(|line| line.contains(&format!(" {name} ")));
            line.and_then(|line| line.rsplit(' ').next()?.parse::<u32>().ok())
        };
        assert!(
            count("VipOpenNic") >= Some(1),
            "{}",
            finished.report(layers)
        );
        assert!(
            count("VipPostSend") >= Some(1),
            "{}",
            finished.report(layers)
        );
    }
}

/// Functions that transfer data, whose instructions count.
const DATA_PATH: [&str; 5] = [
    "VipPostSend",
    "VipPostRecv",
    "VipSendDone",
    "VipRecvDone",
    "VipCQDone",
];

/// Without layers nothing of them is executed: of all that the instructions of the data path refer to, only one flag is
/// about watching, which was there before for the log, and it is loaded once and tested at once.
#[test]
fn the_data_path_has_no_instruction_for_layers() {
    let Some(objdump) = find_tool("objdump").filter(|_| cfg!(target_arch = "x86_64")) else {
        println!("left out: objdump is not installed, or reads another machine");
        return;
    };
    let library = library_dir().join("libvipl.so.1");
    let read = |arguments: &[&str]| {
        let output = Command::new(&objdump)
            .args(arguments)
            .arg(&library)
            .output()
            .expect("objdump");
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let symbols = symbols(&read(&["-t"]), &read(&["-R"]));
    for function in DATA_PATH {
        let text = read(&[
            "-d",
            "--no-show-raw-insn",
            &format!("--disassemble={function}"),
        ]);
        let code: Vec<&str> = text
            .lines()
            .filter(|line| line.starts_with(' ') && line.contains(":\t"))
            .collect();
        assert!(code.len() > 20, "{function}: {} instructions", code.len());
        let mut loads = Vec::new();
        for (place, line) in code.iter().enumerate() {
            let name = refers_to(line, &symbols);
            for word in ["layers", "Passing", "Watched", "LAYER_HOST"] {
                assert!(!name.contains(word), "{function}: {line}: {name}");
            }
            if name.contains("watch7WATCHED") {
                loads.push(place);
            }
        }
        assert_eq!(loads.len(), 1, "{function}: loads of the flag\n{text}");
        let after = &code[loads[0]..][..6];
        let jump = after.iter().position(|line| line.contains("\tj"));
        assert!(
            jump.is_some(),
            "{function}: no branch behind the flag: {after:#?}"
        );
        // One slow path, for the log and layers alike.
        let targets: BTreeSet<String> = code
            .iter()
            .map(|line| refers_to(line, &symbols))
            .filter(|name| name.contains("3any"))
            .collect();
        assert_eq!(targets.len(), 1, "{function}: {targets:?}\n{text}");
    }
}

/// Names of addresses; those of the global offset table have the names of what they refer to.
fn symbols(table: &str, relocations: &str) -> BTreeMap<u64, String> {
    let number = |text: &str| u64::from_str_radix(text.trim_start_matches("0x"), 16).ok();
    let mut names = BTreeMap::new();
    for line in table.lines() {
        if let Some((Some(at), Some(name))) = line
            .split_once(' ')
            .map(|(at, rest)| (number(at), rest.split_whitespace().last()))
        {
            names.insert(at, name.to_owned());
        }
    }
    for line in relocations
        .lines()
        .filter(|line| line.contains("R_X86_64_RELATIVE"))
    {
        let words: Vec<&str> = line.split_whitespace().collect();
        let target = words
            .last()
            .and_then(|word| number(word.rsplit('+').next()?));
        if let (Some(at), Some(target)) = (words.first().and_then(|word| number(word)), target)
            && let Some(name) = names.get(&target).cloned()
        {
            names.insert(at, name);
        }
    }
    names
}

/// The name of what an instruction refers to, or an empty one.
fn refers_to(line: &str, symbols: &BTreeMap<u64, String>) -> String {
    let behind = line.split_once("# ").map(|(_, rest)| rest);
    let target = behind.and_then(|rest| u64::from_str_radix(rest.split(' ').next()?, 16).ok());
    match target {
        Some(at) => symbols.get(&at).cloned().unwrap_or_default(),
        None => line
            .split_once('<')
            .map_or(String::new(), |(_, name)| name.to_owned()),
    }
}

/// The numbers of the findings of a run, each with its line.
fn findings(finished: &vipl_ctest::Finished) -> Vec<(String, String)> {
    let lines = finished.log(&["warn", "info"]);
    let found = lines.iter().filter_map(|line| {
        let rest = line.split_once(": VAL-")?.1;
        Some((format!("VAL-{}", &rest[..2]), (*line).to_owned()))
    });
    found.collect()
}

/// Each mistake of the example is found, with its number and its line.
#[test]
fn planted_mistakes_are_found_with_their_lines() {
    let file = source("layers/planted.c");
    let text = std::fs::read_to_string(&file).expect("the example");
    let planted = Program::new(file)
        .flag("-I")
        .flag(source("programs"))
        .linked()
        .build(&folder("planted").join("planted"));
    let finished = Run::compatible(&planted)
        .env("VIPL_LAYERS", "validate")
        // Some are advice.
        .env("VIPL_LOG", "info")
        .allow("VAL-")
        .pass();
    let found = findings(&finished);
    let mut expected = 0;
    for (number, line) in text.lines().enumerate() {
        let Some((_, comment)) = line.split_once("; /* VAL") else {
            continue;
        };
        for name in format!("VAL{comment}")
            .split(' ')
            .filter(|word| word.starts_with("VAL-"))
        {
            expected += 1;
            let place = format!("planted.c:{}", number + 1);
            let one = found
                .iter()
                .find(|(finding, line)| finding == name && line.contains(&place));
            assert!(
                one.is_some(),
                "{}",
                finished.report(&format!("{name} at {place}"))
            );
        }
    }
    assert!(expected >= 12, "{expected}");
    // Silenced ones are not reported, the others are.
    let finished = Run::compatible(&planted)
        .env("VIPL_LAYERS", "validate")
        .env("VIPL_VALIDATE_SILENCE", "VAL-10,VAL-40")
        .allow("VAL-")
        .pass();
    let found = findings(&finished);
    assert!(
        found.iter().any(|(name, _)| name == "VAL-11"),
        "{}",
        finished.report("VAL-11")
    );
    assert!(
        !found
            .iter()
            .any(|(name, _)| name == "VAL-10" || name == "VAL-40"),
        "{}",
        finished.report("silence")
    );
}

/// A message that no call looks for is found while the program hangs at a completion queue, with the line of that call; and only
/// there.
#[test]
fn a_message_that_no_call_looks_for_is_found() {
    let file = source("layers/unlooked.c");
    let text = std::fs::read_to_string(&file).expect("the example");
    let dir = folder("unlooked");
    let program = Program::new(file)
        .flag("-I")
        .flag(source("programs"))
        .linked()
        .build(&dir.join("unlooked"));
    let words = ["hangs", "polls", "later", "thread", "belongs"];
    let runs = words.map(|word| {
        let hangs = matches!(word, "hangs" | "polls");
        let run = match hangs {
            true => Run::compatible("/bin/sh")
                .args(&["-c", KILL_WHEN_FOUND])
                .arg(&program)
                .arg(word)
                .arg(dir.join(word)),
            false => Run::compatible(&program).arg(word),
        };
        let run = run.env("VIPL_LAYERS", "validate").allow("VAL-");
        (word, hangs, run.start())
    });
    for (word, hangs, run) in runs {
        let finished = run.finish();
        let found = findings(&finished);
        let shown = finished.report(&format!("{word}: {found:#?}"));
        assert!(finished.status.success(), "{shown}");
        let comment = format!("/* {word}: VAL-43 */");
        let line = text.lines().position(|line| line.ends_with(&comment));
        assert_eq!(line.is_some(), hangs, "{shown}");
        match line {
            None => assert!(found.is_empty(), "{shown}"),
            Some(line) => {
                let place = format!("unlooked.c:{} (main): VipCQ", line + 1);
                assert_eq!(found.len(), 1, "{shown}");
                let (number, text) = &found[0];
                assert!(number == "VAL-43" && text.contains(&place), "{shown}");
            }
        }
    }
}

/// Kills the program when its log has a finding, and shows the log.
const KILL_WHEN_FOUND: &str = r#"
    "$0" "$1" 2>"$2" & until grep -q VAL- "$2"; do sleep 0.1; done
    kill -KILL $!; cat "$2" >&2
"#;

/// Each finding is in the table of docs/TROUBLESHOOTING.md, and each row is a finding.
#[test]
fn the_table_of_findings_is_the_code() {
    let read = |path: &str| std::fs::read_to_string(source(path)).expect("a file of the project");
    let code = read("../plugins/layers/validate/src/findings.rs");
    let (_, body) = code
        .split_once("pub(crate) enum Finding {")
        .expect("the findings");
    let (body, _) = body.split_once('}').expect("their end");
    let numbers = body.lines().filter_map(|line| {
        line.split_once("= ")?
            .1
            .trim_end_matches(',')
            .parse::<u8>()
            .ok()
    });
    let found: Vec<String> = numbers.map(|number| format!("VAL-{number:02}")).collect();
    let page = read("../docs/TROUBLESHOOTING.md");
    let rows: Vec<String> = page
        .lines()
        .filter_map(|line| line.strip_prefix("| VAL-")?.split(' ').next())
        .map(|number| format!("VAL-{number}"))
        .collect();
    assert_eq!(found, rows);
}

/// Programs that do nothing wrong: whatever is found in them is a false alarm.
#[test]
fn correct_programs_have_no_findings() {
    each(&CORRECT, |name| {
        let finished = Run::strict(program(name))
            .env("VIPL_LAYERS", "validate")
            // Findings are looked at below; of all else other tests care.
            .allow("")
            .pass();
        let mut found = findings(&finished);
        // Some send a message without a receive, to see it fail (DERR-18).
        found.retain(|(number, _)| number != "VAL-50");
        let wrong = finished.report(&format!("{found:#?}"));
        assert!(found.is_empty(), "{wrong}");
    });
}

/// Of those in `programs/`; the others make mistakes to see what comes of them.
const CORRECT: [&str; 12] = [
    "simple",
    "tour",
    "rdma",
    "waits",
    "conn",
    "disc",
    "ns",
    "conn_many",
    "allocated",
    "forked",
    "registration",
    "peer",
];

/// So are the examples, but for the one that shows what comes of a message without a receive.
#[test]
fn the_examples_have_no_findings() {
    let run = |name: &str, arguments: &[&str]| {
        let run = Run::compatible(examples().join(name)).args(arguments);
        run.seconds(240).env("VIPL_LAYERS", "validate")
    };
    let alone = [
        "hello",
        "pingpong",
        "server",
        "rdma_write",
        "rdma_read",
        "reconnect",
        "errors",
    ];
    let mut all: Vec<(&str, Vec<Run>)> = alone.map(|name| (name, vec![run(name, &[])])).into();
    for (server, arguments) in [
        ("echo_server", ["via_lo", "1"]),
        ("event_loop", ["via_lo", "2"]),
    ] {
        let client = || run("echo_client", &["localhost", "via_lo", "50"]);
        let clients = arguments[1].parse().unwrap_or(1);
        let mut runs = vec![run(server, &arguments)];
        runs.extend((0..clients).map(|_| client()));
        all.push((server, runs));
    }
    let store = ["kv_client", "localhost", "via_lo", "test", "0", "1", "200"];
    all.push((
        "kv",
        vec![
            run("kv_server", &["via_lo", "1", "fast"]),
            run(store[0], &store[1..]),
        ],
    ));
    for name in ["ring", "alltoall", "allreduce", "farm"] {
        let job = run("mprun", &["-n", "2"]).arg(examples().join(name));
        all.push((name, vec![job]));
    }
    for (name, runs) in all {
        let started: Vec<_> = runs.into_iter().map(Run::start).collect();
        for finished in started.into_iter().map(vipl_ctest::Started::finish) {
            let found = findings(&finished);
            let shown = finished.report(&format!("{name}: {found:#?}"));
            assert!(finished.status.success(), "{shown}");
            let unexpected = found
                .iter()
                .filter(|(number, _)| !(name == "errors" && number == "VAL-50"));
            assert_eq!(unexpected.count(), 0, "{shown}");
        }
    }
}

/// Each process has a file of its own, with a line for each call.
#[test]
fn programs_run_under_record() {
    each(&PROGRAMS, |name| {
        let dir = folder(&format!("record-{name}"));
        under("record", name)
            .env("VIPL_RECORD_FILE", dir.join("run"))
            .pass();
        let mut calls = 0;
        for file in std::fs::read_dir(&dir).expect("the folder") {
            let text = std::fs::read_to_string(file.expect("a file").path()).expect("a recording");
            assert!(text.starts_with("vipl-record 1 "), "{name}: {text}");
            calls += text.matches(" VipOpenNic VIP_SUCCESS ").count();
        }
        assert!(calls > 0, "{name}: no file with a call");
    });
}

#[test]
fn programs_run_under_all_layers() {
    let dir = folder("all");
    each(&PROGRAMS, |name| {
        let number = PROGRAMS.iter().position(|other| *other == name);
        let layers = match number.is_some_and(|number| number % 2 == 0) {
            true => "trace,validate,record,fault",
            false => "fault,record,validate,trace",
        };
        under(layers, name)
            .env("VIPL_TRACE_FILE", dir.join(name))
            .env("VIPL_RECORD_FILE", dir.join("run"))
            .allow("VAL-")
            .pass();
    });
}

/// A call is answered, a connection breaks, rules that are none leave the layer out.
#[test]
fn faults_happen_when_they_should() {
    let rule = |rule: &str| {
        Run::compatible(program("simple"))
            .env("VIPL_LAYERS", "fault")
            .env("VIPL_FAULT", rule)
            .env("VIPL_LOG", "info")
            .allow("")
            .finish()
    };
    let finished = rule("VipCreateCQ:VIP_ERROR_RESOURCE:at=1");
    assert!(
        !finished.status.success(),
        "{}",
        finished.report("it must fail")
    );
    assert!(
        finished
            .stderr
            .contains("warn layer: fault: call 1 of VipCreateCQ is answered with VIP_ERROR_RESOURCE, by the rule"),
        "{}",
        finished.report("a line")
    );
    // The program waits for its sends, and one of them never leaves.
    let finished = rule("VipPostSend:VIP_ERROR_CONN_LOST:at=50");
    assert!(
        !finished.status.success(),
        "{}",
        finished.report("the connection must break")
    );
    let said = "fault: call 50 of VipPostSend breaks the connection with VIP_ERROR_CONN_LOST, by";
    assert!(finished.stderr.contains(said), "{}", finished.report(said));
    let flushed = "VipSendWait: expected status 0x00001, found status 0x00021";
    assert!(
        finished.stdout.contains(flushed),
        "{}",
        finished.report(flushed)
    );
    let finished = rule("VipQueryNic:delay=1ms;VipPostSend:VIP_TIMEOUT:chance=0");
    finished.expect_pass();
    assert!(
        finished
            .stderr
            .contains("of VipQueryNic begins 1ms late, by"),
        "{}",
        finished.report("a delay")
    );
    let finished = rule("VipPastSend:VIP_TIMEOUT");
    finished.expect_pass();
    for said in ["is no function", "the layer fault is left out"] {
        assert!(finished.stderr.contains(said), "{}", finished.report(said));
    }
}
