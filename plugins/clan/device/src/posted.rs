//! Doorbells of a VI with a peer on another host that have been seen.

use std::cell::Cell;

use vipl_clan_proto::vi::{RING, ViPages};

/// Numbers up to which the doorbells of a VI have been seen.
#[derive(Debug, Default)]
pub(crate) struct Posted {
    sends: Cell<u32>,
    receives: Cell<u32>,
}

impl Posted {
    /// A connection begins with these numbers.
    pub(crate) fn begin(&mut self, sends: u32, receives: u32) {
        self.sends.set(sends);
        self.receives.set(receives);
    }

    /// Number after that of the last send doorbell that has been rung.
    #[inline(always)]
    pub(crate) fn poll_sends(&self, pages: &ViPages, completed: u32) -> u32 {
        advance(&self.sends, completed, |number| pages.is_send_rung(number))
    }

    /// The same for receives.
    #[inline(always)]
    pub(crate) fn poll_receives(&self, pages: &ViPages, completed: u32) -> u32 {
        advance(&self.receives, completed, |number| {
            pages.is_receive_rung(number)
        })
    }

    /// The send doorbell that is rung next.
    pub(crate) fn next_send(&self) -> u32 {
        self.sends.get()
    }
}

/// Advances over doorbells that have been rung, over at most as many as the ring has.
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
