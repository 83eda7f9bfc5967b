//! The commands of processes, one method per operation.

mod adopt;
mod answer;
mod nic;
mod open;
mod peer;
mod request;
mod wait;
