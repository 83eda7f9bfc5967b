//! Standard output: a write that fails is an error of the program.
//!
//! The standard library hides two failures. It opens `/dev/null` in place of a standard output that is closed
//! (`vipinfo >&-`), and it takes a descriptor that cannot be written for one that swallows everything. Help and
//! version texts are printed by `clap`, which ignores any failure.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};

use clap::Parser;

/// Descriptor 1 was closed when the program was started.
static CLOSED: AtomicBool = AtomicBool::new(false);

/// Looks before the standard library opens something else there.
#[used]
// SAFETY: a function without arguments, which the C library calls before `main`.
#[unsafe(link_section = ".init_array")]
static LOOK: extern "C" fn() = look;

extern "C" fn look() {
    // SAFETY: plain arguments.
    let closed = unsafe { libc::fcntl(1, libc::F_GETFD) } < 0;
    CLOSED.store(closed, Ordering::Relaxed);
}

/// Writes all of it to standard output.
///
/// # Errors
/// It is closed, or full.
pub fn write(text: &[u8]) -> io::Result<()> {
    if CLOSED.load(Ordering::Relaxed) {
        return Err(io::Error::from_raw_os_error(libc::EBADF));
    }
    // What the standard library has kept comes first.
    io::stdout().flush()?;
    File::from(io::stdout().as_fd().try_clone_to_owned()?).write_all(text)
}

/// The exit code of a program that has written, and could do nothing else. A closed reader is not an error.
#[must_use]
pub fn ended(written: io::Result<()>) -> ExitCode {
    match written {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            if error.kind() != io::ErrorKind::BrokenPipe {
                eprintln!("cannot write to standard output: {error}");
            }
            ExitCode::FAILURE
        }
    }
}

/// Reads the command line. `Err`: the program ends with this code, since help or version was asked for and written,
/// or could not be, or the command line is wrong.
///
/// # Errors
/// As said.
pub fn parse<Options: Parser>() -> Result<Options, ExitCode> {
    Options::try_parse().map_err(|error| {
        if error.use_stderr() {
            let _ = error.print();
            return ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2));
        }
        // Colours are for terminals.
        let text = error.render();
        let is_terminal = io::IsTerminal::is_terminal(&io::stdout());
        let text = if is_terminal {
            text.ansi().to_string()
        } else {
            text.to_string()
        };
        ended(write(text.as_bytes()))
    })
}
