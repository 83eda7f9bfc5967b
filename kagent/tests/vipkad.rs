//! The real `vipkad` with real clients: sockets, descriptors, starting and exiting.

#![allow(clippy::unwrap_used)]

mod live;

use std::io::Read;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use kagent_proto::*;
use live::*;
use nix::errno::Errno;
use nix::sys::signal::Signal;
use nix::sys::socket::{
    AddressFamily, Backlog, MsgFlags, SockFlag, SockType, UnixAddr, bind, listen, send, socket,
};

#[test]
fn greeting_identifies_the_agent() {
    let daemon = Daemon::start(&[]);
    let mut client = Client::connect(&daemon.socket);
    assert_eq!(client.hello().agent_pid, daemon.pid());
    let nic = client.open(b"host", &[]);
    assert_eq!(client.neighbours(nic), 1);
    let mode = std::fs::metadata(&daemon.socket)
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o600);
    let name = std::fs::read_to_string(format!("/proc/{}/comm", daemon.pid())).unwrap();
    assert_eq!(name, "vipkad\n");
}

/// The first bytes of a shared mapping of a file, as an atomic.
fn map(file: &std::fs::File, bytes: usize) -> &'static std::sync::atomic::AtomicU32 {
    let (read_write, shared) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
    let none = std::ptr::null_mut();
    // SAFETY: a fresh mapping at an address of the kernel's choice.
    let at = unsafe { libc::mmap(none, bytes, read_write, shared, file.as_raw_fd(), 0) };
    assert_ne!(at, libc::MAP_FAILED);
    // SAFETY: the mapping is large enough, aligned to a page, and stays for the life of the process.
    unsafe { &*at.cast() }
}

#[test]
fn both_sides_map_one_segment_and_get_each_others_descriptors() {
    let daemon = Daemon::start(&[]);
    let (mut server, mut client) = (daemon.client(), daemon.client());
    let mine = memory(b"bell page of the server");
    // The first descriptor makes the agent start a helper.
    server.open(b"hostC", &[mine.as_raw_fd()]);
    let before = daemon.open_fds();
    let a = server.open(b"hostA", &[mine.as_raw_fd()]);
    let b = client.open(b"hostB", &[]);
    assert_eq!(daemon.open_fds(), before + 1);
    let wait = server.wait(a, b"d");
    // With a grace period, since the agent may read either socket first.
    let request = client.request(b, b"hostA", b"d", 30_000);
    let at_server = server.accept(wait);
    let at_client = client.reply(request);
    assert_eq!((at_server.fds.len(), at_client.fds.len()), (1, 2));
    let (s, c): (Connected, Connected) = (at_server.body(), at_client.body());
    assert_eq!(
        (s.key, s.segment_bytes, c.segment_bytes),
        (c.key, 12288, 12288)
    );
    assert_eq!((s.side, c.side, c.peer_pid), (0, 1, std::process::id()));
    for reply in [&at_server, &at_client] {
        assert_eq!(reply.fds[0].metadata().unwrap().len(), 12288);
        assert!(reply.fds[0].set_len(1).is_err(), "sealed");
    }
    let near = map(&at_server.fds[0], 12288);
    let far = map(&at_client.fds[0], 12288);
    use std::sync::atomic::Ordering::SeqCst;
    assert_eq!((near.load(SeqCst), far.load(SeqCst)), (0, 0));
    near.store(77, SeqCst);
    assert_eq!(far.load(SeqCst), 77);
    let mut bell = [0; 9];
    at_client.fds[1].read_exact_at(&mut bell, 0).unwrap();
    assert_eq!(&bell, b"bell page");
    // After one more answer, all earlier messages have been processed.
    server.neighbours(a);
    // The agent keeps the NIC's descriptor as long as the NIC, and does not keep the segment.
    assert_eq!(daemon.open_fds(), before + 1);
    assert_eq!(
        server.ask(Op::NIC_CLOSE, &NicClose { nic: a }).status,
        Status::OK
    );
    assert_eq!(daemon.open_fds(), before);
    client.expect_gone(c.connection, 1);
}

