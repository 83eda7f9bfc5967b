//! Connections, and handles of requests that a server has not answered yet.
//!
//! Each side of a connection has its own record and identifier, so that both sides may be in one process
//! without ambiguity.
//!
//! ```text
//!   INCOMING ──▶ Offered ── ACCEPT ──▶ Open ── partner gone ──▶ Lone
//!                   │                   ▲                         │
//!            requester gone          PEER, and the             DISCONNECT
//!                   ▼                requester's side             ▼
//!                Expired ── ACCEPT: TIMEOUT, REJECT: OK ──▶    no record
//! ```
//!
//! CANCEL of the wait that an offer answered withdraws the offer: the server has not taken it, and the request goes back
//! to its queue.
//!
//! A connection with another host has one record here; the state shared by the two hosts is its exchange
//! (`exchange.rs`): Attaching ── CONFIRM ──▶ Confirming (the accepting side) ──▶ Far.

#![forbid(unsafe_code)]

use crate::logic::values::ids::{CallKey, ClientId, ConnectionId, ExchangeKey, HalfName, NicId};

/// One side of a connection.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) client: ClientId,
    pub(crate) nic: NicId,
    pub(crate) state: ConnectionState,
}

/// State of one side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ConnectionState {
    /// A server holds this request, the reply to its wait with that id, and has not answered.
    Offered(CallKey, u64),
    /// The requester gave up; the server, to whose wait it was the reply, has not been told.
    Expired(u64),
    /// Connected with that side, on this host.
    Open(ConnectionId),
    /// Connected by a previous agent; the other side has not been adopted yet (`adopt.rs`).
    Half(HalfName),
    /// The partner is gone and this side was told.
    Lone,
    /// With another host: this side is attaching its VI.
    Attaching(ExchangeKey),
    /// With another host: this side attached its VI and called CONFIRM with this id.
    Confirming(ExchangeKey, u64),
    /// Connected with another host.
    Far(ExchangeKey),
    /// With another host, and lost before this side confirmed.
    Failed,
}
