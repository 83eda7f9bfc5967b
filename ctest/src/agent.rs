//! A Kernel Agent for one run alone, so that runs which share a host share nothing else.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::installed::Installed;
use crate::library::library_dir;
use crate::tree::Tree;

/// How long it may take to listen.
const PATIENCE: Duration = Duration::from_secs(60);

/// A running agent; it ends with the value, and by itself a minute after the last process if no process is left to end it.
pub struct Agent {
    child: Child,
    socket: PathBuf,
}

impl Agent {
    /// Starts the agent of the library under test, with its socket in this folder, and waits until it
    /// answers.
    pub fn start_in(dir: &Path) -> io::Result<Agent> {
        let socket = dir.join("agent");
        let agent = Installed::get().map(|installed| installed.agent.clone());
        let (name, value) = Tree::new().variable();
        let child = Command::new(agent.unwrap_or_else(|| library_dir().join("vipkad")))
            .arg("--idle-ms")
            .arg((60_000 * crate::time_factor()).to_string())
            .arg("--socket")
            .arg(&socket)
            .env(name, value)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .process_group(0)
            .spawn()?;
        let agent = Agent { child, socket };
        let begun = Instant::now();
        // The file is there before anybody listens.
        while let Err(error) = connect(&agent.socket) {
            if begun.elapsed() > PATIENCE {
                return Err(error);
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(agent)
    }

    /// The number of its process.
    pub fn process(&self) -> u32 {
        self.child.id()
    }

    /// Stops it, as SIGSTOP does.
    pub fn stop(&self) {
        // SAFETY: no memory is involved; the child has not been waited for, so the number is its own.
        unsafe { libc::kill(self.child.id() as libc::pid_t, libc::SIGSTOP) };
    }

    /// What `VIPL_AGENT` has to be for programs to use it.
    pub fn socket(&self) -> &Path {
        &self.socket
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        // It may have ended by itself; then there is nothing to do.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Connects and hangs up.
fn connect(path: &Path) -> io::Result<()> {
    // SAFETY: an all-zero address is a valid one; it is filled below.
    let mut address: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    address.sun_family = libc::AF_UNIX as libc::sa_family_t;
    let name = path.as_os_str().as_bytes();
    if name.len() >= address.sun_path.len() {
        return Err(io::Error::from(io::ErrorKind::InvalidInput));
    }
    for (to, from) in address.sun_path.iter_mut().zip(name) {
        *to = *from as libc::c_char;
    }
    // SAFETY: makes a descriptor; no memory is involved.
    let made = unsafe { libc::socket(libc::AF_UNIX, libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC, 0) };
    if made < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: `made` is new and ours.
    let made = unsafe { OwnedFd::from_raw_fd(made) };
    let length = std::mem::size_of_val(&address) as libc::socklen_t;
    // SAFETY: the address lives through the call and has this length.
    match unsafe { libc::connect(made.as_raw_fd(), (&raw const address).cast(), length) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
