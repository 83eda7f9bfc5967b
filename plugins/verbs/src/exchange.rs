//! Both records of a connection, and how they travel: on one host by the boards of its segment, else by the uplink.

use std::sync::Arc;

use crate::record::{Boards, Record};
use crate::uplink::Remote;

/// Both records of a connection.
pub(crate) struct Exchange {
    way: Way,
    seen: u64,
}

/// How the records travel.
#[derive(Clone)]
pub(crate) enum Way {
    Local(Arc<Boards>),
    Remote(Arc<Remote>),
}

impl Way {
    /// A number that changes with each record of the peer.
    pub(crate) fn version(&self) -> u64 {
        match self {
            Way::Local(boards) => boards.version(),
            Way::Remote(remote) => remote.version(),
        }
    }
}

impl Exchange {
    pub(crate) fn new(way: Way) -> Exchange {
        Exchange { way, seen: 0 }
    }

    pub(crate) fn way(&self) -> &Way {
        &self.way
    }

    /// Tells the peer this side's record.
    pub(crate) fn publish(&self, record: &Record) {
        match &self.way {
            Way::Local(boards) => boards.write(record),
            Way::Remote(remote) => remote.publish(record),
        }
    }

    /// The peer's record, if it is new. Costs a load if not.
    #[inline(always)]
    pub(crate) fn update(&mut self) -> Option<Record> {
        match &self.way {
            Way::Local(boards) => boards.read(&mut self.seen),
            Way::Remote(remote) => remote.read(&mut self.seen),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use vipl_plugin_sdk::shm::{self, Mapping};

    use super::*;
    use crate::record::{SEGMENT, state};

    #[test]
    fn the_newest_record_counts() {
        let memory = shm::create(c"test", SEGMENT).expect("a segment");
        // SAFETY: a system call; the descriptor is new.
        let bell = unsafe { shm::made(libc::eventfd(0, libc::EFD_NONBLOCK)) }.expect("an eventfd");
        let side = |side| {
            let segment = Mapping::open(memory.as_raw_fd(), SEGMENT, true).expect("mapped");
            let bell = bell.try_clone().expect("another");
            Exchange::new(Way::Local(Arc::new(Boards::new(segment, side, bell))))
        };
        let (left, mut right) = (side(0), side(1));
        assert_eq!(right.update(), None);
        let mut record = Record::default();
        for taken in 1..4 {
            record.taken = taken;
            record.state = state::READY;
            left.publish(&record);
        }
        assert_eq!(right.update(), Some(record));
        assert_eq!(right.update(), None);
        let mut count = 0u64;
        // SAFETY: room for eight bytes.
        let read = unsafe { libc::read(bell.as_raw_fd(), (&raw mut count).cast(), 8) };
        assert_eq!((read, count), (8, 3));
    }
}
