//! The agent's logic without input and output: one world, or several on a link, and a clock that the test
//! moves.

#![allow(clippy::unwrap_used)]

#[path = "../bodies/mod.rs"]
mod bodies;
mod net;
mod world;

mod adopt;
mod budgets;
mod client;
mod device;
mod flood;
mod hosts;
mod hosts_random;
mod link;
mod peer;
mod random;
mod request;
