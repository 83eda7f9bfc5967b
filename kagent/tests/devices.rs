//! Device processes: started once, introduced to each requesting process, replaced when they have exited.

#![allow(clippy::unwrap_used)]

mod live;

use std::fs::{self, Permissions};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use kagent_proto::*;
use live::*;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{Signal, kill};
use nix::sys::socket::{MsgFlags, recv};
use nix::unistd::Pid;

/// One test at a time: a program that is being written cannot be started, and a child that another test forks
/// meanwhile holds the file open for writing.
static ALONE: Mutex<()> = Mutex::new(());

/// An agent that has a program `vipl-stub` beside it, which reads its input and writes nothing.
fn agent() -> Daemon {
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("vipkad");
    fs::copy(env!("CARGO_BIN_EXE_vipkad"), &program).unwrap();
    let stub = folder.path().join("vipl-stub");
    fs::write(&stub, "#!/bin/sh\nexec sleep 600\n").unwrap();
    fs::set_permissions(&stub, Permissions::from_mode(0o755)).unwrap();
    let socket = folder.path().join("agent");
    let child = command(&program, &socket, &[]).spawn().unwrap();
    Daemon {
        child,
        socket,
        folder,
        network: None,
        user: None,
    }
}

fn ask(client: &mut Client, name: &str) -> Reply {
    let mut device = [0; DEVICE_BYTES];
    device[..name.len()].copy_from_slice(name.as_bytes());
    client.ask(Op::DEVICE_OPEN, &DeviceOpen { device })
}

/// Returns the device's process id.
fn open(client: &mut Client) -> (u32, Reply) {
    let reply = ask(client, "stub");
    assert_eq!((reply.op, reply.status), (Op::DEVICE_OPENED, Status::OK));
    assert_eq!(reply.fds.len(), 1);
    (reply.body::<DeviceOpened>().pid, reply)
}

/// Waits until the other end of a socket is closed.
fn hangs_up(reply: &Reply) {
    let mut set = [PollFd::new(reply.fds[0].as_fd(), PollFlags::POLLIN)];
    assert_eq!(poll(&mut set, PollTimeout::from(30_000u16)).unwrap(), 1);
    let mut byte = [0];
    assert_eq!(
        recv(reply.fds[0].as_raw_fd(), &mut byte, MsgFlags::empty()),
        Ok(0)
    );
}

fn runs(pid: u32) -> bool {
    Path::new(&format!("/proc/{pid}")).exists()
}

#[test]
fn one_device_serves_all_processes_of_a_user_and_ends_with_no_one_left_behind() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let agent = agent();
    let (mut one, mut two) = (agent.client(), agent.client());
    // So that a helper exists.
    one.open(b"A", &[memory(b"x").as_raw_fd()]);
    let fds = agent.open_fds();
    let (first, reply) = open(&mut one);
    assert_eq!(open(&mut two).0, first);
    kill(Pid::from_raw(first as i32), Signal::SIGKILL).unwrap();
    hangs_up(&reply);
    // The agent has reaped it, and keeps nothing of it.
    eventually(|| (!runs(first) && agent.open_fds() == fds).then_some(()));
    let (second, _) = open(&mut two);
    assert_ne!(second, first);
    kill(Pid::from_raw(second as i32), Signal::SIGKILL).unwrap();
}

#[test]
fn a_device_without_a_program_is_invalid_and_costs_nothing() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let agent = agent();
    let mut client = agent.client();
    let fds = agent.open_fds();
    for name in ["ghost", "", "../stub"] {
        let reply = ask(&mut client, name);
        assert_eq!((reply.op, reply.status), (Op::DONE, Status::INVALID));
    }
    assert_eq!(agent.open_fds(), fds);
}
