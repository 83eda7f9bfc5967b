//! A host without library and agent, for the tests of a plug-in: it opens NICs, creates and connects VIs, posts
//! descriptors, and calls one operation at a time, so that a test decides who makes progress when.
//!
//! ```
//! # use std::{collections::VecDeque, ffi::CStr, sync::{Arc, Mutex}};
//! # use vipl_plugin_sdk::{abi::*, *};
//! # type Wire = Arc<Mutex<VecDeque<Vec<u8>>>>;
//! # static WIRES: Mutex<Vec<(u64, [Wire; 2])>> = Mutex::new(Vec::new());
//! # pub struct Pipe;
//! # pub struct PipeVi(Option<[Wire; 2]>);
//! # impl Provider for Pipe {
//! #     const NAME: &'static CStr = c"pipe";
//! #     const VERSION: &'static CStr = c"1";
//! #     type Nic = Pipe;
//! #     fn devices() -> Vec<String> { vec!["pipe".into()] }
//! #     fn open(_: &str, _: NicHandle, info: &mut vipl_nic_info) -> Result<Pipe, Status> {
//! #         info.transfer_max = 32768;
//! #         Ok(Pipe)
//! #     }
//! # }
//! # impl Nic for Pipe { type Vi = PipeVi; }
//! # impl Vi for PipeVi {
//! #     type Nic = Pipe;
//! #     fn new(_: &Pipe, _: &Port) -> Result<PipeVi, Status> { Ok(PipeVi(None)) }
//! #     fn attach(&mut self, _: &Pipe, _: &Port, new: &vipl_connection) -> Result<(), Status> {
//! #         let mut all = WIRES.lock().unwrap();
//! #         if !all.iter().any(|(key, _)| *key == new.key) { all.push((new.key, Default::default())); }
//! #         let mut wires = all.iter().find(|(key, _)| *key == new.key).unwrap().1.clone();
//! #         wires.rotate_left(new.side as usize);
//! #         self.0 = Some(wires);
//! #         Ok(())
//! #     }
//! #     fn detach(&mut self, _: &Pipe, _: &Port) { self.0 = None; }
//! #     fn post_send(&mut self, _: &Pipe, port: &Port) {
//! #         while let Some(send) = port.next_send(0) {
//! #             let mut message = vec![0; send.length as usize];
//! #             if port.gather(&send.segments, 0, &mut message[..]) {
//! #                 self.0.as_ref().unwrap()[0].lock().unwrap().push_back(message);
//! #                 port.complete(Queue::Send, send.operation.opcode(), None);
//! #             }
//! #         }
//! #     }
//! #     fn progress(&mut self, _: &Pipe, port: &Port) {
//! #         let Some(message) = self.0.as_ref().unwrap()[1].lock().unwrap().pop_front() else { return };
//! #         let length = message.len() as u32;
//! #         if let Some(segments) = port.next_receive(length) && port.scatter(&segments, 0, &message[..]) {
//! #             port.complete(Queue::Recv, vipl_abi::VIP_STATUS_OP_RECEIVE, Some((length, 0)));
//! #         }
//! #     }
//! # }
//! # vipl_plugin_sdk::plugin!(Pipe);
//! use vipl_abi::{VIP_SERVICE_RELIABLE_DELIVERY, VIP_STATUS_DONE, VIP_STATUS_OP_RECEIVE};
//! use vipl_plugin_sdk::testing::{Plugin, connect};
//!
//! // `vipl_plugin_v1` is what `plugin!` has made.
//! let nic = Plugin::load(&vipl_plugin_v1).open("").unwrap();
//! let memory = nic.memory(4096);
//! let mut left = nic.vi(VIP_SERVICE_RELIABLE_DELIVERY);
//! let mut right = nic.vi(VIP_SERVICE_RELIABLE_DELIVERY);
//! connect(&mut left, &mut right);
//!
//! let received = right.receive(&[memory.segment(0, 64)]);
//! memory.write(1024, b"hello");
//! left.send(&[memory.segment(1024, 5)]);
//! right.progress();
//! assert_eq!(right.status(received), VIP_STATUS_OP_RECEIVE | VIP_STATUS_DONE);
//! assert_eq!(memory.read(0, 5), b"hello");
//! ```

