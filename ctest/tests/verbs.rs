//! The plug-in `verbs` over a device that does everything at once (`ctest/verbs/fake.c`), in place of libibverbs and of what
//! the kernel says of RDMA devices: how many instructions a message takes, how many bytes are copied, how often the
//! thread is woken. Without libibverbs-dev, or the right to mount in a name space, it is left out.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use vipl_ctest::{Agent, Finished, Program, Run, find_tool, profile, skip, source};

/// Messages that are counted.
const ROUNDS: u32 = 1000;

/// Folders that stand for those of a machine with the device.
struct Machine {
    folder: tempfile::TempDir,
    mounts: &'static str,
    agent: Agent,
}

/// `None`, with the reason in the output: it cannot be made here.
fn machine() -> Option<Machine> {
    if !Path::new("/usr/include/infiniband/verbs.h").exists() {
        skip("libibverbs-dev is not installed");
        return None;
    }
    let allowed = |flag: &&str| {
        let probe = Command::new("unshare")
            .args([*flag, "mount", "-t", "tmpfs", "none", "/sys/class"])
            .output();
        probe.is_ok_and(|probe| probe.status.success())
    };
    let Some(mounts) = ["-m", "-rm"].into_iter().find(allowed) else {
        skip("this user may not mount in a name space of its own");
        return None;
    };
    let folder = tempfile::tempdir().expect("a folder");
    let put = |file: &str, content: &str| {
        let file = folder.path().join(file);
        fs::create_dir_all(file.parent().expect("a folder")).expect("a folder");
        fs::write(file, content).expect("a file");
    };
    put("class/infiniband/fake0/node_type", "1: CA\n");
    put("class/infiniband/fake0/ports/1/state", "4: ACTIVE\n");
    put("class/infiniband/fake0/ports/1/link_layer", "Ethernet\n");
    put("class/infiniband_verbs/uverbs0/ibdev", "fake0\n");
    for device in ["infiniband/uverbs0", "null", "zero", "urandom"] {
        put(&format!("dev/{device}"), "");
    }
    fs::create_dir(folder.path().join("dev/shm")).expect("a folder");
    let map = source("verbs/fake.map");
    Program::new(source("verbs/fake.c"))
        .shared()
        .flag("-O2")
        .flag("-fvisibility=hidden")
        .flag("-Wl,-soname,libibverbs.so.1")
        .flag(format!("-Wl,--version-script={}", map.display()))
        .build(&folder.path().join("lib/libibverbs.so.1"));
    let agent = Agent::start_in(folder.path()).expect("vipkad");
    Some(Machine {
        folder,
        mounts,
        agent,
    })
}

impl Machine {
    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Compiles a program of `ctest/verbs`, as a user would.
    fn program(&self, name: &str) -> PathBuf {
        Program::new(source(format!("verbs/{name}.c")))
            .flag("-O2")
            .linked()
            .flag(format!(
                "-Wl,--no-as-needed,{}",
                self.path("lib/libibverbs.so.1").display()
            ))
            .build(&self.path(name))
    }

    /// Runs a command where the device is.
    fn run(&self, command: &[&str], events: bool) -> Finished {
        let script = format!(
            "set -e; cd {}; mount --bind class /sys/class; \
             for device in null zero urandom; do mount --bind /dev/$device dev/$device; done; \
             mount --rbind dev /dev; export LD_LIBRARY_PATH=$PWD/lib; exec \"$@\"",
            self.folder.path().display()
        );
        let mut run = Run::compatible("/usr/bin/env");
        for word in ["unshare", self.mounts, "sh", "-c", &script, "sh"] {
            run = run.arg(word);
        }
        for word in command {
            run = run.arg(word);
        }
        if events {
            run = run.env("FAKE_EVENTS", "1");
        }
        run.env("VIPL_AGENT", self.agent.socket()).pass()
    }