#[test]
fn agent_leaves_when_idle_and_only_then() {
    let mut daemon = Daemon::start(&["--idle-ms", "300"]);
    let mut client = daemon.client();
    std::thread::sleep(std::time::Duration::from_millis(700));
    let nic = client.open(b"host", &[]);
    assert_eq!(client.neighbours(nic), 1);
    drop(client);
    assert!(daemon.wait().success());
    assert!(!daemon.socket.exists());
    // An agent without any client exits as well.
    let mut lonely = vipkad(&daemon.socket, &["--idle-ms", "10"])
        .spawn()
        .unwrap();
    assert!(wait(&mut lonely).success());
}

#[test]
fn no_one_is_lost_between_two_agents() {
    // Agents exit all the time; an accepted process is served or sees its socket closed.
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("agent");
    let (mut served, mut agents) = (0, Vec::new());
    while served < 60 {
        agents.push(vipkad(&socket, &["--idle-ms", "1"]).spawn().unwrap());
        for _ in 0..200 {
            let Ok(mut client) = Client::try_connect(&socket) else {
                continue;
            };
            let header = Header {
                magic: MAGIC,
                version: VERSION,
                op: 1,
                length: 8,
                status: 0,
                id: 5,
            };
            let bytes = [zerocopy::IntoBytes::as_bytes(&header), &[0; 8]].concat();
            if client.raw(&bytes, &[]).is_ok() && client.next().is_some_and(|r| r.id == 5) {
                served += 1;
            }
        }
    }
    for mut agent in agents {
        assert!(wait(&mut agent).success());
    }
}

#[test]
fn second_agent_steps_back() {
    let daemon = Daemon::start(&["--idle-ms", "0"]);
    let mut client = daemon.client();
    let second = vipkad(&daemon.socket, &[])
        .stderr(Stdio::piped())
        .output()
        .unwrap();
    assert!(second.status.success());
    let said = String::from_utf8(second.stderr).unwrap();
    let path = daemon.socket.display();
    assert!(said.starts_with("vipkad[") && said.contains(&format!("another agent serves {path}")));
    assert!(client.open(b"host", &[]) > 0);
    daemon.client();
}

#[test]
fn a_dead_agents_socket_is_taken_over() {
    let mut daemon = Daemon::start(&[]);
    daemon.client();
    daemon.child.kill().unwrap();
    daemon.child.wait().unwrap();
    assert!(daemon.socket.exists());
    daemon.child = vipkad(&daemon.socket, &[]).spawn().unwrap();
    daemon.client();
    // But a file that is not a socket was made by a user.
    let other = daemon.folder.path().join("file");
    std::fs::write(&other, "precious").unwrap();
    let refused = vipkad(&other, &[]).stderr(Stdio::null()).status().unwrap();
    assert_eq!(refused.code(), Some(1));
    assert_eq!(std::fs::read(&other).unwrap(), b"precious");
}

#[test]
fn garbage_harms_no_one_and_leaks_nothing() {
    let daemon = Daemon::start(&[]);
    let mut good = daemon.client();
    let nic = good.open(b"host", &[]);
    let mut bad = Client::connect(&daemon.socket);
    let file = tempfile::tempfile().unwrap();
    eventually(|| (daemon.open_fds() > 0).then_some(()));
    bad.hello();
    // So that a helper exists.
    bad.open(b"first", &[memory(b"x").as_raw_fd()]);
    let before = daemon.open_fds();
    let mut noise = 12345u32;
    let mut shots = 0;
    for round in 0..300usize {
        noise = noise.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let fds: Vec<RawFd> = vec![file.as_raw_fd(); [0, 1, 3, 4, 100][round % 5]];
        let bytes = vec![(noise >> 24) as u8; (noise >> 8) as usize % 700];
        bad.raw(&bytes, &fds).unwrap();
        shots += 1;
    }
    for _ in 0..shots {
        let reply = bad.next().unwrap();
        assert_eq!((reply.op, reply.status), (Op::DONE, Status::INVALID));
    }
    // A valid call with too many descriptors is refused.
    let four = [file.as_raw_fd(); 4];
    let id = bad.call(Op::NEIGHBOURS, &Neighbours { nic }, &four);
    assert_eq!(bad.reply(id).status, Status::INVALID);
    assert_eq!(daemon.open_fds(), before);
    assert_eq!(good.neighbours(nic), 1);
    let own = bad.open(b"evil", &[]);
    assert_eq!(bad.neighbours(own), 2);
}

