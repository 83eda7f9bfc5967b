//! Who tells the log which RDMA was refused: the target, which has the regions. The initiator, which may have found it, tells it by
//! a word of its side ([`crate::segment::Side::refused`]).

use vipl_guard::Segment;
use vipl_plugin_sdk::Port;
use vipl_plugin_sdk::refusal::Refusal;

use crate::peer::Call;
use crate::request::Request;

/// The initiator has found that the target does not permit its request, by a right of the region. The target reads it when it
/// learns of the refusal. Gives what to say at this side.
#[cold]
pub(super) fn found(call: Call, request: &Request, right: u32) -> Refusal {
    let range = request.range(call.peer);
    let refusal = |at_target| Refusal {
        at_target,
        right,
        range,
    };
    call.peer.own().refused.set(&refusal(true));
    refusal(false)
}

/// This side is the target, and has found it itself.
#[cold]
pub(super) fn at_target(port: &Port, range: Segment, right: u32) {
    port.refused(&Refusal {
        at_target: true,
        right,
        range,
    });
}

/// The peer has found it, and this side learns of it.
#[cold]
pub(crate) fn learned(call: Call) {
    if let Some(refusal) = call.peer.side().refused.get() {
        call.port.refused(&Refusal {
            at_target: true,
            ..refusal
        });
    }
}

/// The target has refused an RDMA of this side that has completed already.
#[cold]
pub(crate) fn unreported(port: &Port) {
    port.refused(&Refusal {
        at_target: false,
        right: vipl_plugin_sdk::abi::VIPL_REGION_RDMA_WRITE,
        range: Segment::default(),
    });
}
