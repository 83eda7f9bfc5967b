//! One agent of root's, two users: whatever one of them sends, holds or traces, the other one is served, and
//! nothing of root's reaches either. Only root can run these tests.

#![allow(clippy::unwrap_used)]

mod live;
mod users;

use std::fs;
use std::os::unix::process::CommandExt;
use std::sync::mpsc;

use kagent_proto::*;
use live::*;
use nix::sys::signal::Signal;
use users::*;

/// Gives the process id of the user's device.
fn open_device(client: &mut Client) -> (u32, Reply) {
    let mut device = [0; DEVICE_BYTES];
    device[..4].copy_from_slice(b"stub");
    let reply = client.ask(Op::DEVICE_OPEN, &DeviceOpen { device });
    assert_eq!((reply.op, reply.status), (Op::DEVICE_OPENED, Status::OK));
    (reply.body::<DeviceOpened>().pid, reply)
}

/// Waits until the agent's child has become its program.
fn executed(pid: u32, name: &str) {
    let comm = format!("/proc/{pid}/comm");
    eventually(|| (fs::read_to_string(&comm).ok()?.trim() == name).then_some(()));
}

/// A field of `/proc/PID/status`.
fn status(pid: u32, field: &str) -> String {
    let all = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = all.lines().find_map(|line| line.strip_prefix(field));
    line.unwrap().trim_start_matches(':').trim().to_owned()
}

fn open_files(pid: u32) -> Vec<String> {
    let mut all: Vec<String> = fs::read_dir(format!("/proc/{pid}/fd"))
        .unwrap()
        .map(|entry| fs::read_link(entry.unwrap().path()).unwrap())
        .map(|target| target.display().to_string())
        .collect();
    all.sort();
    all
}

#[test]
fn a_users_device_has_nothing_of_roots() {
    let Some(_alone) = alone_as_root() else {
        return;
    };
    // A service with a file open, variables, and the privilege to survive when memory runs out.
    let prelude = "export SECRET=1; echo x > secret; exec 7< secret; ulimit -n 4096; \
                   { echo -500 > /proc/self/oom_score_adj; } 2>/dev/null || :; trap '' USR1";
    let agent = service(prelude, &[]);
    let mut mallory = client(&agent, MALLORY);
    let (pid, _reply) = open_device(&mut mallory);
    executed(pid, "cat");
    let ours = open_files(agent.pid());
    assert!(
        !ours.iter().any(|file| file.ends_with("/secret")),
        "{ours:?}"
    );
    let files = open_files(pid);
    assert_eq!(files[..2], ["/dev/null", "/dev/null"]);
    assert!(
        files.len() == 3 && files[2].starts_with("socket:"),
        "{files:?}"
    );
    let environment = fs::read_to_string(format!("/proc/{pid}/environ")).unwrap();
    for line in environment.split_terminator('\0') {
        let name = line.split('=').next().unwrap();
        // What a shell sets by itself.
        assert!(["PWD", "OLDPWD", "SHLVL", "_"].contains(&name), "{line}");
    }
    let all_ids = vec![MALLORY.to_string(); 4].join("\t");
    let expected = [
        ("Uid", all_ids.as_str()),
        ("Gid", &all_ids),
        ("Groups", ""),
        ("CapPrm", "0000000000000000"),
        ("CapEff", "0000000000000000"),
        ("CapInh", "0000000000000000"),
        ("CapAmb", "0000000000000000"),
        ("NoNewPrivs", "1"),
        ("SigBlk", "0000000000000000"),
        ("SigIgn", "0000000000000000"),
    ];
    for (field, value) in expected {
        assert_eq!(status(pid, field), value, "{field}");
    }
    let score = fs::read_to_string(format!("/proc/{pid}/oom_score_adj")).unwrap();
    assert_eq!(score.trim(), "0");
    assert_eq!(
        fs::read_link(format!("/proc/{pid}/cwd"))
            .unwrap()
            .to_str()
            .unwrap(),
        "/"
    );
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let session = stat.rsplit(") ").next().unwrap().split(' ').nth(3).unwrap();
    assert_eq!(session, pid.to_string(), "a session of its own");
}

#[test]
fn a_traced_device_that_is_killed_stops_nobody() {
    let Some(_alone) = alone_as_root() else {
        return;
    };
    let mut agent = service(":", &[]);
    let mut mallory = client(&agent, MALLORY);
    let (traced, _first) = open_device(&mut mallory);
    executed(traced, "cat");
    let (told, hears) = mpsc::channel::<bool>();
    let (let_go, over) = mpsc::channel::<()>();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            as_user(MALLORY, move || {
                // SAFETY: system calls on integers.
                let seized = unsafe { libc::ptrace(libc::PTRACE_SEIZE, traced, 0, 0) == 0 };
                // SAFETY: as above.
                unsafe { libc::kill(traced as i32, libc::SIGKILL) };
                told.send(seized).unwrap();
                // Does not wait for what it traces, until this test is over.
                let _ = over.recv();
            });
        });
        if !hears.recv().unwrap() {
            println!("this system lets no user trace; the rest goes on");
        }
        eventually(|| status(traced, "State").starts_with('Z').then_some(()));
        bystander_is_served(&agent);
        // The user himself gets another device meanwhile.
        let (second, _reply) = open_device(&mut mallory);
        assert_ne!(second, traced);
        bystander_is_served(&agent);
        // Nor does the agent wait for it when it leaves.
        agent.signal(Signal::SIGTERM);
        assert!(agent.wait().success());
        drop(let_go);
    });
}

#[test]
fn a_device_that_a_debugger_held_is_reaped_when_it_lets_go() {
    let Some(_alone) = alone_as_root() else {
        return;
    };
    let agent = service(":", &[]);
    let mut mallory = client(&agent, MALLORY);
    let (traced, _first) = open_device(&mut mallory);
    executed(traced, "cat");
    as_user(MALLORY, || {
        // SAFETY: system calls on integers.
        unsafe {
            libc::ptrace(libc::PTRACE_SEIZE, traced, 0, 0);
            libc::kill(traced as i32, libc::SIGKILL);
        }
        eventually(|| status(traced, "State").starts_with('Z').then_some(()));
    });
    // The thread that traced it has ended.
    eventually(|| (!fs::exists(format!("/proc/{traced}")).unwrap()).then_some(()));
    bystander_is_served(&agent);
}

#[test]
fn an_agent_of_a_set_user_id_program_refuses_to_serve() {
    let Some(_alone) = alone_as_root() else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    for (real, effective) in [(MALLORY, 0), (0, MALLORY)] {
        let mut agent = vipkad(&folder.path().join("agent"), &[]);
        // SAFETY: the child makes one system call.
        unsafe {
            agent.pre_exec(move || {
                let done = libc::syscall(libc::SYS_setresuid, real, effective, -1);
                (done == 0)
                    .then_some(())
                    .ok_or_else(std::io::Error::last_os_error)
            });
        }
        let output = agent.output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{said}");
        let expected = format!("the real user {real} is not the effective one {effective}");
        assert!(said.contains(&expected), "{said}");
    }
}
