//! `vipstat` beside two C programs that exchange messages: what it shows while they run, and after they were killed.

use std::fs;
use std::io::{BufRead, BufReader};
use std::mem::offset_of;
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

use serde_json::Value;
use vipl_ctest::{
    Build, Program, end_with_parent, fails_without_output, find_tool, help_fits, skip, source,
    tool, with_library,
};
use vipl_pages::layout;
use vipl_sys::clock::sleep;

const VIPSTAT: &str = env!("CARGO_BIN_EXE_vipstat");
const MESSAGES: u64 = 137;

/// The two processes, in a folder of their own.
struct Watched {
    folder: tempfile::TempDir,
    child: Child,
    output: BufReader<ChildStdout>,
    pids: [i32; 2],
}

fn program(build: Build) -> PathBuf {
    static ONCE: [OnceLock<PathBuf>; 2] = [const { OnceLock::new() }; 2];
    let make = || {
        let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/watched.c");
        let output = build
            .work_dir()
            .join("stat")
            .join(format!("watched-{}", std::process::id()));
        Program::new(own)
            .of(build)
            .flag("-I")
            .flag(source("programs"))
            .linked_in(&build.library_dir())
            .build(&output)
    };
    ONCE[usize::from(build == Build::I386)]
        .get_or_init(make)
        .clone()
}

/// A folder in memory that is closed to others.
fn folder() -> Option<tempfile::TempDir> {
    let folder = tempfile::tempdir_in("/dev/shm");
    let folder = folder
        .inspect_err(|error| skip(&format!("/dev/shm: {error}")))
        .ok()?;
    let closed = fs::Permissions::from_mode(0o700);
    fs::set_permissions(folder.path(), closed).expect("a mode");
    Some(folder)
}

impl Watched {
    fn start() -> Option<Watched> {
        Watched::start_with(|_| ())
    }

    /// The same, with more set.
    fn start_with(more: impl FnOnce(&mut Command)) -> Option<Watched> {
        Watched::start_of(Build::Own, more)
    }

    /// The same, of a build of the library.
    fn start_of(build: Build, more: impl FnOnce(&mut Command)) -> Option<Watched> {
        let folder = folder()?;
        let mut command = Command::new(program(build));
        with_library(&mut command);
        command
            .env("VIPL_PUBLISH", folder.path())
            .env("WATCHED_MESSAGES", MESSAGES.to_string())
            .args(["-d", "loopback:"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        end_with_parent(&mut command);
        more(&mut command);
        let mut child = command.spawn().expect("the program");
        let output = BufReader::new(child.stdout.take().expect("a pipe"));
        let mut watched = Watched {
            folder,
            child,
            output,
            pids: [0; 2],
        };
        for _ in 0..2 {
            let line = watched.line();
            let words: Vec<i32> = line
                .split(' ')
                .filter_map(|word| word.trim().parse().ok())
                .collect();
            assert!(line.starts_with("ready ") && words.len() == 2, "{line:?}");
            watched.pids[words[0] as usize] = words[1];
        }
        Some(watched)
    }

    /// The next line that begins with `ready`, or the end.
    fn line(&mut self) -> String {
        let mut line = String::new();
        loop {
            line.clear();
            let bytes = self
                .output
                .read_line(&mut line)
                .expect("the program's output");
            if bytes == 0 || line.starts_with("ready") {
                return line;
            }
        }
    }

    fn vipstat(&self, arguments: &[&str]) -> (bool, String, String) {
        vipstat_in(self.folder.path(), arguments)
    }

    fn json(&self, arguments: &[&str]) -> Value {
        let (done, stdout, stderr) = self.vipstat(&[arguments, &["--json"]].concat());
        assert!(done, "{stdout}{stderr}");
        serde_json::from_str(&stdout).unwrap_or_else(|error| panic!("{error}: {stdout}"))
    }

    fn process<'a>(&self, document: &'a Value, side: usize) -> &'a Value {
        let list = document["processes"].as_array().expect("a list");
        let found = list
            .iter()
            .find(|process| process["pid"] == self.pids[side]);
        found.unwrap_or_else(|| panic!("no process {}: {document:#}", self.pids[side]))
    }

    fn kill(&mut self) {
        self.kill_some(&[0, 1]);
    }

