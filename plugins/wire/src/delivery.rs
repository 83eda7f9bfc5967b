//! Delivery: parts of frames, into receive descriptors and into the application's memory.

use vipl_abi::*;

use crate::closing::{End, Reason};
use crate::config::Config;
use crate::env::{Cause, Env, Level};
use crate::part::{Part, PartKind};

const EMPTY: u32 = VIP_ERROR_CODE::VIP_ERROR_RECVQ_EMPTY as u32;
const RDMAW_PROT: u32 = VIP_ERROR_CODE::VIP_ERROR_RDMAW_PROT as u32;

/// A message or RDMA Write that arrives in pieces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Arriving {
    number: u32,
    total: u32,
    /// Bytes so far.
    offset: u32,
}

impl Arriving {
    /// The state after this part.
    #[inline(always)]
    pub(crate) fn after(part: &Part) -> Arriving {
        Arriving {
            number: part.number,
            total: part.total,
            offset: part.offset + u32::from(part.bytes),
        }
    }

    /// Bytes that have arrived.
    pub(crate) fn bytes(&self) -> u32 {
        self.offset
    }

    /// Whether a part belongs to it.
    pub(crate) fn has(&self, part: &Part) -> bool {
        self.number == part.number
    }

    /// Whether a part is its next one.
    pub(crate) fn continues(&self, part: &Part) -> bool {
        part.offset == self.offset && part.total == self.total
    }
}

/// What has been delivered so far.
pub(crate) struct Delivery {
    level: Level,
    max_transfer: u32,
    carry_immediate: bool,
    /// Operations of the peer that have been processed.
    operations: u32,
    /// Messages that have consumed a receive descriptor, and RDMA Writes.
    messages: u32,
    writes: u32,
    receiving: Option<Arriving>,
    writing: Option<Arriving>,
}

impl Delivery {
    pub(crate) fn new(config: &Config) -> Delivery {
        Delivery {
            level: config.level,
            max_transfer: config.max_transfer,
            carry_immediate: config.carry_immediate,
            operations: config.count_from,
            messages: config.count_from,
            writes: config.count_from,
            receiving: None,
            writing: None,
        }
    }

    /// Operations of the peer that have been processed.
    pub(crate) fn operations(&self) -> u32 {
        self.operations
    }

    pub(crate) fn count_operation(&mut self) {
        self.operations = self.operations.wrapping_add(1);
    }

    /// Whether an RDMA Write has arrived in part.
    pub(crate) fn is_writing(&self) -> bool {
        self.writing.is_some()
    }

    /// Whether the message of a part has a permitted length.
    pub(crate) fn permits(&self, part: &Part) -> bool {
        part.total <= self.max_transfer
    }

    /// Whether a whole message is the next one, nothing has arrived in part, and a receive descriptor is posted.
    #[inline(always)]
    pub(crate) fn expects_single<E: Env>(&self, part: &Part, env: &E) -> bool {
        let idle = self.receiving.is_none() && self.writing.is_none();
        let posted = env.receives_completed() != env.receives_posted();
        idle && posted && part.number == self.messages && self.permits(part)
    }

    /// Copies the bytes of a part into the receive descriptor with this number, if it has room for the message. False:
    /// that is not possible now; if there is an error, it is found again by [`Delivery::fill`].
    #[inline(always)]
    pub(crate) fn place<E: Env>(
        &self,
        number: u32,
        part: &Part,
        payload: &[u8],
        env: &mut E,
    ) -> bool {
        let Ok(incoming) = env.incoming(number, Some(part.total)) else {
            return false;
        };
        u64::from(part.total) <= incoming.capacity
            && env
                .scatter(&incoming.segments, part.offset, payload)
                .is_ok()
    }

    /// Places the bytes of a part before its turn. False: that is not possible now; if there is an error, it is found
    /// again when the part is in order.
    pub(crate) fn place_early<E: Env>(&self, part: &Part, payload: &[u8], env: &mut E) -> bool {
        match part.kind {
            PartKind::Send | PartKind::Piece => {
                let ahead = part.number.wrapping_sub(self.messages);
                let completed = env.receives_completed();
                let posted = env.receives_posted().wrapping_sub(completed);
                let number = completed.wrapping_add(ahead);
                ahead < posted && self.permits(part) && self.place(number, part, payload, env)
            }
            PartKind::Write => {
                let begun = |writing: Arriving| writing.has(part) && writing.total == part.total;
                self.writing.is_some_and(begun)
                    && !part.reaches_end()
                    && env
                        .place(&part.range(), part.offset, payload, false)
                        .is_ok()
            }
            PartKind::Read | PartKind::Data => false,
        }
    }

    /// Delivers a part of a message that is in order. `payload` is absent if its bytes have been placed already.
    #[inline(always)]
    pub(crate) fn message<E: Env>(
        &mut self,
        part: &Part,
        payload: Option<&[u8]>,
        env: &mut E,
    ) -> Result<(), End> {
        let in_order = follows(self.receiving, self.messages, part);
        if !in_order || self.writing.is_some() || !self.permits(part) {
            return Err(End::VIOLATION);
        }
        if let Some(payload) = payload {
            self.fill(part, payload, env)?;
        }
        if part.is_last() {
            self.receiving = None;
            self.complete(part, VIP_STATUS_OP_RECEIVE, env)
        } else {
            self.receiving = Some(Arriving::after(part));
            Ok(())
        }
    }

