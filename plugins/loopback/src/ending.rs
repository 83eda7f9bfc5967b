//! How a connection ends.

use std::ffi::c_int;

use vipl_abi::VIP_ERROR_CODE;
use vipl_plugin_sdk::abi::{VIPL_CAUSE_REPORTED, VIPL_LOG_ERROR};
use vipl_plugin_sdk::{Host, Port};

use crate::segment::LAYOUT;

/// Asynchronous error of a connection that is lost.
pub(crate) const CONN_LOST: c_int = VIP_ERROR_CODE::VIP_ERROR_CONN_LOST as c_int;

/// Why a side has closed the connection, as it stands in `Side::closed`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub(crate) struct Closed(pub(crate) u32);

impl Closed {
    /// VipDisconnect.
    pub(crate) const DISCONNECTED: Closed = Closed(1);
    /// An error of this side, which its own descriptor reports.
    pub(crate) const LOST: Closed = Closed(2);
    /// A message could not be received: the next one that is not acknowledged.
    pub(crate) const RECEIVE_FAILED: Closed = Closed(3);
    /// The initiator found its RDMA Write not permitted; the target, which reads this, reports it.
    pub(crate) const WRITE_REFUSED: Closed = Closed(4);
    /// The same for an RDMA Read.
    pub(crate) const READ_REFUSED: Closed = Closed(5);
    /// The sender found no receive descriptor; the receiver, which reads this, reports it.
    pub(crate) const EMPTY: Closed = Closed(6);
    /// The target refused the RDMA operation in progress, and reported it.
    pub(crate) const TARGET_REFUSED: Closed = Closed(7);
    /// The receiver could not read the sender's memory.
    pub(crate) const SENDER_FAULT: Closed = Closed(8);
}

/// The connection is to be ended by this side. `Connection::end` does it.
#[derive(Clone, Copy, Debug)]
#[must_use]
pub(crate) struct Ending {
    /// What the peer reads.
    pub(crate) reason: Closed,
    /// Cause and operation for the host; `None`: the host knows already.
    pub(crate) report: Option<(c_int, u32)>,
}

impl Ending {
    pub(crate) fn new(reason: Closed, cause: c_int, opcode: u32) -> Ending {
        Ending {
            reason,
            report: Some((cause, opcode)),
        }
    }

    /// The peer violated the protocol; it loses the connection, and nothing else happens.
    #[cold]
    pub(crate) fn protocol_error() -> Ending {
        Ending::new(Closed::LOST, CONN_LOST, 0)
    }

    /// The peer's plug-in has another layout of the shared memory; it loses the connection.
    #[cold]
    pub(crate) fn other_layout(layout: u32, pid: u32) -> Ending {
        let text = format!(
            "loopback: process {pid} has another version of this plug-in (layout {layout} of shared memory, here {LAYOUT}); \
             install the same version for both programs"
        );
        Host::get().log(VIPL_LOG_ERROR, &text);
        Ending::new(Closed::LOST, CONN_LOST, 0)
    }

    /// A completion could not be written; `Port::complete` has broken the connection.
    #[cold]
    pub(crate) fn completion_failed() -> Ending {
        Ending {
            reason: Closed::LOST,
            report: None,
        }
    }

    /// A descriptor has reported the error.
    pub(crate) fn reported(reason: Closed) -> Ending {
        Ending::new(reason, VIPL_CAUSE_REPORTED, 0)
    }

    /// An asynchronous error. On Unreliable it is raised and the connection goes on; otherwise it ends.
    ///
    /// # Errors
    /// The ending, on the reliable levels.
    #[cold]
    pub(crate) fn or_raise(
        port: &Port,
        reason: Closed,
        code: VIP_ERROR_CODE,
        opcode: u32,
    ) -> Result<(), Ending> {
        if !port.is_reliable() {
            port.raise(code, opcode);
            return Ok(());
        }
        Err(Ending::new(reason, code as c_int, opcode))
    }
}
