//! What this host and others say to each other.

mod answerer;
mod asker;
mod neighbours;
mod parting;
