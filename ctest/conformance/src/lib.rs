//! The conformance suite.
//!
//! The suite knows three lists: the assertions of the specification (§15), the plan, which
//! says which run of which C program of `ctest/programs` has to show which assertions (`plan`), and the
//! plug-ins of this project (`provider`). A program reports what it has checked; an assertion has passed on a plug-in
//! when every run that has to show it there has reported it.
//!
//! Two programs use it: `vipl-conformance`, which is `cargo xtask conformance` (`suite`), and the installed `vip_conform`,
//! which runs it on any plug-in (`any`) with the abilities that it finds (`probe`).

#![forbid(unsafe_code)]

mod any;
mod assertions;
mod check;
mod class;
mod ground;
mod keeper;
mod page;
mod plan;
mod probe;
mod program;
mod provider;
mod report;
mod results;
mod rows;
mod run;
mod suite;
mod verdict;

pub use any::main as vip_conform;
pub use suite::main as suite;
