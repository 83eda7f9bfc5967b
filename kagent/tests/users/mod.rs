//! Two users of one agent that root has started, all in this process: credentials belong to threads, so a
//! thread becomes a user, and the kernel tells the agent who connected from there.
#![allow(dead_code, unreachable_pub, clippy::unwrap_used)]

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::live::*;

/// A user id that is probably unused on this machine; it needs no entry in the table of users.
pub const MALLORY: u32 = 65_532;
pub const BYSTANDER: u32 = 65_531;

/// One test at a time, since a program that is being written cannot be started; and only as root. `None`,
/// with the reason printed, if the test must be skipped.
pub fn alone_as_root() -> Option<MutexGuard<'static, ()>> {
    static ALONE: Mutex<()> = Mutex::new(());
    if !nix::unistd::geteuid().is_root() {
        println!("left out: only root can become two users");
        return None;
    }
    let guard = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    if as_user(MALLORY, || ()).is_none() {
        println!("left out: this user namespace has no user {MALLORY}");
        return None;
    }
    Some(guard)
}

/// Runs a function on a thread of another user. `None` if it may not become that user.
pub fn as_user<T: Send>(user: u32, what: impl FnOnce() -> T + Send) -> Option<T> {
    as_user_in(user, user, what)
}

/// The same, in a group.
pub fn as_user_in<T: Send>(
    user: u32,
    group: libc::gid_t,
    what: impl FnOnce() -> T + Send,
) -> Option<T> {
    let run = || {
        let none: *const libc::gid_t = std::ptr::null();
        // The wrappers of the C library would change all threads.
        // SAFETY: system calls on integers.
        let refused = unsafe {
            libc::syscall(libc::SYS_setgroups, 0, none) != 0
                || libc::syscall(libc::SYS_setresgid, group, group, group) != 0
                || libc::syscall(libc::SYS_setresuid, user, user, user) != 0
        };
        (!refused).then(what)
    };
    std::thread::scope(|scope| scope.spawn(run).join().unwrap())
}

/// `vipkad --system`, started by root, with a program `vipl-stub` beside it that reads its standard input and
/// exits at its end. `prelude` are shell commands before the agent is executed.
pub fn service(prelude: &str, args: &[&str]) -> Daemon {
    let folder = tempfile::tempdir().unwrap();
    let open_to_all = || Permissions::from_mode(0o755);
    fs::set_permissions(folder.path(), open_to_all()).unwrap();
    let program = folder.path().join("vipkad");
    fs::copy(env!("CARGO_BIN_EXE_vipkad"), &program).unwrap();
    let stub = folder.path().join("vipl-stub");
    fs::write(&stub, "#!/bin/sh\nexec cat\n").unwrap();
    for file in [&program, &stub] {
        fs::set_permissions(file, open_to_all()).unwrap();
    }
    let socket = folder.path().join("agent");
    let child = Command::new("sh")
        .args(["-c", &format!("{prelude}; exec \"$0\" --system \"$@\"")])
        .arg(&program)
        .arg("--socket")
        .arg(&socket)
        .args(args)
        .current_dir(folder.path())
        .env_remove("VIPL_LOG")
        .env_remove("VIPL_LOG_FILE")
        .stdin(Stdio::null())
        .spawn()
        .unwrap();
    Daemon {
        child,
        socket,
        folder,
        network: None,
        user: None,
    }
}

/// A greeted process of a user.
pub fn client(agent: &Daemon, user: u32) -> Client {
    let socket = agent.socket.clone();
    let mut client = as_user(user, || Client::connect(&socket)).unwrap();
    client.hello();
    client
}

/// Another user performs all steps of an application, from connecting to the agent to a connection of two
/// VIs. The watchdog bounds each step.
pub fn bystander_is_served(agent: &Daemon) {
    let (mut server, mut asker) = (client(agent, BYSTANDER), client(agent, BYSTANDER));
    let (a, b) = (server.open(b"A", &[]), asker.open(b"B", &[]));
    let wait = server.wait(a, b"d");
    let request = asker.request(b, b"A", b"d", 30_000);
    server.accept(wait);
    let connected = asker.reply(request);
    assert_eq!(connected.op, kagent_proto::Op::CONNECTED);
}
