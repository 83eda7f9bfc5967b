//! An opened NIC, and the record of its asynchronous errors.

use std::path::Path;
use std::sync::Mutex;

use vipl_client::{AsyncCode, AsyncError, Library, Nic, Ptag, ViId};

use crate::report::fault;

/// The result of a call that must succeed.
pub(crate) fn must<T>(result: vipl_client::Result<T>) -> T {
    result.unwrap_or_else(|error| fault(&error.to_string()))
}

/// One NIC of this process; lives until the process ends.
pub(crate) struct Node {
    pub(crate) nic: Nic,
    pub(crate) ptag: Ptag,
    pub(crate) transfer_max: usize,
    pub(crate) levels: u16,
    pub(crate) read_levels: u16,
    /// Peers may be on other hosts.
    on_network: bool,
    /// VIs whose connection was lost, as reported to the error handler.
    lost: Mutex<Vec<ViId>>,
}

impl Node {
    /// Opens a device with this library.
    pub(crate) fn open(library: &Path, device: &str, on_network: bool) -> &'static Node {
        let nic = must(Library::open_at(library).and_then(|library| Nic::open(library, device)));
        let ptag = must(Ptag::new(&nic));
        let attributes = nic.attributes();
        let node: &'static Node = Box::leak(Box::new(Node {
            transfer_max: attributes.transfer_max as usize,
            levels: attributes.reliability.bits(),
            read_levels: attributes.rdma_read.bits(),
            ptag,
            nic,
            on_network,
            lost: Mutex::default(),
        }));
        must(node.nic.on_error(|error| node.record(error)));
        node
    }

    fn record(&self, error: &AsyncError) {
        // A network reports these for a peer that it no longer receives from (spec §6.4, E12 and E17).
        let silence = [AsyncCode::RdmaWriteAbort, AsyncCode::RdmaTransport];
        let lost = error.code == AsyncCode::ConnectionLost
            || self.on_network && silence.contains(&error.code);
        match error.vi {
            Some(vi) if lost => self.lost_vis().push(vi),
            _ => fault(&format!("asynchronous error {}", error.code.name())),
        }
    }

    fn lost_vis(&self) -> std::sync::MutexGuard<'_, Vec<ViId>> {
        self.lost
            .lock()
            .unwrap_or_else(|broken| broken.into_inner())
    }

    /// Whether the loss of this VI's connection has been reported; once for each.
    pub(crate) fn take_loss(&self, vi: ViId) -> bool {
        let mut lost = self.lost_vis();
        let before = lost.len();
        lost.retain(|known| *known != vi);
        lost.len() < before
    }

    /// Closes the NIC, which must be empty.
    pub(crate) fn close(&self) {
        let (functions, nic) = (self.nic.functions(), self.nic.handle());
        // SAFETY: live handles, which the leaked node does not use again.
        let codes = unsafe {
            let tag = (functions.VipDestroyPtag)(nic, self.ptag.handle());
            (tag, (functions.VipCloseNic)(nic))
        };
        if codes != (0, 0) {
            fault(&format!(
                "VipDestroyPtag and VipCloseNic returned {codes:?}"
            ));
        }
    }
}
