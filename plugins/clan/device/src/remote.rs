//! A VI's connection to a VI on another host.

use std::cell::Cell;
use std::sync::Arc;

use vipl_clan_proto::vi::RING;
use vipl_netio::Header;
use vipl_netio::peer::PeerProcess;
use vipl_wire::Connection;

/// A connection to a VI on another host.
pub(crate) struct Away {
    pub(crate) connection: Connection,
    pub(crate) posted: Posted,
    /// The link that its frames take.
    pub(crate) link: usize,
    pub(crate) header: Header,
    pub(crate) mtu: usize,
    /// The peer process.
    pub(crate) peer: Arc<PeerProcess>,
}

/// How far the doorbells of a VI have been seen to be rung.
#[derive(Clone, Debug)]
pub(crate) struct Posted {
    sends: Cell<u32>,
    receives: Cell<u32>,
}

impl Posted {
    /// A connection that begins with these numbers.
    pub(crate) fn new(sends: u32, receives: u32) -> Posted {
        Posted {
            sends: Cell::new(sends),
            receives: Cell::new(receives),
        }
    }

    /// Number behind the last send doorbell that has been rung.
    #[inline(always)]
    pub(crate) fn look_for_sends(&self, completed: u32, rung: impl Fn(u32) -> bool) -> u32 {
        advance(&self.sends, completed, rung)
    }

    /// The same for receives.
    #[inline(always)]
    pub(crate) fn look_for_receives(&self, completed: u32, rung: impl Fn(u32) -> bool) -> u32 {
        advance(&self.receives, completed, rung)
    }

    /// The send doorbell that is rung next.
    pub(crate) fn next_send(&self) -> u32 {
        self.sends.get()
    }
}

/// Goes on over doorbells that have been rung; not over more than there can be, whatever the process says.
#[inline(always)]
fn advance(cursor: &Cell<u32>, completed: u32, rung: impl Fn(u32) -> bool) -> u32 {
    let mut number = cursor.get();
    if (number.wrapping_sub(completed) as i32) < 0 {
        number = completed;
    }
    while number.wrapping_sub(completed) < RING as u32 && rung(number) {
        number = number.wrapping_add(1);
    }
    cursor.set(number);
    number
}