mod host;
mod memory;
mod vi;

use std::cell::Cell;
use std::ffi::{CStr, CString, c_char};
use std::os::fd::AsRawFd;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};

use vipl_abi::VIP_VI_STATE;
use vipl_plugin_abi::*;
use vipl_sys::shm;

use crate::Status;
pub use host::{Event, advance, counter_value, events, set};
pub use memory::Memory;
pub use vi::{Posted, Vi};

/// Regions of a NIC whose plug-in has no table of its own, unless it says otherwise.
const REGIONS_MAX: u32 = 4096;
/// Protection tag of all memory and all VIs.
const TAG: u32 = 1;

/// A plug-in that was initialised.
#[derive(Clone, Copy)]
pub struct Plugin(vipl_provider);

impl Plugin {
    /// Initialises a plug-in, given by what it exports.
    ///
    /// # Panics
    /// Its `init` fails.
    pub fn load(plugin: &'static vipl_plugin) -> Plugin {
        #[cfg(not(miri))]
        vipl_guard::install();
        // SAFETY: absent operations are NULL, which is what zero is.
        let mut operations: vipl_provider = unsafe { std::mem::zeroed() };
        operations.size = size_of::<vipl_provider>();
        // Failed assertions of a test are its harness's to report.
        let hook = std::panic::take_hook();
        let init = plugin.init.expect("init");
        // SAFETY: both tables are valid, and that of the host lives as long as the process.
        let status = unsafe { init(host::table(), &raw mut operations) };
        std::panic::set_hook(hook);
        assert_eq!(status, VIPL_OK, "init");
        Plugin(operations)
    }

    /// The operations of the plug-in.
    pub fn operations(&self) -> &vipl_provider {
        &self.0
    }

    /// Rank and argument, if the plug-in serves the device with this name.
    pub fn claim(&self, name: &CStr) -> Option<(i32, String)> {
        let mut argument = [0 as c_char; 64];
        // SAFETY: a NUL-terminated text, and 64 bytes of room.
        let rank = unsafe { self.0.claim?(name.as_ptr(), argument.as_mut_ptr()) };
        (rank > 0).then(|| (rank, host::text(&argument)))
    }

    /// Opens a device.
    ///
    /// # Errors
    /// What `nic_open` returns.
    pub fn open(&self, argument: &str) -> Result<Nic, Status> {
        let argument = CString::new(argument).map_err(|_| Status::Invalid)?;
        // SAFETY: plain data.
        let (mut abi, mut info): (Box<vipl_nic>, vipl_nic_info) =
            unsafe { (Box::new(std::mem::zeroed()), std::mem::zeroed()) };
        info.size = size_of::<vipl_nic_info>();
        (info.regions_max, info.segments_max) = (REGIONS_MAX, 252);
        (info.shared_fds, info.segment_bytes) = ([-1; 2], 4096);
        let open = self.0.nic_open.expect("nic_open");
        // SAFETY: as the interface asks.
        Status::check(unsafe { open(argument.as_ptr(), &raw mut *abi, &raw mut info) })?;
        let mut own = None;
        if info.regions.is_null() {
            let table = (0..info.regions_max).map(|_| blank_region());
            info.regions = own.insert(table.collect::<Vec<_>>()).as_mut_ptr();
        }
        (abi.regions, abi.region_count) = (info.regions, info.regions_max);
        abi.segments_max = info.segments_max;
        Ok(Nic(Rc::new(Opened {
            plugin: *self,
            abi: Box::into_raw(abi),
            info,
            regions: Cell::new(1),
            vis: Cell::new(0),
            _own_table: own,
        })))
    }
}

fn blank_region() -> vipl_region {
    vipl_region {
        base: 0.into(),
        end: 0.into(),
        access: 0.into(),
        handle: 0.into(),
        reserved: 0,
    }
}

/// An open device. It is closed when its last VI and memory are dropped, too.
#[derive(Clone)]
pub struct Nic(Rc<Opened>);

struct Opened {
    plugin: Plugin,
    abi: *mut vipl_nic,
    info: vipl_nic_info,
    /// Regions registered so far, and VIs created.
    regions: Cell<u32>,
    vis: Cell<u32>,
    /// A vector, since a box that is moved makes pointers into it invalid.
    _own_table: Option<Vec<vipl_region>>,
}

