//! The logic of the agent: state machines without input and output.
//!
//! [`Agent`](agent::Agent) has all tables. Everything else is methods on it, in layers: what stands higher
//! calls what stands lower, never the other way round.
//!
//! ```text
//!   events      a message, a frame, a deadline, a process that comes or goes; answers of the runtime
//!     commands  one method for each operation of a process
//!       hosts   the same between hosts: asking, answering, parting
//!         meeting   two partners have found each other: offer, join, attach
//!           ending    calls, connections and exchanges end, and what depends on them
//!             records   one record, in all tables that know it
//!               agent     the tables together; replies; the debug log (note)
//!                 tables    each with its own rules
//!                   values    names, addresses, messages, limits
//! ```
//!
//! `audit` compares the tables with each other, for tests.

pub(crate) mod agent;
mod audit;
mod commands;
mod ending;
pub(crate) mod events;
mod hosts;
pub mod limits;
mod meeting;
mod note;
mod records;
pub(crate) mod tables;
pub(crate) mod values;
