//! The initiator of RDMA Reads: places the data of the answers.

use std::sync::atomic::{Ordering, fence};

use vipl_abi::VIP_STATUS_PROTECTION_ERROR;

use super::{Operations, Outstanding, Stage, read_again};
use crate::closing::End;
use crate::env::{Env, Operation};
use crate::part::{Part, WATCHED};

impl Outstanding {
    /// Whether this is an RDMA Read that waits for its data.
    fn is_open_read(&self) -> bool {
        self.operation == Operation::Read && self.stage == Stage::Sent
    }
}

impl Operations {
    /// Places a piece of an answer before its turn. False: that is not possible now.
    pub(crate) fn place_early<E: Env>(&self, part: &Part, payload: &[u8], env: &mut E) -> bool {
        let read = self.list.iter().position(|operation| {
            operation.is_open_read()
                && (operation.number, operation.length) == (part.number, part.total)
        });
        !part.reaches_end() && read.is_some_and(|read| self.place(read, part, payload, env).is_ok())
    }

    /// Handles a piece of an answer that is in order. `payload` is absent if it has been placed already.
    #[cold]
    pub(crate) fn answered<E: Env>(
        &mut self,
        part: &Part,
        payload: Option<&[u8]>,
        env: &mut E,
    ) -> Result<(), End> {
        let oldest = self.list.iter().position(Outstanding::is_open_read);
        let read = oldest.ok_or(End::VIOLATION)?;
        let operation = &self.list[read];
        let fits = part.number == operation.number
            && part.total == operation.length
            && part.offset == self.read_bytes;
        if !fits {
            return Err(End::VIOLATION);
        }
        if let Some(payload) = payload.filter(|payload| !payload.is_empty())
            && let Err(status) = self.place(read, part, payload, env)
        {
            self.list[read].stage = Stage::Failed(status);
            self.halted = true;
            return Ok(());
        }
        if part.is_last() {
            self.read_bytes = 0;
            self.list[read].stage = Stage::Answered;
            self.reads_open -= 1;
        } else {
            self.read_bytes = part.offset + u32::from(part.bytes);
        }
        Ok(())
    }

    /// Copies a piece of an answer into the segments of the descriptor. The error is a status.
    fn place<E: Env>(
        &self,
        read: usize,
        part: &Part,
        payload: &[u8],
        env: &mut E,
    ) -> Result<(), u32> {
        let operation = &self.list[read];
        let descriptor = env.sends_completed().wrapping_add(read as u32);
        let segments = read_again(operation, descriptor, env)?;
        // The last eight bytes become visible after all others (spec §5.4).
        let watched = if part.is_last() { WATCHED } else { 0 };
        let (first, last) = payload.split_at(payload.len().saturating_sub(watched));
        let behind = part.offset + first.len() as u32;
        env.scatter(&segments, part.offset, first)
            .and_then(|()| {
                fence(Ordering::Release);
                env.scatter(&segments, behind, last)
            })
            .map_err(|_| VIP_STATUS_PROTECTION_ERROR | operation.operation.status())
    }
}