impl Nic {
    /// What the device says of itself.
    pub fn info(&self) -> &vipl_nic_info {
        &self.0.info
    }

    /// Sets `VIPL_OPTION_*` of the NIC.
    pub fn set_options(&self, options: u32) {
        // SAFETY: no operation is under way.
        unsafe { (*self.0.abi).options = options };
    }

    /// Allocates memory of the application and registers it, for RDMA as well.
    ///
    /// # Panics
    /// The plug-in refuses it, or there are too many regions.
    pub fn memory(&self, bytes: usize) -> Memory {
        Memory::new(self.clone(), bytes, TAG)
    }

    /// A VI that is not connected, for this `VIP_SERVICE_*` level.
    ///
    /// # Panics
    /// The plug-in does not create it.
    pub fn vi(&self, reliability: u16) -> Vi {
        let index = self.0.vis.replace(self.0.vis.get() + 1);
        Vi::new(self.clone(), index, reliability, TAG)
    }

    /// Numbers of the VIs that may have something, as many as `room` at most.
    pub fn ready(&self, room: usize) -> Vec<u32> {
        let (mut indices, ready) = (vec![0; room], self.operations().ready.expect("ready"));
        // SAFETY: as much room as said.
        let count = unsafe { ready(self.0.abi, indices.as_mut_ptr(), room as u32) };
        indices.truncate(count as usize);
        indices
    }

    /// Announces a thread that is about to sleep.
    pub fn arm(&self) -> u32 {
        // SAFETY: the NIC is open, as in all operations below.
        unsafe { self.operations().arm.expect("arm")(self.0.abi) }
    }

    /// Sleeps until something has happened since `arm` returned `epoch`.
    pub fn sleep(&self, epoch: u32, timeout_ns: u64) {
        // SAFETY: as in `arm`.
        unsafe { self.operations().sleep.expect("sleep")(self.0.abi, epoch, timeout_ns) };
    }

    /// Ends every sleep.
    pub fn wake(&self) {
        // SAFETY: as in `arm`.
        unsafe { self.operations().wake.expect("wake")(self.0.abi) };
    }

    /// The operations of the plug-in.
    pub fn operations(&self) -> &vipl_provider {
        self.0.plugin.operations()
    }

    fn abi(&self) -> *mut vipl_nic {
        self.0.abi
    }

    /// An entry of the table of regions that was not used before: its index.
    fn next_region(&self) -> u32 {
        let index = self.0.regions.replace(self.0.regions.get() + 1);
        assert!(index < self.0.info.regions_max, "too many regions");
        index
    }

    fn region(&self, index: u32) -> &vipl_region {
        // SAFETY: inside the table, which lives as long as the NIC.
        unsafe { &*self.0.info.regions.add(index as usize) }
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        // SAFETY: opened once, and no VI is left.
        unsafe {
            if let Some(close) = self.plugin.0.nic_close {
                close(self.abi);
            }
            drop(Box::from_raw(self.abi));
        }
    }
}

/// Connects two VIs, of one NIC or of two, as the agent does for processes of one host.
///
/// # Panics
/// A plug-in refuses the connection.
pub fn connect(left: &mut Vi, right: &mut Vi) {
    static KEYS: AtomicU64 = AtomicU64::new(1);
    let key = KEYS.fetch_add(1, Ordering::Relaxed);
    let bytes = left.nic().info().segment_bytes;
    let segment = if cfg!(miri) || bytes == 0 {
        None
    } else {
        Some(shm::create(c"vipl-test", bytes as usize).expect("a segment"))
    };
    let connections = [(&*left, &*right), (&*right, &*left)].map(|(own, peer)| {
        let mut connection = peer.as_peer();
        (connection.id, connection.key) = (key, key);
        connection.side = u32::from(std::ptr::eq(own, right));
        if let Some(segment) = &segment {
            (connection.segment_fd, connection.segment_bytes) = (segment.as_raw_fd(), bytes);
        }
        connection
    });
    for (vi, connection) in [left, right].into_iter().zip(&connections) {
        vi.attach(connection).expect("a connection");
    }
}

const CONNECTED: u32 = VIP_VI_STATE::VIP_STATE_CONNECTED as u32;
