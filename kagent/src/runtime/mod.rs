//! The runtime: the part of the agent that uses the operating system. One thread, one poll loop, and
//! therefore no locks.
//!
//! Only this part of the crate contains unsafe code and uses sockets, process ids and the clock. It makes no
//! decisions: it passes packets to the [`Agent`](crate::Agent) and carries out its outputs.

mod clients;
mod context;
mod devices;
mod error;
mod helpers;
mod links;
mod log;
mod networks;
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