#[test]
fn who_does_not_read_his_replies_is_not_read() {
    let daemon = Daemon::start(&[]);
    let mut good = daemon.client();
    let nic = good.open(b"host", &[]);
    let mut unread = daemon.client();
    let own = unread.open(b"mute", &[]);
    let header = Header {
        magic: MAGIC,
        version: VERSION,
        op: Op::NEIGHBOURS.0,
        length: 8,
        status: 0,
        id: 9,
    };
    let bytes = [zerocopy::IntoBytes::as_bytes(&header), &own.to_ne_bytes()].concat();
    let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
    let (mut sent, mut full) = (0, 0);
    // The agent may just be slow, so it is asked again after it has served another process.
    while full < 3 {
        match send(unread.fd.as_raw_fd(), &bytes, flags) {
            Ok(_) => (sent, full) = (sent + 1, 0),
            Err(Errno::EAGAIN) => {
                full += 1;
                assert_eq!(good.neighbours(nic), 2);
            }
            Err(other) => panic!("after {sent} calls: {other}"),
        }
        assert!(sent < 100_000, "the agent takes calls without end");
    }
    // Nothing is lost, and once it reads it is served again.
    for _ in 0..sent {
        let reply = unread.next().expect("it was dropped");
        assert_eq!((reply.op, reply.id), (Op::NEIGHBOUR_LIST, 9));
    }
    assert_eq!(unread.neighbours(own), 2);
}

/// More than the socket holds: replies are queued for the process.
#[test]
fn a_process_may_connect_thousands_of_vis_before_it_reads() {
    const MANY: usize = 3000;
    let daemon = Daemon::start(&[]);
    let (mut busy, mut quick) = (daemon.client(), daemon.client());
    let (one, other) = (busy.open(b"busy", &[]), quick.open(b"quick", &[]));
    let name = |i: usize| format!("{i}").into_bytes();
    let calls = (0..MANY).map(|i| busy.peer(one, &name(i), b"quick", &name(i)));
    let calls: Vec<u64> = calls.collect();
    let idle = daemon.open_fds();
    for i in 0..MANY {
        let call = quick.peer(other, &name(i), b"busy", &name(i));
        assert_eq!(quick.reply(call).op, Op::CONNECTED, "{i}");
    }
    assert!(daemon.open_fds() > idle, "segments wait in the agent");
    let mut connections = Vec::new();
    for call in calls {
        let reply = busy.reply(call);
        assert_eq!((reply.op, reply.fds.len()), (Op::CONNECTED, 1));
        connections.push(reply.body::<Connected>().connection);
    }
    // The agent closes a segment when it has sent it.
    eventually(|| (daemon.open_fds() == idle).then_some(()));
    // The ends of their connections, one by one.
    drop(quick);
    eventually(|| (daemon.open_fds() < idle).then_some(()));
    for connection in connections {
        busy.expect_gone(connection, 0);
    }
    assert_eq!(busy.neighbours(one), 1);
}

#[test]
fn asked_to_leave_the_agent_leaves_in_good_order() {
    for signal in [Signal::SIGTERM, Signal::SIGINT] {
        let mut daemon = Daemon::start(&["--foreground"]);
        let mut client = daemon.client();
        daemon.signal(signal);
        assert!(daemon.wait().success());
        assert!(!daemon.socket.exists());
        assert!(client.next().is_none());
    }
}

