//! Stands for side 1 of a program, which runs in guest 1.

use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::fd::FromRawFd;
use std::os::unix::net::UnixStream;
use std::process::ExitCode;

use crate::order::{self, kind, tag};

/// `side` is what the program has said: the number of the socket to side 0, and of the run.
pub(crate) fn run(side: &str) -> ExitCode {
    match carry(side) {
        Ok(status) => ExitCode::from(status),
        Err(error) => {
            println!("FAIL vipl-guests: the second side: {error}");
            ExitCode::FAILURE
        }
    }
}

fn carry(side: &str) -> io::Result<u8> {
    let wrong = || io::Error::other("CTEST_SIDE is not as expected");
    let (link, run) = side.split_once(' ').ok_or_else(wrong)?;
    let link = link.parse().map_err(|_| wrong())?;
    // SAFETY: a socket that this program was given, and that nothing else here uses.
    let link = unsafe { UnixStream::from_raw_fd(link) };
    let arguments: Vec<String> = std::env::args().collect();
    let mut texts = vec![kind::SIDE.to_owned(), run.to_owned()];
    texts.push(arguments.len().to_string());
    texts.extend(arguments);
    let is_setting = |name: &str| {
        (name.starts_with("VIPL_") || name.starts_with("CTEST_") || name == "LD_LIBRARY_PATH")
            && !matches!(name, "CTEST_SIDE" | "CTEST_SECOND")
    };
    for (name, value) in std::env::vars().filter(|(name, _)| is_setting(name)) {
        texts.push(format!("{name}={value}"));
    }
    let mut there = order::connect()?;
    order::put(&there, &texts)?;
    let (mut from_link, mut to_there) = (link.try_clone()?, there.try_clone()?);
    std::thread::spawn(move || {
        let mut bytes = [0; 4096];
        while let Ok(count @ 1..) = from_link.read(&mut bytes) {
            if to_there.write_all(&bytes[..count]).is_err() {
                break;
            }
        }
        let _ = to_there.shutdown(Shutdown::Write);
    });
    loop {
        match order::get_piece(&mut there)? {
            // Side 0 may have ended.
            (tag::LINK, bytes) => drop((&link).write_all(&bytes)),
            (tag::OUTPUT, bytes) => io::stdout().write_all(&bytes)?,
            (tag::ERROR, bytes) => io::stderr().write_all(&bytes)?,
            (_, status) => {
                io::stdout().flush()?;
                return Ok(status.first().copied().unwrap_or(1));
            }
        }
    }
}
