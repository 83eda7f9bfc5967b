//! `cargo xtask`: everything around the code that is not `cargo build` or `cargo test`.
//!
//! One file per command; each command prints what it did and ends with a non-zero code when
//! something is wrong. Nothing here is part of what gets installed.

mod abi;
mod advisories;
mod bare;
mod book;
// Public in the other crate that has it.
#[allow(unreachable_pub)]
#[path = "../../src/browser.rs"]
mod browser;
mod checker;
mod ci;
mod compile;
mod conformance;
mod cross;
mod deb;
mod deep;
mod diff;
mod docs;
mod ethernet;
mod floors;
mod fuzz;
mod guest;
mod headers;
mod hours;
mod install;
mod layout;
mod loom;
mod man;
mod markdown;
mod miri;
mod modules;
mod package;
mod place;
mod references;
mod refused;
mod rpm;
mod sanitize;
mod sbom;
mod smoke;
mod static_libs;
mod steps;
mod stress;
mod suites;
mod tally;
mod tests;
mod traces;
mod uninstall;
mod valgrind;
mod walks;
mod workspace;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// What every command returns: the message is for a person.
type Result<T = ()> = std::result::Result<T, Box<dyn std::error::Error>>;

#[derive(Parser)]
#[command(
    name = "cargo xtask",
    bin_name = "cargo xtask",
    about = "Headers, install and checks"
)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Build everything and let a C program move data between two processes
    Demo(Demo),
    /// Generate headers/*.h from the Rust sources, or compare
    Headers(headers::Options),
    /// Write headers/abi/*.txt, or compare them with the headers and the built library
    Abi(abi::Options),
    /// Build and install the library, plug-ins, agent, tools, headers and pkg-config file
    Install(install::Options),
    /// Remove what `install` put under a prefix
    Uninstall(uninstall::Options),
    /// Build Debian packages
    Deb(deb::Options),
    /// Build RPM packages
    Rpm(rpm::Options),
    /// Write the manual pages
    Man(man::Options),
    /// Build for another processor, i386 or aarch64
    Cross(cross::Options),
    /// Install to a temporary prefix, build and run a C program against it, uninstall
    Smoke(smoke::Options),
    /// Check that every reference to the specification resolves
    References,
    /// Run the commands of docs/DIAGNOSIS.md over an installation, and compare what they print
    Walks(walks::Options),
    /// Find circles in the imports of each crate's modules
    Modules(modules::Options),
    /// Run the tests of the crates
    Tests(tests::Options),
    /// Run the conformance suite on all plug-ins
    Conformance(conformance::Options),
    /// Let hours pass in minutes, for all that may last and for the suite
    Hours(hours::Options),
    /// Kill servers, clients and agents under busy transfers, and look what the others make of it
    Kill(stress::Kill),
    /// Transfer, disconnect, reconnect and kill for a while, every byte checked
    Soak(stress::Soak),
    /// Transfer between hosts in network namespaces over bad cables, every byte checked
    Ethernet(ethernet::Options),
    /// Run a command on another kernel, with an RDMA device that it emulates
    Guest(guest::Options),
    /// Refuse system calls, each one with each error
    Refused(refused::Options),
    /// Fuzz what reads hostile or careless input
    Fuzz(fuzz::Options),
    /// Model-check the lock-free parts
    Loom(loom::Options),
    /// Run the tests of the plug-in SDK under Miri
    Miri,
    /// Known vulnerabilities of what we depend on, by cargo-deny
    Advisories,
    /// Build for a sanitizer and run C programs under it
    Sanitize(sanitize::Options),
    /// Run tests of others over the MPI provider
    Suites(suites::Options),
    /// Run C programs under valgrind
    Valgrind(valgrind::Options),
    /// Build the documentation without a warning
    Docs,
    /// Build the documents as a book, and check its links
    Book(book::Options),
    /// Package the crates that authors of plug-ins use
    Package,
    /// Run everything that finds a mistake of today's change, fast steps first
    Ci(ci::Options),
    /// Run steps of `ci` as on a machine without the optional tools
    Bare,
    /// Run what takes longer: the other devices, sanitizers, models, fuzzing, kill, soak
    Deep(deep::Options),
}

/// Arguments of `cargo xtask demo`, which the crate `xtask-entry` reads: from there it needs nothing of this crate.
#[derive(clap::Args)]
struct Demo {
    /// [--device DEVICE]
    #[arg(allow_hyphen_values = true, trailing_var_arg = true)]
    options: Vec<std::ffi::OsString>,
}

fn main() -> ExitCode {
    match run(Arguments::parse().command) {
        Ok(true) => ExitCode::SUCCESS,
        // The command has said what failed; its last line is the count of tests.
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("xtask: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Runs a command; true if all is well.
fn run(command: Command) -> Result<bool> {
    match command {
        Command::Demo(options) => xtask_entry::demo(&options.options)?,
        Command::Headers(options) => headers::run(&options)?,
        Command::Abi(options) => abi::run(&options)?,
        Command::Install(options) => install::run(&options)?,
        Command::Uninstall(options) => uninstall::run(&options)?,
        Command::Deb(options) => deb::run(&options)?,
        Command::Rpm(options) => rpm::run(&options)?,
        Command::Man(options) => man::run(&options)?,
        Command::Cross(options) => cross::run(&options)?,
        Command::Smoke(options) => smoke::run(&options)?,
        Command::References => references::run()?,
        Command::Walks(options) => walks::run(&options)?,
        Command::Modules(options) => modules::run(&options)?,
        Command::Docs => docs::run()?,
        Command::Book(options) => book::run(&options)?,
        Command::Package => package::run()?,
        Command::Conformance(options) => conformance::run(&options)?,
        Command::Hours(options) => hours::run(&options)?,
        Command::Kill(options) => stress::kill(&options)?,
        Command::Soak(options) => stress::soak(&options)?,
        Command::Ethernet(options) => ethernet::run(&options)?,
        Command::Guest(options) => guest::run(&options)?,
        Command::Refused(options) => refused::run(&options)?,
        Command::Fuzz(options) => fuzz::run_targets(&options)?,
        Command::Advisories => advisories::check()?,
        Command::Loom(options) => loom::run_models(&options)?,
        Command::Miri => miri::run_tests()?,
        Command::Sanitize(options) => sanitize::run_programs(&options)?,
        Command::Suites(options) => suites::run_suites(&options)?,
        Command::Valgrind(options) => valgrind::run_programs(&options)?,
        Command::Tests(options) => return tests::run(&options),
        Command::Bare => return bare::run(),
        Command::Ci(options) => return ci::run(&options),
        Command::Deep(options) => return deep::run(&options),
    }
    Ok(true)
}
