//! The process's side of the Kernel Agent, which establishes connections.
//!
//! ```text
//!   keeper ─────┬──▶ registration ──┐     the current agent, and the state for the next one
//!               ├──▶ connections ───┤
//!               ├──▶ issued ────────┤
//!               └──▶ reader ────────┤     the thread that reads an agent's messages
//!   link, device, pending_call ─────┼──▶ client ──▶ launch     one agent: calls, replies, events
//!                                   └──▶ ticket, refusal, outbox
//! ```
//!
//! This module does not know VIs. A caller that requests a connection passes a function that runs with the
//! reply; the owner of a connection passes one that runs when the peer has disconnected or exited.

mod client;
mod connections;
pub(crate) mod device;
mod issued;
mod keeper;
mod last_thread;
mod launch;
pub(crate) mod link;
mod outbox;
mod pending_call;
mod reader;
mod refusal;
mod registration;
mod started;
mod ticket;

pub(crate) use client::{Agent, GONE, Owner, Reply, Side, limit};
pub(crate) use connections::Live;
pub(crate) use keeper::{Agents, Unanswered};
pub(crate) use launch::library_path;
pub(crate) use pending_call::PendingCall;
pub(crate) use refusal::{log_discriminator_taken, log_no_server, log_unanswered};
pub(crate) use registration::NicRegistration;
pub(crate) use ticket::Ticket;
