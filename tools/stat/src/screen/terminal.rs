//! The terminal while the screen is on it, and as it was before.
//!
//! Keys come one by one and without echo, but Ctrl-C, Ctrl-Z and Ctrl-\ are signals as before, so that they work while a look takes
//! long. However this process ends, but for SIGKILL, [`leave`] is called, by which the terminal is as it was.

use std::fs::File;
use std::io::{self, IsTerminal, Read, Stdout, Write, stdin, stdout};
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::time::Duration;

use libc::c_int;
use nix::sys::signal::{SigSet, Signal, raise};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::event::KeyCode;
use ratatui::layout::Rect;
use ratatui::{Frame, TerminalOptions, Viewport};
use vipl_sys::clock::{Instant, poll};
use vipl_tools::sys;

use super::keys::Keys;

/// The alternate screen.
const ENTER: &[u8] = b"\x1b[?1049h";
/// No attributes, the screen as before, the cursor visible.
const LEAVE: &[u8] = b"\x1b[m\x1b[?1049l\x1b[?25h";

/// How long the rest of a key's sequence may take, also from afar; ESC alone is known to be the key after this time.
const SEQUENCE: Duration = Duration::from_millis(50);
/// How long a terminal that takes no characters may keep this process from its end.
const PATIENCE: Duration = Duration::from_secs(1);
/// The largest screen. A terminal may say that it has 65535 columns and rows, for which there is no memory.
const SIZE_MAX: (u16, u16) = (1024, 512);

/// Signals that end this process.
const ENDING: [c_int; 5] = [
    libc::SIGHUP,
    libc::SIGINT,
    libc::SIGQUIT,
    libc::SIGTERM,
    libc::SIGABRT,
];

/// The terminal of the keys, and how it was.
struct Before {
    keyboard: RawFd,
    modes: libc::termios,
}

/// Null while the screen is not on the terminal. It is never freed: a handler may use it at any time.
static BEFORE: AtomicPtr<Before> = AtomicPtr::new(null_mut());

/// Takes the terminal, or takes it again after others had it.
fn enter(keyboard: RawFd) -> io::Result<()> {
    let mut before = BEFORE.load(Ordering::Acquire);
    if before.is_null() {
        // SAFETY: all zero is a valid value.
        let mut modes: libc::termios = unsafe { std::mem::zeroed() };
        // SAFETY: room for its answer.
        checked(unsafe { libc::tcgetattr(keyboard, &raw mut modes) })?;
        before = Box::into_raw(Box::new(Before { keyboard, modes }));
        // Before the modes change, so that a handler undoes whatever of it is done.
        BEFORE.store(before, Ordering::Release);
    }
    // SAFETY: it is never freed.
    let mut modes = unsafe { (*before).modes };
    // SAFETY: modes of a terminal.
    unsafe { libc::cfmakeraw(&raw mut modes) };
    modes.c_lflag |= libc::ISIG;
    // SAFETY: as before.
    checked(unsafe { libc::tcsetattr(keyboard, libc::TCSANOW, &raw const modes) })?;
    stdout().write_all(ENTER)?;
    stdout().flush()
}

/// Gives the terminal back as it was before. It only makes system calls, so a handler may call it at any instruction, also of `enter` or
/// of itself.
fn leave() {
    let before = BEFORE.load(Ordering::Acquire);
    // SAFETY: null, or never freed.
    let Some(Before { keyboard, modes }) = (unsafe { before.as_ref() }) else {
        return;
    };
    if !is_anothers(*keyboard) {
        // SAFETY: modes of this terminal. If it fails, the terminal has gone.
        unsafe { libc::tcsetattr(*keyboard, libc::TCSANOW, modes) };
        let mut output = [libc::pollfd {
            fd: libc::STDOUT_FILENO,
            events: libc::POLLOUT,
            revents: 0,
        }];
        if poll(&mut output, Some(PATIENCE)) == 1 {
            // SAFETY: readable bytes. If it fails, the terminal has gone.
            unsafe { libc::write(libc::STDOUT_FILENO, LEAVE.as_ptr().cast(), LEAVE.len()) };
        }
    }
    // At last, since a handler that interrupts this does all of it again.
    BEFORE.store(null_mut(), Ordering::Release);
}

/// Whether the terminal belongs to another job of its shell: what that one sees is not changed, and trying would stop this process.
fn is_anothers(terminal: RawFd) -> bool {
    // SAFETY: plain arguments. It is an error if the terminal controls no process, or not this one.
    let (front, own) = unsafe { (libc::tcgetpgrp(terminal), libc::getpgrp()) };
    front >= 0 && front != own
}

extern "C" fn end(signal: c_int) {
    leave();
    // SAFETY: the action of the signal is the default one again. That ends any process but the first of a container.
    unsafe {
        libc::raise(signal);
        libc::_exit(128 + signal);
    }
}

/// Lets signals end this process by way of `end`, but for those that are ignored, for instance by `nohup`.
fn restore_at_the_end() -> io::Result<()> {
    for signal in ENDING.into_iter().filter(|signal| !is_ignored(*signal)) {
        // SAFETY: all zero is a valid value.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        action.sa_sigaction = end as extern "C" fn(c_int) as libc::sighandler_t;
        // Another signal, or the same again, ends a handler that has to wait.
        action.sa_flags = libc::SA_RESETHAND | libc::SA_NODEFER;
        // SAFETY: the handler makes system calls only.
        checked(unsafe { libc::sigaction(signal, &raw const action, null_mut()) })?;
    }
    let print = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        leave();
        print(info);
    }));
    Ok(())
}