#[test]
fn descriptors_may_run_out_and_come_back() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("agent");
    let script = "ulimit -n 20; exec \"$0\" --socket \"$1\"";
    let agent = Command::new("sh")
        .args(["-c", script, env!("CARGO_BIN_EXE_vipkad")])
        .arg(&socket)
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut daemon = Daemon {
        child: agent,
        socket,
        folder,
        network: None,
        user: None,
    };
    daemon.client();
    let crowd: Vec<Client> = (0..30).map(|_| Client::connect(&daemon.socket)).collect();
    let mut said = [0; 200];
    let len = daemon
        .child
        .stderr
        .as_mut()
        .unwrap()
        .read(&mut said)
        .unwrap();
    assert!(String::from_utf8_lossy(&said[..len]).contains("file descriptors"));
    drop(crowd);
    eventually(|| Client::connect(&daemon.socket).try_hello().ok());
}

#[test]
fn service_manager_may_hand_over_the_socket() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("activated");
    let flags = SockFlag::empty();
    let fd = socket(AddressFamily::Unix, SockType::SeqPacket, flags, None).unwrap();
    bind(fd.as_raw_fd(), &UnixAddr::new(&path).unwrap()).unwrap();
    listen(&fd, Backlog::MAXCONN).unwrap();
    let start = || {
        let script = "LISTEN_PID=$$ LISTEN_FDS=1 exec \"$0\" --idle-ms 50 3<&\"$1\"";
        Command::new("sh")
            .args([
                "-c",
                script,
                env!("CARGO_BIN_EXE_vipkad"),
                &fd.as_raw_fd().to_string(),
            ])
            .spawn()
            .unwrap()
    };
    for _ in 0..2 {
        // A process that connects before the agent runs waits in the socket.
        let mut client = Client::connect(&path);
        let mut agent = start();
        assert_eq!(client.hello().agent_pid, agent.id());
        drop(client);
        assert!(wait(&mut agent).success());
        assert!(path.exists());
    }
}

#[test]
fn help_and_mistakes() {
    let run = |args: &[&str]| {
        Command::new(env!("CARGO_BIN_EXE_vipkad"))
            .args(args)
            .output()
            .unwrap()
    };
    let help = run(&["--help"]);
    assert!(help.status.success());
    assert!(
        String::from_utf8(help.stdout)
            .unwrap()
            .contains("--idle-ms <N>")
    );
    assert_eq!(run(&["--version"]).stdout, b"vipkad 0.1.0\n");
    let wrong = run(&["--sockets", "x"]);
    assert_eq!(wrong.status.code(), Some(2));
    assert!(
        String::from_utf8(wrong.stderr)
            .unwrap()
            .contains("unexpected argument '--sockets'")
    );
}

#[test]
fn help_that_cannot_be_written_is_an_error() {
    for redirection in [">&-", "1</dev/null", ">/dev/full"] {
        for argument in ["--help", "--version", "--generate bash"] {
            let script = format!("exec \"$0\" {argument} {redirection}");
            let mut shell = Command::new("sh");
            let shell = shell.args(["-c", &script, env!("CARGO_BIN_EXE_vipkad")]);
            let ended = shell.output().unwrap();
            let reported = String::from_utf8_lossy(&ended.stderr);
            assert_eq!(ended.status.code(), Some(1), "{script}: {reported}");
            assert!(
                reported.contains("cannot write to standard output"),
                "{reported}"
            );
        }
    }
}

#[test]
fn log_file_gets_the_lines() {
    let folder = tempfile::tempdir().unwrap();
    let (log, socket) = (folder.path().join("log"), folder.path().join("agent"));
    let mut agent = vipkad(&socket, &["--idle-ms", "1"])
        .env("VIPL_LOG", "error,tulip=trace,socket=info")
        .env("VIPL_LOG_FILE", &log)
        .spawn()
        .unwrap();
    let pid = agent.id();
    assert!(wait(&mut agent).success());
    let expected = format!(
        "vipkad[{pid}] info socket: serving {}\nvipkad[{pid}] info socket: idle, leaving\n",
        socket.display()
    );
    assert_eq!(std::fs::read_to_string(&log).unwrap(), expected);
}

