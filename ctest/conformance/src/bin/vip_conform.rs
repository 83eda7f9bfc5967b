//! `vip_conform`: whether a plug-in does what the specification says.

#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    vipl_conformance::vip_conform()
}
