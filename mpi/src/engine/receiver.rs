//! The receiving side of an endpoint: receives of the program, and the message that is being put together.
//!
//! Every packet arrives in a receive of the endpoint's own and is copied to where the program wants it. So a message
//! may wait for the program's receive without breaking the connection, control packets need no receive of the program's,
//! and a message may be longer than one descriptor.

use std::collections::VecDeque;

use super::queues::{Completion, Context};
use crate::attributes::RECEIVES;
use crate::fi::{FI_COMPLETION, FI_ETRUNC, FI_MSG, FI_RECV, FI_REMOTE_CQ_DATA};
use crate::iov::Iov;
use crate::packet::{Header, Kind};

/// The peer violates the protocol.
pub(super) struct Malformed;

/// A receive that the program has posted.
#[derive(Clone, Copy)]
pub(crate) struct Receive {
    pub iov: Iov,
    pub context: Context,
    pub flags: u64,
}

/// A message of which packets have arrived.
struct Assembly {
    receive: Receive,
    total: usize,
    arrived: usize,
    stored: usize,
    data: Option<u64>,
}

/// See the module.
#[derive(Default)]
pub(super) struct Receiver {
    posted: VecDeque<Receive>,
    assembly: Option<Assembly>,
    /// Packets for which the program has posted no receive: receives of the VI, and the lengths.
    held: VecDeque<(usize, usize)>,
}

impl Receiver {
    /// Receives that the program may still post.
    pub(super) fn room(&self) -> usize {
        RECEIVES - self.posted.len()
    }

    /// Posts a receive; false if there is no room.
    #[inline]
    pub(super) fn post(&mut self, receive: Receive) -> bool {
        let has_room = self.room() > 0;
        if has_room {
            self.posted.push_back(receive);
        }
        has_room
    }

    #[inline]
    pub(super) fn holds_packets(&self) -> bool {
        !self.held.is_empty()
    }

    /// Whether there is a place for the next packet of data.
    #[inline]
    fn has_place(&self) -> bool {
        self.assembly.is_some() || !self.posted.is_empty()
    }

    /// Whether the packet that has just arrived can be placed, all before it being placed.
    #[inline]
    pub(super) fn can_place(&self) -> bool {
        self.held.is_empty() && self.has_place()
    }

    /// Keeps a packet for a later receive of the program.
    pub(super) fn hold(&mut self, at: usize, length: usize) {
        self.held.push_back((at, length));
    }

    /// The oldest packet that was kept, if there is a place for it now.
    pub(super) fn next_held(&mut self) -> Option<(usize, usize)> {
        if self.has_place() {
            self.held.pop_front()
        } else {
            None
        }
    }

    /// Copies a packet of data to where the program wants it. Returns the completion of a message that is whole, unless
    /// the program wants none.
    ///
    /// # Errors
    /// The packet does not fit the message.
    #[inline]
    pub(super) fn place(
        &mut self,
        header: &Header,
        payload: &[u8],
        selective: bool,
    ) -> Result<Option<Completion>, Malformed> {
        match (header.kind, &self.assembly, header.total) {
            (Kind::Data, None, None) => {
                let receive = self.posted.front().ok_or(Malformed)?;
                // SAFETY: memory that the program has given for this message and leaves alone until it is complete.
                let stored = unsafe { receive.iov.scatter(0, payload) };
                let completion = completed(receive, payload.len(), stored, header.data, selective);
                self.posted.pop_front();
                Ok(completion)
            }
            _ => self.assemble(header, payload, selective),
        }
    }

    /// The same for one packet of several.
    fn assemble(
        &mut self,
        header: &Header,
        payload: &[u8],
        selective: bool,
    ) -> Result<Option<Completion>, Malformed> {
        let mut assembly = match (header.kind, self.assembly.take()) {
            (Kind::Data, None) => Assembly {
                receive: self.posted.pop_front().ok_or(Malformed)?,
                total: header.total.map_or(payload.len(), |total| total as usize),
                arrived: 0,
                stored: 0,
                data: header.data,
            },
            (Kind::More, Some(assembly)) => assembly,
            _ => return Err(Malformed),
        };
        if payload.len() > assembly.total - assembly.arrived {
            return Err(Malformed);
        }
        // SAFETY: memory that the program has given for this message and leaves alone until it is complete.
        assembly.stored += unsafe { assembly.receive.iov.scatter(assembly.arrived, payload) };
        assembly.arrived += payload.len();
        if assembly.arrived < assembly.total {
            self.assembly = Some(assembly);
            return Ok(None);
        }
        let Assembly {
            receive,
            total,
            stored,
            data,
            ..
        } = &assembly;
        Ok(completed(receive, *total, *stored, *data, selective))
    }

    /// Withdraws a receive; None if there is none with this context.
    pub(super) fn cancel(&mut self, context: Context) -> Option<Completion> {
        let mut posted = self.posted.iter();
        let at = posted.position(|receive| receive.context == context)?;
        self.posted.remove(at).map(|receive| withdrawn(&receive))
    }

    /// Withdraws all receives.
    pub(super) fn cancel_all(&mut self) -> Vec<Completion> {
        let assembly = self.assembly.take().map(|assembly| assembly.receive);
        let all = assembly.into_iter().chain(std::mem::take(&mut self.posted));
        all.map(|receive| withdrawn(&receive)).collect()
    }
}

/// The completion of a message of `total` bytes, of which so many found room; None if the program wants none.
#[inline]
fn completed(
    receive: &Receive,
    total: usize,
    stored: usize,
    data: Option<u64>,
    selective: bool,
) -> Option<Completion> {
    let missing = total - stored;
    if missing == 0 && selective && receive.flags & FI_COMPLETION == 0 {
        return None;
    }
    let with_data = data.map_or(0, |_| FI_REMOTE_CQ_DATA);
    Some(Completion {
        context: receive.context,
        flags: FI_RECV | FI_MSG | with_data,
        len: stored,
        data: data.unwrap_or(0),
        error: if missing > 0 { FI_ETRUNC } else { 0 },
        missing,
        tag: 0,
    })
}

/// A receive did not fail but was withdrawn; `ofi_rxm` expects this error and no other.
fn withdrawn(receive: &Receive) -> Completion {
    Completion {
        context: receive.context,
        flags: FI_RECV | FI_MSG,
        len: 0,
        data: 0,
        error: libc::ECANCELED,
        missing: 0,
        tag: 0,
    }
}