    /// Kills these sides, and waits for the end of both.
    fn kill_some(&mut self, sides: &[usize]) {
        for side in sides {
            // SAFETY: a process of this test.
            unsafe { libc::kill(self.pids[*side], libc::SIGKILL) };
        }
        // The end of the output is the end of both.
        assert_eq!(self.line(), "");
        self.child.wait().expect("its end");
    }
}

/// Lets a program keep its last descriptors.
fn keep_descriptors(command: &mut Command) {
    command.env("VIPL_FLIGHT", "true");
}

fn vipstat_in(folder: &Path, arguments: &[&str]) -> (bool, String, String) {
    let folder = folder.to_str().expect("a path");
    let mut command = tool(VIPSTAT, &[arguments, &["--folder", folder]].concat());
    let output = command.env("VIPL_AGENT", "off").output().expect("vipstat");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (
        output.status.success(),
        text(&output.stdout),
        text(&output.stderr),
    )
}

/// A process that keeps its descriptors shows the last of each queue, after it was killed too; one that does not, none.
#[test]
fn a_killed_process_shows_its_last_descriptors() {
    if let Some(watched) = Watched::start_with(keep_descriptors) {
        last_descriptors(watched);
    }
}

/// Kills both processes, and looks at the descriptors that they have kept.
fn last_descriptors(mut watched: Watched) {
    watched.kill();
    let [sender, receiver] = [0, 1].map(|side| {
        let pid = watched.pids[side].to_string();
        let document = watched.json(&["--last", &pid]);
        watched.process(&document, side)["vis"][0]["descriptors"].clone()
    });
    let numbers = |list: &Value| -> Vec<u64> {
        let list = list.as_array().expect("a list").iter();
        list.filter_map(|one| one["number"].as_u64()).collect()
    };
    let all: Vec<u64> = (1..=MESSAGES).collect();
    assert_eq!(numbers(&sender["send"]), all);
    assert_eq!(
        numbers(&receiver["recv"]),
        [all, vec![MESSAGES + 1]].concat()
    );
    let fate = |list: &Value, number: u64| list[number as usize - 1]["what"].clone();
    for number in 1..=MESSAGES {
        assert_eq!(fate(&sender["send"], number), "send");
        assert_eq!(fate(&receiver["recv"], number), "receive");
    }
    assert_eq!(fate(&receiver["recv"], MESSAGES + 1), "not complete");
    let (done, text, _) = watched.vipstat(&["--last", &watched.pids[1].to_string()]);
    assert!(
        done && text.contains("receive queue: the last 16 of 138") && !text.contains("VIPL_FLIGHT"),
        "{text}"
    );
}

