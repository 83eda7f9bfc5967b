//! One opening of the loopback device.

use std::collections::BTreeMap;
use std::ffi::CStr;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use vipl_abi::{
    VIP_SERVICE_RELIABLE_DELIVERY, VIP_SERVICE_RELIABLE_RECEPTION, VIP_SERVICE_UNRELIABLE,
};
use vipl_plugin_sdk::abi::*;
use vipl_plugin_sdk::settings::{number, register_bytes_max, transfer_max, truth};
use vipl_plugin_sdk::{Host, NicHandle, Status};
use vipl_sys::fd::Kept;
use vipl_sys::mutex::Mutex;
use vipl_sys::shm;

use crate::NAME;
use crate::ring::SEGMENT;
use crate::shared::{PAGE_BYTES, REGION_BYTES, REGIONS_MAX, SharedNic, VIS_MAX};
use crate::watch::Watch;

/// Name of the shared memory, for people who look at a list of mappings.
const MEMORY: &CStr = c"vipl-loopback";
/// Levels on which RDMA Read works.
pub(crate) const READ_LEVELS: u16 = VIP_SERVICE_RELIABLE_DELIVERY | VIP_SERVICE_RELIABLE_RECEPTION;

/// Counters that `vipinfo` shows.
pub(crate) struct Counters {
    /// Bytes that went from process to process in one copy.
    pub(crate) single_copy_bytes: &'static AtomicU64,
    /// Bytes of a partner's copies that this side made.
    pub(crate) helped_copy_bytes: &'static AtomicU64,
    /// Bytes of large messages and RDMA that went through the ring.
    pub(crate) ring_copy_bytes: &'static AtomicU64,
    /// Connections on which the kernel forbade the single copy.
    pub(crate) single_copy_refused: &'static AtomicU64,
}

/// One opening of the device.
pub struct LoopbackNic {
    pub(crate) shared: Arc<SharedNic>,
    _fds: [Kept; 2],
    partners: Mutex<BTreeMap<u64, Weak<SharedNic>>>,
    pub(crate) watch: Arc<Watch>,
    pub(crate) single_copy: bool,
    pub(crate) eager_max: u32,
    /// This process must fence itself before it looks whether a partner sleeps.
    pub(crate) fences: bool,
    pub(crate) counters: Counters,
}

/// The address of a node: one per host by default; `loopback:N` makes further ones on the same host.
fn address(argument: &str) -> Result<[u8; 6], Status> {
    let node: u8 = match argument {
        "" => 0,
        text => text.parse().map_err(|_| {
            let text = format!("loopback:{argument}: the node is a number from 0 to 255");
            Host::get().log(VIPL_LOG_WARN, &text);
            Status::Invalid
        })?,
    };
    // Locally administered, "VIL" and the node.
    Ok([0x02, b'V', b'I', b'L', 0, node])
}

impl LoopbackNic {
    pub(crate) fn open(
        argument: &str,
        nic: NicHandle,
        info: &mut vipl_nic_info,
    ) -> Result<LoopbackNic, Status> {
        let address = address(argument)?;
        let failed = |error: std::io::Error| {
            Host::get().log(
                VIPL_LOG_ERROR,
                &format!("loopback: no shared memory: {error}"),
            );
            Status::Resource
        };
        let page = shm::create(MEMORY, PAGE_BYTES).map_err(failed)?;
        let regions = shm::create_for_readers(MEMORY, REGION_BYTES).map_err(failed)?;
        let fds = [page.as_raw_fd(), regions.as_raw_fd()];
        let shared = Arc::new(SharedNic::open(fds, true).map_err(failed)?);
        // Kernels before 5.1 cannot; then a process of the same user could write to the table, as it could by
        // `ptrace`.
        let _ = shm::seal_for_readers(&regions);
        shared.bell().prepare();
        describe(argument, address, info);
        info.shared_fds = fds;
        let host = Host::get();
        let watch = Watch::new(nic, shared.clone());
        watch.start()?;
        Ok(LoopbackNic {
            watch,
            fences: shared.bell().needs_fences(),
            shared,
            _fds: [page, regions].map(Kept::new),
            partners: Mutex::default(),
            single_copy: truth(NAME, c"single_copy"),
            eager_max: number(NAME, c"eager_max").unwrap_or(16_384) as u32,
            counters: Counters {
                single_copy_bytes: host.counter(NAME, c"single_copy_bytes"),
                helped_copy_bytes: host.counter(NAME, c"helped_copy_bytes"),
                ring_copy_bytes: host.counter(NAME, c"ring_copy_bytes"),
                single_copy_refused: host.counter(NAME, c"single_copy_refused"),
            },
        })
    }

    /// A partner's NIC, mapped once however many connections lead there.
    pub(crate) fn partner(&self, name: u64, fds: [i32; 2]) -> std::io::Result<Arc<SharedNic>> {
        let mut partners = self.partners.lock();
        if let Some(known) = partners.get(&name).and_then(Weak::upgrade) {
            return Ok(known);
        }
        partners.retain(|_, known| known.strong_count() > 0);
        let shared = Arc::new(SharedNic::open(fds, false)?);
        partners.insert(name, Arc::downgrade(&shared));
        Ok(shared)
    }

    /// Counts something.
    pub(crate) fn count(counter: &AtomicU64, more: u64) {
        counter.fetch_add(more, Ordering::Relaxed);
    }
}

fn describe(argument: &str, address: [u8; 6], info: &mut vipl_nic_info) {
    let name = if argument.is_empty() {
        "via_lo".to_owned()
    } else {
        format!("loopback:{argument}")
    };
    vipl_plugin_sdk::describe(info, &name, &address);
    info.reliability_support =
        VIP_SERVICE_UNRELIABLE | VIP_SERVICE_RELIABLE_DELIVERY | VIP_SERVICE_RELIABLE_RECEPTION;
    info.rdma_read_support = READ_LEVELS;
    info.vis_max = VIS_MAX;
    info.regions_max = REGIONS_MAX;
    info.transfer_max = transfer_max(NAME, 65_536);
    info.native_mtu = 16_384;
    info.register_bytes_max = register_bytes_max(NAME);
    info.register_block_max = info.register_bytes_max;
    info.segment_bytes = SEGMENT as u32;
}
