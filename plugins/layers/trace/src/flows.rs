//! VIs and completion queues, which have short numbers, and the messages of connections.
//!
//! The number of a VI is that of the library: its place in its NIC handle, as `vipstat` shows it. NIC handles and completion queues are
//! counted here.
//!
//! Which message of one side is which of the other: the number of the connection, that both know, its direction, and the
//! number of the message in that direction. On the reliable levels messages arrive in order and none is missing, so both
//! sides count the same; on the unreliable one they are not joined.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, RwLock};

use vipl_abi::VIP_SERVICE_UNRELIABLE;
use vipl_plugin_sdk::layer::Connection;

/// Bits of a message's number; then they begin anew.
const NUMBER_BITS: u32 = 23;

/// The messages of one connection of a VI.
pub(crate) struct Flow {
    id: u64,
    side: u64,
    sent: AtomicU64,
    received: AtomicU64,
}

impl Flow {
    fn name(&self, side: u64, number: u64) -> u64 {
        self.id << (NUMBER_BITS + 1) | side << NUMBER_BITS | number & ((1 << NUMBER_BITS) - 1)
    }

    /// The name of the next message that is sent.
    pub(crate) fn next_sent(&self) -> u64 {
        self.name(self.side, self.sent.fetch_add(1, Ordering::Relaxed))
    }

    /// The name of the next message that is received.
    pub(crate) fn next_received(&self) -> u64 {
        self.name(self.side ^ 1, self.received.fetch_add(1, Ordering::Relaxed))
    }
}

/// What lines have in place of a handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Number {
    pub(crate) number: u32,
    /// Of a VI: the number of its NIC handle, 0 for the first one of the process.
    pub(crate) nic: u32,
}

/// A NIC handle, VI or completion queue.
#[derive(Clone, Default)]
struct Object {
    number: Option<Number>,
    /// Of a VI that is connected.
    flow: Option<Arc<Flow>>,
}

/// All of them, by handle.
#[derive(Default)]
pub(crate) struct Flows {
    objects: RwLock<HashMap<u64, Object>>,
    nics: AtomicU32,
    cqs: AtomicU32,
    /// Counts changes, so that threads know whether what they remember is true.
    changes: AtomicU64,
}

/// What a thread remembers of the last VI that it used.
#[derive(Default)]
pub(crate) struct Last {
    handle: u64,
    changes: u64,
    object: Object,
}

impl Flows {
    /// A NIC is opened; returns its number.
    pub(crate) fn nic_made(&self, handle: u64) -> u32 {
        let number = self.nics.fetch_add(1, Ordering::Relaxed);
        self.made(handle, Number { number, nic: 0 })
    }

    /// A completion queue is made; returns its number.
    pub(crate) fn cq_made(&self, handle: u64) -> u32 {
        let number = self.cqs.fetch_add(1, Ordering::Relaxed);
        self.made(handle, Number { number, nic: 0 })
    }

    /// A VI is made on a NIC handle, with the number that the library has given it.
    pub(crate) fn vi_made(&self, handle: u64, nic: u64, number: u32) -> u32 {
        let mut last = Last::default();
        let nic = self.number(nic, &mut last).map_or(0, |nic| nic.number);
        self.made(handle, Number { number, nic })
    }

    fn made(&self, handle: u64, number: Number) -> u32 {
        let object = Object {
            number: Some(number),
            flow: None,
        };
        self.change(|objects| {
            objects.insert(handle, object);
        });
        number.number
    }

    /// It is destroyed.
    pub(crate) fn destroyed(&self, handle: u64) {
        self.change(|objects| {
            objects.remove(&handle);
        });
    }

    /// A VI is connected.
    pub(crate) fn begin(&self, vi: u64, connection: Connection) {
        if connection.reliability == VIP_SERVICE_UNRELIABLE {
            return;
        }
        let flow = Arc::new(Flow {
            id: connection.id,
            side: u64::from(connection.side & 1),
            sent: AtomicU64::new(0),
            received: AtomicU64::new(0),
        });
        self.change(|objects| objects.entry(vi).or_default().flow = Some(flow));
    }

    /// A VI is not connected any more.
    pub(crate) fn end(&self, vi: u64) {
        self.change(|objects| {
            if let Some(object) = objects.get_mut(&vi) {
                object.flow = None;
            }
        });
    }

    fn change(&self, change: impl FnOnce(&mut HashMap<u64, Object>)) {
        if let Ok(mut objects) = self.objects.write() {
            change(&mut objects);
        }
        self.changes.fetch_add(1, Ordering::Release);
    }

    #[inline]
    fn find<'a>(&self, handle: u64, last: &'a mut Last) -> &'a Object {
        let changes = self.changes.load(Ordering::Acquire);
        if last.handle != handle || last.changes != changes {
            let objects = self.objects.read();
            let found = objects.ok().and_then(|all| all.get(&handle).cloned());
            *last = Last {
                handle,
                changes,
                object: found.unwrap_or_default(),
            };
        }
        &last.object
    }

    /// The connection of a VI.
    #[inline]
    pub(crate) fn of<'a>(&self, vi: u64, last: &'a mut Last) -> Option<&'a Flow> {
        self.find(vi, last).flow.as_deref()
    }

    /// The number of a VI or completion queue; `None` for one that is not known.
    #[inline]
    pub(crate) fn number(&self, handle: u64, last: &mut Last) -> Option<Number> {
        self.find(handle, last).number
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flows(side: u32) -> Flows {
        let flows = Flows::default();
        let connection = Connection {
            id: 0xAB_CDEF,
            side,
            reliability: 2,
        };
        flows.begin(7, connection);
        flows
    }

    #[test]
    fn both_sides_give_a_message_the_same_name() {
        let (one, other) = (flows(0), flows(1));
        let (mut a, mut b) = (Last::default(), Last::default());
        let mut names = Vec::new();
        for _ in 0..3 {
            let sent = one.of(7, &mut a).unwrap().next_sent();
            assert_eq!(other.of(7, &mut b).unwrap().next_received(), sent);
            let back = other.of(7, &mut b).unwrap().next_sent();
            assert_eq!(one.of(7, &mut a).unwrap().next_received(), back);
            names.extend([sent, back]);
        }
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), 6);
        one.end(7);
        assert!(one.of(7, &mut a).is_none());
    }

    #[test]
    fn numbers_are_those_of_vipstat() {
        let flows = Flows::default();
        let mut last = Last::default();
        let number = |number, nic| Some(Number { number, nic });
        assert_eq!((flows.nic_made(1), flows.nic_made(2)), (0, 1));
        assert_eq!((flows.cq_made(3), flows.cq_made(4)), (0, 1));
        assert_eq!(flows.number(5, &mut last), None);
        assert_eq!(flows.vi_made(5, 1, 7), 7);
        assert_eq!(flows.vi_made(6, 2, 7), 7);
        assert_eq!(flows.number(5, &mut last), number(7, 0));
        assert_eq!(flows.number(6, &mut last), number(7, 1));
        flows.destroyed(5);
        assert_eq!(flows.number(5, &mut last), None);
        assert_eq!(flows.number(4, &mut last), number(1, 0));
    }
}
