//! What the host calls: the operations of a NIC and of a VI.

use std::time::Duration;

use vipl_plugin_sdk::abi::{vipl_connection, vipl_region};
use vipl_plugin_sdk::{Host, Nic, OwnTable, Port, Ready, Regions, Sleep, Status, Vi};

use crate::connection::Connection;
use crate::nic::LoopbackNic;

/// One VI and its connection, if it has one. The connection lies here and not behind another pointer, which would be one more
/// cache line that a program with many VIs waits for, before all others of the connection.
pub struct LoopbackVi {
    connection: Option<Connection>,
}

impl Nic for LoopbackNic {
    type Vi = LoopbackVi;

    fn close(&mut self) {
        self.watch().stop();
    }
}

impl OwnTable for LoopbackNic {
    fn table(&self) -> &[vipl_region] {
        self.shared().regions()
    }
}

impl Regions for LoopbackNic {
    fn region_add(&self, handle: u32, base: u64, bytes: u64, _access: u64) -> Result<(), Status> {
        if let Some(places) = self.shared().places()
            && let Some(memory) = Host::get().memory(base, bytes)
        {
            places.publish(handle, base, &memory);
        }
        Ok(())
    }

    fn region_remove(&self, handle: u32) {
        if let Some(places) = self.shared().places() {
            places.withdraw(handle);
        }
    }
}

impl Ready for LoopbackNic {
    fn ready(&self, indices: &mut [u32]) -> usize {
        self.watch().note_marks_taken();
        self.shared().ready().take(self.watch().words(), indices)
    }

    fn watch(&self, vi: &mut LoopbackVi, on: bool) {
        if let Some(connection) = &mut vi.connection {
            connection.watch(on);
        }
    }
}

impl Sleep for LoopbackNic {
    fn arm(&self) -> u32 {
        self.shared().bell().arm()
    }

    fn sleep(&self, epoch: u32, timeout_ns: u64) {
        self.shared().bell().sleep(epoch, timeout_ns);
    }

    fn wake(&self) {
        self.shared().bell().ring();
    }
}

impl Vi for LoopbackVi {
    type Nic = LoopbackNic;

    fn new(_nic: &LoopbackNic, _port: &Port) -> Result<Self, Status> {
        Ok(LoopbackVi { connection: None })
    }

    fn attach(
        &mut self,
        nic: &LoopbackNic,
        port: &Port,
        connection: &vipl_connection,
    ) -> Result<(), Status> {
        self.connection = Some(Connection::attach(nic, port, connection)?);
        Ok(())
    }

    fn detach(&mut self, nic: &LoopbackNic, port: &Port) {
        if let Some(connection) = self.connection.take() {
            connection.detach(nic, port);
        }
    }

    fn peer_gone(&mut self, _nic: &LoopbackNic, port: &Port, orderly: bool) {
        if let Some(connection) = &mut self.connection {
            connection.peer_gone(port, orderly);
        }
    }

    #[inline(always)]
    fn post_send(&mut self, nic: &LoopbackNic, port: &Port) {
        if let Some(connection) = &mut self.connection {
            connection.post_send(nic, port);
        }
    }

    #[inline(always)]
    fn post_recv(&mut self, _nic: &LoopbackNic, port: &Port) {
        if let Some(connection) = &mut self.connection {
            connection.post_recv(port);
        }
    }

    #[inline(always)]
    fn progress(&mut self, nic: &LoopbackNic, port: &Port) {
        if let Some(connection) = &mut self.connection {
            connection.poll(nic, port);
        }
    }

    fn quiesced(&mut self, port: &Port, since: &mut u64, left: Duration) -> bool {
        let connection = self.connection.as_mut();
        connection.is_none_or(|connection| connection.quiesced(port, since, left))
    }
}
