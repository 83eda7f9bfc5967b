//! Endpoints for messages with tags (FI_EP_RDM): posted receives, unexpected messages, and the connections that belong to them. Plain
//! messages are those without a tag, and find receives without one.
//!
//! A connection is an [`Endpoint`](super::Endpoint) as for FI_EP_MSG. What it receives is matched here, at its first packet, and never
//! waits in the VI: a message without a receive is copied, or, if it is long, only offered.
//!
//! All messages to a peer go by one connection, which is chosen when the first of them is sent and never changes, so they keep their
//! order. Two peers that connect to each other at the same time have two connections, one for each direction.

use std::collections::{HashMap, VecDeque};

use super::queues::{Completion, Context};
use super::reports::Reports;
use crate::address::Address;
use crate::attributes::RECEIVES;
use crate::fi::{FI_ETRUNC, FI_MSG, FI_RECV, FI_REMOTE_CQ_DATA, FI_TAGGED};
use crate::iov::Iov;
use crate::packet::ReadRequest;
use crate::slab::Id;

/// The addresses that a program has named, by their numbers.
#[derive(Default)]
pub(crate) struct Av {
    pub peers: Vec<Option<Address>>,
}

/// A receive that the program has posted.
#[derive(Clone, Copy)]
pub(crate) struct Posted {
    pub iov: Iov,
    /// The only peer whose messages it takes.
    pub from: Option<Address>,
    /// None: it takes plain messages.
    pub tag: Option<u64>,
    /// Bits of the tag that may differ.
    pub ignore: u64,
    pub context: Context,
    /// The completion is reported.
    pub reported: bool,
}

/// The flag of completions of messages with such a tag.
#[inline]
pub(super) fn of_tag(tag: Option<u64>) -> u64 {
    if tag.is_some() { FI_TAGGED } else { FI_MSG }
}

impl Posted {
    #[inline]
    fn takes(&self, from: &Address, tag: Option<u64>) -> bool {
        let suits = match (self.tag, tag) {
            (Some(own), Some(tag)) => (own ^ tag) & !self.ignore == 0,
            (own, tag) => own == tag,
        };
        suits && self.from.as_ref().is_none_or(|own| own == from)
    }

    /// Its completion by a message of so many bytes, of which so many were stored.
    #[inline]
    pub(super) fn completion(
        &self,
        tag: Option<u64>,
        data: Option<u64>,
        total: usize,
        stored: usize,
    ) -> Option<Completion> {
        let missing = total - stored;
        let with_data = data.map_or(0, |_| FI_REMOTE_CQ_DATA);
        (self.reported || missing > 0).then_some(Completion {
            context: self.context,
            flags: FI_RECV | of_tag(tag) | with_data,
            len: stored,
            data: data.unwrap_or(0),
            error: if missing > 0 { FI_ETRUNC } else { 0 },
            missing,
            tag: tag.unwrap_or(0),
        })
    }

    /// Its completion with an error.
    pub(super) fn failure(&self, error: i32) -> Completion {
        Completion {
            context: self.context,
            flags: FI_RECV | of_tag(self.tag),
            len: 0,
            data: 0,
            error,
            missing: 0,
            tag: self.tag.unwrap_or(0),
        }
    }
}

/// A message that has come before its receive.
pub(super) struct Message {
    pub from: Address,
    pub connection: Id,
    pub tag: Option<u64>,
    pub data: Option<u64>,
    pub body: Body,
}

pub(super) enum Body {
    Whole(Vec<u8>),
    Offered(ReadRequest),
}

impl Body {
    pub(super) fn len(&self) -> usize {
        match self {
            Body::Whole(bytes) => bytes.len(),
            Body::Offered(request) => request.length as usize,
        }
    }
}

/// What a program wants of a message that may have come.
#[derive(Clone, Copy)]
pub(crate) struct Probe {
    /// To keep it for the receive with the same context.
    pub claims: bool,
    /// To drop it.
    pub discards: bool,
}

/// See the module.
#[derive(Default)]
pub(crate) struct Rdm {
    pub av: Option<Id>,
    /// Those of all its connections.
    pub reports: Reports,
    pub(super) posted: VecDeque<Posted>,
    pub(super) unexpected: VecDeque<Message>,
    pub(super) claimed: Vec<(Context, Message)>,
    /// Connections by the numbers of the peers, as far as they have been looked up.
    pub(super) routes: Vec<Id>,
    /// The connections by which messages are sent.
    pub(super) by_address: HashMap<[u8; Address::BYTES], Id>,
    pub(super) connections: Vec<Id>,
}

impl Rdm {
    /// A connection with this peer belongs to the endpoint.
    pub(crate) fn joined(&mut self, connection: Id, peer: Address) {
        self.connections.push(connection);
        self.by_address.entry(peer.to_bytes()).or_insert(connection);
    }

    /// The first receive that takes such a message.
    #[inline]
    pub(super) fn posted_for(&mut self, from: &Address, tag: Option<u64>) -> Option<Posted> {
        let mut posted = self.posted.iter();
        let at = posted.position(|posted| posted.takes(from, tag))?;
        match at {
            0 => self.posted.pop_front(),
            _ => self.posted.remove(at),
        }
    }

    /// Keeps a message that has no receive; false: there is no memory.
    pub(super) fn keep(
        &mut self,
        from: Address,
        connection: Id,
        tag: Option<u64>,
        data: Option<u64>,
        payload: Result<&[u8], ReadRequest>,
    ) -> bool {
        if self.unexpected.try_reserve(1).is_err() {
            return false;
        }
        let body = match payload {
            Ok(bytes) => {
                let mut copy = Vec::new();
                if copy.try_reserve_exact(bytes.len()).is_err() {
                    return false;
                }
                copy.extend_from_slice(bytes);
                Body::Whole(copy)
            }
            Err(request) => Body::Offered(request),
        };
        self.unexpected.push_back(Message {
            from,
            connection,
            tag,
            data,
            body,
        });
        true
    }

    pub(super) fn find(&self, posted: &Posted) -> Option<usize> {
        let mut messages = self.unexpected.iter();
        messages.position(|message| posted.takes(&message.from, message.tag))
    }

    /// Receives that may still be posted.
    pub(crate) fn room(&self) -> usize {
        RECEIVES.saturating_sub(self.posted.len())
    }
}
