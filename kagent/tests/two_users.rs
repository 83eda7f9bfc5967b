//! One agent of root's, two users: whatever one of them sends, holds or traces, the other is served, and
//! neither obtains anything of root. Only root can run these tests.

#![allow(clippy::unwrap_used)]

mod live;
mod users;

use std::fs;
use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::sync::mpsc;

use kagent_proto::*;
use live::*;
use nix::errno::Errno;
use nix::sys::signal::Signal;
use nix::sys::socket::{setsockopt, sockopt};
use users::*;

/// Returns the process id of the user's device.
fn open_device(client: &mut Client) -> (u32, Reply) {
    let mut device = [0; DEVICE_BYTES];
    device[..4].copy_from_slice(b"stub");
    let reply = client.ask(Op::DEVICE_OPEN, &DeviceOpen { device });
    assert_eq!((reply.op, reply.status), (Op::DEVICE_OPENED, Status::OK));
    (reply.body::<DeviceOpened>().pid, reply)
}

/// Waits until the agent's child has executed its program.
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
    // A service with an open file, variables, and protection from the OOM killer.
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
    // The dynamic loader may not have finished yet.
    let files = eventually(|| {
        let files = open_files(pid);
        (!files.iter().any(|file| file.contains(".so"))).then_some(files)
    });
    assert_eq!(files[..2], ["/dev/null", "/dev/null"]);
    assert!(
        files.len() == 3 && files[2].starts_with("socket:"),
        "{files:?}"
    );
    let environment = fs::read_to_string(format!("/proc/{pid}/environ")).unwrap();
    for line in environment.split_terminator('\0') {
        let name = line.split('=').next().unwrap();
        // Variables set by a shell itself.
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

/// The limits of the requesting process, if lower than those of the service.
#[test]
fn a_device_has_the_limits_of_the_process_that_asks() {
    let Some(_alone) = alone_as_root() else {
        return;
    };
    let agent = service("ulimit -n 4096; ulimit -c 0", &[]);
    // The kernel takes the process that connects for the peer, not the one that made the socket.
    let (mut client, made) = Client::unconnected();
    let (path, limit, processes) = (agent.socket.clone(), 300, 5_000);
    let connect = move || {
        for (what, most) in [
            (libc::RLIMIT_NOFILE, limit),
            (libc::RLIMIT_NPROC, processes),
            (libc::RLIMIT_CORE, libc::RLIM_INFINITY),
        ] {
            let most = libc::rlimit {
                rlim_cur: most,
                rlim_max: most,
            };
            // SAFETY: a system call on a valid structure.
            if unsafe { libc::setrlimit(what, &raw const most) } != 0 {
                return Err(std::io::Error::last_os_error());
            }
        }
        let address = nix::sys::socket::UnixAddr::new(&path)?;
        Ok(nix::sys::socket::connect(made, &address)?)
    };
    // The file is there before the agent listens.
    drop(Client::connect(&agent.socket));
    let mut asker = std::process::Command::new("sleep");
    asker.arg("600").uid(MALLORY).gid(MALLORY);
    // SAFETY: the child makes system calls only.
    unsafe { asker.pre_exec(connect) };
    let mut asker = asker.spawn().unwrap();
    client.hello();
    let (pid, _reply) = open_device(&mut client);
    executed(pid, "cat");
    let _ = asker.kill();
    let _ = asker.wait();
    let limits = fs::read_to_string(format!("/proc/{pid}/limits")).unwrap();
    for (name, most) in [
        ("Max open files", limit.to_string()),
        ("Max processes", processes.to_string()),
        ("Max core file size", "0".to_owned()),
    ] {
        let line = limits
            .lines()
            .find_map(|line| line.strip_prefix(name))
            .unwrap();
        let words: Vec<&str> = line.split_whitespace().collect();
        assert_eq!(
            words[..2],
            [most.as_str(), most.as_str()],
            "{name}: {limits}"
        );
    }
}

#[test]
fn a_traced_device_that_is_killed_stops_no_one() {
    let Some(_alone) = alone_as_root() else {
        return;
    };
    let mut agent = service(":", &[]);
    let mut mallory = client(&agent, MALLORY);
    let (traced, _first) = open_device(&mut mallory);
    executed(traced, "cat");
    let (reported, seized) = mpsc::channel::<bool>();
    let (let_go, over) = mpsc::channel::<()>();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            as_user(MALLORY, move || {
                // SAFETY: system calls on integers.
                let seized = unsafe { libc::ptrace(libc::PTRACE_SEIZE, traced, 0, 0) == 0 };
                // SAFETY: as above.
                unsafe { libc::kill(traced as i32, libc::SIGKILL) };
                reported.send(seized).unwrap();
                // Does not wait for the traced process until this test is over.
                let _ = over.recv();
            });
        });
        if !seized.recv().unwrap() {
            println!("this system lets no user trace; the rest goes on");
        }
        eventually(|| status(traced, "State").starts_with('Z').then_some(()));
        bystander_is_served(&agent);
        // The user gets another device meanwhile.
        let (second, _reply) = open_device(&mut mallory);
        assert_ne!(second, traced);
        bystander_is_served(&agent);
        // The agent does not wait for it when it exits either.
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

