//! Whose turn it is: so many packets of each user in one pass of the poll loop.
//!
//! A bound for each process alone would let a user with a thousand processes have a thousand turns while
//! another one waits for his. What is left unread stays ready, and epoll hands out ready sockets in turn.

#![forbid(unsafe_code)]

use std::collections::BTreeMap;

/// Most packets of one user in one pass.
const PER_PASS: usize = 64;

/// What has been read in this pass.
#[derive(Debug, Default)]
pub(super) struct Turns {
    read: BTreeMap<u32, usize>,
}

impl Turns {
    /// A new pass begins.
    pub(super) fn begin(&mut self) {
        self.read.clear();
    }

    /// Takes one packet's turn. False: the user has had his in this pass.
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
        let mut turns = Turns::default();
        for _ in 0..2 {
            turns.begin();
            let taken = (0..1000).filter(|_| turns.take(7)).count();
            assert_eq!(taken, PER_PASS);
            assert!(turns.take(8));
        }
    }
}
