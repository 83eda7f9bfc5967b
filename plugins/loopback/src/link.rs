//! A connection: what this side knows of it, and how it tells its peer.

use std::cell::Cell;
use std::collections::{BTreeMap, VecDeque};
use std::mem::offset_of;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use vipl_guard::Segment;
use vipl_plugin_sdk::abi::VIPL_OPTION_CARRY_IMMEDIATE;
use vipl_plugin_sdk::{Port, Queue};
use vipl_sys::mutex::{Mutex, MutexGuard};
use vipl_sys::shm::Mapping;

use crate::outbox::Outbox;
use crate::ring::{Arrival, Ends};
use crate::road::{Choice, Gauge};
use crate::shared::SharedNic;
use crate::watch::Watch;

/// How this side touches the partner's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reach {
    /// Not known yet: the partner is not there.
    Unknown,
    /// Both sides are in this process.
    Same,
    /// By `process_vm_readv` and `process_vm_writev` on this thread of its process.
    Process(i32),
    /// Not at all.
    None,
}

/// A send-queue descriptor that has been processed and is not complete yet. They complete in order.
pub(crate) struct Outstanding {
    /// Slots the partner must have consumed.
    pub(crate) need: u32,
    /// Final status.
    pub(crate) status: u32,
    /// The connection ends with it, for this cause.
    pub(crate) cause: Option<i32>,
}

/// A message or RDMA operation that travels in pieces: the head of the send queue.
pub(crate) struct Pieces {
    pub(crate) offset: u32,
    /// Length of the whole, which the program must not change meanwhile.
    pub(crate) total: u32,
}

/// A message that arrives in pieces, for the head of the receive queue.
pub(crate) struct Assembly {
    pub(crate) segments: Vec<Segment>,
    /// Number of the receive descriptor.
    pub(crate) number: u32,
    /// Length of the whole message, which every piece repeats.
    pub(crate) total: u32,
    /// The receive descriptor is complete already, with an error; the rest is dropped.
    pub(crate) dropped: bool,
}

/// An RDMA Read whose data this side sends.
pub(crate) struct Serving {
    pub(crate) address: u64,
    pub(crate) handle: u32,
    pub(crate) length: u32,
    pub(crate) offset: u32,
}

/// This side's copies that the partner may help with, at most one at a time.
#[derive(Default)]
pub(crate) struct Help {
    /// Of the copy that was shared last.
    pub(crate) generation: u32,
    /// The partner still works on it.
    pub(crate) open: Option<Open>,
    /// What became of the RDMA operation at the head of the queue, if it was shared.
    pub(crate) settled: Option<Settled>,
    /// Copies that are made without asking, because the partner did not help; how many they were last time.
    pub(crate) alone: u32,
    pub(crate) alone_last: u32,
}

impl Help {
    #[inline(always)]
    pub(crate) fn is_open(&self) -> bool {
        self.open.is_some()
    }
}

/// A copy whose helper has not come to an end.
#[derive(Clone, Copy)]
pub(crate) struct Open {
    /// Units that the helper took at most.
    pub(crate) theirs: u32,
    /// This side could not copy a part: all of it is for nothing.
    pub(crate) failed: bool,
    /// Whose copy it is.
    pub(crate) of: Of,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Of {
    /// The message in this slot.
    Message(u32),
    /// An RDMA operation of this length.
    Rdma(u32),
}

#[derive(Clone, Copy)]
pub(crate) struct Settled {
    pub(crate) length: u32,
    pub(crate) shared: Shared,
}

/// What became of a shared copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shared {
    /// All of it is there.
    Done,
    /// The helper still copies.
    Later,
    /// It was not shared, or that failed: this side copies all of it.
    Alone,
}

/// A connection. What every message touches comes first, in as few cache lines as it takes: a program with many
/// connections finds each of them cold.
#[repr(C, align(64))]
pub(crate) struct Link {
    pub(crate) ends: Ends,

    pub(crate) outbox: Outbox,
    /// Next incoming slot.
    pub(crate) arrived: u32,
    /// Receive descriptors that the partner is known to have posted.
    pub(crate) partner_posted: u32,
    /// Messages sent that used one of them.
    pub(crate) messages: u32,
    /// `posted` of the receive queue when nothing had been received.
    pub(crate) posted_base: u32,
    pub(crate) partner_index: u32,
    /// Nothing is sent any more: an error is on its way.
    pub(crate) halted: bool,
    pub(crate) waiting: bool,
    /// Sends are complete when the partner has consumed them, and each side tells the other.
    pub(crate) reception: bool,
    pub(crate) fences: bool,
    /// The last look found an empty ring, and nothing else to do; and the next may take one message and no more.
    pub(crate) idle: bool,
    /// Looks may do that: neither a mark nor a receipt tells of several messages.
    pub(crate) takes_one: bool,
    pub(crate) carry_immediate: bool,
    pub(crate) reading: bool,
    pub(crate) writing: Option<bool>,
    pub(crate) partner_nic: Arc<SharedNic>,

