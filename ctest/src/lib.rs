//! Driver of the C tests: builds the library, compiles the programs of `programs/`, runs them.
//!
//! The tests in `tests/` are the list of what is run and how. Everything they make goes to
//! `target/PROFILE/ctest/`:
//!
//! ```text
//!   lib/   libvipl.so.1, libvipl.so, the plug-ins, vipkad   as they would be installed
//!   bin/   the programs
//!   …      what single tests need (plug-in folders, stubs)
//! ```
//!
//! Variables change what is tested:
//!
//! - `CTEST_LIBDIR`: a folder with an installed library; nothing is built then
//! - `CTEST_NO_BUILD`: the workspace is built already with this profile
//! - `CTEST_COMPILED`: so are the C programs, for a system on which a compiler takes minutes
//! - `CC`, `CXX`: the compilers, otherwise `cc` and `c++`

mod agent;
mod browser;
mod compile;
mod examples;
mod exit;
mod installed;
mod library;
pub mod life;
mod made;
mod page;
mod pty;
mod run;
mod sources;
mod tool;
mod tree;

pub use agent::Agent;
pub use browser::{Browser, Shown};
pub use compile::{
    CompilerChoice, Program, are_compiled, find_tool, headers, install_program, program,
    program_of, program_over_stub, source,
};
pub use examples::examples;
pub use exit::until_exit;
pub use installed::Installed;
pub use library::{Build, example_in_rust, library_dir, profile, tools_dir, work_dir};
pub use page::{Block, blocks};
pub use pty::Pty;
pub use run::{Finished, Limits, Run, Started, end_with_parent, start_together};
pub use sources::product_sources;
pub use tool::{fails_without_output, help_fits, run_tool, tool, with_library};
pub use tree::Tree;

/// How many times as fast as the kernel's the time of the tested programs passes (`vipl_sys::clock`).
pub fn time_factor() -> u64 {
    let text = std::env::var("VIPL_TEST_TIME").ok();
    text.and_then(|text| text.parse().ok()).unwrap_or(1)
}

/// Marks a test as skipped, with the reason, in a form that is easy to find in the output.
pub fn skip(reason: &str) {
    println!("SKIP {reason}");
}
