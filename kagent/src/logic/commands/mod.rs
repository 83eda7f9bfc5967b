//! What processes ask for, one method for each operation.

mod adopt;
mod answer;
mod nic;
mod open;
mod peer;
mod request;
mod wait;
