//! Operations of the program, and what is known of those that have not ended.

use std::collections::HashMap;

use super::queues::Context;
use crate::fi::{FI_MSG, FI_READ, FI_RMA, FI_SEND, FI_TAGGED, FI_WRITE};
use crate::iov::Iov;
use crate::packet::{ReadAnswer, ReadRequest};

/// Flags of the completion of a read.
pub(super) const READ_FLAGS: u64 = FI_READ | FI_RMA;

/// What an operation does.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Work {
    Send,
    Write {
        address: u64,
        key: u32,
    },
    Read {
        address: u64,
        key: u32,
    },
    /// Offers a long message of FI_EP_RDM. Its end comes from the peer.
    Offer(ReadRequest),
    /// Reads one that the peer has offered; the context is the provider's.
    Pull {
        address: u64,
        key: u32,
    },
}

/// In place of the flags of a completion: the end of [`Work::Pull`].
pub(super) const PULL: u64 = 1 << 63;

/// A registration that the provider has made for one operation.
#[derive(Clone, Copy, Debug)]
pub(super) struct Owned {
    pub address: u64,
    pub key: u32,
}

impl Work {
    /// Flags of its completion.
    fn flags(self) -> u64 {
        match self {
            Work::Send => FI_SEND | FI_MSG,
            Work::Offer(_) => 0,
            Work::Pull { .. } => PULL,
            Work::Write { .. } => FI_WRITE | FI_RMA,
            Work::Read { .. } => READ_FLAGS,
        }
    }
}

/// An operation of the program.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Operation {
    pub work: Work,
    pub iov: Iov,
    /// For the peer's completion.
    pub data: Option<u64>,
    pub tag: Option<u64>,
    pub(super) owned: Option<Owned>,
    pub context: Context,
    pub flags: u64,
    /// Never completes, not even with an error: the program has given no context.
    pub silent: bool,
    pub(super) total: usize,
    pub(super) done: usize,
    pub(super) begun: bool,
}

impl Operation {
    #[inline]
    pub(crate) fn new(work: Work, iov: Iov, context: Context, flags: u64) -> Operation {
        Operation {
            work,
            iov,
            data: None,
            tag: None,
            owned: None,
            context,
            flags,
            silent: false,
            total: iov.total(),
            done: 0,
            begun: false,
        }
    }

    /// Flags of its completion.
    #[inline]
    pub(super) fn kind(&self) -> u64 {
        match self.tag {
            Some(_) => FI_SEND | FI_TAGGED,
            None => self.work.flags(),
        }
    }

    /// With data for the peer's completion.
    #[inline]
    pub(crate) fn with_data(self, data: u64) -> Operation {
        Operation {
            data: Some(data),
            ..self
        }
    }
}

/// An operation that is not posted yet, or not wholly.
pub(super) struct Waiting {
    pub operation: Operation,
    /// What the operation sends, if the program has not kept it.
    _copy: Option<Vec<u8>>,
}

impl Waiting {
    pub(super) fn new(operation: Operation) -> Waiting {
        Waiting {
            operation,
            _copy: None,
        }
    }

    /// With a copy of what is sent; None without memory for it. Injected operations are short.
    pub(super) fn copied(mut operation: Operation) -> Option<Waiting> {
        let mut copy = Vec::new();
        copy.try_reserve_exact(operation.total).ok()?;
        copy.resize(operation.total, 0);
        // SAFETY: the program's memory during its call.
        unsafe { operation.iov.gather(&mut copy) };
        operation.iov = Iov::one(copy.as_ptr().cast(), operation.total, std::ptr::null_mut());
        Some(Waiting {
            operation,
            _copy: Some(copy),
        })
    }
}

/// What a posted send is, until it is done.
#[derive(Clone, Copy, Debug)]
pub(super) enum Sent {
    /// Its end is not reported.
    Nothing,
    /// The end of an operation.
    Operation {
        context: Context,
        flags: u64,
        kind: u64,
        owned: Option<Owned>,
    },
}

/// A read of the peer that is being answered.
#[derive(Clone, Copy, Debug)]
pub(super) struct Answer {
    pub request: ReadRequest,
    pub done: u64,
    pub error: u32,
}

/// Reads that wait for the peer's answer, on a device that cannot read remote memory.
#[derive(Default)]
pub(super) struct Reads {
    /// Number of the latest.
    pub(super) next: u64,
    /// Requests without an answer.
    pub(super) under_way: u32,
    waiting: HashMap<u64, PendingRead>,
}

struct PendingRead {
    context: Context,
    flags: u64,
    kind: u64,
    left: usize,
    error: i32,
}

impl Reads {
    pub(super) fn begin(&mut self, operation: &Operation, requests: usize) {
        self.next += 1;
        let waiting = PendingRead {
            context: operation.context,
            flags: operation.flags,
            kind: operation.kind(),
            left: requests,
            error: 0,
        };
        self.waiting.insert(self.next, waiting);
    }

    /// Counts an answer; returns the operation that has ended with it. None: there was no such request.
    #[expect(
        clippy::option_option,
        reason = "an answer is expected or not, and the last one or not"
    )]
    pub(super) fn answered(
        &mut self,
        answer: ReadAnswer,
    ) -> Option<Option<(Context, u64, u64, i32)>> {
        let waiting = self.waiting.get_mut(&answer.id)?;
        self.under_way = self.under_way.checked_sub(1)?;
        waiting.left -= 1;
        if answer.error != 0 {
            waiting.error = answer.error as i32;
        }
        if waiting.left > 0 {
            return Some(None);
        }
        let ended = (waiting.context, waiting.flags, waiting.kind, waiting.error);
        self.waiting.remove(&answer.id);
        Some(Some(ended))
    }

    pub(super) fn take_all(&mut self) -> Vec<(Context, u64, u64)> {
        self.under_way = 0;
        let waiting = std::mem::take(&mut self.waiting);
        waiting
            .into_values()
            .map(|one| (one.context, one.flags, one.kind))
            .collect()
    }
}
