//! The process's side of the Kernel Agent, which decides who is connected with whom.
//!
//! ```text
//!   keeper ─────┬──▶ registration ──┐     which agent there is; what the next one is told when it ends
//!               └──▶ connections ───┤
//!   link, device ───────────────────┼──▶ client ──▶ launch     one agent: calls, replies, events
//!                                   └──▶ ticket, refusal
//! ```
//!
//! Nothing here knows VIs. Who asks an agent for a connection gives a function that runs with the reply; who has
//! one gives the function that is called when the peer goes.

mod client;
mod connections;
pub(crate) mod device;
mod keeper;
mod launch;
pub(crate) mod link;
mod refusal;
mod registration;
mod ticket;

pub(crate) use client::{Agent, GONE, Owner, Reply, Side};
pub(crate) use connections::Live;
pub(crate) use keeper::{Agents, Unanswered};
pub(crate) use launch::library_path;
pub(crate) use refusal::{log_discriminator_taken, log_no_server};
pub(crate) use registration::NicRegistration;
pub(crate) use ticket::Ticket;
