//! Messages in the payload area.

use vipl_guard::Fault;

use super::inline;
use crate::peer::Call;
use crate::receive::Receiver;
use crate::request::Request;
use crate::segment::{Arrival, EXPECTED_MAX, PAYLOAD, op};
use crate::send::{Sender, Step};

/// Sends a message through the payload area, if there is room; a slot is free.
///
/// # Errors
/// Its memory is not accessible.
#[inline(always)]
pub(crate) fn start(request: &Request, call: Call, sender: &mut Sender) -> Result<Step, Fault> {
    let Some(place) = sender.reserve(call.peer, request.length) else {
        return Ok(Step::Wait);
    };
    let to = sender.ring().payload(place);
    inline::send(request, call, sender, op::EAGER, to, place)
}

/// Where the message of an `EAGER` slot lies. `None`: the slot violates the protocol.
#[inline(always)]
pub(crate) fn arrived(arrival: &Arrival, receiver: &mut Receiver) -> Option<*const u8> {
    if arrival.length > PAYLOAD {
        return None;
    }
    let another = arrival.length <= EXPECTED_MAX;
    receiver.expect(another.then(|| arrival.next_payload()));
    receiver.payload(arrival.payload, arrival.length)
}
