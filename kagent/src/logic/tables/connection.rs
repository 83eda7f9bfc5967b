//! Connections and what comes before them: handles of requests that a server has not answered yet.
//!
//! Each side of a connection has its own record under its own name, so that both sides may be in one
//! process without doubt about which of them is meant.
//!
//! ```text
//!   INCOMING ──▶ Offered ── ACCEPT ──▶ Open ── partner gone ──▶ Lone
//!                   │                   ▲                         │
//!            requester gone          PEER, and the             DISCONNECT
//!                   ▼                requester's side             ▼
//!                Expired ── ACCEPT: TIMEOUT, REJECT: OK ──▶    no record
//! ```
//!
//! A connection with another host has one record here, and what the two hosts say about it is its
//! exchange (`exchange.rs`): Attaching ── CONFIRM ──▶ Confirming (the side that accepts) ──▶ Far.

#![forbid(unsafe_code)]

use crate::logic::values::ids::{CallKey, ClientId, ConnectionId, ExchangeKey, HalfName, NicId};

/// One side of a connection.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) client: ClientId,
    pub(crate) nic: NicId,
    pub(crate) state: ConnectionState,
}

/// Where a side stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ConnectionState {
    /// A server holds this request and has not answered.
    Offered(CallKey),
    /// The requester has given up; the server does not know yet.
    Expired,
    /// Connected with the side of that name, on this host.
    Open(ConnectionId),
    /// Connected by an earlier agent; the partner has not come here yet (`adopt.rs`).
    Half(HalfName),
    /// The partner has gone and this side has been told.
    Lone,
    /// With another host: this side attaches its VI.
    Attaching(ExchangeKey),
    /// With another host: this side has attached its VI and called CONFIRM under this id.
    Confirming(ExchangeKey, u64),
    /// With another host.
    Far(ExchangeKey),
    /// With another host, and lost before this side has confirmed.
    Failed,
}
