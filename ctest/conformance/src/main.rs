//! `cargo xtask conformance`.

#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    vipl_conformance::suite()
}
