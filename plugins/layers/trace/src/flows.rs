//! Which message of one side is which of the other: the number of the connection, that both know, its direction, and the
//! number of the message in that direction. On the reliable levels messages arrive in order and none is missing, so both
//! sides count the same; on the unreliable one they are not joined.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
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

/// The connections of all VIs.
#[derive(Default)]
pub(crate) struct Flows {
    flows: RwLock<HashMap<u64, Arc<Flow>>>,
    /// Counts changes, so that threads know whether what they remember is true.
    changes: AtomicU64,
}

/// What a thread remembers of the last VI that it used.
#[derive(Default)]
pub(crate) struct Last {
    vi: u64,
    changes: u64,
    flow: Option<Arc<Flow>>,
}

impl Flows {
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
        if let Ok(mut flows) = self.flows.write() {
            flows.insert(vi, flow);
        }
        self.changes.fetch_add(1, Ordering::Release);
    }

    /// A VI is not connected any more.
    pub(crate) fn end(&self, vi: u64) {
        if let Ok(mut flows) = self.flows.write() {
            flows.remove(&vi);
        }
        self.changes.fetch_add(1, Ordering::Release);
    }

    /// The connection of a VI.
    #[inline]
    pub(crate) fn of<'a>(&self, vi: u64, last: &'a mut Last) -> Option<&'a Flow> {
        let changes = self.changes.load(Ordering::Acquire);
        if last.vi != vi || last.changes != changes {
            let found = self.flows.read().ok()?.get(&vi).cloned();
            *last = Last {
                vi,
                changes,
                flow: found,
            };
        }
        last.flow.as_deref()
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
}
