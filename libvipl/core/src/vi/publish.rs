//! What a VI writes into its record off the data path.

use kagent_proto::{Connected, Point};
use vipl_pages::layout::Ring;
use vipl_pages::record::Happened;
use vipl_plugin_abi::vipl_entry;

use super::queue::{Which, WorkQueue};
use super::{Vi, sample};

impl Vi {
    /// Fills the record of a new VI.
    pub(crate) fn publish(&self) {
        let (page, handle) = (self.page, |handle: *mut std::ffi::c_void| {
            handle.addr() as u64
        });
        let cq = |cq: &WorkQueue| cq.cq.map_or(0, |slot| slot.name() as u64);
        page.sequence.change(|| {
            page.start(self.counts, 0, self.abi.send.posted);
            page.start(self.counts, 1, self.abi.recv.posted);
            page.nic.set(handle(self.nic.handle));
            page.send_cq.set(cq(&self.send));
            page.recv_cq.set(cq(&self.recv));
            page.number.set(self.abi.index);
            page.state.set(self.abi.state);
            page.state_since.set(self.nic.process.pages().tick());
            self.publish_attributes();
            page.handle.set(handle(self.handle));
        });
        self.happened(Happened::Created);
    }

    /// The attributes, which VipSetViAttributes may change.
    pub(crate) fn publish_attributes(&self) {
        let page = self.page;
        page.level.set(self.abi.reliability);
        page.transfer_max.set(self.abi.max_transfer_size);
        page.tag.set(self.abi.ptag);
        page.rdma.set(self.abi.rdma_write | self.abi.rdma_read << 1);
    }

    /// Where the ring of a queue is recorded; NULL if it is not.
    pub(crate) fn recorder(&self, which: Which) -> *mut vipl_entry {
        let pages = self.nic.process.pages();
        pages.ring(self.handle.addr(), which.number()).cast()
    }

    /// A ring of so many entries is recorded, or none of this queue.
    pub(crate) fn publish_ring(&self, which: Which, room: Option<u32>) {
        let ring = room.map(|room| Ring {
            entry: size_of::<vipl_entry>(),
            room,
        });
        let word = Ring::set(self.page.flight.get(), which.number(), ring);
        self.page.sequence.change(|| self.page.flight.set(word));
    }

    /// The only place that changes the state.
    pub(crate) fn set_state(&mut self, state: u32) {
        let before = std::mem::replace(&mut self.abi.state, state);
        if before == state {
            return;
        }
        let page = self.page;
        page.sequence.change(|| {
            page.state.set(state);
            page.state_since.set(self.nic.process.pages().tick());
        });
        self.happened(Happened::State(before as u8, state as u8));
    }

    /// The points of an attempt to connect.
    pub(crate) fn publish_points(&self, local: &Point, remote: &Point) {
        let page = self.page;
        page.sequence.change(|| {
            page.local_point.set(local.discriminator());
            page.remote_point.set(remote.discriminator());
            page.peer_address.set(remote.host());
            let lengths = [
                remote.host().len(),
                local.discriminator().len(),
                remote.discriminator().len(),
            ];
            let bytes = lengths.map(|length| length as u64);
            page.lengths.set(bytes[0] | bytes[1] << 8 | bytes[2] << 16);
        });
    }

    /// The peer of a new connection.
    pub(crate) fn publish_peer(&self, connected: &Connected) {
        let page = self.page;
        let is_remote = connected.remote != 0;
        page.sequence.change(|| {
            page.peer.set(if is_remote { 2_u64 } else { 1 });
            page.peer_pid.set(connected.peer_pid);
            page.peer_vi.set(connected.peer_vi);
            if is_remote {
                let bytes = usize::from(connected.remote_host_len).min(connected.remote_host.len());
                page.peer_address.set(&connected.remote_host[..bytes]);
                page.lengths.set(page.lengths.get() & !0xFF | bytes as u64);
            }
            page.connections.set(page.connections.get() + 1);
        });
        self.happened(Happened::Connected(connected.peer_pid));
    }

    /// The VI has no peer any more.
    pub(crate) fn publish_no_peer(&self) {
        self.page.peer.set(0_u64);
    }

    /// Counts in full. For threads of the library, beside the data path.
    #[cold]
    pub(crate) fn publish_completed(&mut self) {
        sample::settle(self);
        let counts = self.counts;
        self.page.count_up(counts, 0, self.abi.send.completed);
        self.page.count_up(counts, 1, self.abi.recv.completed);
    }
}
