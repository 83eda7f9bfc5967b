//! What the host asks of a NIC handle and of a VI.

use std::time::Duration;

use vipl_plugin_sdk::abi::*;
use vipl_plugin_sdk::{Host, Nic, Port, Ready, Sleep, Status, Vi};
use vipl_wire::Reason;

use crate::NO_VI;
use crate::connected::Connected;
use crate::nic::EthernetNic;
use crate::progress;

impl Nic for EthernetNic {
    type Vi = EthernetVi;

    fn close(&mut self) {
        progress::stop(&self.device);
        self.linger();
    }
}

impl Ready for EthernetNic {
    fn ready(&self, indices: &mut [u32]) -> usize {
        let device = &self.device;
        // The socket and the deadlines first: they mark VIs.
        device.watch.note_application();
        self.ring_doorbell();
        device.receive_all();
        device.mark_due(Host::get().now_ns());
        if let Some(index) = device.coalescing.vi() {
            device.bell.mark(index);
        }
        device.bell.take_marks(indices)
    }

    fn watch(&self, _vi: &mut EthernetVi, _on: bool) {
        // VIs with frames are always marked: a frame costs far more than that.
    }
}

impl Sleep for EthernetNic {
    fn arm(&self) -> u32 {
        self.device.watch.note_application();
        self.ring_doorbell();
        self.device.bell.arm()
    }

    fn sleep(&self, epoch: u32, timeout_ns: u64) {
        let device = &self.device;
        if timeout_ns > 0 {
            device.hand_over_coalescing(NO_VI);
            device.bell.sleep(epoch, timeout_ns, device.socket());
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
    connected: Option<Box<Connected>>,
}

impl EthernetVi {
    /// An operation on a connection, which may have ended in it.
    #[inline(always)]
    fn operate(&mut self, port: &Port, operation: impl FnOnce(&mut Connected)) {
        let Some(connected) = &mut self.connected else {
            return;
        };
        operation(connected);
        if !port.is_connected()
            && let Some(connected) = self.connected.take()
        {
            connected.retire(Reason::Lost);
        }
    }
}

impl Vi for EthernetVi {
    type Nic = EthernetNic;

    fn new(_nic: &EthernetNic, _port: &Port) -> Result<Self, Status> {
        Ok(EthernetVi { connected: None })
    }

    fn attach(
        &mut self,
        nic: &EthernetNic,
        port: &Port,
        connection: &vipl_connection,
    ) -> Result<(), Status> {
        let device = &nic.device;
        let connected = Connected::new(device, port, connection).map_err(|error| {
            let text = format!("{}: cannot set up a connection: {error}", device.name);
            Host::get().log(VIPL_LOG_ERROR, &text);
            Status::Resource
        })?;
        device
            .inbox(connected.index)
            .admit(connected.check, connected.follows);
        device.schedule.set_connected(connected.index, true);
        device.set_deadline(
            connected.index,
            connected.connection.deadline(),
            Host::get().now_ns(),
        );
        self.connected = Some(connected);
        Ok(())
    }

    fn detach(&mut self, _nic: &EthernetNic, _port: &Port) {
        if let Some(connected) = self.connected.take() {
            connected.retire(Reason::Disconnected);
        }
    }

    fn peer_gone(&mut self, _nic: &EthernetNic, port: &Port, orderly: bool) {
        self.operate(port, |connected| connected.partner_gone(port, orderly));
    }

    #[inline(always)]
    fn post_send(&mut self, _nic: &EthernetNic, port: &Port) {
        self.operate(port, |connected| connected.post_send(port));
    }

    fn post_recv(&mut self, _nic: &EthernetNic, _port: &Port) {
        // The peer is not told: a message that finds no descriptor is an error (spec §6.3).
    }

    #[inline(always)]
    fn progress(&mut self, _nic: &EthernetNic, port: &Port) {
        self.operate(port, |connected| connected.progress(port));
    }

    fn quiesced(&mut self, _port: &Port, _since: &mut u64, _left: Duration) -> bool {
        // Every transfer holds the VI's lock, as the caller does.
        true
    }
}
