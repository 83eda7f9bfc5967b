//! What the host asks of a NIC handle and of a VI.

use std::time::Duration;

use vipl_plugin_sdk::abi::*;
use vipl_plugin_sdk::{Host, Nic, Port, Ready, Sleep, Status, Vi};
use vipl_wire::Reason;

use crate::NO_VI;
use crate::connection::ViConnection;
use crate::nic::EthernetNic;
use crate::watch;

impl Nic for EthernetNic {
    type Vi = EthernetVi;

    fn close(&mut self) {
        watch::thread::stop(&self.device);
        self.linger();
    }
}

impl Ready for EthernetNic {
    fn ready(&self, indices: &mut [u32]) -> usize {
        let device = &self.device;
        // The socket and the deadlines first: they mark VIs.
        device.watch.note_application();
        self.device.ring();
        device.receive_all();
        device.mark_due(Host::get().now_ns());
        if let Some(index) = device.coalescing.vi() {
            device.bell.mark(index);
        }
        device.bell.take_marks(device.schedule.words(), indices)
    }

    fn watch(&self, _vi: &mut EthernetVi, _on: bool) {
        // VIs with frames always get their ready bit: a frame costs far more than that.
    }
}

impl Sleep for EthernetNic {
    fn arm(&self) -> u32 {
        self.device.watch.note_application();
        self.device.ring();
        self.device.bell.arm()
    }

    fn sleep(&self, epoch: u32, timeout_ns: u64) {
        let device = &self.device;
        if timeout_ns > 0 {
            device.hand_over_coalescing(NO_VI);
            device.bell.sleep(epoch, timeout_ns, device.sockets());
        }
        device.bell.disarm();
        device.watch.note_wake();
    }

    fn wake(&self) {
        self.device.bell.ring();
    }
}

/// One VI. It can be connected more than once.
pub struct EthernetVi {
    connection: Option<Box<ViConnection>>,
}

impl EthernetVi {
    /// Performs an operation on the connection, and retires a connection that has ended in it.
    #[inline(always)]
    fn operate(&mut self, port: &Port, operation: impl FnOnce(&mut ViConnection)) {
        let Some(connection) = &mut self.connection else {
            return;
        };
        operation(connection);
        if !port.is_connected()
            && let Some(connection) = self.connection.take()
        {
            connection.retire(Reason::Lost);
        }
    }
}

impl Vi for EthernetVi {
    type Nic = EthernetNic;

    fn new(_nic: &EthernetNic, _port: &Port) -> Result<Self, Status> {
        Ok(EthernetVi { connection: None })
    }

    fn attach(
        &mut self,
        nic: &EthernetNic,
        port: &Port,
        connection: &vipl_connection,
    ) -> Result<(), Status> {
        let device = &nic.device;
        let opened = ViConnection::open(device, port, connection).map_err(|error| {
            let text = format!("{}: cannot set up a connection: {error}", device.name);
            Host::get().log(VIPL_LOG_ERROR, &text);
            Status::Resource
        })?;
        self.connection = Some(opened);
        Ok(())
    }

    fn detach(&mut self, _nic: &EthernetNic, _port: &Port) {
        if let Some(connection) = self.connection.take() {
            connection.retire(Reason::Disconnected);
        }
    }

    fn peer_gone(&mut self, _nic: &EthernetNic, port: &Port, orderly: bool) {
        self.operate(port, |connection| connection.peer_gone(port, orderly));
    }

    #[inline(always)]
    fn post_send(&mut self, _nic: &EthernetNic, port: &Port) {
        self.operate(port, |connection| connection.post_send(port));
    }

    fn post_recv(&mut self, _nic: &EthernetNic, _port: &Port) {
        // Not reported to the peer: a message that finds no descriptor is an error (spec §6.3).
    }

    #[inline(always)]
    fn progress(&mut self, _nic: &EthernetNic, port: &Port) {
        self.operate(port, |connection| connection.progress(port));
    }

    fn quiesced(&mut self, _port: &Port, _since: &mut u64, _left: Duration) -> bool {
        // Every transfer holds the VI's lock, as the caller does.
        true
    }
}
