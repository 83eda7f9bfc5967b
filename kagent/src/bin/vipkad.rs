//! `vipkad`: the Kernel Agent as a program. It reads its command line and serves; all the rest is in
//! the library.

#![forbid(unsafe_code)]

use std::process::ExitCode;

use kagent::sys::{Command, Error, Log, USAGE, close_inherited, help, serve};

fn main() -> ExitCode {
    close_inherited();
    let log = Log::from_environment();
    let options = match Command::parse(std::env::args_os().skip(1)) {
        Ok(Command::Serve(options)) => options,
        Ok(Command::Helper) => return help(),
        Ok(Command::Help) => return print(USAGE),
        Ok(Command::Version) => return print(concat!("vipkad ", env!("CARGO_PKG_VERSION"), "\n")),
        Err(cause) => {
            log.error("options", format_args!("{cause}"));
            return ExitCode::from(2);
        }
    };
    match serve(&options, &log) {
        Ok(()) => ExitCode::SUCCESS,
        // Two processes that start at once start two agents; one of them is enough.
        Err(cause @ Error::Taken(_)) => {
            log.warn("socket", format_args!("{cause}"));
            ExitCode::SUCCESS
        }
        Err(cause) => {
            log.error("socket", format_args!("{cause}"));
            ExitCode::FAILURE
        }
    }
}

/// `println!` would panic when nobody reads.
fn print(text: &str) -> ExitCode {
    use std::io::Write;
    match std::io::stdout().write_all(text.as_bytes()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}