#[test]
fn counts_are_exact() {
    let Some(mut watched) = Watched::start() else {
        return;
    };
    let document = watched.json(&[]);
    let [sender, receiver] = [0, 1].map(|side| watched.process(&document, side));
    for process in [sender, receiver] {
        assert_eq!(process["runs"], true, "{process:#}");
        assert_eq!(process["nics"][0]["plugin"], "loopback", "{process:#}");
        assert_eq!(process["nics"][0]["regions"], 1, "{process:#}");
        assert_eq!(process["nics"][0]["region_bytes"], 1 << 20, "{process:#}");
        assert!(
            process["program"]
                .as_str()
                .is_some_and(|path| path.contains("watched"))
        );
        let vi = &process["vis"][0];
        assert_eq!(
            (&vi["state"], &vi["level"]),
            (&"Connected".into(), &"delivery".into())
        );
        assert_eq!(vi["peer"]["kind"], "process", "{vi:#}");
    }
    let (sends, receives) = (&sender["vis"][0]["send"], &receiver["vis"][0]["recv"]);
    assert_eq!(sends["posted"], MESSAGES, "{sender:#}");
    assert_eq!(sends["taken"], MESSAGES, "{sender:#}");
    assert_eq!(sends["depth"], 0, "{sender:#}");
    assert_eq!(receives["posted"], MESSAGES + 1, "{receiver:#}");
    assert_eq!(receives["taken"], MESSAGES, "{receiver:#}");
    assert_eq!(receives["depth"], 1, "{receiver:#}");
    assert_eq!(receiver["cqs"][0]["added"], MESSAGES, "{receiver:#}");
    assert_eq!(receiver["cqs"][0]["entries"], 0, "{receiver:#}");
    assert_eq!(sender["vis"][0]["peer"]["pid"], watched.pids[1]);
    assert_eq!(receiver["vis"][0]["peer"]["pid"], watched.pids[0]);
    assert_eq!(receiver["vis"][0]["errors"], 0);

    for columns in ["40", "80"] {
        let mut command = tool(VIPSTAT, &["--once", "--folder"]);
        command
            .arg(watched.folder.path())
            .env("COLUMNS", columns)
            .env("VIPL_AGENT", "off");
        let output = command.output().expect("vipstat");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(
            text.contains("Connected") && text.contains("loopback"),
            "{text}"
        );
        let width = columns.parse::<usize>().expect("a number");
        assert!(
            text.lines().all(|line| line.chars().count() <= width),
            "{text}"
        );
    }
    let only = watched.json(&["--pid", &watched.pids[0].to_string()]);
    assert_eq!(only["processes"].as_array().map(Vec::len), Some(1));
    for (text, vis) in [
        ("watched", 2),
        ("loopback", 2),
        (&*watched.pids[0].to_string(), 2),
    ] {
        let found = watched.json(&["--filter", text]);
        let found = found["processes"].as_array().expect("a list");
        let vis_of = |process: &Value| process["vis"].as_array().map_or(0, Vec::len);
        assert_eq!(found.iter().map(vis_of).sum::<usize>(), vis, "{text}");
        let (done, once, _) = watched.vipstat(&["--once", "-f", text]);
        assert!(
            done && once.contains("VIs\n") && once.contains("NICs\n"),
            "{text}: {once}"
        );
    }
    let (done, once, _) = watched.vipstat(&["--once", "-f", "nothing has this"]);
    assert!(
        done && once == "no process that is shown here has that\n",
        "{once}"
    );
    let none = watched.vipstat(&["--last"]);
    assert!(
        !none.0 && none.2.contains("no process has left its pages"),
        "{none:?}"
    );

    // A program that ends in order leaves nothing.
    drop(watched.child.stdin.take());
    assert_eq!(watched.line(), "");
    assert!(watched.child.wait().expect("its end").success());
    assert_eq!(
        fs::read_dir(watched.folder.path())
            .expect("the folder")
            .count(),
        0
    );
}

/// Of a program with few messages each is counted, and its time is in the histogram.
#[test]
fn bytes_of_few_messages_are_exact() {
    const FEW: u64 = 50;
    let Some(mut watched) = Watched::start_with(|command| {
        command.env("WATCHED_MESSAGES", FEW.to_string());
    }) else {
        return;
    };
    let document = watched.json(&[]);
    let [sender, receiver] = [0, 1].map(|side| &watched.process(&document, side)["vis"][0]);
    let bytes: u64 = (1..=FEW).map(|left| left % 100 + 1).sum();
    assert_eq!(sender["send"]["bytes"], bytes, "{sender:#}");
    assert_eq!(receiver["recv"]["bytes"], bytes, "{receiver:#}");
    assert_eq!(receiver["send"]["bytes"], 0, "{receiver:#}");
    // The first finds nothing to keep its time in.
    let times = &sender["send_time_ns"];
    assert_eq!(times["samples"], FEW - 1, "{sender:#}");
    let time = |name: &str| times[name].as_u64().expect("a time");
    assert!(0 < time("p50") && time("p50") <= time("p90") && time("p90") <= time("p99"));
    assert_eq!(receiver["send_time_ns"]["samples"], 0);
    assert_eq!(receiver["send_time_ns"]["p50"], Value::Null);
    // After its end, too.
    watched.kill();
    let last = watched.json(&["--last", &watched.pids[0].to_string()]);
    let vi = &watched.process(&last, 0)["vis"][0];
    assert_eq!(vi["send"]["bytes"], bytes, "{vi:#}");
}