/// Text of callers, hosts and settings cannot forge a line, or control a terminal.
#[test]
fn a_line_has_no_control_characters() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("agent");
    let agent = vipkad(&socket, &["--idle-ms", "1"])
        .env("VIPL_LOG", "lo\x1b[2J\nvipkad[1] warn é\u{202e}ud")
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let said = agent.wait_with_output().unwrap().stderr;
    let said = String::from_utf8(said).unwrap();
    let shown = "lo\\u001b[2J\\nvipkad[1] warn é\\u202eud\n";
    assert!(said.ends_with(shown) && said.lines().count() == 1, "{said}");
}

#[test]
fn limits_and_habits_of_the_starter_are_given_up() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("agent");
    let script =
        "ulimit -S -f 8; ulimit -S -n 100; umask 0; trap '' TERM CHLD; exec \"$0\" --socket \"$1\"";
    let child = Command::new("sh")
        .args(["-c", script, env!("CARGO_BIN_EXE_vipkad")])
        .arg(&socket)
        .spawn()
        .unwrap();
    let mut daemon = Daemon {
        child,
        socket,
        folder,
        network: None,
        user: None,
    };
    daemon.client();
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", daemon.pid())).unwrap();
    for name in ["Max file size", "Max open files"] {
        let line = limits.lines().find_map(|line| line.strip_prefix(name));
        let mut values = line.unwrap().split_whitespace();
        assert_eq!(values.next(), values.next(), "{name}");
    }
    daemon.signal(Signal::SIGTERM);
    assert!(daemon.wait().success());
}

/// A seccomp filter or a mount namespace cannot be dropped. They are reported to programs, since they may
/// explain failures.
#[test]
fn programs_learn_what_the_agent_runs_in() {
    let plain = Daemon::start(&[]);
    let plain = Client::connect(&plain.socket).hello();
    assert_eq!(plain.surroundings & Welcome::NO_PROC, 0);
    assert_ne!(plain.mounts, 0);
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("agent");
    let mut command = vipkad(&socket, &[]);
    // SAFETY: it only makes system calls.
    unsafe { command.pre_exec(inherit) };
    let child = command.spawn().unwrap();
    let daemon = Daemon {
        child,
        socket,
        folder,
        network: None,
        user: None,
    };
    let mut client = eventually(|| Client::try_connect(&daemon.socket).ok());
    let reported = client.hello();
    assert_eq!(reported.surroundings, Welcome::SECCOMP);
    match nix::unistd::geteuid().is_root() {
        true => assert_ne!(reported.mounts, plain.mounts),
        false => println!("SKIP a mount namespace takes a privilege"),
    }
}

/// A mount namespace where that is permitted, and a filter.
fn inherit() -> std::io::Result<()> {
    // SAFETY: no memory is involved.
    let moved = unsafe { libc::unshare(libc::CLONE_NEWNS) } == 0;
    assert!(moved || !nix::unistd::geteuid().is_root());
    seccomp_that_allows_all()
}

fn seccomp_that_allows_all() -> std::io::Result<()> {
    let mut allow = libc::sock_filter {
        code: (libc::BPF_RET | libc::BPF_K) as u16,
        jt: 0,
        jf: 0,
        k: libc::SECCOMP_RET_ALLOW,
    };
    let program = libc::sock_fprog {
        len: 1,
        filter: &raw mut allow,
    };
    // SAFETY: a valid program of one instruction.
    let set = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
            && libc::prctl(
                libc::PR_SET_SECCOMP,
                libc::SECCOMP_MODE_FILTER,
                &raw const program,
            ) == 0
    };
    set.then_some(()).ok_or_else(std::io::Error::last_os_error)
}
