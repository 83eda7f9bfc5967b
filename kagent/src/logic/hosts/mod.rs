//! The protocol between hosts.

mod answerer;
mod asker;
mod disconnect;
mod neighbours;