#[test]
fn the_last_events_of_a_killed_process_are_there() {
    let Some(mut watched) = Watched::start() else {
        return;
    };
    watched.kill();
    assert_eq!(
        watched.json(&[])["processes"].as_array().map(Vec::len),
        Some(0)
    );
    let document = watched.json(&["--last", &watched.pids[1].to_string()]);
    let receiver = watched.process(&document, 1);
    assert_eq!(receiver["runs"], false, "{receiver:#}");
    assert_eq!(receiver["called_exit"], false, "{receiver:#}");
    assert_eq!(
        receiver["vis"][0]["recv"]["taken"], MESSAGES,
        "{receiver:#}"
    );
    let events = receiver["vis"][0]["events"].as_array().expect("a list");
    let words: Vec<&str> = events
        .iter()
        .filter_map(|event| event["what"].as_str())
        .collect();
    let peer = format!("connected with process {}", watched.pids[0]);
    assert!(
        words.contains(&"created") && words.contains(&peer.as_str()),
        "{words:?}"
    );
    let (done, text, _) = watched.vipstat(&["--last", &watched.pids[1].to_string()]);
    assert!(
        done && text.contains("was killed or crashed")
            && text.contains(&peer)
            && text.contains("VIPL_FLIGHT=true"),
        "{text}"
    );
    // The second may have been told of the end of the first. Each is named beside the other.
    let (done, text, _) = watched.vipstat(&["--last"]);
    let origins = ["before last sign  event", "before the end  event"];
    assert!(
        done && origins.iter().any(|origin| text.contains(origin)),
        "{text}"
    );
    for pid in watched.pids {
        assert!(
            text.contains(&format!("{pid} watched")) || text.contains(&format!("process {pid}, "))
        );
    }
    let (done, _, why) = watched.vipstat(&["--last", "4194305"]);
    let [one, other] = watched.pids;
    assert!(
        !done
            && why.contains(&format!("{one} watched"))
            && why.contains(&format!("{other} watched")),
        "{why}"
    );
}

/// A process that is killed alone ends when its peer has lost it, and its last message is known.
#[test]
fn a_peer_knows_when_a_process_has_ended() {
    let Some(mut watched) = Watched::start() else {
        return;
    };
    let [sender, receiver] = watched.pids.map(|pid| pid.to_string());
    let (done, _, why) = watched.vipstat(&["--last", &receiver]);
    assert!(!done && why.contains("has not ended"), "{why}");
    // SAFETY: a process of this test.
    unsafe { libc::kill(watched.pids[1], libc::SIGKILL) };
    let has_lost = || {
        let document = watched.json(&["--pid", &sender]);
        let vi = &watched.process(&document, 0)["vis"][0];
        vi["state"] != "Connected"
    };
    while !has_lost() {
        sleep(Duration::from_millis(20));
    }
    let document = watched.json(&["--last", &receiver]);
    let process = watched.process(&document, 1);
    assert_eq!(process["end"]["known_by"], "peer", "{process:#}");
    let end = process["end"]["time_ns"].as_u64().expect("a time");
    let vi = &process["vis"][0];
    let message = vi["latest_sample_ns"].as_u64().expect("a time");
    let events = vi["events"].as_array().expect("a list").iter();
    let latest = events.filter_map(|event| event["time_ns"].as_u64()).max();
    assert!(
        latest.expect("events") < message && message < end,
        "{process:#}"
    );
    let (_, text, _) = watched.vipstat(&["--last"]);
    assert!(
        text.contains(&format!("its peer, process {sender}, was told"))
            && text.contains("before the end  event"),
        "{text}"
    );
    // The sender is still there.
    watched.kill_some(&[0]);
}

/// The second process then makes its file in the number of standard error, and moves it.
#[test]
fn a_program_without_standard_error_keeps_its_lock() {
    let close = || {
        // SAFETY: a system call.
        unsafe { libc::close(2) };
        Ok(())
    };
    let without = |command: &mut Command| {
        // SAFETY: the closure makes a system call only.
        unsafe { command.pre_exec(close) };
    };
    let Some(mut watched) = Watched::start_with(without) else {
        return;
    };
    let mut holders: Vec<i32> = fs::read_dir(watched.folder.path())
        .expect("the folder")
        .map(|entry| fs::File::open(entry.expect("an entry").path()).expect("a file"))
        .filter_map(|file| vipl_pages::life::holder(&file)?.try_into().ok())
        .collect();
    holders.sort_unstable();
    let mut pids = watched.pids;
    pids.sort_unstable();
    assert_eq!(holders, pids);
    watched.kill();
}

