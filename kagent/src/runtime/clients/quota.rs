//! Fair reading: a number of packets per user in one pass of the poll loop.
//!
//! A limit per process alone would serve a user with a thousand processes a thousand times as much as another
//! user. Unread sockets stay ready, and epoll reports ready sockets in rotation.

#![forbid(unsafe_code)]

use std::collections::BTreeMap;

/// Maximum packets per user and pass.
const PER_PASS: usize = 64;

/// Packets read in this pass.
#[derive(Debug, Default)]
pub(super) struct Quota {
    read: BTreeMap<u32, usize>,
}

impl Quota {
    /// Starts a new pass.
    pub(super) fn begin(&mut self) {
        self.read.clear();
    }

    /// Whether [`take`](Self::take) would succeed.
    pub(super) fn has_some(&self, user: u32) -> bool {
        self.read.get(&user).is_none_or(|read| *read < PER_PASS)
    }

    /// Counts one packet. Returns false if the user has reached the limit of this pass.
    pub(super) fn take(&mut self, user: u32) -> bool {
        let read = self.read.entry(user).or_default();
        *read += 1;
        *read <= PER_PASS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_user_does_not_use_up_the_turns_of_another() {
        let mut quota = Quota::default();
        for _ in 0..2 {
            quota.begin();
            let taken = (0..1000).filter(|_| quota.take(7)).count();
            assert_eq!(taken, PER_PASS);
            assert!(!quota.has_some(7) && quota.has_some(8));
            assert!(quota.take(8));
        }
    }
}