/// A descriptor whose last close takes an hour: unsent data that is never received, and SO_LINGER. Returned
/// with the other end.
fn lingering() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut ours = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (theirs, _) = listener.accept().unwrap();
    patient(&ours, true);
    ours.set_nonblocking(true).unwrap();
    while ours.write(&[0; 65_536]).is_ok() {}
    (ours, theirs)
}

/// Whether closing a socket waits until its data was received.
fn patient(socket: &TcpStream, patient: bool) {
    let linger = libc::linger {
        l_onoff: i32::from(patient),
        l_linger: 3600,
    };
    setsockopt(socket, sockopt::Linger, &linger).unwrap();
}

#[test]
fn what_takes_long_to_close_delays_no_one() {
    let Some(_alone) = alone_as_root() else {
        return;
    };
    let mut agent = service(":", &[]);
    // Sent while the agent is stopped, so that its descriptor is the last one.
    let send = |client: &mut Client, how: &str| {
        let (socket, other) = lingering();
        let fd = socket.as_raw_fd();
        let kept = memory(b"x");
        let take = |_call: u64| ();
        agent.signal(Signal::SIGSTOP);
        match how {
            "alone" => take(client.call_open(b"A", &[fd])),
            "beside a good one" => take(client.call_open(b"A", &[kept.as_raw_fd(), fd])),
            "too many" => take(client.call_open(b"A", &[fd; 253])),
            "where none belongs" => {
                take(client.call(Op::NEIGHBOURS, &Neighbours { nic: 1 }, &[fd]))
            }
            "with garbage" => client.raw(&[0; 40], &[fd]).unwrap(),
            _ => client.raw(&[], &[fd]).unwrap(),
        }
        drop(socket);
        agent.signal(Signal::SIGCONT);
        other
    };
    let mut others = Vec::new();
    let ways = [
        "alone",
        "beside a good one",
        "too many",
        "where none belongs",
        "with garbage",
        "with nothing",
    ];
    for (i, how) in ways.into_iter().enumerate() {
        // A new process each time: the user's helper hangs, and the process waits for it.
        let mut mallory = client(&agent, MALLORY - 10 - i as u32);
        others.push(send(&mut mallory, how));
        let refused = mallory.next().expect("an answer");
        assert_eq!((refused.op, refused.status), (Op::DONE, Status::INVALID));
        bystander_is_served(&agent);
        // And at the exit of the process.
        drop(mallory);
        bystander_is_served(&agent);
    }
    agent.signal(Signal::SIGTERM);
    assert!(agent.wait().success());
}

#[test]
fn what_is_left_unread_at_death_delays_no_one() {
    let Some(_alone) = alone_as_root() else {
        return;
    };
    let mut agent = service(":", &[]);
    let mut others = Vec::new();
    for empty_packets in [0, 1, 3] {
        // The agent finds all at once: a greeted process, and one in the backlog.
        let mallory = client(&agent, MALLORY);
        agent.signal(Signal::SIGSTOP);
        let knocking = as_user(MALLORY, || Client::connect(&agent.socket)).unwrap();
        for client in [mallory, knocking] {
            for _ in 0..empty_packets {
                client.raw(&[], &[]).unwrap();
            }
            for _ in 0..20 {
                let (socket, other) = lingering();
                match client.raw(&[7; 9], &[socket.as_raw_fd()]) {
                    Ok(()) => {}
                    // Linux 6.16 forbids sending descriptors before the socket was accepted. Then this test
                    // must close it.
                    Err(Errno::EPERM) => patient(&socket, false),
                    Err(cause) => panic!("{cause}"),
                }
                others.push(other);
            }
        }
        agent.signal(Signal::SIGCONT);
        bystander_is_served(&agent);
    }
    // Again, and the agent exits without having read.
    let mallory = client(&agent, MALLORY);
    agent.signal(Signal::SIGSTOP);
    let (socket, _other) = lingering();
    mallory.raw(&[7; 9], &[socket.as_raw_fd()]).unwrap();
    drop((socket, mallory));
    agent.signal(Signal::SIGTERM);
    agent.signal(Signal::SIGCONT);
    assert!(agent.wait().success());
}

