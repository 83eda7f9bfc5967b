//! Who is on the link (spec §3.30): WHO to all, some rounds of it, and every HERE that comes back.

#![forbid(unsafe_code)]

use std::collections::BTreeSet;

use kagent_proto::{NEIGHBOURS_MAX, Status};
use vipl_wire::setup::{Body, Frame};

use crate::agent::{Agent, Caller};
use crate::call::{CallKey, CallKind, Owner};
use crate::denial::Outcome;
use crate::link::{LinkId, Mac};
use crate::nic::NicId;
use crate::timer::deadline;

/// How often it is asked; any frame may get lost.
const ROUNDS: u32 = 4;
const ROUND_MS: u64 = 60;
/// The address of all hosts.
const ALL: Mac = [0xFF; 6];

/// A question under way.
#[derive(Debug)]
pub(crate) struct Search {
    link: LinkId,
    number: u64,
    round: u32,
    found: BTreeSet<Mac>,
}

impl<F: Clone> Agent<F> {
    /// Begins to ask.
    pub(crate) fn search(&mut self, caller: Caller, nic: NicId) -> Outcome {
        self.admit_call(caller)?;
        let link = self.link_of(nic).ok_or(Status::INVALID)?;
        let search = Search {
            link,
            number: self.keys.next_key(),
            round: 0,
            found: BTreeSet::new(),
        };
        let number = search.number;
        let key = self.keep_call(Owner::Process(caller, nic), CallKind::Search(search), None);
        self.searches.insert((link, number), key);
        self.search_on(key);
        Ok(())
    }

    /// The next round, or the end.
    pub(crate) fn search_on(&mut self, key: CallKey) {
        let until = deadline(self.now, ROUND_MS);
        let Some(call) = self.calls.get_mut(&key) else {
            return;
        };
        let CallKind::Search(search) = &mut call.kind else {
            return;
        };
        if search.round < ROUNDS {
            search.round += 1;
            let (link, exchange) = (search.link, search.number);
            call.deadline = until;
            self.timers.start(until, key);
            let body = Body::Who;
            return self.send_to(link, ALL, &Frame { exchange, body });
        }
        let Some(call) = self.take_call(key) else {
            return;
        };
        if let (CallKind::Search(search), Owner::Process(caller, nic)) = (call.kind, call.owner) {
            let found: Vec<Mac> = search.found.into_iter().collect();
            if let Err(status) = self.list_neighbours(caller, nic, &found) {
                self.done(caller, status);
            }
        }
    }

    /// The call has ended.
    pub(crate) fn stop_search(&mut self, search: &Search) {
        self.searches.remove(&(search.link, search.number));
    }

    /// WHO.
    pub(crate) fn answer_search(&mut self, link: LinkId, from: Mac, exchange: u64) {
        let body = Body::Here;
        self.send_to(link, from, &Frame { exchange, body });
    }

    /// HERE. More than can be told are not kept.
    pub(crate) fn found(&mut self, link: LinkId, host: Mac, exchange: u64) {
        let call = self
            .searches
            .get(&(link, exchange))
            .and_then(|key| self.calls.get_mut(key));
        if let Some(CallKind::Search(search)) = call.map(|call| &mut call.kind)
            && search.found.len() < NEIGHBOURS_MAX
        {
            search.found.insert(host);
        }
    }
}