    /// Instructions of a round, by the name of the file that they are in.
    fn count(&self, program: &str) -> Vec<(String, f64)> {
        let out = self.path("callgrind.out");
        let option = format!("--callgrind-out-file={}", out.display());
        let (program, rounds) = (self.program(program), ROUNDS.to_string());
        let program = program.to_string_lossy();
        let valgrind = [
            "valgrind",
            "--tool=callgrind",
            "--log-file=callgrind.log",
            "--toggle-collect=measured",
        ];
        let rest = [option.as_str(), &program, &rounds];
        self.run(&[&valgrind[..], &rest[..]].concat(), false);
        let text = fs::read_to_string(out).expect("what valgrind has counted");
        objects(&text)
    }
}

/// Instructions by object: lines of costs, without those of calls, which stand with the function that is called, too.
fn objects(text: &str) -> Vec<(String, f64)> {
    let mut names: Vec<(String, String)> = Vec::new();
    let mut costs: Vec<(String, f64)> = Vec::new();
    let (mut object, mut is_call) = (String::new(), false);
    for line in text.lines() {
        let mut name = |text: &str| {
            let (number, path) = text.split_once(' ').unwrap_or((text, ""));
            if !path.is_empty() {
                let file = path.rsplit('/').next().unwrap_or(path);
                names.push((number.to_owned(), file.to_owned()));
            }
            let known = names.iter().find(|(known, _)| known == number);
            known.map_or(String::new(), |(_, file)| file.clone())
        };
        if let Some(text) = line.strip_prefix("ob=") {
            object = name(text);
        } else if let Some(text) = line.strip_prefix("cob=") {
            name(text);
        } else if line.starts_with("calls=") {
            is_call = true;
        } else if line.starts_with(|c: char| c.is_ascii_digit() || "+-*".contains(c)) {
            let cost = line.split(' ').nth(1).and_then(|cost| cost.parse().ok());
            match costs.iter_mut().find(|(known, _)| *known == object) {
                _ if std::mem::take(&mut is_call) => {}
                Some((_, sum)) => *sum += cost.unwrap_or(0.0) / f64::from(ROUNDS),
                None => costs.push((object.clone(), cost.unwrap_or(0.0) / f64::from(ROUNDS))),
            }
        }
    }
    costs
}

/// The library's instructions for a send and its completion, and those of a program that uses the device itself, the device's
/// left out of both.
#[test]
fn instructions_of_a_send() {
    if find_tool("valgrind").is_none() {
        return skip("valgrind is not installed");
    }
    let Some(machine) = machine() else {
        return;
    };
    let sum = |costs: Vec<(String, f64)>, without: &[&str]| -> f64 {
        let counted = costs
            .iter()
            .filter(|(object, _)| !without.iter().any(|name| object.starts_with(name)));
        counted.map(|(_, cost)| cost).sum()
    };
    let vipl = sum(machine.count("cost"), &["libibverbs", "cost"]);
    let bare = sum(machine.count("bare"), &["libibverbs"]);
    println!(
        "VipPostSend and VipSendDone: {vipl:.0} instructions, bare {bare:.0}: {:.1} ({})",
        vipl / bare,
        profile()
    );
    assert!(bare > 40.0 && vipl > bare, "callgrind has counted");
    // Builds with debug assertions execute more.
    let most = if profile() == "dev" { 16.0 } else { 6.0 };
    assert!(vipl / bare < most, "{vipl} instructions, bare {bare}");
}

#[test]
fn nothing_is_copied_and_no_thread_is_woken() {
    let Some(machine) = machine() else {
        return;
    };
    let program = machine.program("counts");
    machine.run(&[&program.to_string_lossy()], true);
}

/// libibverbs opens files and takes the lowest numbers for them.
#[test]
fn numbers_0_to_2_are_the_programs() {
    let Some(machine) = machine() else {
        return;
    };
    let program = vipl_ctest::program("standard");
    machine.run(&[&program.to_string_lossy(), "-d", "verbs:"], true);
}
