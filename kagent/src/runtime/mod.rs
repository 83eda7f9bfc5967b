//! The runtime: everything of the agent that touches the system. One thread, one poll loop.
//!
//! This is the only part of the crate with unsafe code, and the only one that knows sockets, process
//! ids and the clock. What the agent decides is none of its business: it carries packets to the
//! [`Agent`](crate::Agent) and does what the agent says.

mod devices;
mod error;
mod helpers;
mod links;
mod log;
mod options;
mod processes;
mod segment;
mod server;
mod sockets;
mod surroundings;
mod token;

pub use error::Error;
pub use helpers::program::help;
pub use log::Log;
pub use options::Options;
pub use processes::prepare::close_inherited;
pub use server::serve;
