//! One opening of the loopback device.

use std::collections::BTreeMap;
use std::ffi::CStr;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};

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
use crate::segment::SEGMENT;
use crate::shared::{PAGE_BYTES, REGION_BYTES, SharedNic, VIS_MAX};
use crate::watch::Watch;
use crate::window::REGIONS_MAX;

/// Name of the shared memory in lists of mappings.
const MEMORY: &CStr = c"vipl-loopback";
/// Levels on which RDMA Read works.
pub(crate) const READ_LEVELS: u16 = VIP_SERVICE_RELIABLE_DELIVERY | VIP_SERVICE_RELIABLE_RECEPTION;

/// Counters that `vipinfo` shows.
pub(crate) struct Counters {
    /// Bytes copied directly from process to process.
    pub(crate) single_copy_bytes: &'static AtomicU64,
    /// Those of them that were copied to or from memory of a peer that is mapped here.
    pub(crate) mapped_bytes: &'static AtomicU64,
    /// Bytes of a peer's copies that this side made as helper.
    pub(crate) helped_copy_bytes: &'static AtomicU64,
    /// Bytes of large messages and RDMA that travelled through the ring.
    pub(crate) ring_copy_bytes: &'static AtomicU64,
    /// Connections on which the kernel forbade access to the peer's memory.
    pub(crate) single_copy_refused: &'static AtomicU64,
}

/// The counters of this process.
#[inline]
pub(crate) fn counters() -> &'static Counters {
    static COUNTERS: OnceLock<Counters> = OnceLock::new();
    COUNTERS.get_or_init(|| {
        let counter = |name| Host::get().counter(NAME, name);
        Counters {
            single_copy_bytes: counter(c"single_copy_bytes"),
            mapped_bytes: counter(c"mapped_bytes"),
            helped_copy_bytes: counter(c"helped_copy_bytes"),
            ring_copy_bytes: counter(c"ring_copy_bytes"),
            single_copy_refused: counter(c"single_copy_refused"),
        }
    })
}

/// Adds to a counter.
pub(crate) fn count(counter: &AtomicU64, more: u64) {
    counter.fetch_add(more, Ordering::Relaxed);
}

/// One opening of the device.
pub struct LoopbackNic {
    shared: Arc<SharedNic>,
    _fds: [Kept; 2],
    peers: Mutex<BTreeMap<u64, Weak<SharedNic>>>,
    watch: Arc<Watch>,
    single_copy: bool,
    eager_max: u32,
    fences: bool,
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
        // The program sees all of them from now on.
        counters();
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
        let watch = Watch::new(nic, shared.clone());
        watch.start()?;
        Ok(LoopbackNic {
            watch,
            fences: shared.bell().needs_fences(),
            shared,
            _fds: [page, regions].map(Kept::new),
            peers: Mutex::default(),
            single_copy: truth(NAME, c"single_copy"),
            eager_max: number(NAME, c"eager_max").unwrap_or(16_384) as u32,
        })
    }

    /// What this NIC shares with its peers.
    #[inline(always)]
    pub(crate) fn shared(&self) -> &Arc<SharedNic> {
        &self.shared
    }

    /// The thread that makes progress while the program does not.
    pub(crate) fn watch(&self) -> &Arc<Watch> {
        &self.watch
    }

    /// Whether data may go directly from process to process.
    pub(crate) fn single_copy(&self) -> bool {
        self.single_copy
    }

    /// Largest single-frame message.
    #[inline(always)]
    pub(crate) fn eager_max(&self) -> u32 {
        self.eager_max
    }

    /// Whether this process must execute a fence before it checks whether a peer sleeps.
    pub(crate) fn fences(&self) -> bool {
        self.fences
    }

    /// A peer's NIC, mapped once for all connections to it.
    ///
    /// # Errors
    /// It cannot be mapped.
    pub(crate) fn peer(&self, name: u64, fds: [i32; 2]) -> std::io::Result<Arc<SharedNic>> {
        let mut peers = self.peers.lock();
        if let Some(known) = peers.get(&name).and_then(Weak::upgrade) {
            return Ok(known);
        }
        peers.retain(|_, known| known.strong_count() > 0);
        let shared = Arc::new(SharedNic::open(fds, false)?);
        peers.insert(name, Arc::downgrade(&shared));
        Ok(shared)
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