/// What is no file of a process is reported, and nothing else happens.
#[test]
fn hostile_files_are_reported_and_harmless() {
    let Some(folder) = folder() else { return };
    let path = |number: u64| folder.path().join(format!("1-{number:016x}.pages"));
    fs::write(path(1), vec![0xFF; 100_000]).expect("a file");
    fs::write(path(2), "").expect("a file");
    symlink("/etc/passwd", path(3)).expect("a link");
    let mut pages = vec![0xFF; 1 << 20];
    pages[..8].copy_from_slice(b"VIPLPAGE");
    pages[8..16].copy_from_slice(&vipl_pages::layout::LAYOUT.to_ne_bytes());
    fs::write(path(4), &pages).expect("a file");
    let mut terminal = vec![0; 1 << 20];
    terminal[..8].copy_from_slice(b"VIPLPAGE");
    terminal[8..16].copy_from_slice(&vipl_pages::layout::LAYOUT.to_ne_bytes());
    let program = vipl_pages_program();
    terminal[program..program + 8].copy_from_slice(b"\x1b[2J\nxyz");
    fs::write(path(5), &terminal).expect("a file");
    let owner = nothing_of_others(&path(6));
    let (done, stdout, stderr) = vipstat_in(folder.path(), &["--once"]);
    assert!(done, "{stdout}{stderr}");
    let unreadable = stdout
        .lines()
        .filter(|line| line.starts_with("cannot read "))
        .count();
    // One without content is of a process that has just begun.
    assert_eq!(unreadable, 3 + usize::from(owner), "{stdout}");
    assert!(
        !stdout.contains(path(2).to_str().expect("a path")),
        "{stdout}"
    );
    assert!(!stdout.contains("root:"), "{stdout}");
    let (done, stdout, stderr) = vipstat_in(folder.path(), &["--last"]);
    assert!(done && !stdout.contains('\x1b'), "{stdout}{stderr}");
    assert!(stdout.contains("\\u001b[2J\\nxyz"), "{stdout}");
}

/// VIs of a file with all 512 descriptors each, 5 MB of it and 29 MB of JSON. Root reads such files of other users, so what a
/// look keeps is bounded by the file.
#[test]
fn json_of_many_descriptors_takes_little_memory() {
    const VIS: usize = 512;
    const MOST_KIB: i64 = 64 << 10;
    let Some(folder) = folder() else { return };
    let path = folder.path().join(format!("1-{:016x}.pages", 1));
    let file = fs::File::create(&path).expect("a file");
    let put = |place: usize, bytes: &[u8]| file.write_all_at(bytes, place as u64).expect("room");
    let word = |place: usize, word: u64| put(place, &word.to_ne_bytes());
    file.set_len(layout::BYTES_WITH_FLIGHTS as u64)
        .expect("a size");
    put(0, b"VIPLPAGE");
    word(offset_of!(layout::Process, layout), layout::LAYOUT);
    word(offset_of!(layout::Process, vi_bound), VIS as u64);
    let ring = layout::Ring {
        entry: 16,
        room: layout::FLIGHT as u32,
    };
    let rings = layout::Ring::set(layout::Ring::set(0, 0, Some(ring)), 1, Some(ring));
    for slot in 0..VIS {
        let vi = layout::VIS_AT + slot * size_of::<layout::Vi>();
        word(vi + offset_of!(layout::Vi, handle), 1 + slot as u64);
        word(vi + offset_of!(layout::Vi, flight), rings);
        let counts = layout::COUNTS_AT + slot * size_of::<layout::Counts>();
        for queue in 0..2 {
            let posted = (layout::FLIGHT as u32).to_ne_bytes();
            put(counts + queue * size_of::<layout::Counted>(), &posted);
        }
        let flight = layout::FLIGHTS_AT + slot * size_of::<layout::Flight>();
        put(flight, &[0x40; size_of::<layout::Flight>()]);
    }
    let output = tempfile::NamedTempFile::new().expect("a file");
    for last in [&["--json"][..], &["--json", "--last"]] {
        let arguments = [last, &["--folder", folder.path().to_str().expect("a path")]].concat();
        let mut command = tool(VIPSTAT, &arguments);
        command.env("VIPL_AGENT", "off");
        command.stdout(output.reopen().expect("the file"));
        let child = command.spawn().expect("vipstat");
        // The file is of no process that runs, or of one, in the same way.
        let (status, kib) = ended(child);
        assert!(status.success(), "{status}");
        let text = fs::read_to_string(output.path()).expect("its output");
        let document: Value = serde_json::from_str(&text).expect("JSON");
        let vis = document["processes"][0]["vis"]
            .as_array()
            .map_or(0, Vec::len);
        assert_eq!(vis, VIS * usize::from(last.len() > 1));
        assert!(kib < MOST_KIB, "{kib} KiB for {} bytes of JSON", text.len());
    }
    let lines = fs::read_to_string(output.path()).expect("its output");
    let numbers = lines
        .lines()
        .filter(|line| line.contains("\"address\": 4629"));
    assert_eq!(numbers.count(), 2 * VIS * layout::FLIGHT);
}

