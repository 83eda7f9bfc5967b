//! When a process ended, as well as its pages and those of others tell.

use vipl_pages::read::Vi;
use vipl_pages::record::Happened;

/// What tells it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sign {
    /// It called `exit`.
    Exit,
    /// This process, its peer, learnt that it had gone.
    Peer(u64),
    /// Nothing does: its pages have no later time.
    Latest,
}

/// The end of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct End {
    /// Monotonic, in nanoseconds.
    pub(crate) time: u64,
    pub(crate) sign: Sign,
}

impl End {
    /// The end of a process by the time at which it called `exit`, or 0, the latest time in its pages, and when other processes lost
    /// their connections with it.
    pub(crate) fn of(exit: u64, latest: u64, losses: &[(u64, u64)], now: u64) -> End {
        // A connection that was lost before its last sign was lost by something else, or was another process's of this number.
        let losses = losses.iter().filter(|(time, _)| *time >= latest).min();
        let (time, sign) = match (exit, losses) {
            (1.., _) => (exit, Sign::Exit),
            (0, Some((time, peer))) => (*time, Sign::Peer(*peer)),
            (0, None) => (latest, Sign::Latest),
        };
        // A file may say anything.
        let time = time.min(now);
        End { time, sign }
    }
}

/// The latest time at which a VI did something; 0: none is known.
pub(crate) fn latest(vi: &Vi) -> u64 {
    let events = vi.events.iter().map(|event| event.time);
    let sample = vi.sampled.iter().map(|sampled| sampled.latest);
    events.chain(sample).fold(0, u64::max)
}

/// When a VI lost its connections with this process, in other ways than by VipDisconnect.
pub(crate) fn lost(vi: &Vi, pid: u64) -> Vec<u64> {
    let mut peer = None;
    let mut times = Vec::new();
    for event in &vi.events {
        match event.happened {
            Happened::Connected(process) => peer = Some(u64::from(process)),
            Happened::PeerEnded(false) if peer == Some(pid) => times.push(event.time),
            _ => {}
        }
    }
    times
}

#[cfg(test)]
mod tests {
    use vipl_pages::read::{Event, Sampled};

    use super::*;

    #[test]
    fn the_end_is_known_by_the_best_sign() {
        let end = |exit, latest, losses: &[(u64, u64)]| {
            let end = End::of(exit, latest, losses, 1000);
            (end.time, end.sign)
        };
        assert_eq!(end(0, 100, &[]), (100, Sign::Latest));
        assert_eq!(end(0, 100, &[(700, 2), (600, 3)]), (600, Sign::Peer(3)));
        // It was there later than one of its peers says.
        assert_eq!(end(0, 650, &[(700, 2), (600, 3)]), (700, Sign::Peer(2)));
        assert_eq!(end(0, 800, &[(700, 2)]), (800, Sign::Latest));
        assert_eq!(end(900, 800, &[(950, 2)]), (900, Sign::Exit));
        assert_eq!(end(u64::MAX, 800, &[]), (1000, Sign::Exit));
        assert_eq!(end(0, u64::MAX, &[(700, 2)]), (1000, Sign::Latest));
    }

    #[test]
    fn a_vi_knows_when_it_lost_which_process() {
        let event = |time, happened| Event { time, happened };
        let mut vi = Vi {
            events: vec![
                event(100, Happened::Connected(7)),
                event(200, Happened::PeerEnded(false)),
                event(300, Happened::Connected(8)),
                event(400, Happened::PeerEnded(true)),
                event(500, Happened::Connected(8)),
                event(600, Happened::PeerEnded(false)),
            ],
            ..Vi::default()
        };
        assert_eq!((lost(&vi, 7), lost(&vi, 8)), (vec![200], vec![600]));
        assert!(lost(&vi, 9).is_empty());
        assert_eq!((latest(&vi), latest(&Vi::default())), (600, 0));
        // A message was sampled after the last event.
        vi.sampled = Some(Box::new(Sampled {
            latest: 900,
            ..Sampled::default()
        }));
        assert_eq!(latest(&vi), 900);
    }
}
