//! Connections: both models, disconnecting, and the loss of a peer (spec §3.8 to §3.15, §9).
//!
//! The agent decides; these modules update the VI's state accordingly.
//!
//! ```text
//!   client (VipConnectRequest, peers) ──┐
//!   server (Wait, Accept, Reject) ──────┴──▶ attempt ──▶ disconnect ──▶ convert
//! ```

pub mod address;
mod attempt;
mod client;
mod convert;
mod disconnect;
mod server;

pub use client::{Attempting, peer_done, peer_request, peer_wait, request};
pub use disconnect::disconnect;
pub use server::{Arrived, Waiting, accept, reject, wait};
pub(crate) use server::{forget_incoming, owner};