#[test]
fn a_user_whose_helper_hangs_is_served_again() {
    let Some(_alone) = alone_as_root() else {
        return;
    };
    let agent = service(":", &[]);
    let mut mallory = client(&agent, MALLORY);
    let (socket, _other) = lingering();
    agent.signal(Signal::SIGSTOP);
    let call = mallory.call_open(b"A", &[socket.as_raw_fd()]);
    drop(socket);
    agent.signal(Signal::SIGCONT);
    assert_eq!(mallory.reply(call).status, Status::INVALID);
    // Another process of the user waits until the agent kills the helper, and is then dropped.
    let mut waits = client(&agent, MALLORY);
    let memory = memory(b"x");
    waits.call_open(b"B", &[memory.as_raw_fd()]);
    bystander_is_served(&agent);
    assert!(waits.next().is_none());
    let mut honest = client(&agent, MALLORY);
    let nic = honest.open(b"here", &[memory.as_raw_fd()]);
    assert_eq!(honest.neighbours(nic), 1);
}

#[test]
fn no_one_can_take_a_users_place() {
    let Some(_alone) = alone_as_root() else {
        return;
    };
    // A user without files of other tests.
    let user = BYSTANDER - 1;
    let squatted = [format!("/tmp/vipl-{user}"), format!("/tmp/vipl-{user}.1")];
    let own = format!("/tmp/vipl-{user}.2");
    let clean = || {
        for folder in squatted.iter().chain([&own]) {
            let _ = fs::remove_dir_all(folder);
            let _ = fs::remove_file(folder);
        }
    };
    clean();
    // Another user owns the name; a link to a folder of the user is refused as well.
    as_user(MALLORY, || {
        fs::create_dir(&squatted[0]).unwrap();
        std::os::unix::fs::symlink("/nowhere", &squatted[1]).unwrap();
    });
    assert_eq!(place::sockets(user), Vec::<std::path::PathBuf>::new());
    let mut agent = std::process::Command::new(env!("CARGO_BIN_EXE_vipkad"));
    agent.uid(user).gid(user).env_remove("XDG_RUNTIME_DIR");
    let mut agent = agent.spawn().unwrap();
    let socket = eventually(|| place::sockets(user).into_iter().find(|path| path.exists()));
    assert_eq!(socket.parent().unwrap().to_str(), Some(own.as_str()));
    let mut one = as_user(user, || Client::connect(&socket)).unwrap();
    assert_eq!(one.hello().agent_pid, agent.id());
    // If its folder is removed, the agent exits, so that there are not two.
    fs::remove_dir_all(&own).unwrap();
    assert!(one.next().is_none());
    assert!(live::wait(&mut agent).success());
    clean();
}

/// Another user owns all names in `/tmp`: the user's own folders remain.
#[test]
fn a_user_whose_places_are_all_taken_has_its_own_folders() {
    let Some(_alone) = alone_as_root() else {
        return;
    };
    let user = BYSTANDER - 2;
    let number = |n: u32| {
        if n == 0 {
            String::new()
        } else {
            format!(".{n}")
        }
    };
    let taken: Vec<String> = (0..8)
        .map(|n| format!("/tmp/vipl-{user}{}", number(n)))
        .collect();
    let clean = || taken.iter().for_each(|folder| drop(fs::remove_dir(folder)));
    clean();
    as_user(MALLORY, || {
        taken
            .iter()
            .for_each(|folder| fs::create_dir(folder).unwrap())
    });
    let (home, runtime) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    for folder in [&home, &runtime] {
        std::os::unix::fs::chown(folder.path(), Some(user), Some(user)).unwrap();
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o700)).unwrap();
    }
    let roots = tempfile::tempdir().unwrap();
    // `su` keeps the variable of the previous user.
    for (variable, expected) in [
        (roots.path(), home.path()),
        (runtime.path(), runtime.path()),
    ] {
        let mut agent = std::process::Command::new(env!("CARGO_BIN_EXE_vipkad"));
        agent.uid(user).gid(user).args(["--idle-ms", "0"]);
        agent
            .env("XDG_RUNTIME_DIR", variable)
            .env("HOME", home.path());
        let mut agent = agent.spawn().unwrap();
        let socket = eventually(|| {
            let folder = fs::read_dir(expected).unwrap().next()?.unwrap().path();
            let mut files = fs::read_dir(folder)
                .unwrap()
                .map(|file| file.unwrap().path());
            files.find(|path| path.extension().is_none())
        });
        let mut one = as_user(user, || Client::connect(&socket)).unwrap();
        assert_eq!(one.hello().agent_pid, agent.id());
        agent.kill().unwrap();
        agent.wait().unwrap();
    }
    clean();
}
