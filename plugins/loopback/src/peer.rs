//! The peer of a connection: what it publishes, what this side publishes to it, and how it is woken.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::mem::offset_of;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use vipl_guard::Segment;
use vipl_plugin_sdk::abi::vipl_connection;
use vipl_plugin_sdk::region::Table;
use vipl_plugin_sdk::{Port, Queue};
use vipl_sys::mutex::Mutex;
use vipl_sys::process_vm::Way;
use vipl_sys::shm::Mapping;
use vipl_sys::wrap;

use crate::ending::Closed;
use crate::nic::LoopbackNic;
use crate::segment::{LAYOUT, Side, WIDE, Words};
use crate::shared::SharedNic;
use crate::watch::Watch;
use crate::window::Window;

/// How this side accesses the peer's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reach {
    /// Not known yet: the peer has not attached.
    Unknown,
    /// Both sides are in this process.
    Same,
    /// By `process_vm_readv` and `process_vm_writev` on this thread of its process.
    Process(i32),
    /// Not at all.
    None,
}

/// The VI of an operation of the host, and the peer.
#[derive(Clone, Copy)]
pub(crate) struct Call<'a> {
    pub(crate) port: &'a Port,
    pub(crate) peer: &'a Peer,
}

/// The peer as both directions use it. Fields that every message touches are last, so that they share cache lines with
/// the first fields of the sender.
#[repr(C)]
pub(crate) struct Peer {
    /// The segment's mapping, behind `words` and the views of both directions.
    _segment: Mapping,
    watch: Arc<Watch>,
    key: u64,
    pid: u32,
    own_index: u32,
    rdma_write: bool,
    rdma_read: bool,
    /// Whether data may go directly from process to process.
    single_copy: bool,
    /// The peer was killed: it copies no more, whatever its words say.
    dead: Cell<bool>,
    /// The peer's copy that did not end in time and cost the connection.
    abandoned: Cell<Option<u32>>,
    /// What was last used of the peer's mapped memory, for reading and for writing.
    recent: [RefCell<Option<Arc<Window>>>; 2],
    /// The fields behind it begin a cache line.
    cold: [u8; COLD],

    words: Words,
    nic: Arc<SharedNic>,
    index: u32,
    /// Slots of the peer that this side has consumed.
    consumed: Cell<u32>,
    /// `posted` of the receive queue when nothing had been received.
    posted_base: u32,
    reach: Cell<Reach>,
    /// Sends wait for the peer, and that is published.
    waiting: Cell<bool>,
    /// Sends are complete when the peer has consumed them, and each side informs the other.
    reception: bool,
    fences: bool,
}

/// Bytes that fill a line.
const COLD: usize = 40;

/// Where the fields begin that every message touches.
pub(crate) const HOT: usize = offset_of!(Peer, words);

impl Peer {
    pub(crate) fn new(
        nic: &LoopbackNic,
        port: &Port,
        connection: &vipl_connection,
        segment: Mapping,
        words: Words,
        shared: Arc<SharedNic>,
    ) -> Peer {
        let peer = Peer {
            _segment: segment,
            watch: nic.watch().clone(),
            key: connection.key,
            pid: connection.peer_pid,
            own_index: port.index(),
            rdma_write: connection.peer_rdma_write != 0,
            rdma_read: connection.peer_rdma_read != 0,
            single_copy: nic.single_copy(),
            dead: Cell::new(false),
            abandoned: Cell::new(None),
            recent: [const { RefCell::new(None) }; 2],
            cold: [0; COLD],
            words,
            nic: shared,
            index: connection.peer_vi,
            consumed: Cell::new(wrap::start(0)),
            posted_base: port.completed(Queue::Recv),
            reach: Cell::new(Reach::Unknown),
            waiting: Cell::new(false),
            reception: port.reliability() == vipl_abi::VIP_SERVICE_RELIABLE_RECEPTION,
            fences: nic.fences(),
        };
        *ENDS.lock().entry(peer.key).or_insert(0) += 1;
        peer
    }

    /// Fills in this side's words, but for the probe.
    pub(crate) fn introduce(&self, port: &Port) {
        let own = self.own();
        own.pid.store(std::process::id(), Ordering::Relaxed);
        own.ptag.store(port.ptag(), Ordering::Relaxed);
        own.posted.store(self.posted(port), Ordering::Relaxed);
        own.consumed.store(self.consumed(), Ordering::Relaxed);
        // Release: a peer that sees it sees the words.
        own.attached.store(LAYOUT, Ordering::Release);
    }

    /// What this side publishes.
    #[inline(always)]
    pub(crate) fn own(&self) -> &Side {
        self.words.own()
    }

    /// What the peer publishes.
    #[inline(always)]
    pub(crate) fn side(&self) -> &Side {
        self.words.peer()
    }

    /// The words of both sides.
    #[inline(always)]
    pub(crate) fn words(&self) -> &Words {
        &self.words
    }

    /// Whether the peer has attached, and its words are there.
    pub(crate) fn is_attached(&self) -> bool {
        self.side().attached.load(Ordering::Acquire) == LAYOUT
    }

