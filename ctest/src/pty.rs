//! A terminal whose user is the test.

use std::ffi::CStr;
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::process::Command;

use crate::run::end_with_parent;

/// How long a program may take to write what is waited for, in milliseconds.
const PATIENCE_MS: libc::c_int = 60_000;

/// A pseudo-terminal: what programs write to it is read here, what is written here are keys.
#[derive(Debug)]
pub struct Pty {
    user: File,
    programs: File,
    unread: Vec<u8>,
}

impl Pty {
    /// A terminal of this size.
    ///
    /// # Panics
    /// The system has no more of them.
    #[must_use]
    pub fn new(columns: u16, rows: u16) -> Self {
        // SAFETY: plain arguments; the descriptor is new. It is made ready before its other side is opened.
        let (user, name) = unsafe {
            let user = libc::posix_openpt(libc::O_RDWR | libc::O_NOCTTY | libc::O_CLOEXEC);
            assert!(user >= 0, "posix_openpt");
            let mut name = [0; 64];
            assert_eq!(libc::grantpt(user), 0, "grantpt");
            assert_eq!(libc::unlockpt(user), 0, "unlockpt");
            assert_eq!(libc::ptsname_r(user, name.as_mut_ptr(), name.len()), 0);
            let name = CStr::from_ptr(name.as_ptr()).to_owned();
            (File::from(OwnedFd::from_raw_fd(user)), name)
        };
        let programs = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(libc::O_NOCTTY)
            .open(name.to_str().expect("a path"))
            .expect("the program's side");
        let pty = Self {
            user,
            programs,
            unread: Vec::new(),
        };
        pty.set_size(columns, rows);
        pty
    }

    /// Gives it another size, which the programs on it are told.
    ///
    /// # Panics
    /// The system refuses.
    pub fn set_size(&self, columns: u16, rows: u16) {
        // SAFETY: all zero is a valid value.
        let mut size: libc::winsize = unsafe { std::mem::zeroed() };
        (size.ws_col, size.ws_row) = (columns, rows);
        // SAFETY: the request reads a winsize.
        let set = unsafe { libc::ioctl(self.user.as_raw_fd(), libc::TIOCSWINSZ, &raw const size) };
        assert_eq!(set, 0, "TIOCSWINSZ");
    }

    /// A shell with a session of its own on this terminal, for this script, which runs the arguments that are added as `"$@"`. While it
    /// runs, the terminal is as the programs before have left it; the system resets it when the first process of a session ends.
    ///
    /// # Panics
    /// No descriptor is left.
    #[must_use]
    pub fn shell(&self, script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script, "sh"]);
        let copy = || self.programs.try_clone().expect("a descriptor");
        command.stdin(copy()).stdout(copy()).stderr(copy());
        let lead = || {
            // SAFETY: plain arguments, and calls that a child may make between fork and exec.
            unsafe {
                libc::setsid();
                match libc::ioctl(0, libc::TIOCSCTTY, 0) {
                    0 => Ok(()),
                    _ => Err(std::io::Error::last_os_error()),
                }
            }
        };
        // SAFETY: the closure makes system calls only.
        unsafe { command.pre_exec(lead) };
        end_with_parent(&mut command);
        command
    }

    /// Presses these keys.
    ///
    /// # Panics
    /// The terminal takes none.
    pub fn press(&mut self, keys: &str) {
        self.user.write_all(keys.as_bytes()).expect("keys");
    }

    /// What is written up to this text, with it. What follows is kept for the next call.
    ///
    /// # Panics
    /// It does not come in a minute.
    pub fn until(&mut self, text: &str) -> String {
        loop {
            let mut all = self.unread.windows(text.len());
            if let Some(place) = all.position(|part| part == text.as_bytes()) {
                let rest = self.unread.split_off(place + text.len());
                let found = std::mem::replace(&mut self.unread, rest);
                return String::from_utf8_lossy(&found).into_owned();
            }
            let so_far = String::from_utf8_lossy(&self.unread);
            let mut ready = libc::pollfd {
                fd: self.user.as_raw_fd(),
                events: libc::POLLIN,
                revents: 0,
            };
            // SAFETY: one descriptor.
            let comes = unsafe { libc::poll(&raw mut ready, 1, PATIENCE_MS) };
            assert_eq!(comes, 1, "{text:?} after {so_far:?}");
            let mut part = [0; 4096];
            let bytes = self.user.read(&mut part).expect("the terminal");
            self.unread.extend_from_slice(&part[..bytes]);
        }
    }

    /// Its modes: input, output, control and local flags.
    ///
    /// # Panics
    /// The terminal has gone.
    #[must_use]
    pub fn modes(&self) -> [libc::tcflag_t; 4] {
        // SAFETY: all zero is a valid value.
        let mut modes: libc::termios = unsafe { std::mem::zeroed() };
        // SAFETY: room for its answer.
        let got = unsafe { libc::tcgetattr(self.programs.as_raw_fd(), &raw mut modes) };
        assert_eq!(got, 0, "tcgetattr");
        [modes.c_iflag, modes.c_oflag, modes.c_cflag, modes.c_lflag]
    }

    /// Takes the terminal away from its programs, as when a window is closed.
    pub fn hang_up(self) {
        drop(self.user);
    }
}
