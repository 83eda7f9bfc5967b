//! Following a peer to another address of the network.
//!
//! The newest frame with a seal tells where its sender is, unless somebody who reads the network has sent a copy of it from
//! elsewhere, faster. So both places are asked, each with a TRY of a length of its own, which only the peer can answer. Frames
//! go to the new place only if it answers and the old one does not: who only copies cannot keep the old one from answering
//! (RFC 9000 §8.2, §9.3).

use vipl_netio::{Address, Header};
use vipl_plugin_sdk::Host;
use vipl_plugin_sdk::abi::VIPL_LOG_INFO;
use vipl_wire::{ASKS, Connection, Kind};

use crate::device::count;
use crate::env::ViCall;
use crate::schedule::NEVER;

/// Questions that the old place must leave unanswered.
const ASKED: u32 = 3;
/// Questions after which the new place is given up.
const ASKED_MAX: u32 = 10;
/// Shortest time to wait for an answer.
const WAIT_MIN_NS: u64 = 50_000_000;
/// Pause after a place that was not followed: copies may come for as long as the connection lives.
const PAUSE_NS: u64 = 1_000_000_000;

/// The question that is under way.
struct Question {
    from: Address,
    there: Header,
    /// Lengths of its TRYs: for the old place, and for the new one.
    lengths: [u16; 2],
    asked: u32,
    answered: bool,
}

/// Where the peer of a connection may be.
pub(crate) struct Moving {
    question: Option<Box<Question>>,
    /// When to ask again, or when another place may be asked about.
    due_ns: u64,
    /// Length of the next TRY.
    next: u16,
}

impl Moving {
    pub(crate) fn new() -> Moving {
        Moving {
            question: None,
            due_ns: 0,
            next: ASKS.start,
        }
    }

    /// When to call [`Moving::go_on`].
    #[inline(always)]
    pub(crate) fn deadline(&self) -> u64 {
        match self.question {
            Some(_) => self.due_ns,
            None => NEVER,
        }
    }

    /// A frame with a seal has come from here.
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
            // The peer may be asking from where it is now, and the old place may reach nobody.
            let here = env.out.carrier.redirect(there);
            connection.answer_from_here(frame, env);
            env.out.carrier.redirect(here);
        }
        if connection.is_newest() && self.question.is_none() && self.due_ns <= now {
            self.question = Some(Box::new(Question {
                from,
                there,
                lengths: [0; 2],
                asked: 0,
                answered: false,
            }));
            self.ask(connection, now, env);
        }
    }

    /// A TRY has been answered.
    fn answered(&mut self, connection: &mut Connection, now: u64) {
        let answer = connection.take_answer();
        let Some(question) = &mut self.question else {
            return;
        };
        let [old, new] = question.lengths.map(Some);
        if answer == old {
            self.question = None;
            self.due_ns = now + PAUSE_NS;
        } else if answer == new {
            question.answered = true;
        }
    }

    /// The time to wait for answers is over.
    #[cold]
    pub(crate) fn go_on(&mut self, connection: &mut Connection, now: u64, env: &mut ViCall) {
        let Some(question) = &self.question else {
            return;
        };
        let (asked, answered) = (question.asked, question.answered);
        if asked < ASKED || (!answered && asked < ASKED_MAX) {
            return self.ask(connection, now, env);
        }
        self.due_ns = now + PAUSE_NS;
        let question = self.question.take();
        if let Some(question) = question.filter(|question| question.answered) {
            follow(&question, connection, now, env);
        }
    }

    /// Asks both places.
    fn ask(&mut self, connection: &mut Connection, now: u64, env: &mut ViCall) {
        let Some(question) = &mut self.question else {
            return;
        };
        if question.asked == 0 {
            // Late answers to an earlier question are for other lengths.
            let first = self.next;
            question.lengths = [first, first + 1];
            let wraps = first + 3 >= ASKS.end;
            self.next = if wraps { ASKS.start } else { first + 2 };
        }
        question.asked += 1;
        let [old, new] = question.lengths;
        connection.ask(old, now, env);
        let here = env.out.carrier.redirect(question.there);
        connection.ask(new, now, env);
        env.out.carrier.redirect(here);
        self.due_ns = now + connection.answer_ns().max(WAIT_MIN_NS);
    }
}

/// Frames go there from now on.
fn follow(question: &Question, connection: &mut Connection, now: u64, env: &mut ViCall) {
    let (device, from) = (env.application.device, question.from);
    let known = env.out.carrier.peer();
    env.out.carrier.redirect(question.there);
    let Some(known) = known else { return };
    if !from.is_same_host(&known) {
        connection.path_is_new(now);
    }
    count(device.counters.moved, 1);
    let text = format!("{}: the peer at {known} is at {from} now", device.name);
    Host::get().log(VIPL_LOG_INFO, &text);
}
