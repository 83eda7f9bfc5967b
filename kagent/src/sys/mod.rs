//! The runtime: everything of the agent that touches the system. One thread, one poll loop.
//!
//! This is the only part of the crate with unsafe code, and the only one that knows sockets, process
//! ids and the clock. What the agent decides is none of its business: it carries packets to the
//! [`Agent`](crate::Agent) and does what the agent says.

mod devices;
mod error;
mod helper;
mod helpers;
mod interface;
mod links;
mod listener;
mod log;
mod options;
mod packet;
mod process;
mod raw;
mod segment;
mod server;
mod session;
mod spawn;
mod surroundings;

pub use error::Error;
pub use helper::help;
pub use log::Log;
pub use options::{Command, Options, USAGE};
pub use process::close_inherited;
pub use server::serve;