    /// Where the payload of the next message is looked for in advance.
    pub(crate) expected: Option<u32>,
    pub(crate) sending: Option<Pieces>,
    /// The generation of the partner's board that this side has looked at.
    pub(crate) board_seen: u32,
    pub(crate) reach: Cell<Reach>,
    pub(crate) serving: Option<Box<Serving>>,
    /// Partners are asked to mark this VI.
    pub(crate) wants_marks: bool,
    /// When something was sent whose receipt is awaited, or that was last looked at, in ticks.
    pub(crate) looked: u64,

    pub(crate) outstanding: VecDeque<Outstanding>,
    /// This side's copies that the partner may help with.
    pub(crate) help: Help,

    pub(crate) partner_pid: u32,
    /// The partner was killed: it copies no more, whatever it said last.
    pub(crate) partner_dead: bool,
    pub(crate) partner_rdma_write: bool,
    pub(crate) partner_rdma_read: bool,
    /// The partner's copy that did not come to an end in time and cost the connection.
    pub(crate) given_up: Option<u32>,
    pub(crate) key: u64,
    pub(crate) own_index: u32,
    pub(crate) receiving: Option<Assembly>,
    /// Which way large messages go to the partner, and what those of the partner cost.
    pub(crate) road: Choice,
    pub(crate) gauge: Gauge,
    /// Slot behind the last piece of an RDMA Write that went through the ring.
    pub(crate) written: u32,
    pub(crate) watch: Arc<Watch>,
    /// The segment; last, so that it goes last.
    pub(crate) _segment: Mapping,
}

// A small message, and a look that finds nothing, need no other line.
const _: () = assert!(offset_of!(Link, outstanding) <= 3 * 64);

impl Link {
    /// The next slot, if it has arrived.
    #[inline(always)]
    pub(crate) fn next_arrival(&self) -> Option<Arrival> {
        self.ends.arrival(self.arrived)
    }

    /// Receive descriptors posted so far, as the partner counts them.
    #[inline(always)]
    pub(crate) fn posted_count(&self, port: &Port) -> u32 {
        port.posted(Queue::Recv).wrapping_sub(self.posted_base)
    }

    /// Whether the partner finds this VI by its mark: it is on a completion queue, or somebody waits to be called.
    #[inline(always)]
    pub(crate) fn partner_wants_marks(&self) -> bool {
        self.ends.partner().marks.load(Ordering::Relaxed) != 0
    }

    /// Tells the partner's polls that there is something new, if they look at marks.
    #[inline(always)]
    pub(crate) fn mark(&self) {
        if self.partner_wants_marks() {
            self.partner_nic.ready().set(self.partner_index);
        }
    }

    /// Wakes the partner if it sleeps, after something has been published and marked.
    #[inline(always)]
    pub(crate) fn wake_partner(&self) {
        self.partner_nic.bell().ring_if_wanted(self.fences);
    }

    /// Marks and wakes the partner even if it does not look at marks.
    #[cold]
    pub(crate) fn alert(&self) {
        self.partner_nic.ready().set(self.partner_index);
        fence(Ordering::SeqCst);
        self.partner_nic.bell().ring_if_wanted(true);
    }

    /// Partners are asked to mark this VI, or no longer.
    pub(crate) fn set_wants_marks(&mut self, wanted: bool) {
        self.wants_marks = wanted;
        self.takes_one = !(wanted || self.reception);
        self.idle = false;
    }

    /// Says whether sends wait for the partner, so that it tells when it has got on.
    #[cold]
    pub(crate) fn set_waiting(&mut self, waiting: bool) {
        if waiting == self.waiting {
            return;
        }
        self.waiting = waiting;
        self.idle = false;
        self.ends
            .own()
            .waiting
            .store(u32::from(waiting), Ordering::Release);
        // Pairs with the fence in `attach`; otherwise the watch thread looks from time to time.
        fence(Ordering::SeqCst);
        self.watch.set_waiting(self.own_index, waiting);
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.set_waiting(false);
        self.watch.remove(self.own_index);
        leave(self.key);
    }
}

/// Whether immediate data travels without the flag.
pub(crate) fn carries_immediate(port: &Port) -> bool {
    port.options() & VIPL_OPTION_CARRY_IMMEDIATE != 0
}

/// How many ends of each connection are in this process.
static ENDS: Mutex<BTreeMap<u64, u32>> = Mutex::new(BTreeMap::new());

pub(crate) fn ends_here() -> MutexGuard<'static, BTreeMap<u64, u32>> {
    ENDS.lock()
}

/// Whether this process has both ends of a connection.
pub(crate) fn both_ends_are_here(key: u64) -> bool {
    ends_here().get(&key) == Some(&2)
}

/// One end has gone.
fn leave(key: u64) {
    let mut ends = ends_here();
    if let Some(count) = ends.get_mut(&key) {
        *count -= 1;
        if *count == 0 {
            ends.remove(&key);
        }
    }
}
