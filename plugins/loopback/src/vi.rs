//! What the host calls: the operations of a NIC and of a VI.

use std::sync::atomic::{Ordering, fence};
use std::time::Duration;

use vipl_plugin_sdk::abi::{vipl_connection, vipl_region};
use vipl_plugin_sdk::{Nic, OwnTable, Port, Ready, Sleep, Status, Vi};

use crate::link::Link;
use crate::nic::LoopbackNic;

/// One VI; the connection comes and goes. It lies here and not behind another pointer, which would be one more cache line
/// that a program with many VIs has to wait for, before all others of the connection.
pub struct LoopbackVi {
    pub(crate) link: Option<Link>,
}

impl Nic for LoopbackNic {
    type Vi = LoopbackVi;

    fn close(&mut self) {
        self.watch.stop();
    }
}

impl OwnTable for LoopbackNic {
    fn table(&self) -> &[vipl_region] {
        self.shared.regions()
    }
}

impl Ready for LoopbackNic {
    fn ready(&self, indices: &mut [u32]) -> usize {
        self.watch.note_marks_taken();
        self.shared.ready().take(indices)
    }

    fn watch(&self, vi: &mut LoopbackVi, on: bool) {
        if let Some(link) = &mut vi.link {
            link.set_wants_marks(on);
            link.watch.set_marked(link.own_index, on);
            link.ends
                .own()
                .marks
                .store(u32::from(on), Ordering::Release);
            fence(Ordering::SeqCst);
        }
    }
}

impl Sleep for LoopbackNic {
    fn arm(&self) -> u32 {
        self.shared.bell().arm()
    }

    fn sleep(&self, epoch: u32, timeout_ns: u64) {
        self.shared.bell().sleep(epoch, timeout_ns);
    }

    fn wake(&self) {
        self.shared.bell().ring();
    }
}

impl Vi for LoopbackVi {
    type Nic = LoopbackNic;

    fn new(_nic: &LoopbackNic, _port: &Port) -> Result<Self, Status> {
        Ok(LoopbackVi { link: None })
    }

    fn attach(
        &mut self,
        nic: &LoopbackNic,
        port: &Port,
        connection: &vipl_connection,
    ) -> Result<(), Status> {
        self.link = Some(crate::cm::attach(nic, port, connection)?);
        Ok(())
    }

    fn detach(&mut self, nic: &LoopbackNic, port: &Port) {
        if let Some(mut link) = self.link.take() {
            link.take_the_rest(nic, port);
            crate::cm::detach(link);
        }
    }

    fn peer_gone(&mut self, nic: &LoopbackNic, port: &Port, orderly: bool) {
        if let Some(link) = &mut self.link {
            link.partner_gone(nic, port, orderly);
        }
    }

    #[inline(always)]
    fn post_send(&mut self, nic: &LoopbackNic, port: &Port) {
        if let Some(link) = &mut self.link {
            link.post_send(nic, port);
        }
    }

    #[inline(always)]
    fn post_recv(&mut self, _nic: &LoopbackNic, port: &Port) {
        if let Some(link) = &mut self.link {
            // Release: the partner may send as soon as it sees the count.
            link.ends
                .own()
                .posted
                .store(link.posted_count(port), Ordering::Release);
        }
    }

    #[inline(always)]
    fn progress(&mut self, nic: &LoopbackNic, port: &Port) {
        if let Some(link) = &mut self.link {
            link.progress(nic, port);
        }
    }

    fn quiesced(&mut self, port: &Port, since: &mut u64, left: Duration) -> bool {
        let link = self.link.as_mut();
        link.is_none_or(|link| link.quiesced(port, since, left))
    }
}
