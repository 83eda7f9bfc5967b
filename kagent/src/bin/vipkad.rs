//! `vipkad`: the Kernel Agent as a program. It reads its command line and serves; all the rest is in
//! the library.

#![forbid(unsafe_code)]

use std::process::ExitCode;

use kagent::runtime::{Error, Log, Options, close_inherited, help, serve};
use vipl_cli::output;

fn main() -> ExitCode {
    close_inherited();
    let options = match output::parse::<Options>() {
        Ok(options) => options,
        Err(code) => return code,
    };
    if options.descriptor_helper {
        return help();
    }
    if let Some(code) = options.generate.print::<Options>(8) {
        return code;
    }
    let log = Log::from_environment();
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
