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
        .allow("vip_hosts")
        .allow("/tmp/no/such/table")
        .pass();
    let files = std::fs::read_dir(dir).expect("the folder");
    let mut files: Vec<PathBuf> = files.map(|file| file.expect("a file").path()).collect();
    files.sort();
    // `simple` begins as one process, which may call nothing.
    assert!(files.len() > usize::from(name == "simple"), "{files:?}");
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

/// Writes a recording of calls that one thread made one after the other.
fn write(file: &Path, calls: &[String]) {
    let lines: String = calls
        .iter()
        .enumerate()
        .map(|(place, call)| format!("1 {} {} {call}\n", 2 * place + 1, 2 * place + 2))
        .collect();
    std::fs::write(file, format!("vipl-record 1 1 boot\n{lines}")).expect("the file");
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

/// The name service and bad arguments.
#[test]
fn no_call_is_left_out() {
    let dir = tempfile::tempdir().expect("a folder");
    let files = record(dir.path(), "ns", true);
    let texts = files
        .iter()
        .map(|file| std::fs::read_to_string(file).expect("a recording"));
    let text: String = texts.collect();
    for result in ["VIP_SUCCESS", "VIP_ERROR_NAMESERVICE"] {
        assert!(
            text.contains(&format!(" VipNSGetHostByName {result} ")),
            "{text}"
        );
    }
    assert!(text.contains(" VIP_INVALID_PARAMETER "), "{text}");
    let made = text.lines().filter(|line| !line.starts_with("vipl-record"));
    let expected = format!("{} calls made again, 0 differences\n", made.count());
    for device in ["via_lo", "sim:"] {
        assert_eq!(
            is_the_same(&files, &["--device", device]),
            expected,
            "{device}"
        );
    }
}

/// Memory of vipl_alloc is made where it is asked for, and no file gets more than it may.
#[test]
fn allocated_memory_is_made_when_it_is_asked_for() {
    let dir = tempfile::tempdir().expect("a folder");
    let file = dir.path().join("run.1");
    let region = |at: &str| {
        format!(
            "VipRegisterMem VIP_SUCCESS NicHandle=0x9 VirtualAddress={at} Length=0x1000 MemAttribs=0x4:0:0 MemoryHandle=0x5"
        )
    };
    let calls = [
        "VipOpenNic VIP_SUCCESS DeviceName=7669615f6c6f NicHandle=0x9".to_owned(),
        "VipCreatePtag VIP_SUCCESS NicHandle=0x9 Ptag=0x4".to_owned(),
        "vipl_alloc VIP_SUCCESS Length=0x1001 Address=0x10000".to_owned(),
        region("0x11000"),
        "vipl_free VIP_ERROR_RESOURCE Address=0x10000".to_owned(),
        "VipDeregisterMem VIP_SUCCESS NicHandle=0x9 VirtualAddress=0x11000 MemoryHandle=0x5"
            .to_owned(),
        "vipl_free VIP_SUCCESS Address=0x10000".to_owned(),
        "vipl_free VIP_INVALID_PARAMETER Address=0x10000".to_owned(),
        "vipl_alloc VIP_INVALID_PARAMETER Length=0x1000 Address=0x0".to_owned(),
        // Other memory has the place now.
        region("0x10000"),
        "vipl_alloc VIP_ERROR_RESOURCE Length=0x3fffffffffff Address=0x7ff0".to_owned(),
    ];
    write(&file, &calls);
    let said = is_the_same(&[file], &["--memory", "1"]);
    let expected = "not made again: 1 calls: it needs more memory than --memory allows\n10 calls made again, 0 differences\n";
    assert_eq!(said, expected);
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
    let said = "/dev/null: no file of the layer record";
    assert!(stderr.contains(said), "{stderr}");
    help_fits(REPLAY);
    fails_without_output(REPLAY, &["--help"]);
}

/// A file whose peers' files are missing is refused before anything waits for them.
#[test]
fn one_side_of_a_run_is_refused() {
    let dir = tempfile::tempdir().expect("a folder");
    let files = record(dir.path(), "simple", false);
    let mut refused = 0;
    for file in &files {
        let text = std::fs::read_to_string(file).expect("a recording");
        if !text.contains(" connection=") {
            continue;
        }
        let (code, stdout, stderr) = replay(std::slice::from_ref(file), &[]);
        assert_eq!((code, stdout.as_str()), (Some(2), ""), "{stderr}");
        let said = " connects to a process whose file is not here; give all files of the run";
        assert!(stderr.contains(said), "{stderr}");
        refused += 1;
    }
    assert_eq!(refused, 2, "{files:?}");
}

/// Files of an earlier run stay in the folder: both runs at once are refused, and each can be made again by the command of the line.
#[test]
fn files_of_two_runs_are_refused() {
    let dir = tempfile::tempdir().expect("a folder");
    let first = record(dir.path(), "simple", false);
    let both = record(dir.path(), "simple", false);
    assert!(both.len() > first.len(), "{both:?}");
    let (code, stdout, stderr) = replay(&both, &[]);
    assert_eq!((code, stdout.as_str()), (Some(2), ""), "{stderr}");
    assert!(
        stderr.contains("the files are of 2 runs, one after the other"),
        "{stderr}"
    );
    let commands: Vec<Vec<PathBuf>> = stderr
        .lines()
        .filter_map(|line| line.strip_prefix("  vip_replay "))
        .map(|files| files.split(' ').map(PathBuf::from).collect())
        .collect();
    assert_eq!(commands.len(), 2, "{stderr}");
    // The last one first.
    for file in &first {
        assert!(!commands[0].contains(file), "{stderr}");
    }
    for files in &commands {
        is_the_same(files, &["--device", "via_lo"]);
    }
}

/// A file without the line for the end of its process is cut, and what differs may be for that.
#[test]
fn a_cut_file_is_said() {
    let dir = tempfile::tempdir().expect("a folder");
    let files = record(dir.path(), "simple", false);
    let said = is_the_same(&files, &["--device", "via_lo"]);
    assert!(!said.contains(" is cut"), "{said}");
    for file in &files {
        let text = std::fs::read_to_string(file).expect("a recording");
        let whole = text.strip_suffix("vipl-record end\n");
        std::fs::write(file, whole.expect("its end")).expect("the file");
    }
    let said = is_the_same(&files, &["--device", "via_lo"]);
    let note = " is cut: its process was killed or called _exit, or the file took no more; ";
    assert_eq!(said.matches(note).count(), files.len(), "{said}");
}

/// A device that does not open is no difference.
#[test]
fn a_device_that_does_not_open_is_an_error() {
    let dir = tempfile::tempdir().expect("a folder");
    let files = record(dir.path(), "simple", false);
    for device in ["nosuch:", "sim:bogus=1"] {
        let (code, stdout, stderr) = replay(&files, &["--device", device]);
        assert_eq!((code, stdout.as_str()), (Some(2), ""), "{stderr}");
        let said = format!(": the device {device} does not open: VIP_");
        assert!(stderr.contains(&said), "{stderr}");
    }
}

/// The word for a pointer at which nothing could be read, in every place of a call that has pointers, also of one that had succeeded.
#[test]
fn a_bad_pointer_ends_no_replay() {
    let dir = tempfile::tempdir().expect("a folder");
    let file = dir.path().join("run.1");
    let (nic, vi, cq) = ("NicHandle=0x9", "ViHandle=0x6", "CQHandle=0x7");
    let mut calls: Vec<String> = [
        "VipOpenNic VIP_SUCCESS DeviceName=7669615f6c6f NicHandle=0x9",
        "VipCreatePtag VIP_SUCCESS NicHandle=0x9 Ptag=0x4",
        "VipRegisterMem VIP_SUCCESS NicHandle=0x9 VirtualAddress=0x10000 Length=0x1000 MemAttribs=0x4:0:0 MemoryHandle=0x5",
        "VipCreateVi VIP_SUCCESS NicHandle=0x9 ViAttribs=0x2:0x1000:0x4:0:0:0x0 SendCQHandle=0x0 RecvCQHandle=0x0 ViHandle=0x6",
        "VipCreateCQ VIP_SUCCESS NicHandle=0x9 EntryCount=0x8 CQHandle=0x7",
        // It is flushed at once, so there is something to take off.
        "VipPostSend VIP_SUCCESS ViHandle=0x6 DescriptorPtr=0x10000 MemoryHandle=0x5 control=0x0 length=0x0 immediate=0x0 segments=",
    ]
    .map(str::to_owned)
    .into();
    let set_up = calls.len();
    let functions: [(&str, &str, &[&str]); 28] = [
        (
            "VipOpenNic VIP_INVALID_PARAMETER",
            "",
            &["DeviceName=7669615f6c6f", "NicHandle=0x1"],
        ),
        ("VipQueryNic VIP_SUCCESS", nic, &["NicAttribs=0x1"]),
        ("VipCreatePtag VIP_SUCCESS", nic, &["Ptag=0x1"]),
        (
            "VipRegisterMem VIP_SUCCESS",
            "NicHandle=0x9 Length=0x10",
            &[
                "VirtualAddress=0x10000",
                "MemAttribs=0x4:0:0",
                "MemoryHandle=0x1",
            ],
        ),
        (
            "VipCreateVi VIP_SUCCESS",
            nic,
            &["ViAttribs=0x2:0x1000:0x4:0:0:0x0", "ViHandle=0x1"],
        ),
        (
            "VipCreateCQ VIP_SUCCESS",
            "NicHandle=0x9 EntryCount=0x8",
            &["CQHandle=0x1"],
        ),
        (
            "VipQueryVi VIP_SUCCESS",
            vi,
            &[
                "State=0x1",
                "ViAttribs=0x1",
                "ViSendQEmpty=0x1",
                "ViRecvQEmpty=0x1",
            ],
        ),
        (
            "VipSetViAttributes VIP_SUCCESS",
            vi,
            &["ViAttribs=0x2:0x1000:0x4:0:0:0x0"],
        ),
        (
            "VipConnectWait VIP_TIMEOUT",
            "NicHandle=0x9 Timeout=0x1",
            &[
                "LocalAddr=0102/61",
                "RemoteAddr=0x1",
                "RemoteViAttribs=0x1",
                "ConnHandle=0x1",
            ],
        ),
        (
            "VipConnectRequest VIP_NO_MATCH",
            "ViHandle=0x6 Timeout=0x1",
            &[
                "LocalAddr=0102/61",
                "RemoteAddr=0102/61",
                "RemoteViAttribs=0x1",
            ],
        ),
        (
            "VipConnectPeerRequest VIP_SUCCESS",
            "ViHandle=0x6 Timeout=0x1",
            &["LocalAddr=0102/61", "RemoteAddr=0102/61"],
        ),
        (
            "VipConnectPeerDone VIP_TIMEOUT",
            vi,
            &["RemoteViAttribs=0x1"],
        ),
        (
            "VipConnectPeerWait VIP_TIMEOUT",
            vi,
            &["RemoteViAttribs=0x1"],
        ),
        (
            "VipPostSend VIP_SUCCESS",
            "ViHandle=0x6 MemoryHandle=0x5",
            &["DescriptorPtr=0x10000"],
        ),
        (
            "VipPostRecv VIP_SUCCESS",
            "ViHandle=0x6 MemoryHandle=0x5",
            &["DescriptorPtr=0x10000"],
        ),
        (
            "VipSendDone VIP_DESCRIPTOR_ERROR",
            vi,
            &["DescriptorPtr=0x10000"],
        ),
        ("VipSendWait VIP_TIMEOUT", vi, &["DescriptorPtr=0x10000"]),
        ("VipRecvWait VIP_TIMEOUT", vi, &["DescriptorPtr=0x10000"]),
        (
            "VipCQWait VIP_TIMEOUT",
            cq,
            &["ViHandle=0x1", "RecvQueue=0x1"],
        ),
        (
            "VipQueryMem VIP_SUCCESS",
            "NicHandle=0x9 MemHandle=0x5",
            &["Address=0x10000", "MemAttribs=0x1"],
        ),
        (
            "VipSetMemAttributes VIP_SUCCESS",
            "NicHandle=0x9 MemHandle=0x5",
            &["Address=0x10000", "MemAttribs=0x4:0:0"],
        ),
        ("VipNSInit VIP_SUCCESS", nic, &["NSInitInfo=61"]),
        (
            "VipNSGetHostByName VIP_SUCCESS",
            nic,
            &["Name=61", "Address=0x1"],
        ),
        (
            "VipNSGetHostByAddr VIP_SUCCESS",
            nic,
            &["Address=0102/61", "Name=0x1", "NameLen=0x1"],
        ),
        (
            "VipQuerySystemManagementInfo VIP_SUCCESS",
            "NicHandle=0x9 InfoType=0x1",
            &["SysManInfo=0x1"],
        ),
        (
            "vipl_alloc VIP_SUCCESS",
            "Length=0x1000",
            &["Address=0x50000"],
        ),
        ("vipl_cq_fd VIP_SUCCESS", cq, &["Descriptor=0x1"]),
        (
            "vipl_describe VIP_SUCCESS",
            "",
            &["Topic=61", "Buffer=0x1", "Length=0x1"],
        ),
    ];
    for (function, more, pointers) in functions {
        for bad in pointers {
            let values = pointers.iter().map(|one| match one == bad {
                true => format!("{}=bad", one.split('=').next().unwrap_or_default()),
                false => (*one).to_owned(),
            });
            let values: Vec<String> = values.collect();
            let call = format!("{function} {more} {}", values.join(" "));
            calls.push(call.replace("  ", " "));
        }
    }
    assert!(calls.len() > set_up + 40);
    write(&file, &calls);
    let (code, stdout, stderr) = replay(&[file], &["--patience", "1"]);
    assert_eq!(code, Some(1), "{stdout}\n{stderr}");
    assert!(stdout.contains(" calls made again, "), "{stdout}\n{stderr}");
}

/// A run in the strict mode is made again in that mode.
#[test]
fn the_mode_is_that_of_then() {
    let dir = tempfile::tempdir().expect("a folder");
    Run::strict(program("simple"))
        .env("VIPL_LAYERS", "record")
        .env("VIPL_RECORD_FILE", dir.path().join("run"))
        .pass();
    for file in std::fs::read_dir(dir.path()).expect("the folder") {
        let text = std::fs::read_to_string(file.expect("a file").path()).expect("a recording");
        let head = text.lines().next().unwrap_or_default();
        assert!(head.ends_with(" strict"), "{head}");
    }
    let calls = "1 1 2 VipOpenNic VIP_SUCCESS DeviceName=7669615f6c6f NicHandle=0x9\n\
                 1 3 4 VipCreateVi VIP_INVALID_PTAG NicHandle=0x9 ViAttribs=0x2:0x1000:0x0:0:0:0x0 SendCQHandle=0x0 RecvCQHandle=0x0 ViHandle=0x7ff0\n";
    let (strict, other) = (dir.path().join("strict"), dir.path().join("other"));
    std::fs::write(&strict, format!("vipl-record 1 1 boot strict\n{calls}")).expect("the file");
    std::fs::write(&other, format!("vipl-record 1 2 boot\n{calls}")).expect("the file");
    is_the_same(std::slice::from_ref(&strict), &[]);
    // One process has one mode.
    let (code, stdout, stderr) = replay(&[strict, other], &[]);
    assert_eq!(code, Some(1), "{stdout}{stderr}");
    assert!(
        stdout.contains("strict is of a process in the strict mode"),
        "{stdout}"
    );
    let difference = "VipCreateVi: was VIP_INVALID_PTAG and is VIP_SUCCESS";
    assert_eq!(stdout.matches(difference).count(), 2, "{stdout}");
}

/// A device with a smaller MaxTransferSize makes VIs for that, if the messages fit; else one line says what does not.
#[test]
fn a_device_with_smaller_messages_is_said_in_one_line() {
    let dir = tempfile::tempdir().expect("a folder");
    let file = dir.path().join("run.1");
    let run = |length: u64| {
        let calls = [
            "VipOpenNic VIP_SUCCESS DeviceName=7669615f6c6f NicHandle=0x9".to_owned(),
            "VipCreatePtag VIP_SUCCESS NicHandle=0x9 Ptag=0x4".to_owned(),
            "VipRegisterMem VIP_SUCCESS NicHandle=0x9 VirtualAddress=0x10000 Length=0x1000 MemAttribs=0x4:0:0 MemoryHandle=0x5".to_owned(),
            "VipCreateVi VIP_SUCCESS NicHandle=0x9 ViAttribs=0x2:0x7fffffffffff:0x4:0:0:0x0 SendCQHandle=0x0 RecvCQHandle=0x0 ViHandle=0x6".to_owned(),
            format!("VipPostSend VIP_SUCCESS ViHandle=0x6 DescriptorPtr=0x10000 MemoryHandle=0x5 control=0x0 length={length:#x} immediate=0x0 segments="),
            "VipQueryVi VIP_SUCCESS ViHandle=0x6 State=0x0".to_owned(),
        ];
        let calls = calls.iter().enumerate();
        let lines: String = calls
            .map(|(place, call)| format!("1 {} {} {call}\n", 2 * place + 1, 2 * place + 2))
            .collect();
        std::fs::write(&file, format!("vipl-record 1 1 boot\n{lines}")).expect("the file");
        replay(std::slice::from_ref(&file), &["--device", "via_lo"])
    };
    let (code, stdout, stderr) = run(8);
    assert_eq!(code, Some(0), "{stdout}{stderr}");
    assert!(
        stdout.starts_with("note: VIs have a MaxTransferSize of "),
        "{stdout}"
    );
    assert!(
        stdout.ends_with("6 calls made again, 0 differences\n"),
        "{stdout}"
    );
    let (code, stdout, stderr) = run(0x7fff_ffff_fffe);
    assert_eq!(code, Some(1), "{stdout}{stderr}");
    let lines: Vec<&str> = stdout.lines().collect();
    assert_eq!(lines.len(), 2, "{stdout}");
    assert!(
        lines[0].contains(
            "VipCreateVi: this device does not have messages of 140737488355326 bytes, but of "
        ) && lines[0].ends_with(" at most: choose another one; the rest is not made"),
        "{stdout}"
    );
}

/// A message that overwrites the segments of the descriptor that receives it is read where the descriptor was posted, also if a
/// wait finds it that found nothing then.
#[test]
fn a_message_may_overwrite_its_own_descriptor() {
    let dir = tempfile::tempdir().expect("a folder");
    let file = dir.path().join("run.1");
    let vi = "ViAttribs=0x2:0x1000:0x4:0:0 SendCQHandle=0x0 RecvCQHandle=0x0";
    let point = "LocalAddr=00/6f7665726c6170";
    // Address 0x10, handle 1, 2 GiB.
    let data = "100000000000000001000000ffffff7f";
    let calls = [
        "1 10 11 VipOpenNic VIP_SUCCESS DeviceName=73696d3a NicHandle=0x9".to_owned(),
        "1 12 13 VipCreatePtag VIP_SUCCESS NicHandle=0x9 Ptag=0x4".to_owned(),
        "1 14 15 VipRegisterMem VIP_SUCCESS NicHandle=0x9 VirtualAddress=0x10000 Length=0x1000 MemAttribs=0x4:0:0 MemoryHandle=0x5".to_owned(),
        format!("1 16 17 VipCreateVi VIP_SUCCESS NicHandle=0x9 {vi} ViHandle=0x6"),
        format!("1 18 19 VipCreateVi VIP_SUCCESS NicHandle=0x9 {vi} ViHandle=0x7"),
        "1 20 21 VipPostRecv VIP_SUCCESS ViHandle=0x7 DescriptorPtr=0x10000 MemoryHandle=0x5 control=0x0 length=0x20 immediate=0x0 segments=0x10020:0x5:0x20".to_owned(),
        format!("2 22 40 VipConnectWait VIP_SUCCESS NicHandle=0x9 {point} ConnHandle=0x8"),
        "2 41 50 VipConnectAccept VIP_SUCCESS ConnHandle=0x8 ViHandle=0x7 connection=0x1/0".to_owned(),
        format!("1 23 50 VipConnectRequest VIP_SUCCESS ViHandle=0x6 {point} RemoteAddr=00/6f7665726c6170 connection=0x1/1"),
        format!("1 60 61 VipPostSend VIP_SUCCESS ViHandle=0x6 DescriptorPtr=0x10100 MemoryHandle=0x5 control=0x0 length=0x10 immediate=0x0 segments=0x10200:0x5:0x10 data={data}"),
        "1 62 63 VipSendWait VIP_SUCCESS ViHandle=0x6 DescriptorPtr=0x10100 status=0x1 length=0x10 immediate=0x0".to_owned(),
        // The message is faster now than it was.
        "1 64 65 VipRecvWait VIP_TIMEOUT ViHandle=0x7 Timeout=0x1 DescriptorPtr=0x7ff0".to_owned(),
        "1 66 67 VipRecvWait VIP_SUCCESS ViHandle=0x7 DescriptorPtr=0x10000 status=0x10001 length=0x10 immediate=0x0 sum=0x28044032".to_owned(),
    ];
    let text = format!("vipl-record 1 1 boot\n{}\n", calls.join("\n"));
    std::fs::write(&file, text).expect("the file");
    let said = is_the_same(&[file], &["--device", "via_lo"]);
    assert!(said.starts_with("early: 1 waits "), "{said}");
}

/// What a file says is never a command to the terminal, and no address or number of threads ends the tool.
#[test]
fn a_hostile_file_is_an_error_with_its_line() {
    let dir = tempfile::tempdir().expect("a folder");
    let most = "0xffffffffffffffff";
    let threads: String = (0..20_000)
        .map(|thread| format!("{thread} 1 2 VipCloseNic VIP_SUCCESS\n"))
        .collect();
    for (name, calls, code, said) in [
        (
            "most",
            format!("1 1 2 VipRegisterMem VIP_SUCCESS VirtualAddress={most} Length={most}\n"),
            2,
            "most:2: ",
        ),
        (
            "descriptor",
            "1 1 2 VipPostSend VIP_SUCCESS DescriptorPtr=0xfffffffffffffff0\n".to_owned(),
            2,
            "descriptor:2: ",
        ),
        ("threads", threads, 2, "threads: more than 1024 threads"),
        (
            "\x1b[31mname",
            "1 1 2 VipCreatePtag \x1b]0;owned\x07 NicHandle=0x1\n".to_owned(),
            1,
            "\\u001b[31mname:2: VipCreatePtag: was \\u001b]0;owned\\u0007 and is",
        ),
    ] {
        let file = dir.path().join(name);
        std::fs::write(&file, format!("vipl-record 1 1 boot\n{calls}")).expect("the file");
        let (found, stdout, stderr) = replay(&[file], &[]);
        let text = stdout + &stderr;
        assert_eq!(found, Some(code), "{name:?}: {text:?}");
        assert!(text.contains(said), "{text:?}");
        assert!(
            !text.contains('\x1b') && !text.contains("panicked"),
            "{text:?}"
        );
    }
}
