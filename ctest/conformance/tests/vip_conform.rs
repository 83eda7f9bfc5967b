//! `vip_conform` as it is installed: on plug-ins that are right, on one with three faults, and on files that are none.

use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;
use vipl_ctest::{Program, example_in_rust, help_fits, library_dir, source, tool};

const CONFORM: &str = env!("CARGO_BIN_EXE_vip_conform");

/// For what is certain to happen.
const PATIENCE: Duration = Duration::from_secs(60);

/// What both examples can do, as in the table of `cargo xtask conformance`.
const OF_EXAMPLE: &str = "Reliable Delivery, autodiscovery, a device without RDMA Read, memory that may be unmapped while it \
                          is registered";

/// A folder with these programs, compiled as for an installation.
fn programs(names: &[&str]) -> TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    for name in names {
        vipl_ctest::install_program(name, library_dir(), &folder.path().join(name));
    }
    folder
}

/// The plug-in with these faults, compiled.
fn wrong(folder: &Path, faults: u32) -> PathBuf {
    let program = Program::new(source("badplugins/wrong.c"))
        .flag("-O2")
        .shared();
    let program = program.flag(format!("-DFAULTS={faults}"));
    program.build(&folder.join("libvipl_wrong.so"))
}

/// A plug-in in C, compiled.
fn plugin(folder: &Path, file: &str, name: &str) -> PathBuf {
    let program = Program::new(source(file)).flag("-O2").shared();
    program.build(&folder.join(format!("libvipl_{name}.so")))
}

fn conform(programs: &Path, plugin: &Path, arguments: &[&str]) -> (Output, String, String) {
    let mut command = tool(CONFORM, arguments);
    let command = command
        .arg("--plugin")
        .arg(plugin)
        .arg("--programs")
        .arg(programs);
    let output = command.output().expect("vip_conform");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    (output, text, said)
}

/// The abilities that are found are those of the table of `cargo xtask conformance`.
#[test]
fn abilities_are_found() {
    let folder = programs(&[]);
    let in_c = plugin(folder.path(), "../examples/plugin.c", "example");
    let in_rust = example_in_rust().join("libvipl_example_rs.so");
    let loopback = library_dir().join("libvipl_loopback.so");
    let all = "Unreliable, Reliable Delivery, Reliable Reception, RDMA Write, RDMA Read, autodiscovery, memory that may be \
               unmapped while it is registered";
    for (plugin, device, abilities) in [
        (&in_c, "example:", OF_EXAMPLE),
        (&in_rust, "example_rs:", OF_EXAMPLE),
        (&loopback, "loopback:", all),
    ] {
        let (output, text, said) = conform(folder.path(), plugin, &["--list"]);
        assert!(output.status.success(), "{said}");
        assert!(
            said.contains(&format!("{device} can do: {abilities};")),
            "{said}"
        );
        assert!(text.contains("::xfer_strict_two_RD: "), "{text}");
        assert_eq!(text.contains("::rdma_"), device == "loopback:", "{text}");
    }
}

/// The example passes, and the same with three faults does not: each is found.
#[test]
fn three_faults_are_found() {
    let folder = programs(&["xfer", "errors"]);
    let choice = ["--filter", "xfer_strict_two,errors_strict_two"];
    let right = plugin(folder.path(), "../examples/plugin.c", "example");
    let (output, text, said) = conform(folder.path(), &right, &choice);
    assert!(output.status.success(), "{text}\n{said}");
    let runs = text.lines().last().unwrap_or_default();
    assert!(runs.ends_with(" runs, 0 failed"), "{text}");

    let found = |faults: u32| {
        let wrong = wrong(folder.path(), faults);
        let (output, text, said) = conform(folder.path(), &wrong, &choice);
        assert_eq!(
            output.status.code(),
            Some(1),
            "fault {faults}: {text}\n{said}"
        );
        let of = |program: &str| text.contains(&format!("- wrong::{program}_strict_two_RD\n"));
        (of("errors"), of("xfer"))
    };
    assert_eq!(found(1), (true, false), "a wrong status");
    assert_eq!(found(2), (false, true), "wrong immediate data");
    assert_eq!(found(4), (false, true), "a byte that is not stored");
    assert_eq!(found(7), (true, true), "all of them");
}

/// One that stops ends when it has done nothing for a while, one that crashes at once, and no process outlives the run.
#[test]
fn plugins_that_stop_crash_or_leave_processes() {
    let folder = programs(&["xfer"]);
    let file = folder.path().join("pid");
    for (fault, why) in [
        (8, "none of its processes did anything for "),
        (16, "xfer_strict_two_RD"),
        (32, ""),
    ] {
        let wrong = wrong(folder.path(), fault);
        // Only the one that stops; on a busy machine a good one, too, may do nothing for some seconds.
        let patience = if fault == 8 { "5" } else { "60" };
        let mut command = tool(CONFORM, &["--filter", "xfer_strict_two"]);
        let command = command.args(["--patience", patience]);
        let command = command.arg("--plugin").arg(&wrong);
        let command = command.arg("--programs").arg(folder.path());
        let output = command
            .env("WRONG_PID", &file)
            .output()
            .expect("vip_conform");
        let text = String::from_utf8_lossy(&output.stdout);
        let shown = format!(
            "fault {fault}: {text}\n{}",
            String::from_utf8_lossy(&output.stderr)
        );
        let failed = i32::from(!why.is_empty());
        assert_eq!(output.status.code(), Some(failed), "{shown}");
        assert!(text.contains(why), "{shown}");
    }
    let pid = std::fs::read_to_string(&file).expect("the number of the process");
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.trim()));
    let runs = stat.is_ok_and(|stat| !stat.contains(") Z"));
    assert!(!runs, "process {pid} is left");
}

