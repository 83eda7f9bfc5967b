//! Broken connections and failed devices (spec §6.4, §9.6, §11).

use std::time::Duration;
use vipl_sys::clock::Instant;

use vipl_abi::*;
use vipl_plugin_abi::*;

use super::queue::Which;
use super::state::{CONNECTED, ERROR};
use super::{Vi, complete, of_nic};
use crate::handlers;
use crate::nic::Nic;
use crate::nic::notices::Notice;

/// Why a connection broke, in words.
fn cause_name(cause: i32) -> String {
    match cause {
        VIPL_CAUSE_REPORTED => "the status of a descriptor tells why".to_owned(),
        VIPL_CAUSE_DISCONNECTED => "the peer disconnected".to_owned(),
        code => VIP_ERROR_CODE::of(code)
            .map_or_else(|| format!("cause {code}"), |code| format!("{code:?}")),
    }
}

impl Vi {
    /// Breaks the connection: Error state, flush, and asynchronous error.
    pub(crate) fn fail(&mut self, cause: i32, opcode: u32, descriptor: *mut VIP_DESCRIPTOR) {
        if self.abi.state != CONNECTED {
            return;
        }
        self.set_state(ERROR);
        log::debug!(target: "vi", "VI {:?}: Connected -> Error ({})", self.handle, cause_name(cause));
        // First, since flushed descriptors wake the application, which may then exit.
        self.report_break(cause, opcode, descriptor);
        complete::flush(self, Which::Send);
        complete::flush(self, Which::Recv);
    }

    /// Reports to the application why its connection broke.
    fn report_break(&self, cause: i32, opcode: u32, descriptor: *mut VIP_DESCRIPTOR) {
        if cause == VIPL_CAUSE_REPORTED {
            return;
        }
        let after = self.nic.process.settings.disconnect_notice_ms();
        if cause == VIPL_CAUSE_DISCONNECTED && after > 0 {
            // If the thread cannot start, the error is not reported; the VI is in the Error state
            // nevertheless.
            let _ = handlers::start(&self.nic);
            self.nic.report_later(Notice {
                due: Instant::now() + Duration::from_millis(after),
                vi: self.handle.expose_provenance(),
                epoch: self.epoch,
                seen: false,
            });
            return;
        }
        let code = VIP_ERROR_CODE::of(cause).unwrap_or(VIP_ERROR_CODE::VIP_ERROR_CONN_LOST);
        self.raise(code, opcode, descriptor);
    }
}

/// The device has failed (E18): every connected VI fails, and one error is reported. A thread that is just
/// connecting a VI sees the failure once it holds the VI's lock.
pub(crate) fn fail_all(nic: &Nic) {
    if !nic.claim_failure_report() {
        return;
    }
    log::error!(target: "nic", "the device of NIC {:?} has failed", nic.handle);
    of_nic::each(nic, |mut vi| {
        vi.fail(VIPL_CAUSE_REPORTED, 0, std::ptr::null_mut())
    });
    nic.raise(VIP_ERROR_DESCRIPTOR {
        NicHandle: nic.handle,
        ViHandle: std::ptr::null_mut(),
        CQHandle: std::ptr::null_mut(),
        DescriptorPtr: std::ptr::null_mut(),
        OpCode: 0,
        ResourceCode: VIP_RESOURCE_CODE::VIP_RESOURCE_NIC,
        ErrorCode: VIP_ERROR_CODE::VIP_ERROR_CATASTROPHIC,
    });
    // Wakes threads that sleep on this NIC.
    nic.wake();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cause_has_a_name() {
        assert_eq!(cause_name(VIPL_CAUSE_DISCONNECTED), "the peer disconnected");
        let lost = VIP_ERROR_CODE::VIP_ERROR_CONN_LOST as i32;
        assert_eq!(cause_name(lost), "VIP_ERROR_CONN_LOST");
        assert_eq!(cause_name(-7), "cause -7");
    }
}