    /// Delivers a part of an RDMA Write that is in order. `payload` is absent if its bytes have been placed already.
    #[inline(always)]
    pub(crate) fn write<E: Env>(
        &mut self,
        part: &Part,
        payload: Option<&[u8]>,
        env: &mut E,
    ) -> Result<(), End> {
        let in_order = follows(self.writing, self.writes, part);
        if !in_order || self.receiving.is_some() || !self.permits(part) {
            return Err(End::VIOLATION);
        }
        if let Some(payload) = payload.filter(|payload| !payload.is_empty())
            && env
                .place(&part.range(), part.offset, payload, false)
                .is_err()
        {
            return self.refuse_write(part, env);
        }
        if !part.is_last() {
            self.writing = Some(Arriving::after(part));
            return Ok(());
        }
        self.writing = None;
        self.writes = self.writes.wrapping_add(1);
        if part.flagged {
            self.announce_write(part, env)
        } else {
            self.count_operation();
            Ok(())
        }
    }

    /// Copies the bytes of a part into the oldest receive descriptor. False: this has failed, and the failure has been
    /// reported on an Unreliable connection.
    #[inline(always)]
    pub(crate) fn fill<E: Env>(
        &mut self,
        part: &Part,
        payload: &[u8],
        env: &mut E,
    ) -> Result<bool, End> {
        let number = env.receives_completed();
        if number == env.receives_posted() {
            self.queue_is_empty(env)?;
            return Ok(false);
        }
        let status = match env.incoming(number, Some(part.total)) {
            Ok(incoming) if u64::from(part.total) > incoming.capacity => VIP_STATUS_LENGTH_ERROR,
            Ok(incoming) => match env.scatter(&incoming.segments, part.offset, payload) {
                Ok(()) => return Ok(true),
                Err(_) => VIP_STATUS_PROTECTION_ERROR,
            },
            Err(status) => status,
        };
        self.fail_receive(status, env)?;
        Ok(false)
    }

    /// Completes the oldest receive descriptor with success.
    #[inline(always)]
    pub(crate) fn complete<E: Env>(
        &mut self,
        part: &Part,
        opcode: u32,
        env: &mut E,
    ) -> Result<(), End> {
        let carried = part.flagged || self.carry_immediate;
        let immediate = if carried { part.immediate } else { 0 };
        let flag = if part.flagged {
            VIP_STATUS_IMMEDIATE
        } else {
            0
        };
        if !env.complete_receive(opcode | flag, part.total, immediate) {
            return Err(End::BROKEN);
        }
        self.messages = self.messages.wrapping_add(1);
        self.count_operation();
        Ok(())
    }

    /// The immediate data of an RDMA Write consumes a receive descriptor, whose segments are not used (spec §5.5).
    #[cold]
    pub(crate) fn announce_write<E: Env>(&mut self, part: &Part, env: &mut E) -> Result<(), End> {
        let number = env.receives_completed();
        if number == env.receives_posted() {
            return self.queue_is_empty(env);
        }
        match env.incoming(number, None) {
            Ok(_) => self.complete(part, VIP_STATUS_OP_REMOTE_RDMA_WRITE, env),
            Err(status) => self.fail_receive(status, env),
        }
    }

    /// E6: no receive descriptor.
    #[cold]
    fn queue_is_empty<E: Env>(&self, env: &mut E) -> Result<(), End> {
        let opcode = VIP_STATUS_OP_RECEIVE;
        if self.level == Level::Unreliable {
            env.raise(EMPTY, opcode);
            return Ok(());
        }
        Err(End::new(Reason::ReceiveFailed, Cause::Async(EMPTY), opcode))
    }

    /// E7, E8: completes the receive descriptor with an error.
    #[cold]
    fn fail_receive<E: Env>(&self, status: u32, env: &mut E) -> Result<(), End> {
        let status = status | VIP_STATUS_OP_RECEIVE;
        self.reported(env.complete_receive(status, 0, 0), Reason::ReceiveFailed)
    }

    /// E9, E10: the range of an RDMA Write is not permitted.
    #[cold]
    pub(crate) fn refuse_write<E: Env>(&mut self, part: &Part, env: &mut E) -> Result<(), End> {
        let (opcode, reason) = (VIP_STATUS_OP_REMOTE_RDMA_WRITE, Reason::TargetRefused);
        let number = env.receives_completed();
        if !part.flagged || number == env.receives_posted() {
            if self.level == Level::Unreliable {
                env.raise(RDMAW_PROT, opcode);
                return Ok(());
            }
            return Err(End::new(reason, Cause::Async(RDMAW_PROT), opcode));
        }
        if let Err(status) = env.incoming(number, None) {
            return self.fail_receive(status, env);
        }
        let status = VIP_STATUS_RDMA_PROT_ERROR | opcode;
        self.reported(env.complete_receive(status, 0, part.immediate), reason)
    }

    /// A receive descriptor has reported an error, if it was `completed`: on a reliable connection this ends it.
    #[cold]
    fn reported(&self, completed: bool, reason: Reason) -> Result<(), End> {
        match self.level {
            _ if !completed => Err(End::BROKEN),
            Level::Unreliable => Ok(()),
            _ => Err(End::new(reason, Cause::Reported, 0)),
        }
    }
}

/// Whether a part continues what is arriving, or begins the next message or RDMA Write if nothing is.
#[inline(always)]
fn follows(arriving: Option<Arriving>, next: u32, part: &Part) -> bool {
    part.number == next
        && match arriving {
            None => part.is_first(),
            Some(arriving) => arriving.continues(part),
        }
}