fn is_ignored(signal: c_int) -> bool {
    // SAFETY: all zero is a valid value.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: room for its answer; nothing is changed.
    unsafe { libc::sigaction(signal, std::ptr::null(), &raw mut action) };
    action.sa_sigaction == libc::SIG_IGN
}

fn checked(result: c_int) -> io::Result<()> {
    match result {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Signals that come as bytes: another size, and the stops of job control.
pub(super) struct Signals(SignalFd);

impl Signals {
    /// Blocks them in this thread, and in those that it begins.
    ///
    /// # Errors
    /// No descriptor is left.
    pub(super) fn new() -> io::Result<Self> {
        let mut set = SigSet::empty();
        set.add(Signal::SIGWINCH);
        set.add(Signal::SIGCONT);
        if !is_ignored(libc::SIGTSTP) {
            set.add(Signal::SIGTSTP);
        }
        set.thread_block()?;
        let flags = SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC;
        Ok(Self(SignalFd::with_flags(&set, flags)?))
    }
}

/// Stops this process as Ctrl-Z does, until its shell continues it. Where there is no shell to do so, the system does not stop it.
fn stop() -> io::Result<()> {
    let mut stop = SigSet::empty();
    stop.add(Signal::SIGTSTP);
    raise(Signal::SIGTSTP)?;
    stop.thread_unblock()?;
    stop.thread_block()?;
    Ok(())
}

/// The terminal with the screen on it.
pub(super) struct Terminal {
    /// Never dropped: it would write to standard error, which may have gone with the terminal, and then panic.
    drawn: ManuallyDrop<ratatui::Terminal<CrosstermBackend<Stdout>>>,
    /// What is drawn on; empty before the first time, and when all must be drawn again.
    area: Rect,
    keyboard: File,
    keys: Keys,
    signals: Signals,
}

impl Terminal {
    /// Takes the terminal until it is dropped, or until this process ends otherwise.
    ///
    /// # Errors
    /// There is none, or it has gone.
    pub(super) fn new(signals: Signals) -> io::Result<Self> {
        let keyboard = match stdin().is_terminal() {
            true => stdin().as_fd().try_clone_to_owned()?.into(),
            false => File::options().read(true).write(true).open("/dev/tty")?,
        };
        let area = Rect::ZERO;
        let backend = CrosstermBackend::new(stdout());
        let viewport = Viewport::Fixed(area);
        let drawn = ratatui::Terminal::with_options(backend, TerminalOptions { viewport })?;
        restore_at_the_end()?;
        let terminal = Self {
            drawn: ManuallyDrop::new(drawn),
            area,
            keyboard,
            keys: Keys::default(),
            signals,
        };
        enter(terminal.keyboard.as_raw_fd())?;
        Ok(terminal)
    }

    /// Draws, on all of the terminal or on as much of it as there is memory for.
    ///
    /// # Errors
    /// The terminal has gone.
    pub(super) fn draw(&mut self, draw: impl FnOnce(&mut Frame<'_>)) -> io::Result<()> {
        let area = area(sys::terminal_size().ok_or_else(gone)?);
        if area != self.area {
            self.drawn.resize(area)?;
            self.area = area;
        }
        self.drawn.draw(draw)?;
        Ok(())
    }

    /// Waits for a key until this time; None if there is none, or if the screen must be drawn before.
    ///
    /// # Errors
    /// The terminal has gone.
    pub(super) fn key(&mut self, until: Instant) -> io::Result<Option<KeyCode>> {
        if let Some(key) = self.keys.take() {
            return Ok(Some(key));
        }
        let mut wait = until - Instant::now();
        if self.keys.has_begun() {
            wait = wait.min(SEQUENCE);
        }
        let of = |fd| libc::pollfd {
            fd,
            events: libc::POLLIN,
            revents: 0,
        };
        let fds = [self.signals.0.as_raw_fd(), self.keyboard.as_raw_fd()];
        let mut ready = fds.map(of);
        match poll(&mut ready, Some(wait)) {
            0 => return Ok(self.keys.give_up()),
            found if found < 0 => return Err(io::Error::last_os_error()),
            _ => {}
        }
        let [signals, keyboard] = ready.map(|one| one.revents != 0);
        if signals {
            self.obey()?;
        }
        if keyboard {
            let mut bytes = [0; 1024];
            match self.keyboard.read(&mut bytes) {
                Ok(0) => return Err(gone()),
                Ok(count) => self.keys.add(&bytes[..count]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // Another process has made it so.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
        Ok(self.keys.take())
    }

    /// Does what the signals want that have come. Another size needs no more than the next drawing.
    fn obey(&mut self) -> io::Result<()> {
        while let Some(signal) = self.signals.0.read_signal()? {
            match signal.ssi_signo.cast_signed() {
                libc::SIGTSTP => {
                    leave();
                    stop()?;
                }
                // After a stop that could not be noticed (SIGSTOP), too.
                libc::SIGCONT => {}
                _ => continue,
            }
            enter(self.keyboard.as_raw_fd())?;
            self.area = Rect::ZERO;
        }
        Ok(())
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        leave();
    }
}

/// What is drawn of a terminal of this size.
fn area((columns, rows): (u16, u16)) -> Rect {
    Rect::new(0, 0, columns.min(SIZE_MAX.0), rows.min(SIZE_MAX.1))
}

fn gone() -> io::Error {
    io::Error::other("it has gone")
}

#[cfg(test)]
mod tests;