/// The processes with this variable in their environment that have not ended, and what they are.
fn having(variable: &str) -> Vec<String> {
    let processes = std::fs::read_dir("/proc").expect("/proc").flatten();
    let having = processes.filter_map(|process| {
        let environment = std::fs::read(process.path().join("environ")).ok()?;
        let mut variables = environment.split(|byte| *byte == 0);
        variables.find(|one| *one == variable.as_bytes())?;
        let command = std::fs::read(process.path().join("cmdline")).ok()?;
        let command = String::from_utf8_lossy(&command).replace('\0', " ");
        Some(format!("{:?} {command}", process.file_name()))
    });
    having.collect()
}

/// However it is ended: no process of it is left, and no file.
#[test]
fn nothing_outlives_one_that_is_ended() {
    let folder = programs(&["xfer"]);
    let wrong = wrong(folder.path(), 8 | 32);
    for is_killed in [false, true] {
        let files = tempfile::tempdir().expect("a folder");
        let pid = folder.path().join(format!("pid{is_killed}"));
        let mut command = tool(CONFORM, &["--filter", "xfer_strict_two"]);
        let command = command.arg("--plugin").arg(&wrong);
        let command = command.arg("--programs").arg(folder.path());
        let mut conform = command
            .env("TMPDIR", files.path())
            .env("WRONG_PID", &pid)
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()
            .expect("vip_conform");
        let variable = format!("TMPDIR={}", files.path().display());
        let left = || std::fs::read_dir(files.path()).expect("a folder").count();
        let begun = Instant::now();
        // A process that has left its group and its session, and is still there.
        while std::fs::read(&pid).is_ok_and(|number| number.is_empty()) || !pid.exists() {
            assert!(begun.elapsed() < PATIENCE, "{:?}", having(&variable));
            assert_eq!(conform.try_wait().expect("vip_conform"), None);
            std::thread::sleep(Duration::from_millis(5));
        }
        let agents = having(&variable);
        let agents = agents.iter().filter(|one| one.contains("vipkad"));
        assert!(agents.count() > 0 && left() > 0);
        if is_killed {
            conform.kill().expect("SIGKILL");
        } else {
            // As Ctrl-C: the whole group gets it.
            let line = format!("kill -s TERM -- -{}", conform.id());
            let status = Command::new("sh").args(["-c", &line]).status();
            assert!(status.expect("sh").success());
        }
        let signal = conform.wait().expect("vip_conform").signal();
        assert_eq!(signal, Some(if is_killed { 9 } else { 15 }));
        let begun = Instant::now();
        while !having(&variable).is_empty() || left() > 0 {
            let context = format!("{:?}, {} files", having(&variable), left());
            assert!(begun.elapsed() < PATIENCE, "{context}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// It is said what is waited for, and the patience that was asked for counts.
#[test]
fn a_constructor_that_does_not_return() {
    let folder = programs(&[]);
    let wrong = wrong(folder.path(), 64);
    let (output, text, said) = conform(folder.path(), &wrong, &["--patience", "2"]);
    assert_eq!(output.status.code(), Some(2), "{text}{said}");
    assert!(
        said.contains("libvipl_wrong.so ... has not said after 2 s what it can do: a constructor"),
        "{said}"
    );
    let why = "the plug-in does not answer; asking it was ended by the watchdog, since none of its processes did anything for ";
    assert!(said.contains(why), "{said}");
}

/// What cannot be tested gives a reason and another exit code.
#[test]
fn files_that_are_no_plugins() {
    let folder = programs(&[]);
    let file = folder.path().join("libvipl_none.so");
    std::fs::write(&file, "none").expect("a file");
    for (plugin, why) in [
        (file.as_path(), "the library refuses it: "),
        (Path::new("/nowhere/libvipl_x.so"), "No such file"),
    ] {
        let (output, _, said) = conform(folder.path(), plugin, &[]);
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains(why), "{said}");
    }
    let (output, _, said) = conform(&folder.path().join("none"), &file, &[]);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("--programs names their folder"), "{said}");
}

/// A filter that names nothing is a mistake of the command line, and no success; nothing is run.
#[test]
fn a_filter_without_a_run_is_an_error() {
    let folder = programs(&[]);
    let loopback = library_dir().join("libvipl_loopback.so");
    let in_c = plugin(folder.path(), "../examples/plugin.c", "example");
    for (plugin, filter, why) in [
        (&loopback, "nosuch", "no run matches --filter nosuch"),
        (&in_c, "rdma_strict_two_RD", "needs RDMA Write"),
    ] {
        for more in [&["--filter", filter][..], &["--list", "--filter", filter]] {
            let (output, text, said) = conform(folder.path(), plugin, more);
            assert_eq!(output.status.code(), Some(2), "{text}{said}");
            assert!(said.contains(why) && text.is_empty(), "{text}{said}");
        }
    }
}

/// The list needs no plug-in, and says what its numbers mean, each once.
#[test]
fn the_list_says_what_each_run_shows() {
    let output = tool(CONFORM, &["--list"]).output().expect("vip_conform");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}");
    assert!(text.contains("NAME::rdma_strict_two_RD: "), "{text}");
    let meaning = "RDMA-13: refused on RR: sender RDMA_PROT_ERROR, both sides Error";
    assert_eq!(text.matches(meaning).count(), 1, "{text}");
    let arguments = ["--list", "--filter", "rdma_strict_two_RD"];
    let output = tool(CONFORM, &arguments).output().expect("vip_conform");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        !text.contains("xfer") && !text.contains("XFER-12:"),
        "{text}"
    );
}

#[test]
fn help_fits_the_terminal() {
    help_fits(CONFORM);
}
