//! One arrival: by its operation to the receiver's step of a transfer method.

use vipl_abi::*;
use vipl_plugin_sdk::Port;

use super::{Connection, call};
use crate::ending::Ending;
use crate::peer::Call;
use crate::receive::{self, Taken};
use crate::segment::{Arrival, PAYLOAD, PIECE, flag, op};
use crate::transfer::{eager, fetch, inline, pieces, read, refusal, write};
use crate::watch;

impl Connection {
    /// Takes an arrival.
    ///
    /// # Errors
    /// The connection ends.
    #[inline(always)]
    pub(super) fn take(&mut self, port: &Port, arrival: &Arrival) -> Result<Taken, Ending> {
        match self.frame(arrival) {
            Some(from) => receive::deliver(call!(self, port), arrival, from),
            None => self.take_other(port, *arrival),
        }
    }

    /// Where a single-frame message lies. `None`: the slot is something else.
    #[inline(always)]
    pub(super) fn frame(&mut self, arrival: &Arrival) -> Option<*const u8> {
        match arrival.op {
            op::INLINE => inline::arrived(arrival),
            op::EAGER => eager::arrived(arrival, &mut self.inbound.receiver),
            _ => None,
        }
    }

    /// Takes an arrival that is no single-frame message.
    #[inline(never)]
    fn take_other(&mut self, port: &Port, arrival: Arrival) -> Result<Taken, Ending> {
        let (arrival, call) = (&arrival, call!(self, port));
        let (receiver, shared) = (&mut self.inbound.receiver, &mut self.inbound.shared);
        let (sender, choice) = (&mut self.sender, &mut self.choice);
        watch::note_arrival();
        receiver.expect(None);
        match arrival.op {
            op::FETCH => fetch::arrived(arrival, call, receiver, shared, choice),
            op::PIECE => pieces::arrived(arrival, call, receiver, choice),
            op::PLACED => {
                let refused = arrival.has(flag::REFUSED);
                if refused {
                    refusal::learned(call);
                }
                write::placed_with_immediate(arrival, call, refused)
            }
            op::EVENT => take_event(call, arrival),
            op::WRITE => write::arrived(arrival, call, receiver),
            op::READ => read::asked(arrival, call, sender),
            op::DATA => read::arrived(arrival, call, receiver, sender),
            _ => Err(Ending::protocol_error()),
        }
    }
}

/// Unreliable: an asynchronous error that only the sender saw.
#[cold]
fn take_event(call: Call, arrival: &Arrival) -> Result<Taken, Ending> {
    let port = call.port;
    if port.is_reliable() {
        return Err(Ending::protocol_error());
    }
    if arrival.length == VIP_ERROR_CODE::VIP_ERROR_RECVQ_EMPTY as u32 {
        port.raise(VIP_ERROR_CODE::VIP_ERROR_RECVQ_EMPTY, VIP_STATUS_OP_RECEIVE);
    } else if arrival.length == VIP_ERROR_CODE::VIP_ERROR_RDMAW_PROT as u32 {
        let opcode = VIP_STATUS_OP_REMOTE_RDMA_WRITE;
        refusal::learned(call);
        port.raise(VIP_ERROR_CODE::VIP_ERROR_RDMAW_PROT, opcode);
    }
    Ok(Taken::Yes)
}

/// The most bytes of the payload area that a slot may have used; pieces can be shorter.
#[inline(always)]
pub(super) fn payload_bytes(arrival: &Arrival) -> u32 {
    match arrival.op {
        op::EAGER => arrival.length.min(PAYLOAD),
        op::PIECE | op::WRITE | op::DATA => arrival.length.min(PIECE),
        _ => 0,
    }
}