/// Waits for the end of a program. Its result, and the most memory that it had, in KiB.
fn ended(child: Child) -> (ExitStatus, i64) {
    let (mut status, pid) = (0, i32::try_from(child.id()).expect("a number"));
    // SAFETY: room for both answers, of which all zero is a valid value; the child is this test's.
    unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        assert_eq!(libc::wait4(pid, &raw mut status, 0, &raw mut usage), pid);
        (ExitStatus::from_raw(status), usage.ru_maxrss)
    }
}

/// A file that belongs to another user, if this user may make one.
fn nothing_of_others(path: &Path) -> bool {
    fs::write(path, "x").expect("a file");
    let given = std::os::unix::fs::chown(path, Some(12_345), None).is_ok();
    if !given {
        fs::remove_file(path).expect("ours");
    }
    given
}

/// Where the program's path stands in a file.
fn vipl_pages_program() -> usize {
    std::mem::offset_of!(vipl_pages::layout::Process, program)
}

#[test]
fn a_folder_that_is_open_to_others_is_refused() {
    let Some(folder) = folder() else { return };
    let open = fs::Permissions::from_mode(0o755);
    fs::set_permissions(folder.path(), open).expect("a mode");
    let (done, _, stderr) = vipstat_in(folder.path(), &["--once"]);
    assert!(
        !done && stderr.contains("cannot read the folder"),
        "{stderr}"
    );
}

#[test]
fn help_fits_and_output_counts() {
    help_fits(VIPSTAT);
    fails_without_output(VIPSTAT, &["--once"]);
    fails_without_output(VIPSTAT, &["--json"]);
    fails_without_output(VIPSTAT, &["--generate", "man"]);
}

/// Programs of 32 bits, whose entries of rings and counters have other sizes.
mod i386 {
    use super::*;

    #[test]
    #[ignore = "cargo xtask deep"]
    fn a_program_of_32_bits_is_shown_by_a_tool_of_64() {
        if !Build::I386.is_here() || find_tool("i686-linux-gnu-gcc").is_none() {
            return skip("there is no library for i386, or no compiler");
        }
        let Some(watched) = Watched::start_of(Build::I386, keep_descriptors) else {
            return;
        };
        let document = watched.json(&[]);
        let [sender, receiver] = [0, 1].map(|side| watched.process(&document, side));
        for process in [sender, receiver] {
            let (nic, vi) = (&process["nics"][0], &process["vis"][0]);
            assert_eq!(nic["plugin"], "loopback", "{process:#}");
            assert_eq!(nic["region_bytes"], 1 << 20, "{process:#}");
            assert_eq!(
                (&vi["state"], &vi["errors"]),
                (&"Connected".into(), &0.into())
            );
            let handle = vi["handle"].as_u64().expect("a handle");
            assert!((1..1 << 32).contains(&handle), "{process:#}");
        }
        let (sends, receives) = (&sender["vis"][0]["send"], &receiver["vis"][0]["recv"]);
        assert_eq!(
            (&sends["posted"], &sends["taken"]),
            (&MESSAGES.into(), &MESSAGES.into())
        );
        assert_eq!(
            (&receives["taken"], &receives["depth"]),
            (&MESSAGES.into(), &1.into())
        );
        assert_eq!(receiver["cqs"][0]["added"], MESSAGES, "{receiver:#}");
        assert_eq!(sender["vis"][0]["peer"]["pid"], watched.pids[1]);
        last_descriptors(watched);
    }
}
