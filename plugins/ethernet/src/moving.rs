//! Following a peer to another address of the network.
//!
//! The newest sealed frame shows the address of its sender, unless an attacker who reads the network has sent a copy of
//! it from elsewhere, faster. So both addresses are probed, each with a TRY of a length of its own, which only the peer can
//! answer. Frames go to the new address only if it answers and the old one does not: an attacker who only copies frames
//! cannot keep the old address from answering (RFC 9000 §8.2, §9.3).

use vipl_netio::{Address, Header};
use vipl_plugin_sdk::Host;
use vipl_plugin_sdk::abi::VIPL_LOG_INFO;
use vipl_wire::{ASKS, Connection, Kind};

use crate::device::count;
use crate::env::ViCall;
use crate::schedule::NEVER;

/// Probes that the old address must leave unanswered.
const ASKED: u32 = 3;
/// Probes after which the new address is given up.
const ASKED_MAX: u32 = 10;
/// Shortest time to wait for an answer, in nanoseconds.
const WAIT_MIN_NS: u64 = 50_000_000;
/// Pause after an address that was not followed, in nanoseconds: copies may come for as long as the connection lives.
const PAUSE_NS: u64 = 1_000_000_000;

/// Probes of an old and a new address.
struct Probes {
    from: Address,
    there: Header,
    /// Lengths of the TRYs: to the old address, and to the new one.
    lengths: [u16; 2],
    asked: u32,
    answered: bool,
}

/// Where the peer of a connection may have moved.
pub(crate) struct Moving {
    probes: Option<Box<Probes>>,
    /// When to probe again, or when another address may be probed.
    due_ns: u64,
    /// Length of the next TRY.
    next: u16,
}

impl Moving {
    pub(crate) fn new() -> Moving {
        Moving {
            probes: None,
            due_ns: 0,
            next: ASKS.start,
        }
    }

    /// When to call [`Moving::go_on`].
    #[inline(always)]
    pub(crate) fn deadline(&self) -> u64 {
        match self.probes {
            Some(_) => self.due_ns,
            None => NEVER,
        }
    }

    /// Handles the sender's address of a sealed frame, which the engine has taken.
    pub(crate) fn note_sender(
        &mut self,
        connection: &mut Connection,
        (frame, from): (&[u8], Option<Address>),
        now: u64,
        env: &mut ViCall,
    ) {
        if Kind::Tried.is_of(frame) {
            self.answered(connection, now);
        }
        let (Some(from), Some(known)) = (from, env.out.carrier.peer()) else {
            return;
        };
        if from == known {
            return;
        }
        let device = env.application.device;
        let header = device.uplink.as_ref().and_then(|up| up.medium.answer(from));
        let Some(there) = header else { return };
        if Kind::Try.is_of(frame) {
            // The peer may be probing from its new address, and the old one may reach no host.
            let here = env.out.carrier.redirect(there);
            connection.answer_from_here(frame, env);
            env.out.carrier.redirect(here);
        }
        if connection.is_newest() && self.probes.is_none() && self.due_ns <= now {
            self.probes = Some(Box::new(Probes {
                from,
                there,
                lengths: [0; 2],
                asked: 0,
                answered: false,
            }));
            self.ask(connection, now, env);
        }
    }

    /// Handles the answer to a TRY.
    fn answered(&mut self, connection: &mut Connection, now: u64) {
        let answer = connection.take_answer();
        let Some(probes) = &mut self.probes else {
            return;
        };
        let [old, new] = probes.lengths.map(Some);
        if answer == old {
            self.probes = None;
            self.due_ns = now + PAUSE_NS;
        } else if answer == new {
            probes.answered = true;
        }
    }

    /// Continues after the time to wait for answers.
    #[cold]
    pub(crate) fn go_on(&mut self, connection: &mut Connection, now: u64, env: &mut ViCall) {
        let Some(probes) = &self.probes else {
            return;
        };
        let (asked, answered) = (probes.asked, probes.answered);
        if asked < ASKED || (!answered && asked < ASKED_MAX) {
            return self.ask(connection, now, env);
        }
        self.due_ns = now + PAUSE_NS;
        let probes = self.probes.take();
        if let Some(probes) = probes.filter(|probes| probes.answered) {
            follow(&probes, connection, now, env);
        }
    }

    /// Probes both addresses.
    fn ask(&mut self, connection: &mut Connection, now: u64, env: &mut ViCall) {
        let Some(probes) = &mut self.probes else {
            return;
        };
        if probes.asked == 0 {
            // Late answers to earlier probes are for other lengths.
            let first = self.next;
            probes.lengths = [first, first + 1];
            let wraps = first + 3 >= ASKS.end;
            self.next = if wraps { ASKS.start } else { first + 2 };
        }
        probes.asked += 1;
        let [old, new] = probes.lengths;
        connection.ask(old, now, env);
        let here = env.out.carrier.redirect(probes.there);
        connection.ask(new, now, env);
        env.out.carrier.redirect(here);
        self.due_ns = now + connection.answer_ns().max(WAIT_MIN_NS);
    }
}

/// Sends frames to the new address from now on.
fn follow(probes: &Probes, connection: &mut Connection, now: u64, env: &mut ViCall) {
    let (device, from) = (env.application.device, probes.from);
    let known = env.out.carrier.peer();
    env.out.carrier.redirect(probes.there);
    let Some(known) = known else { return };
    if !from.is_same_host(&known) {
        connection.path_is_new(now);
    }
    count(device.counters.moved, 1);
    let text = format!("{}: the peer at {known} is at {from} now", device.name);
    Host::get().log(VIPL_LOG_INFO, &text);
}
