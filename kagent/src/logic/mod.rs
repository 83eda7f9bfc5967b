//! The logic of the agent: state machines without input and output.
//!
//! [`Agent`](agent::Agent) owns all tables. Everything else is a method on it, in layers; a layer calls only
//! the layers below it.
//!
//! ```text
//!   events      a message, a frame, a deadline, a process that comes or goes; answers of the runtime
//!     commands    one method for each operation of a process
//!       exchange    the same between hosts: asking, answering, parting
//!         meeting     two calls match: offer, join, attach
//!           ending      calls, connections and exchanges end, and what depends on them
//!             records     one record, in all tables that know it
//!               agent       the tables together; replies; the debug log
//!                 calls  objects  budgets  queues    each with its own rules
//!                   message  output  address  ids
//! ```
//!
//! `audit` checks the tables against each other, for tests.

pub(crate) mod address;
pub(crate) mod agent;
mod audit;
pub mod budgets;
pub(crate) mod calls;
mod ending;
mod exchange;
pub(crate) mod ids;
mod meeting;
pub(crate) mod message;
pub(crate) mod objects;
pub(crate) mod output;
mod queues;

mod commands {
    mod call;
    mod connection;
    mod neighbours;
    mod open;
}

pub(crate) mod events {
    mod frame;
    pub(crate) mod message;
    mod opened;
    mod time;
}

mod records {
    mod calls;
    mod connections;
    mod exchanges;
    mod nics;
}