    /// The version of the peer's layout, if it has attached with another one.
    pub(crate) fn other_layout(&self) -> Option<u32> {
        let layout = self.side().attached.load(Ordering::Acquire);
        (layout != 0 && layout != LAYOUT).then_some(layout)
    }

    /// The regions of the peer's NIC.
    #[inline(always)]
    pub(crate) fn table(&self) -> Table<'_> {
        self.nic.table()
    }

    /// The protection tag of the peer's VI.
    #[inline(always)]
    pub(crate) fn tag(&self) -> u32 {
        self.side().ptag.load(Ordering::Relaxed)
    }

    /// Whether the peer's VI permits RDMA Write.
    #[inline(always)]
    pub(crate) fn permits_write(&self) -> bool {
        self.rdma_write
    }

    /// Whether the peer's VI permits RDMA Read.
    #[inline(always)]
    pub(crate) fn permits_read(&self) -> bool {
        self.rdma_read
    }

    /// Whether the peer's process has 64-bit addresses.
    #[inline(always)]
    pub(crate) fn is_wide(&self) -> bool {
        self.side().probe_at.load(Ordering::Relaxed) & WIDE != 0
    }

    /// Whether data may go directly from process to process.
    pub(crate) fn single_copy(&self) -> bool {
        self.single_copy
    }

    /// Where a range of the peer's memory is mapped here, if it is. Asked while `copying` is odd, and after the peer's table has
    /// permitted a copy this way.
    #[inline(always)]
    pub(crate) fn mapped(&self, way: Way, range: &Segment) -> Option<*mut u8> {
        let shift = self.nic.places()?.shift(range.handle)?;
        let (place, bytes) = (range.address.wrapping_add(shift), range.length.into());
        let recent = self.recent[usize::from(way == Way::Write)].borrow();
        let at = recent.as_ref().and_then(|window| window.at(place, bytes));
        drop(recent);
        at.or_else(|| self.map(way, range, shift))
    }

    /// Whether this region of the peer lies in its memory file.
    pub(crate) fn may_map(&self, handle: u32) -> bool {
        let places = self.nic.places();
        places.is_some_and(|places| places.shift(handle).is_some())
    }

    /// Maps the region around a range, or finds it mapped.
    #[cold]
    fn map(&self, way: Way, range: &Segment, shift: u64) -> Option<*mut u8> {
        let Reach::Process(thread) = self.reach() else {
            return None;
        };
        let regions = self.nic.regions();
        let region = &regions[range.handle as usize & (regions.len() - 1)];
        let [start, end] = [&region.base, &region.end]
            .map(|address| address.load(Ordering::Relaxed).wrapping_add(shift));
        let places = self.nic.places()?;
        let windows = self.nic.windows();
        let window = windows.get(thread, way, places, range.handle, start..end)?;
        let place = range.address.wrapping_add(shift);
        let at = window.at(place, range.length.into());
        *self.recent[usize::from(way == Way::Write)].borrow_mut() = Some(window);
        at
    }

    /// Its process.
    pub(crate) fn pid(&self) -> u32 {
        self.pid
    }

    /// Whether this process has both ends of the connection.
    pub(crate) fn is_here(&self) -> bool {
        ENDS.lock().get(&self.key) == Some(&2)
    }

    /// How this side accesses the peer's memory.
    #[inline(always)]
    pub(crate) fn reach(&self) -> Reach {
        self.reach.get()
    }

    pub(crate) fn set_reach(&self, reach: Reach) {
        self.reach.set(reach);
    }

    /// Whether sends complete when the peer has consumed them (Reliable Reception).
    #[inline(always)]
    pub(crate) fn reception(&self) -> bool {
        self.reception
    }

    /// Slots of the peer that this side has consumed: the number of the next one.
    #[inline(always)]
    pub(crate) fn consumed(&self) -> u32 {
        self.consumed.get()
    }

    #[inline(always)]
    pub(crate) fn set_consumed(&self, consumed: u32) {
        self.consumed.set(consumed);
    }

    /// Receive descriptors posted so far, as the peer counts them.
    #[inline(always)]
    pub(crate) fn posted(&self, port: &Port) -> u32 {
        port.posted(Queue::Recv).wrapping_sub(self.posted_base)
    }

    /// Publishes the count of posted receive descriptors.
    #[inline(always)]
    pub(crate) fn publish_posted(&self, port: &Port) {
        // Release: the peer may send as soon as it sees the count.
        self.own()
            .posted
            .store(self.posted(port), Ordering::Release);
    }

    /// Publishes the count of consumed slots, for a peer that polls it.
    #[inline(always)]
    pub(crate) fn publish_consumed(&self) {
        // Release: the payload of these slots has been read.
        self.own()
            .consumed
            .store(self.consumed(), Ordering::Release);
    }

    /// Publishes the count of consumed slots, and wakes a peer that waits for it.
    #[inline(always)]
    pub(crate) fn acknowledge(&self) {
        self.publish_consumed();
        if self.side().waiting.load(Ordering::Relaxed) != 0 {
            self.alert();
        } else if self.reception {
            self.set_ready_bit();
            self.wake();
        }
    }

    /// Whether the peer finds its VI by the ready bit: it is on a completion queue, or a thread waits for it.
    #[inline(always)]
    pub(crate) fn wants_ready_bit(&self) -> bool {
        self.side().marks.load(Ordering::Relaxed) != 0
    }

    /// Sets the ready bit of the peer's VI if the peer polls ready bits.
    #[inline(always)]
    pub(crate) fn set_ready_bit(&self) {
        if self.wants_ready_bit() {
            self.nic.ready().set(self.index);
        }
    }

    /// Wakes the peer if it sleeps, after something has been published and its ready bit set.
    #[inline(always)]
    pub(crate) fn wake(&self) {
        self.nic.bell().ring_if_wanted(self.fences);
    }

    /// Sets the ready bit and wakes the peer even if it does not poll ready bits.
    #[cold]
    pub(crate) fn alert(&self) {
        self.nic.ready().set(self.index);
        fence(Ordering::SeqCst);
        self.nic.bell().ring_if_wanted(true);
    }

    /// Alerts a peer whose sends wait, after something has been published that may let them go on.
    pub(crate) fn alert_if_waiting(&self) {
        fence(Ordering::SeqCst);
        if self.side().waiting.load(Ordering::Relaxed) != 0 {
            self.alert();
        }
    }

    /// Whether sends wait for the peer.
    #[inline(always)]
    pub(crate) fn is_waiting(&self) -> bool {
        self.waiting.get()
    }

    /// Publishes whether sends wait for the peer, which then alerts this side.
    #[cold]
    pub(crate) fn set_waiting(&self, waiting: bool) {
        if self.waiting.replace(waiting) == waiting {
            return;
        }
        self.own()
            .waiting
            .store(u32::from(waiting), Ordering::Release);
        // Pairs with the fence in `alert_if_waiting`; otherwise the watch thread polls from time to time.
        fence(Ordering::SeqCst);
        self.watch.set_waiting(self.own_index, waiting);
    }

    /// Asks the peer to set this VI's ready bit, or not to.
    pub(crate) fn ask_for_ready_bit(&self, wanted: bool) {
        self.watch.set_marked(self.own_index, wanted);
        self.own().marks.store(u32::from(wanted), Ordering::Release);
        fence(Ordering::SeqCst);
    }

    /// Publishes why this side closes the connection; the first reason counts.
    #[cold]
    pub(crate) fn close(&self, reason: Closed) {
        // The peer may see the reason first; what was received counts as received.
        self.publish_consumed();
        let closed = &self.own().closed;
        let first = closed.compare_exchange(0, reason.0, Ordering::SeqCst, Ordering::SeqCst);
        // A peer that has closed waits for nothing. If both close now, at least one sees that the other has.
        if first.is_ok() && self.side().closed.load(Ordering::SeqCst) == 0 {
            self.alert();
        }
    }

    /// Why the peer has closed the connection, if it has.
    pub(crate) fn closed(&self) -> Option<Closed> {
        // Acquire pairs with the peer's `close`: what it sent before is in the ring.
        let closed = self.side().closed.load(Ordering::Acquire);
        (closed != 0).then_some(Closed(closed))
    }

    /// Notes that the peer was killed.
    pub(crate) fn set_dead(&self) {
        self.dead.set(true);
    }

    /// Whether a copy of the peer is abandoned: the connection ended without waiting for it.
    pub(crate) fn has_abandoned(&self) -> bool {
        self.abandoned.get().is_some()
    }

    /// Whether the copy that `since` names is abandoned; `is_copying` wrote it there.
    pub(crate) fn is_abandoned(&self, since: u64) -> bool {
        self.abandoned.get() == Some(since as u32)
    }

    pub(crate) fn abandon(&self, since: u64) {
        self.abandoned.set(Some(since as u32));
    }

    /// Whether the peer may still access this process's memory as it was permitted before the first call, which is the
    /// one with 0. The peer checks `closed` and the region only after it has set `copying`, so later copies do not count.
    pub(crate) fn is_copying(&self, since: &mut u64) -> bool {
        if self.dead.get() {
            return false;
        }
        fence(Ordering::SeqCst);
        let copying = self.side().copying.load(Ordering::SeqCst);
        if *since == 0 && !copying.is_multiple_of(2) {
            *since = u64::from(copying);
        }
        *since != 0 && *since == u64::from(copying)
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        self.set_waiting(false);
        self.watch.remove(self.own_index);
        let mut ends = ENDS.lock();
        if let Some(count) = ends.get_mut(&self.key) {
            *count -= 1;
            if *count == 0 {
                ends.remove(&self.key);
            }
        }
    }
}

/// How many ends of each connection are in this process, by the connection's key.
static ENDS: Mutex<BTreeMap<u64, u32>> = Mutex::new(BTreeMap::new());
