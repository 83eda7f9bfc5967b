//! Processes that die, exit, or belong to another user, and the reports to their peers.

#![allow(clippy::unwrap_used)]

mod live;

use std::io::Read;
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use kagent_proto::*;
use live::*;
use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::sys::signal::Signal;
use nix::sys::socket::{Shutdown, shutdown};

/// Starts this test program again as a client with a role: see [`child_process`].
fn child(socket: &Path, part: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "child_process", "--ignored", "--nocapture"]);
    command.env("CHILD_SOCKET", socket).env("CHILD_PART", part);
    command.stdin(Stdio::piped()).stdout(Stdio::null());
    command
}

#[test]
#[allow(clippy::zombie_processes)] // the heir outlives this process on purpose
#[ignore = "runs only as a child of the other tests"]
fn child_process() {
    let Some(path) = std::env::var_os("CHILD_SOCKET") else {
        return;
    };
    let mut client = Client::connect(Path::new(&path));
    let part = std::env::var("CHILD_PART").unwrap();
    if part == "stranger refused" {
        // The refusal may precede the greeting or follow it.
        let _ = client.raw(b"", &[]);
        assert!(client.next().is_none());
        return;
    }
    client.hello();
    let nic = client.open(b"child", &[]);
    if part == "stranger" {
        assert_eq!(client.neighbours(nic), 1);
        let id = client.request(nic, b"host", b"d", 0);
        assert_eq!(client.reply(id).status, Status::NOT_REACHABLE);
        return;
    }
    let wait = client.wait(nic, b"door");
    client.accept(wait);
    if part == "heir" {
        // A child of the child keeps the socket open.
        fcntl(&client.fd, FcntlArg::F_SETFD(FdFlag::empty())).unwrap();
        Command::new("sleep")
            .arg("600")
            .stdin(Stdio::null())
            .process_group(0)
            .spawn()
            .unwrap();
    }
    // The parent closes the input or kills this process.
    let _ = std::io::stdin().read(&mut [0]);
    if part == "goodbye" {
        // Replies that are no longer read must not prevent the last messages.
        client.call(Op::NEIGHBOURS, &Neighbours { nic }, &[]);
        client.call(Op::NEIGHBOURS, &Neighbours { nic }, &[]);
        client.call(Op::GOODBYE, &(), &[]);
    }
    std::process::exit(0);
}

/// A client of the test, connected to a child with a role.
fn with_child(daemon: &Daemon, part: &str) -> (Client, Child, u64) {
    let mut client = daemon.client();
    let nic = client.open(b"host", &[]);
    let child = child(&daemon.socket, part).spawn().unwrap();
    let id = client.request(nic, b"child", b"door", 30_000);
    let reply = client.reply(id);
    assert_eq!(reply.op, Op::CONNECTED, "{:?}", reply.status);
    let connected: Connected = reply.body();
    assert_eq!(connected.peer_pid, child.id());
    (client, child, connected.connection)
}

#[test]
fn killed_process_is_reported_as_dead() {
    let daemon = Daemon::start(&[]);
    let (mut client, mut child, connection) = with_child(&daemon, "victim");
    child.kill().unwrap();
    client.expect_gone(connection, 0);
    child.wait().unwrap();
}

#[test]
fn killed_process_is_noticed_though_its_child_keeps_the_socket() {
    let daemon = Daemon::start(&[]);
    let (mut client, mut child, connection) = with_child(&daemon, "heir");
    let heir = eventually(|| {
        // The test runs in its own thread, so the heir is listed under another task.
        let tasks = std::fs::read_dir(format!("/proc/{}/task", child.id())).ok()?;
        tasks.flatten().find_map(|task| {
            let list = std::fs::read_to_string(task.path().join("children")).ok()?;
            list.split_whitespace().next()?.parse::<i32>().ok()
        })
    });
    // It must have executed `sleep`, which shows that the socket was inherited.
    eventually(|| {
        let name = std::fs::read_to_string(format!("/proc/{heir}/comm")).ok()?;
        (name == "sleep\n").then_some(())
    });
    child.kill().unwrap();
    client.expect_gone(connection, 0);
    child.wait().unwrap();
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(heir), Signal::SIGKILL).unwrap();
}

#[test]
fn goodbye_counts_even_with_unread_replies() {
    let daemon = Daemon::start(&[]);
    for _ in 0..5 {
        let (mut client, mut child, connection) = with_child(&daemon, "goodbye");
        drop(child.stdin.take());
        client.expect_gone(connection, 1);
        assert!(child.wait().unwrap().success());
    }
}

#[test]
fn exit_without_goodbye_is_a_death() {
    let daemon = Daemon::start(&[]);
    let (mut client, mut child, connection) = with_child(&daemon, "silent");
    drop(child.stdin.take());
    client.expect_gone(connection, 0);
    child.wait().unwrap();
}

#[test]
fn users_are_kept_apart() {
    if !nix::unistd::geteuid().is_root() {
        eprintln!("skipped: only root can play two users");
        return;
    }
    let (all, own) = (Daemon::start(&["--system"]), Daemon::start(&[]));
    for (daemon, part) in [(&all, "stranger"), (&own, "stranger refused")] {
        let mut client = daemon.client();
        let nic = client.open(b"host", &[]);
        // The file system permits the other user to connect.
        let open_to = |path: &Path, mode| {
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
        };
        let mode = std::fs::metadata(&daemon.socket)
            .unwrap()
            .permissions()
            .mode();
        assert_eq!(mode & 0o777, if part == "stranger" { 0o666 } else { 0o600 });
        open_to(daemon.folder.path(), 0o755);
        open_to(&daemon.socket, 0o666);
        let stranger = child(&daemon.socket, part).uid(65534).gid(65534).status();
        match stranger {
            Ok(status) => assert!(status.success(), "{part}"),
            Err(cause) => eprintln!("skipped: {cause}"),
        }
        assert_eq!(client.neighbours(nic), 1);
    }
}

#[test]
fn closed_socket_of_a_living_process_is_a_death_too() {
    let daemon = Daemon::start(&[]);
    let (mut one, mut two) = (daemon.client(), daemon.client());
    let (a, b) = (one.open(b"hostA", &[]), two.open(b"hostB", &[]));
    let wait = one.wait(a, b"d");
    let request = two.request(b, b"hostA", b"d", 30_000);
    one.accept(wait);
    let connection = two.reply(request).body::<Connected>().connection;
    // Not by closing it: a process just started by another test may have a copy.
    shutdown(one.fd.as_raw_fd(), Shutdown::Write).unwrap();
    two.expect_gone(connection, 0);
    assert_eq!(two.neighbours(b), 1);
}
