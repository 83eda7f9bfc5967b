//! Rate limit for log lines about dropped datagrams, which anyone can send: one per source and minute, for a
//! bounded number of sources.

#![forbid(unsafe_code)]

use std::collections::HashMap;
use std::net::IpAddr;

/// Time between two lines about one source.
const PAUSE_NS: u64 = 60_000_000_000;
const SOURCES_MAX: usize = 1024;

/// The time of the last log line of each source.
#[derive(Debug, Default)]
pub(super) struct Drops {
    logged: HashMap<IpAddr, u64>,
}

impl Drops {
    /// Whether to log a datagram from this source.
    pub(super) fn may_log(&mut self, now: u64, from: IpAddr) -> bool {
        let due = |last: u64| now.saturating_sub(last) >= PAUSE_NS;
        if let Some(last) = self.logged.get_mut(&from) {
            let due = due(*last);
            if due {
                *last = now;
            }
            return due;
        }
        if self.logged.len() >= SOURCES_MAX {
            self.logged.retain(|_, last| !due(*last));
        }
        let room = self.logged.len() < SOURCES_MAX;
        if room {
            self.logged.insert(from, now);
        }
        room
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_for_a_source_in_a_minute_and_a_bounded_number_of_sources() {
        let mut drops = Drops::default();
        let source = |number: u32| IpAddr::from(number.to_be_bytes());
        let last =
            |drops: &mut Drops, now| (0..5000).filter(|n| drops.may_log(now, source(*n))).count();
        assert_eq!(last(&mut drops, 7), SOURCES_MAX);
        assert_eq!(last(&mut drops, 6 + PAUSE_NS), 0);
        assert_eq!(last(&mut drops, 7 + PAUSE_NS), SOURCES_MAX);
        assert_eq!(drops.logged.len(), SOURCES_MAX);
    }
}
